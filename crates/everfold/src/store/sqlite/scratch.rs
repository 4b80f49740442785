//! Queries by people in the file of a test.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

/// The rows of a query as JSON, columns in their order.
pub(crate) fn query_rows(file: &Path, query: &str) -> Result<Vec<Vec<Value>>, String> {
    rows(file, query).map_err(|error| error.to_string())
}

fn rows(file: &Path, query: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut statement = connection.prepare(query)?;
    let columns = statement.column_count();
    let row = statement
        .query_map([], |row| (0..columns).map(|column| row.get_ref(column).map(value)).collect())?;
    row.collect()
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
