//! Generations as the tables have them.

use rusqlite::types::Type;
use rusqlite::{Connection, Row};

use crate::projection::definition::{Lifecycle, ProjectionKind};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::key::Key;

const LIST: &str = include_str!("../../../../sql/sqlite/statements/list_generations.sql");

/// Every generation that is not retired, in the order of their ids.
pub(super) fn generations(connection: &Connection) -> Result<Vec<Generation>, rusqlite::Error> {
    list(connection, None, generation)
}

/// Retired generations that have not been removed yet.
pub(in crate::store::sqlite) fn leftovers(
    connection: &Connection,
) -> Result<Vec<Generation>, rusqlite::Error> {
    connection.prepare_cached(LIST)?.query_map((None::<i32>, true), generation)?.collect()
}

/// One generation, unless it is retired.
pub(in crate::store::sqlite) fn find(
    connection: &Connection,
    id: i32,
) -> Result<Option<Generation>, rusqlite::Error> {
    Ok(list(connection, Some(id), generation)?.pop())
}

pub(super) fn list<T>(
    connection: &Connection,
    id: Option<i32>,
    row: impl FnMut(&Row<'_>) -> Result<T, rusqlite::Error>,
) -> Result<Vec<T>, rusqlite::Error> {
    connection.prepare_cached(LIST)?.query_map((id, false), row)?.collect()
}

/// Columns in the order of `list_generations.sql`.
pub(super) fn generation(row: &Row<'_>) -> Result<Generation, rusqlite::Error> {
    let event_types: Option<Vec<String>> = json_or_null(row, 6)?;
    let key_fields: Option<Vec<String>> = json_or_null(row, 7)?;
    let key = Key::from_stored(key_fields.as_deref()).map_err(|message| unknown(7, message))?;
    Ok(Generation {
        id: row.get(0)?,
        namespace: row.get(1)?,
        name: row.get(2)?,
        version: row.get(3)?,
        kind: word(row, 4, ProjectionKind::from_stored)?,
        lifecycle: word(row, 5, Lifecycle::from_stored)?,
        event_types,
        key,
        shards: row.get(8)?,
        definition_hash: row.get(9)?,
        settings: json_or_null(row, 10)?.unwrap_or_default(),
        home: row.get(11)?,
        tables: json_or_null(row, 12)?.unwrap_or_default(),
        status: word(row, 13, GenerationStatus::from_stored)?,
        reason: row.get(14)?,
        is_active: row.get(15)?,
    })
}

/// A word that the tables hold for one of ours.
pub(in crate::store::sqlite) fn word<T>(
    row: &Row<'_>,
    column: usize,
    known: impl FnOnce(&str) -> Option<T>,
) -> Result<T, rusqlite::Error> {
    let stored = row.get_ref(column)?.as_str()?;
    known(stored).ok_or_else(|| {
        unknown(column, format!("\"{stored}\" is not known to this version of everfold"))
    })
}

/// A value that the tables hold as JSON.
pub(in crate::store::sqlite) fn json_or_null<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<T>, rusqlite::Error> {
    let Some(text) = row.get_ref(column)?.as_str_or_null()? else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| unknown(column, error))
}

pub(in crate::store::sqlite) fn unknown(
    column: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}
