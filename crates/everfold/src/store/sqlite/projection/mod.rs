//! Projections on this store.
//!
//! ```text
//!   register ───> writer ── register ── tables, plan        one transaction, tables included
//!   run(job) ───> writer, behind appends ── unit ── apply, documents
//!   append ─────> writer ── inline ── apply, documents      in the append's own transaction
//!   status … ───> pool of readers ── states, operate, documents
//! ```
//!
//! Every transaction that writes holds the one write lock of the file from its beginning, so that
//! nothing that it reads can go stale: there are no gates and no row locks here. Several processes
//! may share the file; leases and epochs are what tells their runners apart.

pub(super) mod apply;
mod documents;
mod functions;
mod inline;
pub(super) mod lease;
pub(super) mod names;
pub(super) mod operate;
pub(super) mod plan;
pub(super) mod register;
pub(super) mod registry;
mod rows;
pub(super) mod states;
mod switching;
pub(super) mod tables;
pub(super) mod unit;
pub(super) mod views;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{BoxFuture, FutureExt};
use rusqlite::Connection;
use uuid::Uuid;

use super::SqliteStore;
use super::connection::in_transaction;
use super::error::store_error;
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::options::StoreOptions;
use crate::projection::Projection;
use crate::projection::document::panic_message;
use crate::projection::generation::{
    DeadLetterInfo, Generation, GenerationState, Lease, MessageInfo, SkipInfo,
};
use crate::projection::job::{Job, JobOutcome};
use crate::projection::projector::ApplyError;
use crate::read::ReadModelRows;
use crate::store::{
    Carried, DocumentQuery, Heads, MessagesAbout, ProjectionBackend, Reach, Registration, RowQuery,
    StatusChange, StoredDocument, Tick,
};
use crate::upcast::Upcasters;
pub(super) use functions::register as register_functions;
pub(super) use inline::{Arrived, Inline, InlineError};
use plan::Plans;
use unit::SqliteUnit;

/// Longest wait of an engine's transaction for another process: meanwhile appends wait too, and it
/// can be tried again.
pub(super) const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// What this handle knows of projections, for the thread that writes.
pub(super) struct Projections {
    plans: Plans,
    /// Inline projections in Rust that appends through this handle apply.
    carried: RwLock<Vec<Carried>>,
    /// Inline generations, as last read.
    inline: Mutex<HashMap<i32, Arc<Generation>>>,
    upcasters: Arc<Upcasters>,
    bytes_max: usize,
}

impl Projections {
    pub(super) fn new(options: &StoreOptions) -> Self {
        Projections {
            plans: Plans::default(),
            carried: RwLock::default(),
            inline: Mutex::default(),
            upcasters: Arc::clone(&options.upcasters),
            bytes_max: options.page_bytes_max,
        }
    }

    /// Runs a job in a transaction of its own. A panic of it undoes the transaction and is an error.
    fn run(&self, connection: &Connection, job: &Job) -> Result<JobOutcome, ApplyError> {
        let begun = Instant::now();
        let outcome = in_transaction(connection, ENGINE_PATIENCE, |connection| {
            let mut unit = SqliteUnit::new(connection, &self.plans, self.bytes_max);
            let outcome = catch_unwind(AssertUnwindSafe(|| block_on(job.run(&mut unit))));
            outcome.unwrap_or_else(|panic| Err(unit::panicked(panic_message(panic.as_ref()))))
        });
        outcome.map(|outcome| JobOutcome { took: Some(begun.elapsed()), ..outcome })
    }
}

impl SqliteStore {
    /// Reads on a connection of the pool.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        self.pool.read(read).boxed()
    }

    /// Writes in a transaction of its own, behind appends that wait.
    pub(super) fn change<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let work = move |connection: &Connection| {
            in_transaction(connection, ENGINE_PATIENCE, |connection| {
                write(connection).map_err(store_error)
            })
        };
        async move { self.writer.run_job(work).await? }.boxed()
    }
}

impl ProjectionBackend for SqliteStore {
    fn register(
        &self,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Registration, ProjectionError>> {
        let StoreOptions { request_timeout: patience, backfill_events, .. } = *self.options;
        let work = move |connection: &Connection| {
            in_transaction(connection, patience, |connection| {
                register::register(connection, &projection, backfill_events)
            })
        };
        async move { self.writer.run(work).await? }.boxed()
    }

    fn generations(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>> {
        self.ask(registry::generations)
    }

    fn states(&self) -> BoxFuture<'_, Result<Vec<GenerationState>, StoreError>> {
        self.ask(states::states)
    }

    fn tick(&self, tick: Tick) -> BoxFuture<'_, Result<Vec<Lease>, StoreError>> {
        self.change(move |connection| lease::tick(connection, &tick))
    }

    fn leave(&self, worker: Uuid) -> BoxFuture<'_, Result<(), StoreError>> {
        self.change(move |connection| lease::leave(connection, worker))
    }

    fn run(&self, job: Job) -> BoxFuture<'_, Result<JobOutcome, ApplyError>> {
        let projections = Arc::clone(&self.projections);
        let work = move |connection: &Connection| projections.run(connection, &job);
        async move { self.writer.run_job(work).await? }.boxed()
    }

    fn owing(&self, generations: Vec<i32>) -> BoxFuture<'_, Result<Vec<i32>, StoreError>> {
        self.ask(move |connection| states::owing(connection, generations))
    }

    fn reach(
        &self,
        namespace: String,
        name: String,
        position: Position,
    ) -> BoxFuture<'_, Result<Option<Reach>, StoreError>> {
        self.ask(move |connection| states::reach(connection, &namespace, &name, position))
    }

    fn heads(&self) -> BoxFuture<'_, Result<Heads, StoreError>> {
        self.ask(states::heads)
    }

    fn change_status(&self, change: StatusChange) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change(move |connection| operate::change_status(connection, &change))
    }

    fn list_dead_letters(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<DeadLetterInfo>, StoreError>> {
        self.ask(move |connection| operate::list_dead_letters(connection, generation, max))
    }

    fn list_skips(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<SkipInfo>, StoreError>> {
        self.ask(move |connection| operate::list_skips(connection, generation, max))
    }

    fn list_messages(
        &self,
        about: MessagesAbout,
    ) -> BoxFuture<'_, Result<Vec<MessageInfo>, StoreError>> {
        self.ask(move |connection| operate::list_messages(connection, &about))
    }

    fn want_retry(
        &self,
        generation: i32,
        position: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.change(move |connection| operate::want_retry(connection, generation, position))
    }

    fn wanted_retries(
        &self,
        generations: Vec<i32>,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<(i32, Position)>, StoreError>> {
        self.ask(move |connection| operate::wanted_retries(connection, &generations, max))
    }

    fn carry(&self, carried: Carried) {
        let mut all =
            self.projections.carried.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|other| !inline::is_same_code(&other.generation, &carried.generation));
        all.push(carried);
    }

    fn documents(
        &self,
        query: DocumentQuery,
    ) -> BoxFuture<'_, Result<Vec<StoredDocument>, StoreError>> {
        self.ask(move |connection| documents::find(connection, &query))
    }

    fn rows(&self, query: RowQuery) -> BoxFuture<'_, Result<ReadModelRows, StoreError>> {
        self.ask(move |connection| rows::find(connection, &query))
    }

    fn prune(&self, older_than: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            while self.change(move |connection| operate::prune(connection, older_than)).await? {}
            Ok(())
        }
        .boxed()
    }
}
