//! What a job does in its transaction, step by step.

use std::time::Duration;

use futures::TryStreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::unit::{PostgresUnit, in_time, statement, stored_positions};
use super::{apply, documents, gates};
use crate::projection::generation::{
    DeadLetterRow, Generation, GenerationStatus, Lease, RunLogRow, SystemMessage,
};
use crate::projection::projector::{ApplyError, DocumentChange, Projector};
use crate::store::postgres::connect::Param;
use crate::store::postgres::read::{event, stored_max};
use crate::store::{HeldKey, LogPage, Page, RangeEnd, SqlEvents, Unit, Wanted};
use crate::{Position, RecordedEvent};

const LOCK_CHECKPOINT: &str = statement!("lock_checkpoint");
const LOCK_SHARD: &str = "SELECT position FROM everfold.checkpoints \
    WHERE generation = $1 AND shard = $2 FOR UPDATE";
const ADVANCE: &str = statement!("advance_checkpoint");
const NOTE_FAILURE: &str = "UPDATE everfold.checkpoints SET attempts = attempts + 1, failure = $4 \
    WHERE generation = $1 AND shard = $2 AND epoch = $3 RETURNING attempts";
const RANGE_END: &str = statement!("find_range_end");
const RANGE_END_OF_TYPES: &str = statement!("find_range_end_of_types");
const READ_ALL: &str = statement!("read_all");
const READ_OF_TYPES: &str = statement!("read_events_of_types");
const READ_AT: &str = statement!("read_events_at");
const HOLDS_KEYS: &str =
    "SELECT EXISTS (SELECT FROM everfold.dead_letters WHERE generation = $1 AND behind IS NULL)";
const HELD_KEYS: &str = "SELECT key, min(position) FROM everfold.dead_letters \
    WHERE generation = $1 AND key = ANY ($2) AND behind IS NULL GROUP BY key ORDER BY 2";
const DEAD_LETTERS: &str = "SELECT position, key, behind, error, attempts FROM everfold.dead_letters \
    WHERE generation = $1 AND ($2::text IS NULL OR key = $2) ORDER BY position";
const PUT_DEAD_LETTERS: &str = statement!("put_dead_letters");
const DELETE_DEAD_LETTERS: &str =
    "DELETE FROM everfold.dead_letters WHERE generation = $1 AND position = ANY ($2)";
const TAKE_SKIPS: &str = "SELECT position, key FROM everfold.take_skips($1, $2)";
/// For callers that hold the gate: no append of the generation is under way.
const TAKE_SKIPS_OF: &str = "WITH taken AS (DELETE FROM everfold.skips \
    WHERE generation = $1 AND key = $2 AND position <= everfold.owed_up_to($1) RETURNING position) \
    SELECT position FROM taken ORDER BY 1";
const SET_STATUS: &str = "UPDATE everfold.generations \
    SET status = $2, reason = $3, status_since = clock_timestamp() WHERE id = $1 RETURNING lifecycle";
const RECORD: &str = "INSERT INTO everfold.system_messages \
    (generation, kind, position, key, actor, message) \
    SELECT * FROM unnest($1::integer[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[])";
const LOG_RUN: &str = "INSERT INTO everfold.run_log \
    (generation, shard, from_position, to_position, events, duration_ms, owner) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

impl PostgresUnit<'_> {
    async fn position(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Position, ApplyError> {
        let rows = self.query(sql, params).await?;
        let row = rows.first().ok_or(ApplyError::LeaseLost)?;
        Ok(Position::from_stored(row.get(0)))
    }

    /// Reads a page of events, until it is full by number or by bytes.
    async fn page(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        max: usize,
    ) -> Result<Page, ApplyError> {
        let (transaction, bytes_max) = (self.transaction(), self.bytes_max);
        let reading = async {
            let rows = transaction.query_typed_raw(sql, params.iter().cloned()).await?;
            futures::pin_mut!(rows);
            let (mut events, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.try_next().await? {
                let event = match event(&row) {
                    Ok(event) => event,
                    Err(error) => return Ok(Err(error)),
                };
                bytes += event.data.len() + event.metadata.len();
                events.push(event);
                if bytes >= bytes_max {
                    return Ok(Ok(Page { events, more: true }));
                }
            }
            let more = events.len() == max;
            Ok(Ok(Page { events, more }))
        };
        let outcome = in_time(self.request_timeout, reading).await;
        self.note(&outcome);
        let page = outcome.map_err(|error| ApplyError::Store(error.into_store_error()))?;
        page.map_err(ApplyError::Store)
    }
}

impl Unit for PostgresUnit<'_> {
    async fn lock_checkpoint(&mut self, lease: &Lease) -> Result<Position, ApplyError> {
        let (generation, shard) = shard_of(lease);
        let params: [Param<'_>; 3] =
            [(&generation, Type::INT4), (&shard, Type::INT4), (&lease.epoch, Type::INT8)];
        self.position(LOCK_CHECKPOINT, &params).await
    }

    async fn lock_shard(&mut self, generation: i32, shard: u32) -> Result<Position, ApplyError> {
        let shard = stored_shard(shard);
        self.position(LOCK_SHARD, &[(&generation, Type::INT4), (&shard, Type::INT4)]).await
    }

    async fn advance(
        &mut self,
        lease: &Lease,
        from: Position,
        to: Position,
    ) -> Result<(), ApplyError> {
        let (generation, shard) = shard_of(lease);
        let (from, to) = (from.to_stored(), to.to_stored());
        let params: [Param<'_>; 5] = [
            (&generation, Type::INT4),
            (&shard, Type::INT4),
            (&lease.epoch, Type::INT8),
            (&from, Type::INT8),
            (&to, Type::INT8),
        ];
        self.position(ADVANCE, &params).await.map(drop)
    }

    async fn lock_gate(&mut self, generation: i32) -> Result<(), ApplyError> {
        gates::lock(self, &gates::of_generation(generation)).await
    }

    async fn note_failure(&mut self, lease: &Lease, failure: &str) -> Result<(), ApplyError> {
        let (generation, shard) = shard_of(lease);
        let params: [Param<'_>; 4] = [
            (&generation, Type::INT4),
            (&shard, Type::INT4),
            (&lease.epoch, Type::INT8),
            (&failure, Type::TEXT),
        ];
        let noted = self.query(NOTE_FAILURE, &params).await?;
        if noted.is_empty() { Err(ApplyError::LeaseLost) } else { Ok(()) }
    }

    async fn range_end(&mut self, wanted: Wanted<'_>) -> Result<RangeEnd, ApplyError> {
        let bounds = Bounds::of(&wanted);
        let rows = match &wanted.generation.event_types {
            None => self.query(RANGE_END, &bounds.params()).await?,
            Some(types) => {
                let mut params = bounds.params().to_vec();
                params.push((types, Type::TEXT_ARRAY));
                self.query(RANGE_END_OF_TYPES, &params).await?
            }
        };
        let row = rows.first().expect("an aggregate has a row");
        let (last, events): (Option<i64>, i64) = (row.get(0), row.get(1));
        let to = match last {
            Some(last) if events >= bounds.max => Position::from_stored(last),
            _ => wanted.up_to.max(wanted.after),
        };
        Ok(RangeEnd { to, events: events.unsigned_abs() })
    }

    async fn read_events(&mut self, wanted: Wanted<'_>) -> Result<LogPage, ApplyError> {
        let bounds = Bounds::of(&wanted);
        let page = match &wanted.generation.event_types {
            None => self.page(READ_ALL, &bounds.params(), wanted.events_max).await?,
            Some(types) => {
                let mut params = bounds.params().to_vec();
                params.push((types, Type::TEXT_ARRAY));
                self.page(READ_OF_TYPES, &params, wanted.events_max).await?
            }
        };
        Ok(LogPage::new(page, wanted.after, wanted.up_to))
    }

    async fn read_events_at(
        &mut self,
        positions: &[Position],
    ) -> Result<Vec<RecordedEvent>, ApplyError> {
        let positions = stored_positions(positions);
        let rows = self.query(READ_AT, &[(&positions, Type::INT8_ARRAY)]).await?;
        rows.iter().map(|row| event(row).map_err(ApplyError::Store)).collect()
    }

    async fn apply_sql(
        &mut self,
        generation: &Generation,
        events: SqlEvents,
    ) -> Result<(), ApplyError> {
        apply::apply_sql(self, generation, &events).await
    }

    async fn run_handler(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        events: &[RecordedEvent],
        limit: Duration,
    ) -> Result<(), ApplyError> {
        apply::run_handler(self, generation, projector, events, limit).await
    }

    async fn tell_skipped(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        event: &RecordedEvent,
        limit: Duration,
    ) -> Result<(), ApplyError> {
        apply::tell_skipped(self, generation, projector, event, limit).await
    }

    async fn load_documents(
        &mut self,
        generation: &Generation,
        keys: &[String],
    ) -> Result<Vec<(String, String)>, ApplyError> {
        documents::load(self, generation, keys).await
    }

    async fn write_documents(
        &mut self,
        generation: &Generation,
        changes: &[DocumentChange],
    ) -> Result<(), ApplyError> {
        documents::write(self, generation, changes).await
    }

    async fn savepoint(&mut self) -> Result<(), ApplyError> {
        self.run(&format!("SAVEPOINT everfold_{}", self.savepoints + 1)).await?;
        self.savepoints += 1;
        Ok(())
    }

    async fn rollback_to_savepoint(&mut self) -> Result<(), ApplyError> {
        let name = format!("everfold_{}", self.savepoints);
        self.run(&format!("ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}")).await?;
        self.savepoints -= 1;
        self.note_undone();
        Ok(())
    }

    async fn release_savepoint(&mut self) -> Result<(), ApplyError> {
        self.run(&format!("RELEASE SAVEPOINT everfold_{}", self.savepoints)).await?;
        self.savepoints -= 1;
        Ok(())
    }

    async fn holds_keys(&mut self, generation: i32) -> Result<bool, ApplyError> {
        let rows = self.query(HOLDS_KEYS, &[(&generation, Type::INT4)]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn held_keys(
        &mut self,
        generation: i32,
        keys: &[&str],
    ) -> Result<Vec<HeldKey>, ApplyError> {
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&keys, Type::TEXT_ARRAY)];
        let rows = self.query(HELD_KEYS, &params).await?;
        let held =
            |row: &Row| HeldKey { key: row.get(0), behind: Position::from_stored(row.get(1)) };
        Ok(rows.iter().map(held).collect())
    }

    async fn dead_letters(
        &mut self,
        generation: i32,
        key: Option<&str>,
    ) -> Result<Vec<DeadLetterRow>, ApplyError> {
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&key, Type::TEXT)];
        Ok(self.query(DEAD_LETTERS, &params).await?.iter().map(dead_letter).collect())
    }

    async fn put_dead_letters(
        &mut self,
        generation: i32,
        rows: &[DeadLetterRow],
    ) -> Result<(), ApplyError> {
        let positions: Vec<i64> = rows.iter().map(|row| row.position.to_stored()).collect();
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        let behind: Vec<Option<i64>> =
            rows.iter().map(|row| row.behind.map(Position::to_stored)).collect();
        let errors: Vec<Option<&str>> = rows.iter().map(|row| row.error.as_deref()).collect();
        let attempts: Vec<i32> =
            rows.iter().map(|row| i32::try_from(row.attempts).unwrap_or(i32::MAX)).collect();
        let params: [Param<'_>; 6] = [
            (&generation, Type::INT4),
            (&positions, Type::INT8_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&behind, Type::INT8_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
        ];
        self.query(PUT_DEAD_LETTERS, &params).await.map(drop)
    }

    async fn delete_dead_letters(
        &mut self,
        generation: i32,
        positions: &[Position],
    ) -> Result<(), ApplyError> {
        let positions = stored_positions(positions);
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&positions, Type::INT8_ARRAY)];
        self.query(DELETE_DEAD_LETTERS, &params).await.map(drop)
    }

    async fn take_skips(
        &mut self,
        generation: i32,
        max: usize,
    ) -> Result<Vec<(Position, String)>, ApplyError> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&max, Type::INT4)];
        let rows = self.query(TAKE_SKIPS, &params).await?;
        Ok(rows.iter().map(|row| (Position::from_stored(row.get(0)), row.get(1))).collect())
    }

    async fn take_skips_of(
        &mut self,
        generation: i32,
        key: &str,
    ) -> Result<Vec<Position>, ApplyError> {
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&key, Type::TEXT)];
        let rows = self.query(TAKE_SKIPS_OF, &params).await?;
        Ok(rows.iter().map(|row| Position::from_stored(row.get(0))).collect())
    }

    async fn set_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        let lifecycle = "SELECT lifecycle FROM everfold.generations WHERE id = $1";
        let rows = self.query(lifecycle, &[(&generation, Type::INT4)]).await?;
        if rows.first().is_some_and(|row| row.get::<_, &str>(0) == "inline") {
            gates::lock(self, &gates::all_for(generation)).await?;
        }
        let status = status.as_str();
        let params: [Param<'_>; 3] =
            [(&generation, Type::INT4), (&status, Type::TEXT), (&reason, Type::TEXT)];
        self.query(SET_STATUS, &params).await.map(drop)
    }

    async fn record(&mut self, messages: &[SystemMessage]) -> Result<(), ApplyError> {
        let generations: Vec<Option<i32>> = messages.iter().map(|m| m.generation).collect();
        let kinds: Vec<&str> = messages.iter().map(|m| m.kind).collect();
        let positions: Vec<Option<i64>> =
            messages.iter().map(|m| m.position.map(Position::to_stored)).collect();
        let keys: Vec<Option<&str>> = messages.iter().map(|m| m.key.as_deref()).collect();
        let actors: Vec<&str> = messages.iter().map(|m| m.actor.as_str()).collect();
        let texts: Vec<&str> = messages.iter().map(|m| m.message.as_str()).collect();
        let params: [Param<'_>; 6] = [
            (&generations, Type::INT4_ARRAY),
            (&kinds, Type::TEXT_ARRAY),
            (&positions, Type::INT8_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&actors, Type::TEXT_ARRAY),
            (&texts, Type::TEXT_ARRAY),
        ];
        self.query(RECORD, &params).await.map(drop)
    }

    async fn log_run(&mut self, row: &RunLogRow) -> Result<(), ApplyError> {
        let shard = stored_shard(row.shard.shard);
        let (from, to) = (row.from.to_stored(), row.to.to_stored());
        let events = i32::try_from(row.events).unwrap_or(i32::MAX);
        let params: [Param<'_>; 7] = [
            (&row.shard.generation, Type::INT4),
            (&shard, Type::INT4),
            (&from, Type::INT8),
            (&to, Type::INT8),
            (&events, Type::INT4),
            (&row.duration_ms, Type::FLOAT4),
            (&row.owner, Type::UUID),
        ];
        self.query(LOG_RUN, &params).await.map(drop)
    }
}

/// A range of positions and a number, as parameters.
struct Bounds {
    after: i64,
    up_to: i64,
    max: i64,
}

impl Bounds {
    fn of(wanted: &Wanted<'_>) -> Bounds {
        Bounds {
            after: wanted.after.to_stored(),
            up_to: wanted.up_to.to_stored(),
            max: stored_max(wanted.events_max),
        }
    }

    fn params(&self) -> [Param<'_>; 3] {
        [(&self.after, Type::INT8), (&self.up_to, Type::INT8), (&self.max, Type::INT8)]
    }
}

/// Columns in the order of the statements.
pub(in crate::store::postgres) fn dead_letter(row: &Row) -> DeadLetterRow {
    DeadLetterRow {
        position: Position::from_stored(row.get(0)),
        key: row.get(1),
        behind: row.get::<_, Option<i64>>(2).map(Position::from_stored),
        error: row.get(3),
        attempts: row.get::<_, i32>(4).unsigned_abs(),
    }
}

fn stored_shard(shard: u32) -> i32 {
    i32::try_from(shard).unwrap_or(i32::MAX)
}

/// A generation and a shard as parameters.
fn shard_of(lease: &Lease) -> (i32, i32) {
    (lease.shard.generation, stored_shard(lease.shard.shard))
}
