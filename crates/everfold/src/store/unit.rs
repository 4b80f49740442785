//! One transaction of the engine on read models, whatever the database.
//!
//! The jobs of `projection/job` are written once over [`Unit`] and run by each backend in a
//! transaction of its own, with timeouts on PostgreSQL and a time budget on SQLite. An error of a
//! job rolls the whole back.

use std::time::Duration;

use crate::projection::generation::{
    DeadLetterRow, Generation, GenerationStatus, Lease, RunLogRow, SystemMessage,
};
use crate::projection::projector::{ApplyError, DocumentChange, Projector};
use crate::store::{LogPage, SwitchUnit};
use crate::{Position, RecordedEvent};

/// Which events the database applies by itself.
#[derive(Debug, Clone)]
pub(crate) enum SqlEvents {
    /// All that the generation wants in (after, up_to], of this shard.
    Range { after: Position, up_to: Position, shard: u32 },
    /// Just these, in rising order.
    Positions(Vec<Position>),
}

/// Where a batch ends: all that is wanted up to `to` is `events` events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeEnd {
    pub(crate) to: Position,
    pub(crate) events: u64,
}

/// Which events of the log: those that a generation wants in (after, up_to].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) generation: &'a Generation,
    pub(crate) after: Position,
    pub(crate) up_to: Position,
    pub(crate) events_max: usize,
}

/// An open transaction of the engine.
pub(crate) trait Unit: SwitchUnit {
    /// Locks the shard's checkpoint row and returns its position, if the lease still holds.
    async fn lock_checkpoint(&mut self, lease: &Lease) -> Result<Position, ApplyError>;
    /// Locks the shard's checkpoint row whoever runs it, as operators' actions do.
    async fn lock_shard(&mut self, generation: i32, shard: u32) -> Result<Position, ApplyError>;
    /// Moves the checkpoint, if epoch and position are still the ones given, and clears failures.
    async fn advance(
        &mut self,
        lease: &Lease,
        from: Position,
        to: Position,
    ) -> Result<(), ApplyError>;
    /// Waits until no append is under way that wants this inline generation, and lets none begin
    /// before the end of the transaction. Taken before the checkpoint row. Nothing to do on SQLite.
    async fn lock_gate(&mut self, generation: i32) -> Result<(), ApplyError>;
    /// Notes a failed try in the shard's row.
    async fn note_failure(&mut self, lease: &Lease, failure: &str) -> Result<(), ApplyError>;

    /// Where a batch of at most `events_max` wanted events ends. Rare types are found by their index.
    async fn range_end(&mut self, wanted: Wanted<'_>) -> Result<RangeEnd, ApplyError>;
    /// The wanted events themselves, as stored, bounded in bytes too.
    async fn read_events(&mut self, wanted: Wanted<'_>) -> Result<LogPage, ApplyError>;
    /// The events at these positions, in rising order.
    async fn read_events_at(
        &mut self,
        positions: &[Position],
    ) -> Result<Vec<RecordedEvent>, ApplyError>;

    /// Lets the database apply events to a SQL projection. An error of the projection's SQL is
    /// [`ApplyError::Refused`] and names file and line.
    async fn apply_sql(
        &mut self,
        generation: &Generation,
        events: SqlEvents,
    ) -> Result<(), ApplyError>;
    /// Runs a handler; not for other projectors. Panics come back as [`ApplyError::Refused`]. All calls
    /// of a handler in the transaction have `limit` together; then it is [`ApplyError::OutOfTime`].
    async fn run_handler(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        events: &[RecordedEvent],
        limit: Duration,
    ) -> Result<(), ApplyError>;
    /// Tells a handler that an event was given up; does nothing for other projectors.
    async fn tell_skipped(
        &mut self,
        generation: &Generation,
        projector: &Projector,
        event: &RecordedEvent,
        limit: Duration,
    ) -> Result<(), ApplyError>;
    /// Documents by key; keys without one are left out.
    async fn load_documents(
        &mut self,
        generation: &Generation,
        keys: &[String],
    ) -> Result<Vec<(String, String)>, ApplyError>;
    /// Writes documents, sorted by key.
    async fn write_documents(
        &mut self,
        generation: &Generation,
        changes: &[DocumentChange],
    ) -> Result<(), ApplyError>;

    /// A savepoint; they nest.
    async fn savepoint(&mut self) -> Result<(), ApplyError>;
    /// Undoes what was done since the last savepoint, and ends it.
    async fn rollback_to_savepoint(&mut self) -> Result<(), ApplyError>;
    async fn release_savepoint(&mut self) -> Result<(), ApplyError>;

    /// Whether any key of this generation has a dead letter.
    async fn holds_keys(&mut self, generation: i32) -> Result<bool, ApplyError>;
    /// Those of these keys that have a dead letter in this generation.
    async fn held_keys(
        &mut self,
        generation: i32,
        keys: &[&str],
    ) -> Result<Vec<HeldKey>, ApplyError>;
    /// Dead letters of a generation in rising order: of one key, or all.
    async fn dead_letters(
        &mut self,
        generation: i32,
        key: Option<&str>,
    ) -> Result<Vec<DeadLetterRow>, ApplyError>;
    /// Adds rows, or replaces what is there under the same position (`created_at` stays,
    /// `retry_wanted` ends, `tried_at` is now for failed ones).
    async fn put_dead_letters(
        &mut self,
        generation: i32,
        rows: &[DeadLetterRow],
    ) -> Result<(), ApplyError>;
    async fn delete_dead_letters(
        &mut self,
        generation: i32,
        positions: &[Position],
    ) -> Result<(), ApplyError>;

    /// Takes open skips out, oldest keys first and in rising order within a key: all of a key's
    /// earliest ones, never a later one without those before it. Skips of keys with a dead letter
    /// are left, and so are those above the checkpoint of a generation that is fed behind the appends:
    /// see [`SwitchUnit`].
    async fn take_skips(
        &mut self,
        generation: i32,
        max: usize,
    ) -> Result<Vec<(Position, String)>, ApplyError>;

    /// Takes all open skips of a key out, in rising order; of a generation that is fed behind the
    /// appends those up to its checkpoint.
    async fn take_skips_of(
        &mut self,
        generation: i32,
        key: &str,
    ) -> Result<Vec<Position>, ApplyError>;

    async fn set_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError>;
    async fn record(&mut self, messages: &[SystemMessage]) -> Result<(), ApplyError>;
    async fn log_run(&mut self, row: &RunLogRow) -> Result<(), ApplyError>;
}

/// A key that waits behind a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldKey {
    pub(crate) key: String,
    /// The failed event.
    pub(crate) behind: Position,
}
