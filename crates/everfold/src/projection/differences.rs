//! What differs between the definition that was registered and the one at hand, in words.

use std::time::Duration;

use serde_json::Value;

/// The parts that differ, by the names that people know them by.
pub(crate) fn between(registered: &Value, now: &Value) -> String {
    let named = [
        ("kind", "kind"),
        ("lifecycle", "lifecycle"),
        ("event_types", "events"),
        ("key", "key"),
        ("shards", "shards"),
    ];
    let mut different: Vec<&str> = named
        .into_iter()
        .filter(|(field, _)| registered[*field] != now[*field])
        .map(|(_, name)| name)
        .collect();
    if registered["kind"] == now["kind"] {
        different.extend(in_bodies(&registered["body"], &now["body"]));
    }
    match different.as_slice() {
        [] => "its definition".to_owned(),
        parts => parts.join(", "),
    }
}

/// What became of the settings, in words: `on_error is skip, was stop`.
pub(crate) fn between_settings(before: &Value, now: &Value) -> String {
    let names = now.as_object().into_iter().flat_map(|settings| settings.keys());
    let changed = names.filter(|name| before[*name] != now[*name]);
    let told = changed
        .map(|name| format!("{name} is {}, was {}", setting(&now[name]), setting(&before[name])));
    told.collect::<Vec<_>>().join("; ")
}

/// A setting as people write it.
fn setting(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(_) => match serde_json::from_value::<Duration>(value.clone()) {
            Ok(duration) => format!("{duration:?}"),
            Err(_) => value.to_string(),
        },
        other => other.to_string(),
    }
}

fn in_bodies(registered: &Value, now: &Value) -> Vec<&'static str> {
    let named = [
        ("create", "create.sql"),
        ("apply", "apply.sql"),
        ("upcasters", "upcasters"),
        ("indexes", "indexes"),
    ];
    let differs = |(field, _): &(&str, &str)| registered[*field] != now[*field];
    named.into_iter().filter(differs).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_settings_are_told_as_people_write_them() {
        let before = json!({ "on_error": "stop", "lag_fail": null, "retries": 3 });
        let lag = Duration::from_secs(90);
        let now = json!({ "on_error": "skip", "lag_fail": lag, "retries": 3 });
        let told = between_settings(&before, &now);
        assert_eq!(told, "lag_fail is 90s, was not set; on_error is skip, was stop");
        assert_eq!(
            between_settings(&json!({}), &json!({ "retries": 1 })),
            "retries is 1, was not set"
        );
    }

    #[test]
    fn differences_are_named_as_people_know_them() {
        let sql = |apply: &str| json!({ "create": "x", "apply": apply });
        let one = json!({ "kind": "sql", "lifecycle": "inline", "shards": 1, "body": sql("a") });
        let other =
            json!({ "kind": "sql", "lifecycle": "catch-up", "shards": 4, "body": sql("b") });
        assert_eq!(between(&one, &other), "lifecycle, shards, apply.sql");
        assert_eq!(between(&one, &one), "its definition");
    }
}
