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
    let in_sql = |field: &str| {
        ["postgres", "sqlite"].iter().any(|store| registered[store][field] != now[store][field])
    };
    let mut different = Vec::new();
    for (field, name) in
        [("create", "create.sql"), ("apply", "apply.sql"), ("upcasters", "upcasters")]
    {
        if in_sql(field) {
            different.push(name);
        }
    }
    if registered["indexes"] != now["indexes"] {
        different.push("indexes");
    }
    different
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_named_as_people_know_them() {
        let sql =
            |apply: &str| json!({ "postgres": { "apply": apply }, "sqlite": { "apply": "x" } });
        let one = json!({ "kind": "sql", "lifecycle": "inline", "shards": 1, "body": sql("a") });
        let other =
            json!({ "kind": "sql", "lifecycle": "catch-up", "shards": 4, "body": sql("b") });
        assert_eq!(between(&one, &other), "lifecycle, shards, apply.sql");
        assert_eq!(between(&one, &one), "its definition");
    }
}
