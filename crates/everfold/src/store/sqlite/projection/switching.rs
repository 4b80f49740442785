//! What a switch of generations does in its transaction.
//!
//! The transaction holds the write lock, so no append is under way: the gates of PostgreSQL are this
//! one lock, and every event that can be seen is there.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row};

use super::registry::word;
use super::states;
use super::unit::{SET_STATUS, SqliteUnit, failed, record};
use super::views;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{GenerationStatus, SystemMessage};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildLease, Wanted};
use crate::store::sqlite::read;
use crate::store::{NewDeadLetters, OwnedRebuild, SwitchUnit};

const SETTLE_SKIPS: &str = include_str!("../../../../sql/sqlite/statements/settle_skips.sql");
const HOLD_SKIPS: &str = include_str!("../../../../sql/sqlite/statements/hold_skips.sql");
const OWN_REBUILD: &str = "SELECT wanted, flipped_at IS NOT NULL FROM everfold_rebuilds \
    WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL";
const SHARDS: &str =
    "SELECT shard, position FROM everfold_checkpoints WHERE generation = ?1 ORDER BY shard";
const STATUS: &str = "SELECT status FROM everfold_generations WHERE id = ?1";
const NEW_DEAD_LETTERS: &str = "SELECT count(*), min(t.position) FROM everfold_dead_letters t \
    WHERE t.generation = ?1 AND t.behind IS NULL AND NOT EXISTS (SELECT 1 FROM everfold_dead_letters s \
        WHERE s.generation = ?2 AND s.position = t.position)";
const DELETE_HELD: &str = "DELETE FROM everfold_skips \
    WHERE generation = ?1 AND position <= ?2 AND key IN (SELECT d.key FROM everfold_dead_letters d \
        WHERE d.generation = ?1 AND d.behind IS NULL)";
const RELEASE_SHARDS: &str = "UPDATE everfold_checkpoints \
    SET position = max(position, coalesce(?2, 0)), epoch = epoch + 1, owner = NULL, \
        expires_at = NULL, moved_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z', \
        attempts = 0, failure = NULL WHERE generation = ?1";
const NOTE_FLIP: &str = "UPDATE everfold_rebuilds SET phase = 'draining', \
    flipped_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' \
    WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL";

impl SwitchUnit for SqliteUnit<'_> {
    async fn own_rebuild(&mut self, lease: &RebuildLease) -> Result<OwnedRebuild, ApplyError> {
        let owned = |row: &Row<'_>| {
            let wanted = word(row, 0, Wanted::from_stored)?;
            Ok(OwnedRebuild { wanted, flipped: row.get(1)? })
        };
        let read = || {
            let mut statement = self.connection.prepare_cached(OWN_REBUILD)?;
            statement.query_row((lease.rebuild, lease.epoch), owned).optional()
        };
        read().map_err(failed)?.ok_or(ApplyError::LeaseLost)
    }

    async fn lock_shards(&mut self, generation: i32) -> Result<Vec<(u32, Position)>, ApplyError> {
        let shard = |row: &Row<'_>| Ok((row.get(0)?, Position::from_stored(row.get(1)?)));
        let read = || -> Result<_, rusqlite::Error> {
            self.connection.prepare_cached(SHARDS)?.query_map([generation], shard)?.collect()
        };
        read().map_err(failed)
    }

    async fn lock_gates(
        &mut self,
        _registry: bool,
        _generations: &[i32],
        _timeout: Duration,
    ) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn status(&mut self, generation: i32) -> Result<GenerationStatus, ApplyError> {
        let read = || {
            let status = |row: &Row<'_>| word(row, 0, GenerationStatus::from_stored);
            let mut statement = self.connection.prepare_cached(STATUS)?;
            statement.query_row([generation], status).optional()
        };
        read().map_err(failed)?.ok_or_else(|| {
            let message = format!("there is no generation {generation} any more");
            StoreError::new(StoreErrorKind::Other, message).into()
        })
    }

    async fn highest_position(&mut self) -> Result<Position, ApplyError> {
        read::high_water_mark(self.connection).map_err(failed)
    }

    async fn high_water_mark(&mut self) -> Result<Position, ApplyError> {
        self.highest_position().await
    }

    async fn owes(&mut self, generation: i32) -> Result<bool, ApplyError> {
        states::owes(self.connection, generation).map_err(failed)
    }

    async fn new_dead_letters(
        &mut self,
        target: i32,
        source: Option<i32>,
    ) -> Result<Option<NewDeadLetters>, ApplyError> {
        let found = |row: &Row<'_>| {
            let (count, first) = (states::count(row, 0)?, row.get::<_, Option<i64>>(1)?);
            Ok(first.map(|first| NewDeadLetters { count, first: Position::from_stored(first) }))
        };
        let read = || {
            let mut statement = self.connection.prepare_cached(NEW_DEAD_LETTERS)?;
            statement.query_row((target, source), found)
        };
        read().map_err(failed)
    }

    async fn settle_skips(
        &mut self,
        generation: i32,
        after: Position,
        up_to: Position,
        actor: &str,
    ) -> Result<(), ApplyError> {
        let settle = || -> Result<(), rusqlite::Error> {
            let skip = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
            let range = (generation, after.to_stored(), up_to.to_stored());
            let mut statement = self.connection.prepare_cached(SETTLE_SKIPS)?;
            let mut settled: Vec<(i64, String)> =
                statement.query_map(range, skip)?.collect::<Result<_, _>>()?;
            settled.sort_unstable();
            for (position, key) in settled {
                let message = SystemMessage {
                    generation: Some(generation),
                    kind: "skip-settled",
                    position: Some(Position::from_stored(position)),
                    key: Some(key),
                    actor: actor.to_owned(),
                    message: format!(
                        "the event at position {position} was applied with those around it"
                    ),
                };
                record(self.connection, &message)?;
            }
            Ok(())
        };
        settle().map_err(failed)
    }

    async fn hold_skips(&mut self, generation: i32, up_to: Position) -> Result<(), ApplyError> {
        self.execute(HOLD_SKIPS, (generation, up_to.to_stored()))?;
        self.execute(DELETE_HELD, (generation, up_to.to_stored())).map(drop)
    }

    async fn write_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        self.execute(SET_STATUS, (generation, status.as_str(), reason)).map(drop)
    }

    async fn release_shards(
        &mut self,
        generation: i32,
        to: Option<Position>,
    ) -> Result<(), ApplyError> {
        self.execute(RELEASE_SHARDS, (generation, to.map(Position::to_stored))).map(drop)
    }

    async fn show_generation(&mut self, generation: i32) -> Result<(), ApplyError> {
        Ok(views::switch(self.connection, generation)?)
    }

    async fn note_flip(&mut self, lease: &RebuildLease) -> Result<(), ApplyError> {
        match self.execute(NOTE_FLIP, (lease.rebuild, lease.epoch))? {
            0 => Err(ApplyError::LeaseLost),
            _ => Ok(()),
        }
    }
}
