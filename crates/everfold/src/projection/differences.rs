//! What differs between the definition that was registered and the one at hand, in words.

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
    fn differences_are_named_as_people_know_them() {
        let sql = |apply: &str| json!({ "create": "x", "apply": apply });
        let one = json!({ "kind": "sql", "lifecycle": "inline", "shards": 1, "body": sql("a") });
        let other =
            json!({ "kind": "sql", "lifecycle": "catch-up", "shards": 4, "body": sql("b") });
        assert_eq!(between(&one, &other), "lifecycle, shards, apply.sql");
        assert_eq!(between(&one, &one), "its definition");
    }
}
