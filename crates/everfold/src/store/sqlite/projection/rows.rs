//! A look at the rows of a read model, through the views that readers have.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use serde_json::value::RawValue;

use super::names::{identifier, view};
use crate::read::ReadModelRows;
use crate::store::RowQuery;

const IS_THERE: &str = "SELECT name FROM sqlite_schema WHERE name = ?1 AND type = 'view'";

pub(super) fn find(
    connection: &Connection,
    query: &RowQuery,
) -> Result<ReadModelRows, rusqlite::Error> {
    let RowQuery { namespace, table, version, .. } = query;
    let snapshot = connection.unchecked_transaction()?;
    // A version with other columns has a name of its own.
    let own = view(namespace, &format!("{table}_v{version}"));
    let own = snapshot.query_row(IS_THERE, [own], |row| row.get::<_, String>(0)).optional()?;
    let view = own.unwrap_or_else(|| view(namespace, table));
    let all = snapshot.prepare(&format!("SELECT * FROM {}", identifier(&view)))?;
    let columns: Vec<String> = all.column_names().into_iter().map(str::to_owned).collect();
    let mut found = ReadModelRows { table: view, columns, rows: Vec::new(), more: false };
    if query.equal.iter().any(|(column, _)| !found.columns.contains(column)) {
        return Ok(found);
    }
    let mut sql = format!("SELECT * FROM {} WHERE true", identifier(&found.table));
    for (column, _) in &query.equal {
        sql.push_str(&format!(" AND CAST({} AS TEXT) = ?", identifier(column)));
    }
    sql.push_str(&format!(" ORDER BY 1 LIMIT {}", i64::try_from(query.max).unwrap_or(i64::MAX)));
    let mut statement = snapshot.prepare(&sql)?;
    let values = params_from_iter(query.equal.iter().map(|(_, value)| value));
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        found.rows.push(object(&found.columns, row)?);
    }
    Ok(found)
}

/// A row as a JSON object, its columns in order.
fn object(columns: &[String], row: &Row<'_>) -> Result<Box<RawValue>, rusqlite::Error> {
    let mut text = String::from("{");
    for (index, column) in columns.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let name = serde_json::Value::from(column.as_str());
        text.push_str(&format!("{comma}{name}:{}", value(row.get_ref(index)?)));
    }
    text.push('}');
    let unreadable = |error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
    RawValue::from_string(text).map_err(unreadable)
}

fn value(stored: ValueRef<'_>) -> serde_json::Value {
    match stored {
        ValueRef::Null => serde_json::Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
    }
}
