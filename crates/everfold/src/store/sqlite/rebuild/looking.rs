//! A look at one moment of the store, on a connection for reading: appends go on meanwhile.

use rusqlite::Connection;

use super::super::SqliteStore;
use super::super::error::store_error;
use super::super::projection::names::identifier;
use super::super::read;
use crate::projection::generation::Generation;
use crate::projection::projector::ApplyError;
use crate::rebuild::holding::{Holding, fed_by_appends};
use crate::store::AllPage;
use crate::{Position, RecordedEvent};

const CHECKPOINTS: &str =
    "SELECT position FROM everfold_checkpoints WHERE generation = ?1 ORDER BY shard";
const OWED: &str = "SELECT position FROM everfold_skips WHERE generation = ?1 \
    UNION ALL SELECT position FROM everfold_dead_letters WHERE generation = ?1";
const GIVEN_UP: &str = "SELECT position FROM everfold_system_messages WHERE generation = ?1 \
    AND kind IN ('skipped', 'dead-letter-discarded') AND position IS NOT NULL";
const COLUMNS: &str = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0 ORDER BY cid";
/// Events that are read, folded or applied at once.
pub(super) const PAGE_EVENTS: usize = 5_000;

impl SqliteStore {
    /// Runs `look` at one moment.
    pub(super) async fn at_one_moment<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> Result<T, ApplyError> + Send + 'static,
    ) -> Result<T, ApplyError> {
        let work = move |connection: &Connection| {
            let moment = connection.unchecked_transaction()?;
            let outcome = look(&moment);
            moment.finish()?;
            Ok(outcome)
        };
        self.pool.read(work).await?
    }
}

/// An error of one of the engine's own statements.
pub(super) fn failed(error: rusqlite::Error) -> ApplyError {
    ApplyError::Store(store_error(error))
}

/// What a generation holds at this moment.
pub(super) fn holding(
    connection: &Connection,
    generation: &Generation,
) -> Result<Holding, rusqlite::Error> {
    let shards = match fed_by_appends(generation) {
        true => vec![read::high_water_mark(connection)?],
        false => positions(connection, CHECKPOINTS, generation.id)?,
    };
    let owed = positions(connection, OWED, generation.id)?;
    Ok(Holding { shards, owed, given_up: positions(connection, GIVEN_UP, generation.id)? })
}

pub(super) fn positions<C: FromIterator<Position>>(
    connection: &Connection,
    sql: &str,
    generation: i32,
) -> Result<C, rusqlite::Error> {
    let position = |row: &rusqlite::Row<'_>| Ok(Position::from_stored(row.get(0)?));
    connection.prepare_cached(sql)?.query_map([generation], position)?.collect()
}

/// The columns of a table that are written, not computed, in quotes.
pub(super) fn written_columns(
    connection: &Connection,
    table: &str,
) -> Result<Vec<String>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(COLUMNS)?;
    let name = |row: &rusqlite::Row<'_>| Ok(identifier(&row.get::<_, String>(0)?));
    statement.query_map([table], name)?.collect()
}

/// Hands all events that a generation wants in (after, up_to] to `use_page`, page by page.
pub(super) fn read_pages(
    connection: &Connection,
    generation: &Generation,
    (mut after, up_to): (Position, Position),
    bytes_max: usize,
    mut use_page: impl FnMut(Vec<RecordedEvent>) -> Result<(), ApplyError>,
) -> Result<(), ApplyError> {
    let mut dense = false;
    while after < up_to {
        let types = generation.event_types.clone();
        let page = AllPage { after, up_to, types, max: PAGE_EVENTS, dense };
        let page = read::read_all(connection, &page, bytes_max).map_err(failed)?;
        (after, dense) = (page.read_to, page.dense);
        use_page(page.events)?;
    }
    Ok(())
}
