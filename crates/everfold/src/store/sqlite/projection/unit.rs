//! One transaction of the engine, on the connection that writes.
//!
//! The transaction holds the write lock of the file from its beginning, so that whatever is read
//! here cannot change: rows need no locks of their own, and epochs are only compared.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};

use super::apply;
use super::documents;
use super::plan::Plans;
use crate::projection::generation::{
    DeadLetterRow, Generation, GenerationStatus, Lease, RunLogRow, SystemMessage,
};
use crate::projection::handler::{HandlerBatch, HandlerError};
use crate::projection::projector::{ApplyError, DocumentChange, OutOfTime, Projector};
use crate::store::sqlite::connection::run;
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::read;
use crate::store::{AllPage, HeldKey, LogPage, RangeEnd, SqlEvents, Unit, Wanted};
use crate::{Position, RecordedEvent};

const ADVANCE: &str = include_str!("../../../../sql/sqlite/statements/advance_checkpoint.sql");
const TAKE_SKIPS: &str = include_str!("../../../../sql/sqlite/statements/take_skips.sql");
const OWED_TO: &str = include_str!("../../../../sql/sqlite/statements/read_owed_to.sql");
const PUT_DEAD_LETTER: &str = include_str!("../../../../sql/sqlite/statements/put_dead_letter.sql");

const READ_CHECKPOINT: &str =
    "SELECT position, epoch FROM everfold_checkpoints WHERE generation = ?1 AND shard = ?2";
const NOTE_FAILURE: &str = "UPDATE everfold_checkpoints SET attempts = attempts + 1, failure = ?4 \
    WHERE generation = ?1 AND shard = ?2 AND epoch = ?3";
const DELETE_DEAD_LETTER: &str =
    "DELETE FROM everfold_dead_letters WHERE generation = ?1 AND position = ?2";
const DEAD_LETTERS: &str = "SELECT position, key, behind, error, attempts FROM everfold_dead_letters \
    WHERE generation = ?1 AND (?2 IS NULL OR key = ?2) ORDER BY position";
const HOLDS_KEYS: &str = "SELECT EXISTS (SELECT 1 FROM everfold_dead_letters \
    WHERE generation = ?1 AND behind IS NULL)";
const HELD_BEHIND: &str = "SELECT min(position) FROM everfold_dead_letters \
    WHERE generation = ?1 AND key = ?2 AND behind IS NULL";
const TAKE_SKIPS_OF: &str = "DELETE FROM everfold_skips \
    WHERE generation = ?1 AND key = ?2 AND position <= ?3 RETURNING position";
pub(super) const SET_STATUS: &str = "UPDATE everfold_generations SET status = ?2, reason = ?3, \
    status_since = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' WHERE id = ?1";
const RECORD: &str = "INSERT INTO everfold_system_messages \
    (generation, kind, position, key, actor, message) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const LOG_RUN: &str = "INSERT INTO everfold_run_log \
    (generation, shard, from_position, to_position, events, duration_ms, owner) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// A statement of a handler looks at the clock after so many steps of SQLite's machine.
const STEPS_UNCHECKED: i32 = 1_000;

/// An open transaction that holds the write lock.
pub(in crate::store::sqlite) struct SqliteUnit<'a> {
    pub(in crate::store::sqlite) connection: &'a Connection,
    pub(in crate::store::sqlite) plans: &'a Plans,
    /// Most bytes of events read at once.
    pub(in crate::store::sqlite) bytes_max: usize,
    /// How much of the transaction's time handlers have used.
    handlers_took: Duration,
}

/// An error of one of the engine's own statements.
pub(super) fn failed(error: rusqlite::Error) -> ApplyError {
    ApplyError::Store(store_error(error))
}

/// A job that panicked outside the projection's own code, which is guarded by itself.
pub(super) fn panicked(said: &str) -> ApplyError {
    ApplyError::Refused { message: format!("the job panicked: {said}"), position: None }
}

impl<'a> SqliteUnit<'a> {
    pub(in crate::store::sqlite) fn new(
        connection: &'a Connection,
        plans: &'a Plans,
        bytes_max: usize,
    ) -> Self {
        SqliteUnit { connection, plans, bytes_max, handlers_took: Duration::ZERO }
    }

    /// Calls a handler with what is left of its time. Whatever it asks of the database after that
    /// fails; code that does not come back cannot be stopped.
    fn in_time(
        &mut self,
        generation: &Generation,
        events: &[RecordedEvent],
        limit: Duration,
        call: impl FnOnce(&Connection) -> Result<(), HandlerError>,
    ) -> Result<(), ApplyError> {
        let (begun, took) = (Instant::now(), self.handlers_took);
        let deadline = begun + limit.saturating_sub(took);
        let late = move || Instant::now() >= deadline;
        self.connection.progress_handler(STEPS_UNCHECKED, Some(late)).map_err(failed)?;
        let outcome = apply::guarded(self.connection, || call(self.connection));
        self.connection.progress_handler(0, None::<fn() -> bool>).map_err(failed)?;
        self.handlers_took += begun.elapsed();
        match late() {
            true => {
                let late = OutOfTime::new(generation, events, limit, took.is_zero());
                Err(ApplyError::OutOfTime(late))
            }
            false => outcome,
        }
    }

    /// Runs one of the engine's own statements and returns how many rows it changed.
    pub(super) fn execute(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> Result<usize, ApplyError> {
        let execute = || self.connection.prepare_cached(sql)?.execute(params);
        execute().map_err(failed)
    }

    /// Position and epoch of a shard, `None` if there is no such shard (any more).
    fn checkpoint(
        &self,
        generation: i32,
        shard: u32,
    ) -> Result<Option<(Position, i64)>, ApplyError> {
        let read = || {
            self.connection
                .prepare_cached(READ_CHECKPOINT)?
                .query_row((generation, shard), |row| {
                    Ok((Position::from_stored(row.get(0)?), row.get(1)?))
                })
                .optional()
        };
        read().map_err(failed)
    }
}

fn stored_max(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

fn page(wanted: &Wanted<'_>) -> AllPage {
    AllPage {
        after: wanted.after,
        up_to: wanted.up_to,
        types: wanted.generation.event_types.clone(),
        max: wanted.events_max,
        dense: false,
    }
}

impl Unit for SqliteUnit<'_> {
    async fn lock_checkpoint(&mut self, lease: &Lease) -> Result<Position, ApplyError> {
        match self.checkpoint(lease.shard.generation, lease.shard.shard)? {
            Some((position, epoch)) if epoch == lease.epoch => Ok(position),
            _ => Err(ApplyError::LeaseLost),
        }
    }

    async fn lock_shard(&mut self, generation: i32, shard: u32) -> Result<Position, ApplyError> {
        let found = self.checkpoint(generation, shard)?;
        found.map(|(position, _)| position).ok_or(ApplyError::LeaseLost)
    }

    async fn advance(
        &mut self,
        lease: &Lease,
        from: Position,
        to: Position,
    ) -> Result<(), ApplyError> {
        let (generation, shard) = (lease.shard.generation, lease.shard.shard);
        let params = (generation, shard, lease.epoch, from.to_stored(), to.to_stored());
        match self.execute(ADVANCE, params)? {
            0 => Err(ApplyError::LeaseLost),
            _ => Ok(()),
        }
    }

    async fn lock_gate(&mut self, _generation: i32) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn note_failure(&mut self, lease: &Lease, failure: &str) -> Result<(), ApplyError> {
        let params = (lease.shard.generation, lease.shard.shard, lease.epoch, failure);
        match self.execute(NOTE_FAILURE, params)? {
            0 => Err(ApplyError::LeaseLost),
            _ => Ok(()),
        }
    }

    async fn range_end(&mut self, wanted: Wanted<'_>) -> Result<RangeEnd, ApplyError> {
        let positions = read::positions(self.connection, &page(&wanted)).map_err(failed)?;
        let full = positions.len() >= wanted.events_max;
        let to = match positions.last() {
            Some(&last) if full => Position::from_stored(last),
            _ => wanted.up_to.max(wanted.after),
        };
        Ok(RangeEnd { to, events: positions.len() as u64 })
    }

    async fn read_events(&mut self, wanted: Wanted<'_>) -> Result<LogPage, ApplyError> {
        read::read_all(self.connection, &page(&wanted), self.bytes_max).map_err(failed)
    }

    async fn read_events_at(
        &mut self,
        positions: &[Position],
    ) -> Result<Vec<RecordedEvent>, ApplyError> {
        read::read_at(self.connection, positions).map_err(failed)
    }

    async fn apply_sql(
        &mut self,
        generation: &Generation,
        events: SqlEvents,
    ) -> Result<(), ApplyError> {
        let plan = self.plans.of(self.connection, generation.id, &generation.definition_hash)?;
        apply::apply_sql(self.connection, &plan, &events)
    }

    async fn run_handler(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        events: &[RecordedEvent],
        limit: Duration,
    ) -> Result<(), ApplyError> {
        let handler = apply::sqlite_handler(projector)?;
        self.in_time(generation, events, limit, |connection| {
            let (home, replayed) = (generation.home.as_str(), !generation.is_active);
            handler.apply(HandlerBatch { events, home, replayed }, connection)
        })
    }

    async fn tell_skipped(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        event: &RecordedEvent,
        limit: Duration,
    ) -> Result<(), ApplyError> {
        let Projector::SqliteHandler(handler) = projector else { return Ok(()) };
        let events = std::slice::from_ref(event);
        self.in_time(generation, events, limit, |connection| handler.skipped(event, connection))
    }

    async fn load_documents(
        &mut self,
        generation: &Generation,
        keys: &[String],
    ) -> Result<Vec<(String, String)>, ApplyError> {
        documents::load(self.connection, generation, keys)
    }

    async fn write_documents(
        &mut self,
        generation: &Generation,
        changes: &[DocumentChange],
    ) -> Result<(), ApplyError> {
        documents::write(self.connection, generation, changes)
    }

    async fn savepoint(&mut self) -> Result<(), ApplyError> {
        run(self.connection, "SAVEPOINT everfold_unit").map_err(failed)
    }

    async fn rollback_to_savepoint(&mut self) -> Result<(), ApplyError> {
        run(self.connection, "ROLLBACK TO everfold_unit").map_err(failed)?;
        run(self.connection, "RELEASE everfold_unit").map_err(failed)
    }

    async fn release_savepoint(&mut self) -> Result<(), ApplyError> {
        run(self.connection, "RELEASE everfold_unit").map_err(failed)
    }

    async fn holds_keys(&mut self, generation: i32) -> Result<bool, ApplyError> {
        let read = || {
            self.connection.prepare_cached(HOLDS_KEYS)?.query_row([generation], |row| row.get(0))
        };
        read().map_err(failed)
    }

    async fn held_keys(
        &mut self,
        generation: i32,
        keys: &[&str],
    ) -> Result<Vec<HeldKey>, ApplyError> {
        let read = || -> Result<Vec<HeldKey>, rusqlite::Error> {
            let mut statement = self.connection.prepare_cached(HELD_BEHIND)?;
            let mut held = Vec::new();
            for &key in keys {
                let behind: Option<i64> =
                    statement.query_row((generation, key), |row| row.get(0))?;
                let behind = behind.map(Position::from_stored);
                held.extend(behind.map(|behind| HeldKey { key: key.to_owned(), behind }));
            }
            Ok(held)
        };
        read().map_err(failed)
    }

    async fn dead_letters(
        &mut self,
        generation: i32,
        key: Option<&str>,
    ) -> Result<Vec<DeadLetterRow>, ApplyError> {
        let read = || -> Result<Vec<DeadLetterRow>, rusqlite::Error> {
            let mut statement = self.connection.prepare_cached(DEAD_LETTERS)?;
            statement.query_map((generation, key), dead_letter)?.collect()
        };
        read().map_err(failed)
    }

    async fn put_dead_letters(
        &mut self,
        generation: i32,
        rows: &[DeadLetterRow],
    ) -> Result<(), ApplyError> {
        rows.iter().try_for_each(|row| {
            let behind = row.behind.map(Position::to_stored);
            let position = row.position.to_stored();
            let params = params![generation, position, row.key, behind, row.error, row.attempts];
            self.execute(PUT_DEAD_LETTER, params).map(|_| ())
        })
    }

    async fn delete_dead_letters(
        &mut self,
        generation: i32,
        positions: &[Position],
    ) -> Result<(), ApplyError> {
        positions.iter().try_for_each(|position| {
            self.execute(DELETE_DEAD_LETTER, (generation, position.to_stored())).map(|_| ())
        })
    }

    async fn take_skips(
        &mut self,
        generation: i32,
        max: usize,
    ) -> Result<Vec<(Position, String)>, ApplyError> {
        let take = || -> Result<Vec<(Position, String)>, rusqlite::Error> {
            let skip =
                |row: &rusqlite::Row<'_>| Ok((Position::from_stored(row.get(0)?), row.get(1)?));
            let owed_to = owed_to(self.connection, generation)?;
            let mut statement = self.connection.prepare_cached(TAKE_SKIPS)?;
            statement.query_map((generation, stored_max(max), owed_to), skip)?.collect()
        };
        let mut taken = take().map_err(failed)?;
        taken.sort_unstable();
        Ok(taken)
    }

    async fn take_skips_of(
        &mut self,
        generation: i32,
        key: &str,
    ) -> Result<Vec<Position>, ApplyError> {
        take_skips_of(self.connection, generation, key).map_err(failed)
    }

    async fn set_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        self.execute(SET_STATUS, (generation, status.as_str(), reason)).map(|_| ())
    }

    async fn record(&mut self, messages: &[SystemMessage]) -> Result<(), ApplyError> {
        messages.iter().try_for_each(|message| record(self.connection, message).map_err(failed))
    }

    async fn log_run(&mut self, row: &RunLogRow) -> Result<(), ApplyError> {
        let params = (
            row.shard.generation,
            row.shard.shard,
            row.from.to_stored(),
            row.to.to_stored(),
            i64::try_from(row.events).unwrap_or(i64::MAX),
            row.duration_ms,
            row.owner.to_string(),
        );
        self.execute(LOG_RUN, params).map(|_| ())
    }
}

/// The last position whose skip a generation owes; see `read_owed_to.sql`.
pub(in crate::store::sqlite) fn owed_to(
    connection: &Connection,
    generation: i32,
) -> Result<i64, rusqlite::Error> {
    let mut statement = connection.prepare_cached(OWED_TO)?;
    let owed_to = statement.query_row([generation], |row| row.get(0)).optional()?;
    Ok(owed_to.unwrap_or(0))
}

/// Takes all open skips of a key out that are owed, in rising order.
pub(super) fn take_skips_of(
    connection: &Connection,
    generation: i32,
    key: &str,
) -> Result<Vec<Position>, rusqlite::Error> {
    let position = |row: &rusqlite::Row<'_>| Ok(Position::from_stored(row.get(0)?));
    let mut statement = connection.prepare_cached(TAKE_SKIPS_OF)?;
    let owed_to = owed_to(connection, generation)?;
    let mut taken: Vec<Position> =
        statement.query_map((generation, key, owed_to), position)?.collect::<Result<_, _>>()?;
    taken.sort_unstable();
    Ok(taken)
}

/// Writes a system message.
pub(in crate::store::sqlite) fn record(
    connection: &Connection,
    message: &SystemMessage,
) -> Result<(), rusqlite::Error> {
    let params = params![
        message.generation,
        message.kind,
        message.position.map(Position::to_stored),
        message.key,
        message.actor,
        message.message,
    ];
    connection.prepare_cached(RECORD)?.execute(params).map(|_| ())
}

/// Columns in the order of [`DEAD_LETTERS`].
pub(super) fn dead_letter(row: &rusqlite::Row<'_>) -> Result<DeadLetterRow, rusqlite::Error> {
    Ok(DeadLetterRow {
        position: Position::from_stored(row.get(0)?),
        key: row.get(1)?,
        behind: row.get::<_, Option<i64>>(2)?.map(Position::from_stored),
        error: row.get(3)?,
        attempts: row.get(4)?,
    })
}
