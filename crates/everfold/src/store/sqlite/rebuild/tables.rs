//! Comparing the tables of two read models, which may be in different databases: both are read in the
//! order of their keys and laid side by side.

use std::cmp::Ordering;

use rusqlite::types::Value as Stored;
use rusqlite::{Connection, Rows};
use serde_json::Value;

use super::super::projection::names::identifier;
use crate::projection::definition::ProjectionKind;
use crate::rebuild::same::same;
use crate::rebuild::{Comparison, Difference};

const TABLES: &str = "SELECT substr(name, length(?1) + 1), sql FROM sqlite_schema \
    WHERE type = 'table' AND substr(name, 1, length(?1)) = ?1 ORDER BY name";
const COLUMNS: &str = "SELECT name, upper(type), pk FROM pragma_table_info(?1) ORDER BY cid";
/// What of a document table is the document; the rest is about when it was written.
const DOCUMENT_COLUMNS: [&str; 2] = ["key", "document"];

/// A read model: the prefix of its tables, in a database.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) connection: &'a Connection,
    pub(super) home: &'a str,
}

/// Two read models.
pub(super) struct Sides<'a> {
    pub(super) expected: Side<'a>,
    pub(super) found: Side<'a>,
    pub(super) kind: ProjectionKind,
    pub(super) examples: usize,
}

/// A table and what of it is compared.
pub(super) struct Compared {
    pub(super) name: String,
    /// Those of the key first.
    columns: Vec<String>,
    /// How many of them are the primary key, which is the same in both; 0: there is none.
    keys: usize,
}

/// Rows of these keys only, by the column that has them.
pub(super) struct Only {
    pub(super) keys: Vec<String>,
    /// Table and column.
    pub(super) columns: Vec<(String, String)>,
}

#[derive(PartialEq)]
struct Column {
    name: String,
    kind: String,
    key: i64,
}

impl Side<'_> {
    fn tables(&self) -> Result<Vec<(String, String)>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(TABLES)?;
        statement.query_map([self.home], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    fn columns(&self, table: &str) -> Result<Vec<Column>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(COLUMNS)?;
        let column = |row: &rusqlite::Row<'_>| {
            Ok(Column { name: row.get(0)?, kind: row.get(1)?, key: row.get(2)? })
        };
        statement.query_map([format!("{}{table}", self.home)], column)?.collect()
    }

    pub(super) fn table(&self, name: &str) -> String {
        identifier(&format!("{}{name}", self.home))
    }
}

impl Sides<'_> {
    /// Which tables and columns both have, and which not, in words.
    pub(super) fn tables(&self) -> Result<(Vec<Compared>, Vec<String>), rusqlite::Error> {
        let (expected, found) = (self.expected.tables()?, self.found.tables()?);
        let (mut tables, mut not_compared) = (Vec::new(), Vec::new());
        for (name, _) in &found {
            if !expected.iter().any(|(other, _)| other == name) {
                not_compared.push(format!("{name}: only in one of them"));
            }
        }
        for (name, sql) in expected {
            if !found.iter().any(|(other, _)| *other == name) {
                not_compared.push(format!("{name}: only in one of them"));
                continue;
            }
            tables.extend(self.table(name, &sql, &mut not_compared)?);
        }
        Ok((tables, not_compared))
    }

    fn table(
        &self,
        name: String,
        sql: &str,
        not_compared: &mut Vec<String>,
    ) -> Result<Option<Compared>, rusqlite::Error> {
        let (expected, found) = (self.expected.columns(&name)?, self.found.columns(&name)?);
        // Numbers that say in which order rows were made are not the same twice.
        let drawn = sql.to_ascii_uppercase().contains("AUTOINCREMENT");
        let mut common: Vec<&Column> = Vec::new();
        for column in &expected {
            let other = found.iter().find(|other| other.name == column.name);
            let wanted = self.kind != ProjectionKind::Document
                || DOCUMENT_COLUMNS.contains(&column.name.as_str());
            match other {
                _ if !wanted || (drawn && column.key > 0) => {}
                Some(other) if other.kind == column.kind => common.push(column),
                Some(_) => not_compared.push(format!("{name}.{}: types differ", column.name)),
                None => not_compared.push(format!("{name}.{}: only in one of them", column.name)),
            }
        }
        let added = found.iter().filter(|c| !expected.iter().any(|other| other.name == c.name));
        not_compared.extend(added.map(|c| format!("{name}.{}: only in one of them", c.name)));
        if common.is_empty() {
            return Ok(None);
        }
        let key = |columns: &[Column]| {
            let mut key: Vec<_> = columns.iter().filter(|c| c.key > 0).collect();
            key.sort_by_key(|column| column.key);
            key.iter().map(|column| column.name.clone()).collect::<Vec<_>>()
        };
        let mut columns = key(&expected);
        if columns != key(&found) || !columns.iter().all(|k| common.iter().any(|c| c.name == *k)) {
            columns.clear();
        }
        let keys = columns.len();
        let rest = common.iter().map(|column| column.name.clone());
        columns.extend(rest.filter(|name| !columns.contains(name)).collect::<Vec<_>>());
        Ok(Some(Compared { name, columns, keys }))
    }

    /// Compares all tables that both have.
    pub(super) fn compare(&self, only: Option<&Only>) -> Result<Comparison, rusqlite::Error> {
        let (tables, not_compared) = self.tables()?;
        let mut comparison = Comparison { not_compared, ..Comparison::default() };
        for compared in &tables {
            self.compare_table(compared, only, &mut comparison)?;
        }
        Ok(comparison)
    }

    fn compare_table(
        &self,
        compared: &Compared,
        only: Option<&Only>,
        comparison: &mut Comparison,
    ) -> Result<(), rusqlite::Error> {
        let keys = only.map_or(String::new(), |only| {
            serde_json::to_string(&only.keys).expect("a list of texts is JSON")
        });
        let column = only.and_then(|only| only.columns.iter().find(|(t, _)| *t == compared.name));
        let column = column.map(|(_, column)| column.as_str());
        let mut expected =
            self.expected.connection.prepare(&compared.select(&self.expected, column))?;
        let mut found = self.found.connection.prepare(&compared.select(&self.found, column))?;
        let params: Vec<&dyn rusqlite::ToSql> = if column.is_some() { vec![&keys] } else { vec![] };
        let width = compared.columns.len();
        let mut expected = Cursor::new(expected.query(&params[..])?, width)?;
        let mut found = Cursor::new(found.query(&params[..])?, width)?;
        loop {
            let order = match (&expected.row, &found.row) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(left), Some(right)) => compared.order(left, right),
            };
            comparison.compared += 1;
            let left = if order.is_le() { expected.take()? } else { None };
            let right = if order.is_ge() { found.take()? } else { None };
            if let (Some(left), Some(right)) = (&left, &right)
                && self.same_row(compared, left, right)
            {
                continue;
            }
            comparison.differences += 1;
            if comparison.examples.len() < self.examples {
                comparison.examples.push(compared.difference(left, right));
            }
        }
    }

    fn same_row(&self, compared: &Compared, left: &[Stored], right: &[Stored]) -> bool {
        let is_document = |column: usize| {
            self.kind == ProjectionKind::Document && compared.columns[column] == "document"
        };
        (0..left.len()).all(|column| match (&left[column], &right[column]) {
            (Stored::Text(a), Stored::Text(b)) if is_document(column) && a != b => {
                match (serde_json::from_str(a), serde_json::from_str(b)) {
                    (Ok(a), Ok(b)) => same(&a, &b),
                    _ => false,
                }
            }
            (a, b) => order(a, b).is_eq(),
        })
    }
}

/// Rows of a statement, the next one at hand.
struct Cursor<'s> {
    rows: Rows<'s>,
    width: usize,
    row: Option<Vec<Stored>>,
}

impl<'s> Cursor<'s> {
    fn new(rows: Rows<'s>, width: usize) -> Result<Self, rusqlite::Error> {
        let mut cursor = Cursor { rows, width, row: None };
        cursor.take()?;
        Ok(cursor)
    }

    /// The row at hand; then the next one is.
    fn take(&mut self) -> Result<Option<Vec<Stored>>, rusqlite::Error> {
        let next = match self.rows.next()? {
            Some(row) => Some((0..self.width).map(|n| row.get(n)).collect::<Result<_, _>>()?),
            None => None,
        };
        Ok(std::mem::replace(&mut self.row, next))
    }
}

impl Compared {
    /// The columns of the primary key; none if there is none, or if it is not compared.
    pub(super) fn key(&self) -> &[String] {
        &self.columns[..self.keys]
    }

    /// Without a primary key the whole row is the key.
    fn key_width(&self) -> usize {
        if self.keys == 0 { self.columns.len() } else { self.keys }
    }

    /// `?1` a JSON array of keys, if there is a column for them.
    fn select(&self, side: &Side<'_>, only: Option<&str>) -> String {
        let columns: Vec<String> = self.columns.iter().map(|name| identifier(name)).collect();
        let order = columns[..self.key_width()].iter().map(|c| format!("{c} COLLATE BINARY"));
        let order: Vec<String> = order.collect();
        let only = only.map_or(String::new(), |column| {
            let column = identifier(column);
            format!(" WHERE CAST({column} AS TEXT) IN (SELECT value FROM json_each(?1))")
        });
        let (table, columns) = (side.table(&self.name), columns.join(", "));
        format!("SELECT {columns} FROM {table}{only} ORDER BY {}", order.join(", "))
    }

    fn order(&self, left: &[Stored], right: &[Stored]) -> Ordering {
        let pairs = left.iter().zip(right).take(self.key_width());
        pairs.map(|(a, b)| order(a, b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn difference(&self, expected: Option<Vec<Stored>>, found: Option<Vec<Stored>>) -> Difference {
        let object = |row: &[Stored], width: usize| -> Value {
            let columns = self.columns.iter().zip(row).take(width);
            columns.map(|(name, value)| (name.clone(), json(name, value))).collect()
        };
        let width = self.columns.len();
        let row = expected.as_ref().or(found.as_ref()).map_or(&[][..], |row| &row[..]);
        Difference {
            table: self.name.clone(),
            key: object(row, self.key_width()),
            expected: expected.as_ref().map(|row| object(row, width)),
            found: found.as_ref().map(|row| object(row, width)),
        }
    }
}

/// The order that SQLite sorts by.
fn order(left: &Stored, right: &Stored) -> Ordering {
    let rank = |value: &Stored| match value {
        Stored::Null => 0,
        Stored::Integer(_) | Stored::Real(_) => 1,
        Stored::Text(_) => 2,
        Stored::Blob(_) => 3,
    };
    #[allow(clippy::cast_precision_loss, reason = "SQLite has no other numbers to compare")]
    let number = |value: &Stored| match value {
        Stored::Integer(number) => *number as f64,
        Stored::Real(number) => *number,
        _ => 0.0,
    };
    match (left, right) {
        (Stored::Integer(a), Stored::Integer(b)) => a.cmp(b),
        (Stored::Text(a), Stored::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Stored::Blob(a), Stored::Blob(b)) => a.cmp(b),
        (a, b) if rank(a) == 1 && rank(b) == 1 => {
            number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal)
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn json(name: &str, value: &Stored) -> Value {
    match value {
        Stored::Null => Value::Null,
        Stored::Integer(number) => (*number).into(),
        Stored::Real(number) => (*number).into(),
        Stored::Text(text) if name == "document" => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
        Stored::Text(text) => text.as_str().into(),
        Stored::Blob(bytes) => {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
    }
}
