//! Switches of what readers see and what appends feed: the transactions of a rebuild's end, and of the
//! beginning of one in place. docs/design.md, Rebuilds, says in which order they are used and why.
//!
//! Every step locks the rebuild's row, where the epoch of whoever works on it is compared, then the
//! checkpoint rows of both generations, so that no job is under way, and looks at the statuses only
//! then. A step that was done already is done: whoever did not hear of its end may try again.
//!
//! ```text
//!   back to a kept one:  ListAgain ─> batches ─> Flip
//!   beside:              batches ─> Flip ──busy, again and again──> Record ─> holders ─> batches ─>
//!                                     FlipUnfenced ─> holders ─> Drain, KeepSource
//!   in place:            SwapIn ─> batches ─> Flip
//! ```

mod begin;
mod flip;
mod unfenced;

use std::sync::Arc;
use std::time::Duration;

use super::{Job, JobOutcome};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{Generation, GenerationStatus, Lease};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildLease, Wanted};
use crate::store::Unit;

/// One step of a switch to the job's generation, the target.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    pub(crate) rebuild: RebuildLease,
    /// Of all the target's shards, by shard. None are needed after the switch.
    pub(crate) leases: Vec<Lease>,
    /// The generation that readers see.
    pub(crate) source: Option<Arc<Generation>>,
    pub(crate) step: SwitchStep,
    pub(crate) limits: SwitchLimits,
    pub(crate) actor: String,
}

/// What the switch may cost, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SwitchLimits {
    /// How long one try may hold appends up.
    pub(crate) fence_timeout: Duration,
    /// Most events that are applied while appends wait.
    pub(crate) fence_events: usize,
    /// Catch-up: how many events behind the source the target may be.
    pub(crate) within: u64,
    pub(crate) allow_dead_letters: bool,
    /// Whether the source is kept, fed, or retired.
    pub(crate) keep_source: bool,
}

/// Which step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SwitchStep {
    /// Inline: behind the gates of both generations, applies everything after the target's checkpoint;
    /// catch-up: with the checkpoints of both locked, looks whether the target is far enough. Then the
    /// target is `active` and what readers see, and the source is `kept` or `retired`.
    Flip,
    /// In place: behind the registry gate and both gates, the empty target becomes `rebuilding` and what
    /// readers see, and the source is `retired`.
    SwapIn,
    /// An inline target that was `kept`, and so is not listed by appends, becomes `building`, behind the
    /// registry gate.
    ListAgain,
    /// Without the fence, first: the target becomes `rebuilding`, so that appends record skips for it.
    Record,
    /// Without the fence, second: the target, which must have passed `past`, becomes `active` and what
    /// readers see; the source becomes `paused`, so that appends record skips for it.
    FlipUnfenced { past: Position },
    /// Without the fence, third: the source, `paused` until now, becomes `kept`, fed from the mark on.
    KeepSource { mark: Position },
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Switched {
    Done {
        /// Events applied while appends waited.
        events: u64,
    },
    /// More events than may be applied while appends wait.
    TailTooLong { events: u64 },
    /// The source, or `past`, is further: so many positions.
    Behind { by: u64 },
    /// Events were put aside that the source has applied: how many, and the first.
    DeadLetters { new: u64, first: Position },
    /// An operator has cancelled it.
    Cancelled,
}

/// Checkpoints of both generations, whose rows are locked.
pub(super) struct Rows {
    /// As the leases.
    target: Vec<Position>,
    source: Vec<Position>,
}

impl Rows {
    fn lowest_of_target(&self) -> Position {
        self.target.iter().copied().min().unwrap_or_default()
    }

    fn highest_of_source(&self) -> Position {
        self.source.iter().copied().max().unwrap_or_default()
    }
}

impl Job {
    pub(super) async fn switch<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<JobOutcome, ApplyError> {
        let rebuild = unit.own_rebuild(&switch.rebuild).await?;
        let rows = self.lock_rows(unit, switch).await?;
        let flips = !matches!(switch.step, SwitchStep::KeepSource { .. });
        let switched = match &switch.step {
            _ if flips && rebuild.flipped => Switched::Done { events: 0 },
            // What readers see already cannot be called off, however little of it there is.
            _ if flips && rebuild.wanted == Wanted::Cancel && !self.generation.is_active => {
                Switched::Cancelled
            }
            SwitchStep::Flip => self.flip(unit, switch, &rows).await?,
            SwitchStep::SwapIn => self.swap_in(unit, switch).await?,
            SwitchStep::ListAgain => self.list_again(unit, switch).await?,
            SwitchStep::Record => self.record_skips(unit).await?,
            SwitchStep::FlipUnfenced { past } => {
                self.flip_unfenced(unit, switch, &rows, *past).await?
            }
            SwitchStep::KeepSource { mark } => self.keep_source(unit, switch, *mark).await?,
        };
        let applied = match switched {
            Switched::Done { events } => events,
            _ => 0,
        };
        let switched = Some(switched);
        Ok(JobOutcome { applied, switched, ..JobOutcome::default() })
    }

    /// In the order of the generations, as everybody does.
    async fn lock_rows<U: Unit>(&self, unit: &mut U, switch: &Switch) -> Result<Rows, ApplyError> {
        let source = switch.source.as_deref().map(|source| source.id);
        let mut rows = Rows { target: Vec::new(), source: Vec::new() };
        if let Some(source) = source.filter(|source| *source < self.generation.id) {
            rows.source = positions(unit.lock_shards(source).await?);
        }
        if !matches!(switch.step, SwitchStep::KeepSource { .. }) {
            for lease in &switch.leases {
                rows.target.push(unit.lock_checkpoint(lease).await?);
            }
            if rows.target.len() != self.generation.shards as usize {
                return Err(ApplyError::LeaseLost);
            }
        }
        if let Some(source) = source.filter(|source| *source > self.generation.id) {
            rows.source = positions(unit.lock_shards(source).await?);
        }
        Ok(rows)
    }

    /// The target is in no state for this step.
    fn cannot(&self, status: GenerationStatus, what: &str) -> ApplyError {
        let Generation { name, version, id, .. } = &*self.generation;
        let message = format!(
            "generation {id} (version {version}) of projection \"{name}\" is {status}, so {what}; see \
             `everfold status`"
        );
        StoreError::new(StoreErrorKind::Other, message).into()
    }
}

fn positions(shards: Vec<(u32, Position)>) -> Vec<Position> {
    shards.into_iter().map(|(_, position)| position).collect()
}
