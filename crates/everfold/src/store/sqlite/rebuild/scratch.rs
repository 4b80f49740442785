//! A second read model in a database of its own, which SQLite removes with the connection: nothing is
//! written to the store's file, and nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use rusqlite::Connection;

use super::super::projection::plan::Plans;
use super::super::projection::registry::json_or_null;
use super::super::projection::unit::SqliteUnit;
use super::super::projection::{register, register_functions};
use super::super::schema::migrate;
use super::looking::failed;
use crate::RecordedEvent;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::definition::{Definition, ProjectionKind};
use crate::projection::generation::Generation;
use crate::projection::job::Job;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::StoreKind;

const DEFINITION: &str = "SELECT definition FROM everfold_generations WHERE id = ?1";
/// The log, without what protects it: it holds the events of a page at a time.
const LOG: &str = "DROP TABLE everfold_events; CREATE TABLE everfold_events (
    position INTEGER PRIMARY KEY, stream_id TEXT, version INTEGER, type TEXT, schema_version INTEGER,
    data TEXT, metadata TEXT, id TEXT, recorded_at TEXT)";
const SETTINGS: &str =
    "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536";
const INSERT_EVENT: &str = "INSERT INTO everfold_events (position, stream_id, version, type, \
    schema_version, data, metadata, id, recorded_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

pub(super) struct Scratch {
    pub(super) connection: Connection,
    /// As it is there.
    pub(super) generation: Arc<Generation>,
    plans: Plans,
    bytes_max: usize,
}

impl Scratch {
    /// Makes an empty read model as that of a generation, in one shard.
    pub(super) fn make(
        store: &Connection,
        generation: &Generation,
        projector: &Projector,
        bytes_max: usize,
    ) -> Result<Scratch, ApplyError> {
        let content: Option<serde_json::Value> = store
            .query_row(DEFINITION, [generation.id], |row| json_or_null(row, 0))
            .map_err(failed)?;
        let definition =
            Definition::restore(generation, &content.unwrap_or_default(), StoreKind::Sqlite);
        let mut definition = definition.map_err(refused)?;
        definition.shards = 1;
        let projection = Projection { definition, projector: projector.clone() };
        let connection = Connection::open("").map_err(failed)?;
        let prepare = || -> Result<(), rusqlite::Error> {
            connection.execute_batch(SETTINGS)?;
            register_functions(&connection)
        };
        prepare().map_err(failed)?;
        migrate(&connection, Duration::from_secs(1)).map_err(|error| {
            StoreError::new(StoreErrorKind::Other, format!("no room for a comparison: {error}"))
        })?;
        connection.execute_batch(LOG).map_err(failed)?;
        connection.execute_batch("BEGIN").map_err(failed)?;
        let made =
            register::register(&connection, &projection, u64::MAX).map_err(
                |error| match error {
                    ProjectionError::Store(error) => ApplyError::Store(error),
                    error => {
                        refused(format!("cannot be made a second time for a comparison: {error}"))
                    }
                },
            )?;
        let generation = Arc::new(Generation { is_active: false, ..made.generation });
        Ok(Scratch { connection, generation, plans: Plans::default(), bytes_max })
    }

    /// Applies events there; `job` is that of its generation.
    pub(super) fn apply(&self, job: &Job, events: Vec<RecordedEvent>) -> Result<(), ApplyError> {
        let by_sql = self.generation.kind == ProjectionKind::Sql;
        if by_sql {
            self.put(&events).map_err(failed)?;
        }
        let mut unit = SqliteUnit::new(&self.connection, &self.plans, self.bytes_max);
        block_on(job.try_on(&mut unit, events))?;
        if by_sql {
            self.connection.execute("DELETE FROM everfold_events", []).map_err(failed)?;
        }
        Ok(())
    }

    fn put(&self, events: &[RecordedEvent]) -> Result<(), rusqlite::Error> {
        let mut insert = self.connection.prepare_cached(INSERT_EVENT)?;
        for event in events {
            insert.execute((
                event.position.to_stored(),
                event.stream_id.as_str(),
                event.version.to_stored(),
                &event.event_type,
                event.schema_version,
                &event.data,
                &event.metadata,
                event.id.hyphenated().to_string(),
                format!("{:.6}", event.recorded_at),
            ))?;
        }
        Ok(())
    }
}

pub(super) fn refused(message: String) -> ApplyError {
    ApplyError::Refused { message, position: None }
}
