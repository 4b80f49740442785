//! What a switch of generations does in its transaction, beside what every job does.
//!
//! Locks are taken in this order: the rebuild's row, checkpoint rows (by generation, then shard), the
//! registry gate, gates (by generation). What is read of a generation is read after its locks, in
//! statements of their own.

use std::time::Duration;

use crate::Position;
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildLease, Wanted};

/// With gates in hand a statement, a pause between two, and all of it together may take so many times as
/// long as the wait for the gates.
pub(crate) const FENCE_HELD_TIMES: u32 = 5;

/// A rebuild that is worked on, with its row locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnedRebuild {
    pub(crate) wanted: Wanted,
    /// Whether readers have been switched over.
    pub(crate) flipped: bool,
}

/// Dead letters that a switch would bring in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewDeadLetters {
    pub(crate) count: u64,
    pub(crate) first: Position,
}

/// The part of [`Unit`](super::Unit) that switches need.
///
/// A generation that is fed behind the appends (`building`, `rebuilding`, `kept`, or stopped and not
/// what readers see) owes the skips at or below its checkpoint; those above it come with the events
/// themselves. `take_skips` and `take_skips_of` leave the latter alone.
pub(crate) trait SwitchUnit {
    /// Locks the row of a rebuild that has not ended, if the lease still holds.
    async fn own_rebuild(&mut self, lease: &RebuildLease) -> Result<OwnedRebuild, ApplyError>;
    /// Locks the checkpoint rows of a generation, whoever runs them: shard and position, by shard.
    async fn lock_shards(&mut self, generation: i32) -> Result<Vec<(u32, Position)>, ApplyError>;
    /// Takes gates exclusively: that of the registry if asked for, then these in the order given, all
    /// within `timeout`, or it is a [busy](crate::error::StoreErrorKind::Busy) error. From then on
    /// every statement, and every pause between two, is bounded by a few times that. Nothing to do on
    /// SQLite.
    async fn lock_gates(
        &mut self,
        registry: bool,
        generations: &[i32],
        timeout: Duration,
    ) -> Result<(), ApplyError>;

    /// Where a generation stands now.
    async fn status(&mut self, generation: i32) -> Result<GenerationStatus, ApplyError>;
    /// The highest position that can be seen.
    async fn highest_position(&mut self) -> Result<Position, ApplyError>;
    /// No event at or below it can become visible any more.
    async fn high_water_mark(&mut self) -> Result<Position, ApplyError>;
    /// Whether a generation that is fed behind the appends owes skips that no dead letter holds.
    async fn owes(&mut self, generation: i32) -> Result<bool, ApplyError>;
    /// Failed events of the target that the source has not put aside; `None`: there are none.
    async fn new_dead_letters(
        &mut self,
        target: i32,
        source: Option<i32>,
    ) -> Result<Option<NewDeadLetters>, ApplyError>;

    /// Takes out the open skips in (after, up_to], whose events are applied or put aside in this
    /// transaction, with a record of each (`skip-settled`).
    async fn settle_skips(
        &mut self,
        generation: i32,
        after: Position,
        up_to: Position,
        actor: &str,
    ) -> Result<(), ApplyError>;
    /// Lets the open skips up to there of keys with a dead letter wait behind it.
    async fn hold_skips(&mut self, generation: i32, up_to: Position) -> Result<(), ApplyError>;

    /// Sets a status, without taking gates: the caller holds what is needed.
    async fn write_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError>;
    /// Ends the leases of a generation's shards, and moves the checkpoints forward to a position if one
    /// is given. The rows are locked already.
    async fn release_shards(
        &mut self,
        generation: i32,
        to: Option<Position>,
    ) -> Result<(), ApplyError>;
    /// Lets readers see this generation of its projection. On SQLite the views are replaced too.
    async fn show_generation(&mut self, generation: i32) -> Result<(), ApplyError>;
    /// Notes in the rebuild's row that readers have been switched over.
    async fn note_flip(&mut self, lease: &RebuildLease) -> Result<(), ApplyError>;
}
