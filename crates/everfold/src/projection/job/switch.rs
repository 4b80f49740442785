//! Switches of what readers see and what appends feed: the transactions of a rebuild's end, and of the
//! beginning of one in place. docs/design.md, Rebuilds, says in which order they are used and why.

use std::sync::Arc;
use std::time::Duration;

use super::{Job, JobOutcome};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{Generation, Lease};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::RebuildLease;
use crate::store::Unit;

/// One step of a switch to the job's generation, the target.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    pub(crate) rebuild: RebuildLease,
    /// Of all the target's shards.
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

impl Job {
    pub(super) async fn switch<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<JobOutcome, ApplyError> {
        let _ = (unit, switch);
        Err(StoreError::new(StoreErrorKind::Other, "not built yet").into())
    }
}
