//! Projections on this store, all but what appends do.
//!
//! ```text
//!   register ──> tables (schema, views) ──> functions (apply.sql as functions of the generation)
//!   run ───────> transaction ──> unit, steps: what a job does, in one transaction
//!                                  ├─ apply: the generation's functions, handlers
//!                                  ├─ documents
//!                                  ├─ switching: what a switch of generations does
//!                                  └─ gates: what holds appends back for a moment
//!   operate, states, registry: leases, operators' actions, what `status` shows
//! ```

pub(super) mod apply;
pub(super) mod deferred;
pub(super) mod documents;
pub(super) mod functions;
pub(super) mod gates;
pub(super) mod names;
pub(super) mod operate;
pub(super) mod register;
pub(super) mod registry;
mod rows;
mod states;
mod steps;
mod switching;
pub(super) mod tables;
pub(super) mod transaction;
pub(super) mod unit;

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use uuid::Uuid;

use super::PostgresStore;
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
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
pub(super) use apply::said;

impl PostgresStore {
    /// Runs a job in a transaction of its own.
    async fn run_job(&self, job: &Job) -> Result<JobOutcome, ApplyError> {
        let mut connection = self.engine.get().await?;
        let timeouts = unit::timeouts(job.handler_timeout);
        let mut unit = transaction::begin(&mut connection, &self.options, timeouts).await?;
        let outcome = job.run(&mut unit).await;
        let (outcome, end) = transaction::finish(unit, outcome).await;
        end.settle(&connection);
        outcome
    }
}

impl ProjectionBackend for PostgresStore {
    fn register(
        &self,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Registration, ProjectionError>> {
        async move { register::register(&self.engine, &self.options, &projection).await }.boxed()
    }

    fn generations(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>> {
        registry::generations(&self.engine).boxed()
    }

    fn states(&self) -> BoxFuture<'_, Result<Vec<GenerationState>, StoreError>> {
        states::states(&self.engine).boxed()
    }

    fn tick(&self, tick: Tick) -> BoxFuture<'_, Result<Vec<Lease>, StoreError>> {
        async move { operate::tick(&self.engine, &tick).await }.boxed()
    }

    fn leave(&self, worker: Uuid) -> BoxFuture<'_, Result<(), StoreError>> {
        operate::leave(&self.engine, worker).boxed()
    }

    fn run(&self, job: Job) -> BoxFuture<'_, Result<JobOutcome, ApplyError>> {
        async move { self.run_job(&job).await }.boxed()
    }

    fn owing(&self, generations: Vec<i32>) -> BoxFuture<'_, Result<Vec<i32>, StoreError>> {
        async move { operate::owing(&self.engine, &generations).await }.boxed()
    }

    fn reach(
        &self,
        namespace: String,
        name: String,
        position: Position,
    ) -> BoxFuture<'_, Result<Option<Reach>, StoreError>> {
        async move { states::reach(&self.connections, &namespace, &name, position).await }.boxed()
    }

    fn heads(&self) -> BoxFuture<'_, Result<Heads, StoreError>> {
        states::heads(&self.engine).boxed()
    }

    fn change_status(&self, change: StatusChange) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { operate::change_status(&self.engine, &self.options, &change).await }.boxed()
    }

    fn list_dead_letters(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<DeadLetterInfo>, StoreError>> {
        operate::list_dead_letters(&self.engine, generation, max).boxed()
    }

    fn list_skips(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<SkipInfo>, StoreError>> {
        operate::list_skips(&self.engine, generation, max).boxed()
    }

    fn list_messages(
        &self,
        about: MessagesAbout,
    ) -> BoxFuture<'_, Result<Vec<MessageInfo>, StoreError>> {
        async move { operate::list_messages(&self.engine, &about).await }.boxed()
    }

    fn want_retry(
        &self,
        generation: i32,
        position: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        operate::want_retry(&self.engine, generation, position).boxed()
    }

    fn wanted_retries(
        &self,
        generations: Vec<i32>,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<(i32, Position)>, StoreError>> {
        async move { operate::wanted_retries(&self.engine, &generations, max).await }.boxed()
    }

    fn carry(&self, carried: Carried) {
        self.inline.carry(carried);
    }

    fn stop_carrying(&self, generation: i32) {
        self.inline.stop_carrying(generation);
    }

    fn documents(
        &self,
        query: DocumentQuery,
    ) -> BoxFuture<'_, Result<Vec<StoredDocument>, StoreError>> {
        async move { documents::find(&self.connections, &query).await }.boxed()
    }

    fn rows(&self, query: RowQuery) -> BoxFuture<'_, Result<ReadModelRows, StoreError>> {
        async move { rows::find(&self.engine, &query).await }.boxed()
    }

    fn prune(&self, older_than: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        operate::prune(&self.engine, older_than).boxed()
    }
}
