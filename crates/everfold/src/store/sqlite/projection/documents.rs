//! Tables of documents: loading and writing them in a batch, and asking for them.

use rusqlite::types::Value as Stored;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use serde_json::Value;

use super::apply::broken_or_refused;
use super::names::{identifier, literal};
use crate::Position;
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, DocumentChange};
use crate::store::sqlite::json::same_json;
use crate::store::{DocumentQuery, StoredDocument};

const ACTIVE: &str = "SELECT g.home || p.name FROM everfold_projections p \
    JOIN everfold_generations g ON g.id = p.active_generation \
    WHERE p.namespace = ?1 AND p.name = ?2 AND g.kind = 'document'";

/// The statements that make the table of a generation and its indexes.
pub(super) fn create(table: &str, indexes: &[String]) -> Vec<String> {
    let quoted = identifier(table);
    let table_sql = format!(
        "CREATE TABLE {quoted} (key TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL, \
         position INTEGER NOT NULL, stream_version INTEGER NOT NULL) STRICT, WITHOUT ROWID"
    );
    let indexes = indexes.iter().zip(1..).map(|(path, number)| {
        let name = identifier(&format!("{table}_{number}_idx"));
        let value = extracted(path).unwrap_or_else(|| "document".to_owned());
        format!("CREATE INDEX {name} ON {quoted} ({value})")
    });
    std::iter::once(table_sql).chain(indexes).collect()
}

/// Documents by key; keys without one are left out.
pub(super) fn load(
    connection: &Connection,
    generation: &Generation,
    keys: &[String],
) -> Result<Vec<(String, String)>, ApplyError> {
    let sql = format!("SELECT document FROM {} WHERE key = ?1", table(generation));
    let load = || -> Result<Vec<(String, String)>, rusqlite::Error> {
        let mut statement = connection.prepare_cached(&sql)?;
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let document = statement.query_row([key], |row| row.get(0)).optional()?;
            found.extend(document.map(|document| (key.clone(), document)));
        }
        Ok(found)
    };
    load().map_err(|error| broken_or_refused(connection, error))
}

/// Writes documents, and deletes those that are none any more.
pub(super) fn write(
    connection: &Connection,
    generation: &Generation,
    changes: &[DocumentChange],
) -> Result<(), ApplyError> {
    let table = table(generation);
    let upsert = format!(
        "INSERT INTO {table} (key, document, position, stream_version) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (key) DO UPDATE SET document = excluded.document, \
         position = excluded.position, stream_version = excluded.stream_version"
    );
    let delete = format!("DELETE FROM {table} WHERE key = ?1");
    let write = || -> Result<(), rusqlite::Error> {
        let mut upsert = connection.prepare_cached(&upsert)?;
        let mut delete = connection.prepare_cached(&delete)?;
        for change in changes {
            match &change.document {
                Some(document) => upsert.execute(params![
                    change.key,
                    document,
                    change.position.to_stored(),
                    change.stream_version.to_stored(),
                ])?,
                None => delete.execute([&change.key])?,
            };
        }
        Ok(())
    };
    write().map_err(|error| broken_or_refused(connection, error))
}

/// Documents of the active generation, in the order of their keys. The database looks for what its
/// indexes can find; whether a field is just the value asked for is decided here.
pub(super) fn find(
    connection: &Connection,
    query: &DocumentQuery,
) -> Result<Vec<StoredDocument>, rusqlite::Error> {
    let snapshot = connection.unchecked_transaction()?;
    let table: Option<String> = snapshot
        .prepare_cached(ACTIVE)?
        .query_row((&query.namespace, &query.name), |row| row.get(0))
        .optional()?;
    let Some(table) = table else { return Ok(Vec::new()) };
    let (sql, parameters) = select(&table, query);
    let mut statement = snapshot.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(parameters))?;
    let mut found = Vec::new();
    while found.len() < query.max
        && let Some(row) = rows.next()?
    {
        let document: String = row.get(1)?;
        if has_fields(&document, &query.fields) {
            let position = Position::from_stored(row.get(2)?);
            found.push(StoredDocument { key: row.get(0)?, document, position });
        }
    }
    Ok(found)
}

fn select(table: &str, query: &DocumentQuery) -> (String, Vec<Stored>) {
    let table = identifier(table);
    let mut sql = format!("SELECT key, document, position FROM {table} WHERE true");
    let mut parameters = Vec::new();
    let mut push = |condition: &str, parameter: Stored| {
        parameters.push(parameter);
        sql.push_str(&format!(" AND {condition}").replace("?", &format!("?{}", parameters.len())));
    };
    if let Some(after) = &query.after {
        push("key > ?", after.clone().into());
    }
    if let Some(keys) = &query.keys {
        let keys = serde_json::to_string(keys).expect("a list of texts is JSON");
        push("key IN (SELECT value FROM json_each(?))", keys.into());
    }
    for (path, value) in &query.fields {
        // A question mark inside the path would be taken for a parameter.
        let extracted = extracted(path).filter(|value| !value.contains('?'));
        if let (Some(field), Some(value)) = (extracted, comparable(value)) {
            push(&format!("{field} = ?"), value);
        }
    }
    sql.push_str(" ORDER BY key");
    (sql, parameters)
}

fn table(generation: &Generation) -> String {
    identifier(&format!("{}{}", generation.home, generation.name))
}

/// The SQL for a field of the document, the same in an index and in a query; `None` where SQLite
/// has no way to write the path, or would take it for another one.
fn extracted(path: &str) -> Option<String> {
    let names: Vec<&str> = path.split('.').collect();
    let expressible = |name: &&str| {
        !name.is_empty()
            && !name.contains(['"', '\\'])
            && !name.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !names.iter().all(expressible) {
        return None;
    }
    let path: String = names.iter().map(|name| format!(".\"{name}\"")).collect();
    Some(format!("json_extract(document, {})", literal(&format!("${path}"))))
}

/// What `json_extract` gives for such a value, if that can be compared.
fn comparable(value: &Value) -> Option<Stored> {
    match value {
        Value::String(text) => Some(text.clone().into()),
        Value::Bool(value) => Some(i64::from(*value).into()),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Some(number.into()),
            None if number.is_f64() => number.as_f64().map(Into::into),
            None => None,
        },
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn has_fields(document: &str, fields: &[(String, Value)]) -> bool {
    if fields.is_empty() {
        return true;
    }
    let Ok(document) = serde_json::from_str::<Value>(document) else { return false };
    fields.iter().all(|(path, wanted)| {
        let found = path.split('.').try_fold(&document, |value, name| match value {
            Value::Array(items) => items.get(name.parse::<usize>().ok()?),
            other => other.get(name),
        });
        found.is_some_and(|found| same_json(&found.to_string(), &wanted.to_string()))
    })
}
