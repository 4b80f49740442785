//! The protocols of one transaction on a read model, written once for every store.
//!
//! Every job takes the shard's checkpoint row first. An error rolls all of it back.
//!
//! ```text
//!   Batch ──refused──> NoteFailure, a pause, Batch again … ──retries used up──> CarefulBatch
//!   Drain ──refused──> …                                                   ──> CarefulDrain
//!   an operator ──────────────────────────────────────────────────────────> Retry, Discard
//! ```
//!
//! An inline generation is drained while appends feed it. While it is fed behind them (built, or kept)
//! it gets batches, which first settle what it owes up to its checkpoint.

mod apply;
mod batch;
mod call;
mod drain;
#[cfg(feature = "sqlite")]
mod inline;
mod page;
mod retry;
mod switch;
#[cfg(test)]
mod tests;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::definition::Lifecycle;
use super::generation::{Generation, Lease};
use super::projector::{ApplyError, Projector};
use crate::Position;
use crate::store::Unit;
use crate::upcast::Upcasters;
#[cfg(feature = "postgres")]
pub(crate) use apply::held_row;
use batch::Batch;
pub(crate) use batch::CAREFUL_EVENTS;
pub(crate) use call::Call;
pub(crate) use drain::CAREFUL_SKIPS;
pub(crate) use page::no_key;
#[cfg(feature = "postgres")]
pub(crate) use page::{describe, key_of_refused, said, upcast};
pub(crate) use retry::RETRY_EVENTS;
pub(crate) use switch::{Switch, SwitchLimits, SwitchStep, Switched};

/// Work on one generation in one transaction.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) generation: Arc<Generation>,
    pub(crate) projector: Projector,
    pub(crate) upcasters: Arc<Upcasters>,
    pub(crate) task: Task,
    /// How long a handler may take in the transaction.
    pub(crate) handler_timeout: Duration,
    /// An event that a handler did not come back from, and what is said of it: it is not tried again.
    pub(crate) given_up: Option<(Position, String)>,
    /// Whether it is inside a handler, and since when.
    pub(crate) call: Call,
}

/// How long a handler may take in one transaction, if nobody says otherwise: shorter than any server
/// lets a transaction idle (10 s), and than a lease lives (15 s).
pub(crate) const HANDLER_TIMEOUT: Duration = Duration::from_secs(8);

/// What is to be done.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Applies the next events of a shard, up to the mark, and moves its checkpoint.
    Batch { lease: Lease, mark: Position, events_max: usize, worker: Uuid },
    /// A batch that is refused when all is done, so that it is rolled back: what a crash before the
    /// commit leaves behind, which should be nothing.
    #[cfg(feature = "testing")]
    Rehearsal { lease: Lease, mark: Position, events_max: usize, worker: Uuid },
    /// Notes that a batch or a drain was refused, in the shard's row.
    NoteFailure { lease: Lease, failure: String },
    /// The same as a batch for few events, after retrying has not helped: finds those that fail, and
    /// does with them what the policy says.
    CarefulBatch {
        lease: Lease,
        mark: Position,
        events_max: usize,
        worker: Uuid,
        actor: String,
        attempts: u32,
    },
    /// Applies what an inline generation owes.
    Drain { lease: Lease, events_max: usize, actor: String },
    /// The same for few events, after retrying has not helped.
    CarefulDrain { lease: Lease, events_max: usize, actor: String, attempts: u32 },
    /// Applies events of an append, in its transaction.
    #[cfg(feature = "sqlite")]
    Inline { positions: Vec<Position> },
    /// Tries a dead letter again, and what waits behind it.
    Retry { position: Position, events_max: usize, actor: String },
    /// Gives a dead letter up, and applies what waits behind it.
    Discard { position: Position, reason: String, events_max: usize, actor: String },
    /// Applies events to a read model that is thrown away; see [`Job::try_on`].
    Trial,
    /// One step of a switch to this generation.
    Switch(Box<Switch>),
}

impl Task {
    /// How many events it may have.
    pub(crate) fn events_max(&self) -> usize {
        match self {
            Task::Batch { events_max, .. }
            | Task::CarefulBatch { events_max, .. }
            | Task::Drain { events_max, .. }
            | Task::CarefulDrain { events_max, .. }
            | Task::Retry { events_max, .. }
            | Task::Discard { events_max, .. } => *events_max,
            _ => 1,
        }
    }

    /// A retry of half as many events.
    pub(crate) fn with_fewer(self) -> Task {
        let events_max = (self.events_max() / 2).max(1);
        match self {
            Task::Retry { position, actor, .. } => Task::Retry { position, events_max, actor },
            Task::Discard { position, reason, actor, .. } => {
                Task::Discard { position, reason, events_max, actor }
            }
            other => other,
        }
    }

    /// Who does it, for the record; batches that go well leave none.
    pub(crate) fn actor(&self) -> &str {
        match self {
            Task::Batch { .. } | Task::NoteFailure { .. } | Task::Trial => "",
            #[cfg(feature = "testing")]
            Task::Rehearsal { .. } => "",
            #[cfg(feature = "sqlite")]
            Task::Inline { .. } => "append",
            Task::CarefulBatch { actor, .. }
            | Task::Drain { actor, .. }
            | Task::CarefulDrain { actor, .. }
            | Task::Retry { actor, .. }
            | Task::Discard { actor, .. } => actor,
            Task::Switch(switch) => &switch.actor,
        }
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct JobOutcome {
    /// Where the checkpoint stands now.
    pub(crate) position: Position,
    /// How many events were applied.
    pub(crate) applied: u64,
    /// Whether there was more than fitted.
    pub(crate) more: bool,
    /// The event that stopped it: the projection has failed, or the retried key still waits.
    pub(crate) failure: Option<Failure>,
    /// Whether what was to be worked on is not there, or not any more.
    pub(crate) missing: bool,
    /// How long the transaction took, where the store knows better than whoever waited for it.
    pub(crate) took: Option<Duration>,
    /// How a step of a switch ended.
    pub(crate) switched: Option<Switched>,
}

/// An event that could not be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) position: Position,
    pub(crate) message: String,
}

impl Job {
    pub(crate) fn new(
        generation: Arc<Generation>,
        projector: Projector,
        upcasters: Arc<Upcasters>,
        task: Task,
    ) -> Self {
        let (handler_timeout, given_up, call) = (HANDLER_TIMEOUT, None, Call::default());
        Job { generation, projector, upcasters, task, handler_timeout, given_up, call }
    }

    /// Does it in an open transaction.
    pub(crate) async fn run<U: Unit>(&self, unit: &mut U) -> Result<JobOutcome, ApplyError> {
        match &self.task {
            Task::Batch { lease, mark, events_max, worker } => {
                let (mark, events_max, worker) = (*mark, *events_max, *worker);
                self.batch(unit, Batch { lease, mark, events_max, worker }).await
            }
            #[cfg(feature = "testing")]
            Task::Rehearsal { lease, mark, events_max, worker } => {
                let (mark, events_max, worker) = (*mark, *events_max, *worker);
                self.batch(unit, Batch { lease, mark, events_max, worker }).await?;
                let message = "a rehearsal ends here".to_owned();
                Err(ApplyError::Refused { message, position: None })
            }
            Task::CarefulBatch { lease, mark, events_max, worker, attempts, .. } => {
                let (mark, events_max, worker) = (*mark, *events_max, *worker);
                let batch = Batch { lease, mark, events_max, worker };
                self.careful_batch(unit, batch, *attempts).await
            }
            Task::NoteFailure { lease, failure } => {
                let position = unit.lock_checkpoint(lease).await?;
                unit.note_failure(lease, failure).await?;
                Ok(JobOutcome { position, ..JobOutcome::default() })
            }
            Task::Drain { lease, events_max, .. } => self.drain(unit, lease, *events_max).await,
            Task::CarefulDrain { lease, events_max, attempts, .. } => {
                self.careful_drain(unit, lease, *events_max, *attempts).await
            }
            #[cfg(feature = "sqlite")]
            Task::Inline { positions } => self.inline(unit, positions).await,
            Task::Retry { position, .. } => self.retry(unit, *position, None).await,
            Task::Discard { position, reason, .. } => {
                self.retry(unit, *position, Some(reason)).await
            }
            Task::Trial => Ok(JobOutcome::default()),
            Task::Switch(switch) => self.switch(unit, switch).await,
        }
    }

    fn is_inline(&self) -> bool {
        self.generation.lifecycle == Lifecycle::Inline
    }

    /// Why the projection has failed, and what to do about it.
    pub(crate) fn failed_reason(&self, failure: &Failure) -> String {
        let name = &self.generation.name;
        format!(
            "{}; mend the projection, or let on_error put such events aside, then `everfold resume \
             {name}`",
            failure.message
        )
    }

    /// Why it has failed where no event is to blame, and what to do about it.
    pub(crate) fn broken_reason(&self, message: &str) -> String {
        let name = &self.generation.name;
        format!(
            "its read model is broken, which is not the fault of any event: {message}; put back what \
             is missing as it was, then `everfold resume {name}`"
        )
    }
}
