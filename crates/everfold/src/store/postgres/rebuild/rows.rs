//! Comparing the tables of two schemas, row by row, inside the server.
//!
//! Columns are compared that both have with the same type. Numbers drawn from a sequence are left out:
//! they say in which order rows were made, which is not the same twice.

use serde_json::Value;
use tokio_postgres::types::Type;

use super::super::connect::Param;
use super::super::projection::names::{quoted, table};
use super::super::projection::unit::{PostgresUnit, statement};
use super::super::types::JsonString;
use crate::error::StoreError;
use crate::projection::definition::ProjectionKind;
use crate::rebuild::{Comparison, Difference};

const LIST_COLUMNS: &str = statement!("list_compared_columns");
/// What of a document table is the document; the rest is about when it was written.
const DOCUMENT_COLUMNS: [&str; 2] = ["key", "document"];

/// Two schemas with tables of the same names.
pub(super) struct Homes<'a> {
    pub(super) expected: &'a str,
    pub(super) found: &'a str,
    pub(super) kind: ProjectionKind,
    /// Only rows with one of these values in a column: table by table, as [`Rows::key`] says.
    pub(super) only: Option<&'a Only>,
    /// So many rows that differ are returned.
    pub(super) examples: usize,
}

/// The rows of some keys.
pub(super) struct Only {
    pub(super) keys: Vec<String>,
    /// Table, and its column that has the key.
    pub(super) columns: Vec<(String, String)>,
}

/// A table and what of it is compared.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) name: String,
    columns: Vec<Column>,
    /// Whether the primary key, which is the same in both, is among the columns.
    pub(super) key: Vec<String>,
}

#[derive(Debug)]
struct Column {
    name: String,
    as_text: bool,
}

/// Which tables and columns both have, and which not, in words.
pub(super) async fn compared_tables(
    unit: &mut PostgresUnit<'_>,
    homes: &Homes<'_>,
) -> Result<(Vec<Compared>, Vec<String>), StoreError> {
    let params: [Param<'_>; 2] = [(&homes.expected, Type::TEXT), (&homes.found, Type::TEXT)];
    let rows = unit.ask(LIST_COLUMNS, &params).await?;
    let mut tables: Vec<(Compared, Keys)> = Vec::new();
    let mut not_compared = Vec::new();
    for row in rows {
        let (name, column): (String, String) = (row.get(0), row.get(1));
        if tables.last().is_none_or(|(last, _)| last.name != name) {
            tables.push((Compared { name: name.clone(), ..Compared::default() }, Keys::default()));
        }
        let (compared, keys) = tables.last_mut().expect("one was put there");
        let types: (Option<&str>, Option<&str>) = (row.get(2), row.get(3));
        let (as_text, drawn): (bool, bool) = (row.get(4), row.get(5));
        let is_document = homes.kind == ProjectionKind::Document;
        if is_document && !DOCUMENT_COLUMNS.contains(&column.as_str()) {
            continue;
        }
        keys.expected.extend(row.get::<_, Option<i32>>(6).map(|place| (place, column.clone())));
        keys.found.extend(row.get::<_, Option<i32>>(7).map(|place| (place, column.clone())));
        match types {
            (Some(expected), Some(found)) if expected == found => {
                if !drawn {
                    compared.columns.push(Column { name: column, as_text });
                }
            }
            (Some(expected), Some(found)) => {
                not_compared
                    .push(format!("{name}.{column}: {expected} in one, {found} in the other"));
            }
            _ => not_compared.push(format!("{name}.{column}: only in one of them")),
        }
    }
    let tables = tables.into_iter().filter(|(table, _)| !table.columns.is_empty());
    let tables = tables.map(|(mut table, keys)| {
        table.key = keys.common(&table.columns);
        table
    });
    Ok((tables.collect(), not_compared))
}

/// Primary keys as (place, column).
#[derive(Default)]
struct Keys {
    expected: Vec<(i32, String)>,
    found: Vec<(i32, String)>,
}

impl Keys {
    /// The primary key, if both have the same one and all of it is compared.
    fn common(mut self, columns: &[Column]) -> Vec<String> {
        self.expected.sort_unstable();
        self.found.sort_unstable();
        let compared = |name: &String| columns.iter().any(|column| column.name == *name);
        let names: Vec<String> = self.expected.iter().map(|(_, name)| name.clone()).collect();
        if self.expected == self.found && names.iter().all(compared) { names } else { Vec::new() }
    }
}

/// Compares all tables that both have.
pub(super) async fn compare(
    unit: &mut PostgresUnit<'_>,
    homes: &Homes<'_>,
) -> Result<Comparison, StoreError> {
    let (tables, not_compared) = compared_tables(unit, homes).await?;
    let mut comparison = Comparison { not_compared, ..Comparison::default() };
    for compared in &tables {
        let left = homes.examples.saturating_sub(comparison.examples.len());
        let sides = Sides::new(homes, compared);
        comparison.add(sides.compare(unit, compared, left).await?);
    }
    Ok(comparison)
}

/// Both sides of a table, as relations with the same columns.
struct Sides<'a> {
    expected: String,
    found: String,
    keys: Option<&'a Vec<String>>,
}

impl<'a> Sides<'a> {
    fn new(homes: &Homes<'a>, compared: &Compared) -> Self {
        let column = |column: &Column| {
            let name = quoted(&column.name);
            if column.as_text { format!("{name}::text AS {name}") } else { name }
        };
        let columns: Vec<String> = compared.columns.iter().map(column).collect();
        let columns = columns.join(", ");
        let key_column = homes.only.and_then(|only| {
            only.columns.iter().find(|(table, _)| *table == compared.name).map(|(_, column)| column)
        });
        let only = key_column
            .map_or(String::new(), |column| format!(" WHERE {}::text = ANY ($1)", quoted(column)));
        let side = |home| format!("SELECT {columns} FROM {}{only}", table(home, &compared.name));
        let keys = homes.only.filter(|_| key_column.is_some()).map(|only| &only.keys);
        Sides { expected: side(homes.expected), found: side(homes.found), keys }
    }

    async fn compare(
        &self,
        unit: &mut PostgresUnit<'_>,
        compared: &Compared,
        examples: usize,
    ) -> Result<Comparison, StoreError> {
        let keyed = !compared.key.is_empty();
        let differing = if keyed { self.joined(&compared.key) } else { self.excepted() };
        let count = match keyed {
            true => format!(
                "SELECT count(*), count(*) FILTER (WHERE expected IS DISTINCT FROM found) \
                 FROM ({differing}) d"
            ),
            false => format!(
                "SELECT greatest((SELECT count(*) FROM ({}) a), (SELECT count(*) FROM ({}) b)), \
                 (SELECT count(*) FROM ({differing}) d)",
                self.expected, self.found
            ),
        };
        let params: Vec<Param<'_>> =
            self.keys.iter().map(|keys| (*keys as _, Type::TEXT_ARRAY)).collect();
        let rows = unit.ask_anew(&count, &params).await?;
        let (compared_rows, differences): (i64, i64) = (rows[0].get(0), rows[0].get(1));
        let mut comparison = Comparison {
            compared: compared_rows.unsigned_abs(),
            differences: differences.unsigned_abs(),
            ..Comparison::default()
        };
        if differences > 0 && examples > 0 {
            let sql = format!(
                "SELECT to_jsonb(expected), to_jsonb(found) FROM ({differing}) d \
                 WHERE expected IS DISTINCT FROM found ORDER BY coalesce(expected, found)::text \
                 LIMIT {examples}"
            );
            for row in unit.ask_anew(&sql, &params).await? {
                let value = |column| {
                    let json: Option<JsonString> = row.get(column);
                    json.and_then(|json| serde_json::from_str::<Value>(&json.0).ok())
                };
                comparison.examples.push(compared.difference(value(0), value(1)));
            }
        }
        Ok(comparison)
    }

    /// Rows of both with the same primary key beside each other.
    fn joined(&self, key: &[String]) -> String {
        let on = key.iter().map(|column| format!("e.{0} = f.{0}", quoted(column)));
        let on: Vec<String> = on.collect();
        format!(
            "SELECT e AS expected, f AS found FROM ({}) e FULL JOIN ({}) f ON {}",
            self.expected,
            self.found,
            on.join(" AND ")
        )
    }

    /// Rows that only one of them has, or has more often.
    fn excepted(&self) -> String {
        let (expected, found) = (&self.expected, &self.found);
        format!(
            "SELECT e AS expected, NULL::record AS found FROM ({expected} EXCEPT ALL {found}) e \
             UNION ALL SELECT NULL::record, f FROM ({found} EXCEPT ALL {expected}) f"
        )
    }
}

impl Compared {
    pub(super) fn difference(&self, expected: Option<Value>, found: Option<Value>) -> Difference {
        let row = expected.as_ref().or(found.as_ref()).cloned().unwrap_or_default();
        let key = match &self.key[..] {
            [] => row,
            columns => columns.iter().map(|column| (column.clone(), row[column].clone())).collect(),
        };
        Difference { table: self.name.clone(), key, expected, found }
    }
}
