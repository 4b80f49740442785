//! The runner: feeds catch-up projections, and settles what inline ones owe.
//!
//! ```text
//!   Runner ──start──> worker: heartbeat, leases ──> a task for each shard it has ──> jobs
//!                        │                             │
//!                        └── what operators want       └── waits for the mark: one poll a process
//! ```
//!
//! Any number of runners, in any number of processes, share the shards by leases in the database. A
//! lease that was lost is noticed in the database: its holder can move nothing.

pub(crate) mod backoff;
mod context;
mod once;
mod options;
mod rebuilds;
mod schedule;
mod shard;
mod watchdog;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::definition::ProjectionKind;
use crate::projection::projector::Projector;
use crate::projection::registry::unknown;
use crate::rebuild::fill::unfilled;
use crate::store::Store;
use context::{Context, Identity};
use worker::Worker;

pub use context::RunnerFailure;
pub use options::RunnerOptions;

/// Runs projections in this process, together with the runners of other processes: catch-up ones are
/// fed, what inline ones owe is settled, rebuilds are taken up.
///
/// Work is shared by leases in the database. A runner that dies is replaced when its leases run out; one
/// that was taken for dead and comes back changes nothing.
///
/// ```
/// use std::time::Duration;
///
/// use everfold::{ExpectedVersion, NewEvent, Projection, Runner};
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
/// # let (_folder, store) = open().await;
/// let carts = Projection::document("carts", 1, Carts).build()?;
/// let runner = Runner::new(&store).projection(carts).start().await?;
///
/// // … the application …
/// let added = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
/// let stored = store.append("cart-1", ExpectedVersion::Any, [added]).await?;
/// store.wait_for("carts", stored.last_position, Duration::from_secs(30)).await?;
///
/// assert!(runner.failed().is_empty());
/// runner.stop().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a runner does nothing before start() or run_once()"]
pub struct Runner {
    store: Store,
    projections: Vec<Projection>,
    only: Vec<String>,
    options: RunnerOptions,
}

impl Runner {
    /// A runner for a store, without projections yet.
    pub fn new(store: &Store) -> Self {
        Runner {
            store: store.clone(),
            projections: Vec::new(),
            only: Vec::new(),
            options: RunnerOptions::default(),
        }
    }

    /// With one more projection.
    pub fn projection(mut self, projection: Projection) -> Self {
        self.projections.push(projection);
        self
    }

    /// With more projections.
    pub fn projections(mut self, projections: impl IntoIterator<Item = Projection>) -> Self {
        self.projections.extend(projections);
        self
    }

    /// Of those given, only this one runs, and others named like this.
    pub fn only(mut self, name: impl Into<String>) -> Self {
        self.only.push(name.into());
        self
    }

    /// With other options.
    pub fn options(mut self, options: RunnerOptions) -> Self {
        self.options = options;
        self
    }

    /// Registers the projections and begins to run them, until [`RunnerHandle::stop`] or until the
    /// handle is dropped.
    ///
    /// # Errors
    /// [`ProjectionError::Runner`] if an option is out of range, [`ProjectionError::Unknown`] if `only` names
    /// a projection that was not given, and whatever [`Store::register`] refuses. Nothing is started then.
    pub async fn start(self) -> Result<RunnerHandle, ProjectionError> {
        self.options.check()?;
        let chosen = self.chosen()?;
        let mut given = HashMap::new();
        for projection in chosen {
            let projector = projection.projector.clone();
            let generation = self.store.register_generation(projection).await?.generation;
            given.insert(Identity::of(&generation), projector);
            let all = self.store.generations_of(&generation.name).await?;
            if unfilled(all.iter()).contains(&generation.id) {
                // What is left to an operator is told by the worker.
                self.store.ask_for_fill(&generation).await?;
            }
            // Readers go on to see an older version while this one is built beside it, and the
            // database has its SQL: it must not stand still where only the new files are.
            for older in all {
                if older.is_active && older.kind == ProjectionKind::Sql {
                    given.entry(Identity::of(&older)).or_insert(Projector::Sql);
                }
            }
        }
        let context = Arc::new(Context::new(self.store, self.options, given));
        let stop = CancellationToken::new();
        let worker = Worker::new(Arc::clone(&context), stop.clone());
        let task = tokio::spawn(worker.run());
        Ok(RunnerHandle { context, stop: stop.drop_guard(), task })
    }

    fn chosen(&self) -> Result<Vec<Projection>, ProjectionError> {
        let named = |name: &str| self.projections.iter().any(|p| p.definition.name == name);
        if let Some(name) = self.only.iter().find(|name| !named(name)) {
            let known = self.projections.iter().map(|p| p.definition.name.as_str());
            return Err(unknown(name, known));
        }
        let wanted = |projection: &&Projection| {
            self.only.is_empty() || self.only.contains(&projection.definition.name)
        };
        Ok(self.projections.iter().filter(wanted).cloned().collect())
    }
}

/// A running runner. Dropping it stops the runner without waiting for it: as long as the runtime lives,
/// it still finishes the batches in hand and gives its leases up.
#[must_use = "dropping the handle stops the runner"]
pub struct RunnerHandle {
    context: Arc<Context>,
    stop: tokio_util::sync::DropGuard,
    task: JoinHandle<()>,
}

impl RunnerHandle {
    /// What this worker is called.
    #[must_use]
    pub fn worker_name(&self) -> &str {
        &self.context.options.worker_name
    }

    /// Projections that stopped here because an event could not be applied, and do not run again yet.
    #[must_use]
    pub fn failed(&self) -> Vec<RunnerFailure> {
        self.context.failures()
    }

    /// What the database refuses this runner for now, a right or a statement, so that it does nothing.
    /// It tries again all the time.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.context.heartbeat_refusal()
    }

    /// Finishes the batches in hand, gives up all leases so that others take over at once, and ends;
    /// within [`RunnerOptions::stop_timeout`].
    pub async fn stop(self) {
        let RunnerHandle { stop, task, .. } = self;
        drop(stop);
        ended(task).await;
    }

    /// Waits until the runner has ended, because the store was closed.
    pub async fn wait(&mut self) {
        if !self.task.is_finished() {
            // A panic of the worker was reported by the runtime.
            let _ = (&mut self.task).await;
        }
    }
}

async fn ended(task: JoinHandle<()>) {
    if let Err(error) = task.await
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

impl std::fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerHandle").field("worker", &self.worker_name()).finish_non_exhaustive()
    }
}
