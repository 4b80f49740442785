//! What all tasks of a runner share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use super::options::RunnerOptions;
use crate::projection::generation::{Generation, ShardId};
use crate::projection::projector::Projector;
use crate::rebuild::row::RebuildRow;
use crate::store::Store;

/// A generation and what applies its events here.
#[derive(Debug, Clone)]
pub(super) struct Runnable {
    pub(super) generation: Arc<Generation>,
    pub(super) projector: Projector,
}

/// A projection that stopped because an event could not be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerFailure {
    /// The projection's name.
    pub projection: String,
    /// Its version.
    pub version: u32,
    /// The event, what was wrong with it, and what to do.
    pub reason: String,
}

/// What all tasks of a runner share.
pub(super) struct Context {
    pub(super) store: Store,
    pub(super) worker: Uuid,
    pub(super) options: RunnerOptions,
    /// What was given to the runner, by namespace, name, version and hash.
    pub(super) given: HashMap<Identity, Projector>,
    /// As many transactions at once.
    pub(super) places: Semaphore,
    /// Rings when leases should be looked at before the next heartbeat.
    pub(super) look: Notify,
    failures: Mutex<Vec<RunnerFailure>>,
    /// What the database refuses, and trying again does not mend: of shards, and of the heartbeat.
    refusals: Mutex<HashMap<Option<ShardId>, String>>,
}

/// What tells whether a generation is one that this runner has the code for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    namespace: String,
    name: String,
    version: u32,
    hash: String,
}

impl Identity {
    pub(super) fn of(generation: &Generation) -> Self {
        Identity {
            namespace: generation.namespace.clone(),
            name: generation.name.clone(),
            version: generation.version,
            hash: generation.definition_hash.clone(),
        }
    }

    pub(super) fn of_rebuild(row: &RebuildRow) -> Self {
        Identity {
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            version: row.version,
            hash: row.definition_hash.clone(),
        }
    }
}

impl Context {
    pub(super) fn new(
        store: Store,
        options: RunnerOptions,
        given: HashMap<Identity, Projector>,
    ) -> Self {
        Context {
            store,
            worker: Uuid::now_v7(),
            given,
            places: Semaphore::new(options.connections),
            options,
            look: Notify::new(),
            failures: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// A failure counts until the projection is run again.
    pub(super) fn failed(&self, generation: &Generation, reason: String) {
        let (projection, version) = (generation.name.clone(), generation.version);
        let failure = RunnerFailure { projection, version, reason };
        let mut failures = self.failures.lock().expect("nothing panics with this locked");
        if failures.contains(&failure) {
            return;
        }
        let RunnerFailure { projection, version, reason } = &failure;
        tracing::error!(projection, version, reason, "a projection has failed");
        failures.retain(|known| known.projection != *projection || known.version != *version);
        failures.push(failure);
    }

    pub(super) fn runs_again(&self, generation: &Generation) {
        let mut failures = self.failures.lock().expect("nothing panics with this locked");
        failures.retain(|known| {
            known.projection != generation.name || known.version != generation.version
        });
    }

    /// The database refuses a shard something, or, without one, the heartbeat.
    pub(super) fn refused(&self, shard: impl Into<Option<ShardId>>, error: String) {
        self.refusals().insert(shard.into(), error);
    }

    pub(super) fn accepted(&self, shard: impl Into<Option<ShardId>>) {
        self.refusals().remove(&shard.into());
    }

    /// What the database refuses a generation, or all of them.
    pub(super) fn refusal(&self, generation: i32) -> Option<String> {
        let refusals = self.refusals();
        let of_it = |shard: &Option<ShardId>| shard.is_none_or(|at| at.generation == generation);
        refusals.iter().find(|(shard, _)| of_it(shard)).map(|(_, error)| error.clone())
    }

    /// What the database refuses the heartbeat.
    pub(super) fn heartbeat_refusal(&self) -> Option<String> {
        self.refusals().get(&None).cloned()
    }

    fn refusals(&self) -> MutexGuard<'_, HashMap<Option<ShardId>, String>> {
        self.refusals.lock().expect("nothing panics with this locked")
    }

    pub(super) fn failures(&self) -> Vec<RunnerFailure> {
        self.failures.lock().expect("nothing panics with this locked").clone()
    }
}
