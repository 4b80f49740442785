//! Handlers that block their thread. Nothing can stop such code, and it never looks at the time: all
//! that can be done is to say so, and to leave the shard to somebody else. Should the handler come
//! back, its transaction is over, and its epoch an old one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::context::{Context, Runnable};
use super::shard::Place;
use crate::projection::generation::{Lease, ShardId};
use crate::projection::job::{Job, Task};
use crate::projection::projector::ApplyError;

/// So much longer than its limit a handler may take: whatever can be stopped is stopped by then.
const MARGIN: Duration = Duration::from_secs(2);

/// The shards of a worker whose handlers do not come back.
pub(super) struct Watchdog {
    context: Arc<Context>,
    stuck: HashMap<ShardId, Stuck>,
}

struct Stuck {
    place: Arc<Place>,
    since: Instant,
    lease: Lease,
    runnable: Runnable,
    /// Whether it stands in the shard's row, or somebody else has the shard.
    told: Arc<AtomicBool>,
}

impl Watchdog {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Watchdog { context, stuck: HashMap::new() }
    }

    /// Forgets calls that have come back.
    pub(super) fn forget_those_back(&mut self) {
        let context = &self.context;
        self.stuck.retain(|shard, stuck| {
            let inside = stuck.place.call.since() == Some(stuck.since);
            if !inside {
                tracing::warn!(?shard, "a handler that did not come back has come back");
                context.accepted(*shard);
            }
            inside
        });
    }

    /// Looks at a shard that runs.
    pub(super) fn look(&mut self, lease: Lease, runnable: &Runnable, place: &Arc<Place>) {
        let limit = self.context.options.handler_limit() + MARGIN;
        let Some(since) = place.call.since().filter(|since| since.elapsed() > limit) else {
            return;
        };
        let shard = lease.shard;
        if self.stuck.contains_key(&shard) {
            return;
        }
        let message = self.message(runnable);
        tracing::error!(?shard, message, "a handler does not come back");
        self.context.refused(shard, message);
        let (place, runnable) = (Arc::clone(place), runnable.clone());
        let stuck = Stuck { place, since, lease, runnable, told: Arc::default() };
        self.stuck.insert(shard, stuck);
    }

    fn message(&self, runnable: &Runnable) -> String {
        format!(
            "the handler of projection \"{}\" blocks a thread of worker \"{}\" and does not come back \
             (its limit is {:?}); give what it waits for a time limit, and restart the worker",
            runnable.generation.name,
            self.context.options.worker_name,
            self.context.options.handler_limit(),
        )
    }

    /// Generations that had better be run elsewhere.
    pub(super) fn generations(&self) -> Vec<i32> {
        let generations: HashSet<i32> = self.stuck.keys().map(|shard| shard.generation).collect();
        generations.into_iter().collect()
    }

    /// Whether a task is still inside a call for this shard: a second one would block too.
    pub(super) fn holds(&self, shard: ShardId) -> bool {
        self.stuck.contains_key(&shard)
    }

    /// Writes down why shards stand still, as soon as their rows can be written: the blocked
    /// transaction holds them until the server ends it.
    pub(super) fn tell(&self) {
        for stuck in self.stuck.values().filter(|stuck| !stuck.told.load(Ordering::SeqCst)) {
            let (store, told) = (self.context.store.clone(), Arc::clone(&stuck.told));
            let (failure, lease) = (self.message(&stuck.runnable), stuck.lease.clone());
            let Runnable { generation, projector } = stuck.runnable.clone();
            let task = Task::NoteFailure { lease, failure };
            let job = Job::new(generation, projector, store.upcasters_shared(), task);
            tokio::spawn(async move {
                match store.backend().run(job).await {
                    Ok(_) | Err(ApplyError::LeaseLost) => told.store(true, Ordering::SeqCst),
                    Err(error) => {
                        tracing::debug!(?error, "why a shard stands still is not written")
                    }
                }
            });
        }
    }
}
