//! Rows that are not what they should be, as a table.

use everfold::Difference;
use serde_json::Value;

use crate::output::shown;
use crate::table::Table;

/// Longest text in a cell.
const CELL_MAX: usize = 60;

/// One line for each: table, key, and the two rows without what they agree in.
pub(crate) fn table(differences: &[Difference], expected: &str, found: &str) -> Table {
    let mut table = Table::new(&["TABLE", "KEY", expected, found]);
    for difference in differences {
        let (left, right) = apart(difference.expected.as_ref(), difference.found.as_ref());
        let cells =
            vec![shown(&difference.table), cell(&key(&difference.key)), cell(&left), cell(&right)];
        table.row(cells, Vec::new());
    }
    table
}

/// The values of a key, without the names of its columns.
fn key(key: &Value) -> String {
    match key {
        Value::Object(columns) => columns.values().map(plain).collect::<Vec<_>>().join(", "),
        other => plain(other),
    }
}

/// The columns in which two rows differ.
fn apart(expected: Option<&Value>, found: Option<&Value>) -> (String, String) {
    let side = |row: Option<&Value>, other: Option<&Value>| match (row, other) {
        (None, _) => "no row".to_owned(),
        (Some(Value::Object(columns)), other) => {
            let differs =
                |name: &String| other.is_none_or(|other| other.get(name) != columns.get(name));
            let columns = columns.iter().filter(|(name, _)| differs(name));
            columns
                .map(|(name, value)| format!("{name} {}", plain(value)))
                .collect::<Vec<_>>()
                .join(", ")
        }
        (Some(value), _) => plain(value),
    };
    (side(expected, found), side(found, expected))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Text from outside in one line that is not too long.
fn cell(text: &str) -> String {
    let text = shown(text);
    match text.char_indices().nth(CELL_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_columns_that_differ_are_shown() {
        let (expected, found) = (json!({ "id": "a", "n": 3 }), json!({ "id": "a", "n": 4 }));
        let (left, right) = apart(Some(&expected), Some(&found));
        assert_eq!((left.as_str(), right.as_str()), ("n 3", "n 4"));
        let (left, right) = apart(Some(&expected), None);
        assert_eq!((left.as_str(), right.as_str()), ("id a, n 3", "no row"));
        assert_eq!(key(&json!({ "day": "2026-01-01", "n": 1 })), "2026-01-01, 1");
        assert_eq!(cell(&"x".repeat(100)).chars().count(), CELL_MAX + 1);
    }
}
