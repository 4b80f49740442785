//! The rows of a table against those expected, in any order, by what their values mean.

use serde_json::Value;

use super::compare::same;
use super::failure::{Cause, RowDifference};

/// What a table must hold: exactly these rows, as far as these columns go.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) table: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
}

impl Rows {
    /// What differs, if anything does.
    pub(super) fn differ(&self, found: Vec<Vec<Value>>) -> Option<Cause> {
        let rows = self.differences(found);
        let said = self.shown(rows.first()?);
        Some(Cause::Differs { said, rows })
    }

    /// The rows without a counterpart, expected and found ones that look alike side by side.
    fn differences(&self, mut found: Vec<Vec<Value>>) -> Vec<RowDifference> {
        let mut missing = Vec::new();
        for expected in &self.rows {
            match found.iter().position(|row| agreement(expected, row) == expected.len()) {
                Some(at) => drop(found.remove(at)),
                None => missing.push(expected),
            }
        }
        let mut differences = Vec::new();
        for expected in missing {
            let found = alike(expected, &found).map(|at| found.remove(at));
            differences.push(self.difference(Some(expected.clone()), found));
        }
        // In an order of their own: that of the table is any.
        found.sort_by_key(|row| Value::Array(row.clone()).to_string());
        differences.extend(found.into_iter().map(|row| self.difference(None, Some(row))));
        differences
    }

    fn difference(&self, expected: Option<Vec<Value>>, found: Option<Vec<Value>>) -> RowDifference {
        let (table, columns) = (self.table.clone(), self.columns.clone());
        RowDifference { table, columns, expected, found }
    }

    fn shown(&self, difference: &RowDifference) -> String {
        let row = |row: Option<&Vec<Value>>| {
            row.map_or("no row".to_owned(), |row| Value::Array(row.clone()).to_string())
        };
        let (table, columns) = (&self.table, self.columns.join(", "));
        let (expected, found) = (row(difference.expected.as_ref()), row(difference.found.as_ref()));
        format!("table {table} ({columns})\n  expected {expected}\n  found    {found}")
    }
}

impl RowDifference {
    /// The names of the columns whose values do not mean the same; all of them, where there is only
    /// one row.
    #[must_use]
    pub fn columns_that_differ(&self) -> Vec<&str> {
        let differs = |at: usize| match (&self.expected, &self.found) {
            (Some(expected), Some(found)) => !same_cell(&expected[at], &found[at]),
            _ => true,
        };
        let columns = self.columns.iter().enumerate();
        columns.filter(|(at, _)| differs(*at)).map(|(_, name)| name.as_str()).collect()
    }
}

/// In how many columns two rows mean the same.
fn agreement(expected: &[Value], found: &[Value]) -> usize {
    expected.iter().zip(found).filter(|(expected, found)| same_cell(expected, found)).count()
}

/// The row that is most like the one expected. Keys come first, as a rule, so that a row which
/// agrees in the first columns is preferred, and one that agrees in none is another row.
fn alike(expected: &[Value], rows: &[Vec<Value>]) -> Option<usize> {
    let likeness = |row: &Vec<Value>| {
        let pairs = expected.iter().zip(row);
        let first = pairs.take_while(|(expected, found)| same_cell(expected, found)).count();
        (first, agreement(expected, row))
    };
    let most = rows.iter().enumerate().map(|(at, row)| (likeness(row), at));
    // The first of several that are equally alike.
    let (likeness, at) = most.max_by_key(|(likeness, at)| (*likeness, usize::MAX - at))?;
    (likeness.1 > 0).then_some(at)
}

/// Whether two values of a column mean the same. Beyond what is the same in any JSON: an instant may
/// be written in several ways, and JSON is text where a store has no type for it.
fn same_cell(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(one), Value::String(other)) => {
            one == other || instant(one).is_some_and(|one| Some(one) == instant(other))
        }
        (Value::Object(_) | Value::Array(_), Value::String(text)) => {
            serde_json::from_str(text).is_ok_and(|found| same(expected, &found))
        }
        _ => same(expected, found),
    }
}

fn instant(text: &str) -> Option<jiff::Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(rows: Value) -> Vec<Vec<Value>> {
        serde_json::from_value(rows).unwrap()
    }

    fn differences(expected: Value, found: Value) -> Vec<(Option<Value>, Option<Value>)> {
        let columns = vec!["id".to_owned(), "n".to_owned()];
        let expected = Rows { table: "t".to_owned(), columns, rows: rows(expected) };
        let found = expected.differences(rows(found)).into_iter();
        let found = found.inspect(|row| match (&row.expected, &row.found) {
            (Some(_), Some(_)) => assert_eq!(row.columns_that_differ(), ["n"]),
            _ => assert_eq!(row.columns_that_differ(), ["id", "n"]),
        });
        found.map(|row| (row.expected.map(Value::Array), row.found.map(Value::Array))).collect()
    }

    #[test]
    fn order_does_not_matter_and_repeats_do() {
        assert_eq!(differences(json!([["a", 1], ["b", 2]]), json!([["b", 2], ["a", 1]])), []);
        let twice = differences(json!([["a", 1], ["a", 1]]), json!([["a", 1]]));
        assert_eq!(twice, [(Some(json!(["a", 1])), None)]);
        let twice = differences(json!([["a", 1]]), json!([["a", 1], ["a", 1]]));
        assert_eq!(twice, [(None, Some(json!(["a", 1])))]);
    }

    #[test]
    fn rows_that_look_alike_are_shown_side_by_side() {
        let found = differences(
            json!([["a", 1], ["b", 2], ["c", 3]]),
            json!([["d", 4], ["b", 1], ["a", 2]]),
        );
        assert_eq!(
            found,
            [
                (Some(json!(["a", 1])), Some(json!(["a", 2]))),
                (Some(json!(["b", 2])), Some(json!(["b", 1]))),
                (Some(json!(["c", 3])), None),
                (None, Some(json!(["d", 4]))),
            ]
        );
    }

    #[test]
    fn empty_table_is_told_from_one_with_rows_of_which_no_column_is_compared() {
        let none = Rows { table: "t".to_owned(), columns: Vec::new(), rows: Vec::new() };
        assert!(none.differ(Vec::new()).is_none());
        assert!(none.differ(vec![Vec::new()]).is_some());
    }

    #[test]
    fn values_are_compared_by_what_they_mean() {
        for (expected, found) in [
            (json!(2), json!(2.0)),
            (json!(true), json!(1)),
            (json!(null), json!(null)),
            (json!("2026-11-15T10:00:00Z"), json!("2026-11-15T11:00:00.000000+01:00")),
            (json!({ "a": [1] }), json!("{\"a\": [1.0]}")),
            (json!([]), json!("[]")),
        ] {
            assert!(same_cell(&expected, &found), "{expected} and {found}");
        }
        for (expected, found) in [
            (json!(2), json!("2")),
            (json!("2"), json!(2)),
            (json!(false), json!(null)),
            (json!(""), json!(null)),
            (json!("2026-11-15T10:00:00Z"), json!("2026-11-15T10:00:01Z")),
            (json!("2026-11-15"), json!("2026-11-16")),
            (json!({}), json!("[]")),
            (json!({}), json!("{")),
        ] {
            assert!(!same_cell(&expected, &found), "{expected} and {found}");
        }
    }
}
