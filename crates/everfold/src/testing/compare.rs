//! What is expected of a read model, and the first difference from what was found, for people.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::Rows;

/// What must hold of the read model in every variant.
#[derive(Debug, Clone)]
pub(super) enum Expectation {
    /// All documents, by key.
    Documents(BTreeMap<String, Value>),
    /// The rows of a query, in their order.
    Rows { sql: String, rows: Vec<Vec<Value>> },
    /// The rows of a table, in any order.
    Table(Rows),
}

/// Removes the field at a path of names.
pub(super) fn remove(value: &mut Value, path: &str) {
    match path.split_once('.') {
        None => {
            value.as_object_mut().map(|object| object.remove(path));
        }
        Some((name, rest)) => {
            if let Some(inner) = value.get_mut(name) {
                remove(inner, rest);
            }
        }
    }
}

/// The first document that is not as expected.
pub(super) fn documents_differ(
    expected: &BTreeMap<String, Value>,
    found: &BTreeMap<String, Value>,
) -> Option<String> {
    let keys: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    keys.into_iter().find_map(|key| match (expected.get(key), found.get(key)) {
        (Some(expected), None) => Some(format!(
            "document \"{key}\" is missing\n  expected {expected}\n  found    nothing{}",
            others(found.keys())
        )),
        (None, Some(found)) => Some(format!(
            "document \"{key}\" was not expected\n  expected nothing\n  found    {found}"
        )),
        (Some(expected), Some(found)) => differ(expected, found, "").map(|what| {
            format!("document \"{key}\"\n  expected {expected}\n  found    {found}{what}")
        }),
        (None, None) => None,
    })
}

fn others<'a>(keys: impl ExactSizeIterator<Item = &'a String>) -> String {
    if keys.len() == 0 {
        return "; there are no documents".to_owned();
    }
    let count = keys.len();
    let named: Vec<String> = keys.take(5).map(|key| format!("\"{key}\"")).collect();
    let more = if count > 5 { ", …" } else { "" };
    format!("; there are {}{more}", named.join(", "))
}

/// The first row that is not as expected.
pub(super) fn rows_differ(
    sql: &str,
    expected: &[Vec<Value>],
    found: &[Vec<Value>],
) -> Option<String> {
    let show = |row: Option<&Vec<Value>>| {
        row.map_or("no row".to_owned(), |row| Value::Array(row.clone()).to_string())
    };
    let rows = expected.len().max(found.len());
    (0..rows).find_map(|at| {
        let (wanted, got) = (expected.get(at), found.get(at));
        let same = match (wanted, got) {
            (Some(wanted), Some(got)) => {
                wanted.len() == got.len()
                    && wanted.iter().zip(got).all(|(wanted, got)| same(wanted, got))
            }
            _ => false,
        };
        (!same).then(|| {
            let (wanted, got) = (show(wanted), show(got));
            format!("row {} of {sql}\n  expected {wanted}\n  found    {got}", at + 1)
        })
    })
}

/// Where two values differ first, as a line of its own; empty if the values are not objects or
/// lists, where one sees it.
fn differ(expected: &Value, found: &Value, path: &str) -> Option<String> {
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (expected, found) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<&String> =
                one.keys().chain(other.keys()).collect();
            names.into_iter().find_map(|name| match (one.get(name), other.get(name)) {
                (Some(one), Some(other)) => differ(one, other, &at(name)),
                (Some(_), None) => Some(format!("\n  {} is missing", at(name))),
                _ => Some(format!("\n  {} was not expected", at(name))),
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs.into_iter().find_map(|(n, (one, other))| differ(one, other, &at(&n.to_string())))
        }
        _ if same(expected, found) => None,
        _ if path.is_empty() => Some(String::new()),
        _ => Some(format!("\n  at {path}: expected {expected}, found {found}")),
    }
}

/// Whether two values mean the same: 1 is 1.0, and where a store has no booleans they are 0 and 1.
pub(super) fn same(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.as_f64() == other.as_f64() && (one.is_f64() || other.is_f64()))
        }
        (Value::Bool(one), Value::Number(other)) => other.as_i64() == Some(i64::from(*one)),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        _ => expected == found,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents(documents: Value) -> BTreeMap<String, Value> {
        serde_json::from_value(documents).unwrap()
    }

    #[test]
    fn same_documents_do_not_differ() {
        let expected = documents(json!({ "a": { "n": 1, "list": [1, 2.0] } }));
        let found = documents(json!({ "a": { "list": [1.0, 2], "n": 1 } }));
        assert_eq!(documents_differ(&expected, &found), None);
    }

    #[test]
    fn first_difference_is_named_by_key_and_path() {
        let expected = documents(json!({ "a": 1, "b": { "n": 1, "in": { "list": [1, 2] } } }));
        let found = documents(json!({ "a": 1, "b": { "n": 1, "in": { "list": [1, 3] } } }));
        let said = documents_differ(&expected, &found).unwrap();
        assert!(said.starts_with("document \"b\"\n"), "{said}");
        assert!(said.ends_with("at in.list.1: expected 2, found 3"), "{said}");
    }

    #[test]
    fn missing_and_surplus_documents_are_named() {
        let none = documents(json!({}));
        let one = documents(json!({ "a": 1 }));
        assert!(documents_differ(&one, &none).unwrap().contains("\"a\" is missing"));
        assert!(documents_differ(&none, &one).unwrap().contains("\"a\" was not expected"));
    }

    #[test]
    fn rows_are_compared_in_their_order() {
        let rows = |rows: Value| -> Vec<Vec<Value>> { serde_json::from_value(rows).unwrap() };
        let one = rows(json!([["a", 1, true], ["b", 2, false]]));
        assert_eq!(rows_differ("q", &one, &rows(json!([["a", 1.0, 1], ["b", 2, 0]]))), None);
        let said = rows_differ("q", &one, &rows(json!([["a", 1, true], ["b", 3, false]]))).unwrap();
        assert_eq!(said, "row 2 of q\n  expected [\"b\",2,false]\n  found    [\"b\",3,false]");
        assert!(rows_differ("q", &one, &one[..1]).unwrap().ends_with("found    no row"));
        assert!(rows_differ("q", &one[..1], &one).unwrap().contains("expected no row"));
    }

    #[test]
    fn fields_can_be_left_out() {
        let mut value = json!({ "a": { "b": 1, "c": 2 }, "d": 3 });
        remove(&mut value, "a.b");
        remove(&mut value, "d");
        remove(&mut value, "x.y");
        assert_eq!(value, json!({ "a": { "c": 2 } }));
    }
}
