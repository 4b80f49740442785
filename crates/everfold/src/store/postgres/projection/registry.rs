//! Reading what the registry knows.

use tokio_postgres::Row;

use super::unit::statement;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::definition::{Lifecycle, OnError, ProjectionKind, ProjectionSettings};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::key::Key;
use crate::store::postgres::connect::Connections;
use crate::store::postgres::types::JsonString;

pub(in crate::store::postgres) const LIST_GENERATIONS: &str = statement!("list_generations");
/// How many columns of a row are those of a generation.
pub(in crate::store::postgres) const COLUMNS: usize = 17;

pub(in crate::store::postgres) async fn generations(
    connections: &Connections,
) -> Result<Vec<Generation>, StoreError> {
    let rows = connections.get().await?.query(LIST_GENERATIONS, &[]).await?;
    rows.iter().map(generation).collect()
}

/// A row of list_generations.sql; other statements begin with the same columns.
pub(in crate::store::postgres) fn generation(row: &Row) -> Result<Generation, StoreError> {
    let fields: Option<Vec<String>> = row.get(7);
    let settings: Option<JsonString> = row.get(10);
    let mut settings: ProjectionSettings = match settings {
        Some(JsonString(text)) => serde_json::from_str(&text).map_err(unreadable)?,
        None => ProjectionSettings::default(),
    };
    settings.on_error = known(row, 11, OnError::from_stored)?;
    Ok(Generation {
        id: row.get(0),
        namespace: row.get(1),
        name: row.get(2),
        version: row.get::<_, i32>(3).unsigned_abs(),
        kind: known(row, 4, ProjectionKind::from_stored)?,
        lifecycle: known(row, 5, Lifecycle::from_stored)?,
        event_types: row.get(6),
        key: Key::from_stored(fields.as_deref()).map_err(unreadable)?,
        shards: row.get::<_, i32>(8).unsigned_abs(),
        definition_hash: row.get(9),
        settings,
        home: row.get(12),
        tables: row.get(13),
        status: known(row, 14, GenerationStatus::from_stored)?,
        reason: row.get(15),
        is_active: row.get(16),
    })
}

/// A value that is one of a few words.
fn known<T>(
    row: &Row,
    column: usize,
    from_stored: impl Fn(&str) -> Option<T>,
) -> Result<T, StoreError> {
    let stored: &str = row.get(column);
    from_stored(stored).ok_or_else(|| {
        unreadable(format!("\"{stored}\" is not known to this version of everfold; upgrade it"))
    })
}

fn unreadable(error: impl std::fmt::Display) -> StoreError {
    let message = format!("the registry of projections cannot be read: {error}");
    StoreError::new(StoreErrorKind::Other, message)
}
