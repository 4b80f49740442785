//! Queries in the file of a test.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

/// The rows of a query as JSON, columns in their order.
pub(crate) fn query_rows(file: &Path, query: &str) -> Result<Vec<Vec<Value>>, String> {
    rows(file, query).map_err(|error| error.to_string())
}

/// The rows of a table of the read model, these columns of them.
pub(crate) fn table_rows(
    file: &Path,
    table: &str,
    columns: &[String],
) -> Result<Vec<Vec<Value>>, String> {
    // Not in double quotes: a name that is not there would be a text in them.
    let quoted = |name: &str| format!("`{}`", name.replace('`', "``"));
    let selected: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    let selected = if selected.is_empty() { "1".to_owned() } else { selected.join(", ") };
    let table = quoted(&format!("read_model_{table}"));
    let mut rows = query_rows(file, &format!("SELECT {selected} FROM {table}"))?;
    rows.iter_mut().for_each(|row| row.truncate(columns.len()));
    Ok(rows)
}

/// The columns of a table of the read model, in their order.
pub(crate) fn table_columns(file: &Path, table: &str) -> Result<Vec<String>, String> {
    let text = table.replace('\'', "''");
    let query = format!("SELECT name FROM pragma_table_info('read_model_{text}') ORDER BY cid");
    let rows = query_rows(file, &query)?;
    Ok(rows.iter().filter_map(|row| row[0].as_str().map(str::to_owned)).collect())
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
