//! Rebuilds on this store: the same meaning as on PostgreSQL, with simpler means.
//!
//! ```text
//!   request, steer ──> rows          who asked for what
//!   take, beat, end ─> lease         who works on it; with it come the target's checkpoints
//!   make ────────────> target        one more generation, empty
//!   remove ──────────> remove        its tables, a little at a time
//! ```
//!
//! History is applied in batches, as by a runner, so that no transaction keeps appends waiting for long.
//! There are no gates: whoever switches holds the write lock, and so no append is under way.

mod as_of;
mod compare;
mod facts;
mod lease;
mod looking;
mod remove;
mod rows;
mod scratch;
mod snapshot;
mod tables;
mod target;
#[cfg(test)]
mod tests;
mod verifications;
mod verify;

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use rusqlite::Connection;
use uuid::Uuid;

use super::SqliteStore;
use super::connection::in_transaction;
use super::error::store_error;
use super::projection::{ENGINE_PATIENCE, operate};
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::generation::{Generation, Lease};
use crate::projection::projector::{ApplyError, Projector};
use crate::rebuild::Comparison;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildRequest, RebuildRow, Wanted};
use crate::store::{Comparing, Counted, GenerationFacts, RebuildBackend, Removed, StatusChange};

impl RebuildBackend for SqliteStore {
    fn restore_snapshot(
        &self,
        lease: RebuildLease,
        snapshot: i32,
    ) -> BoxFuture<'_, Result<(), ApplyError>> {
        snapshot::restore(self, lease, snapshot).boxed()
    }

    fn show_as_of(
        &self,
        lease: RebuildLease,
        position: Position,
    ) -> BoxFuture<'_, Result<(), ProjectionError>> {
        async move {
            let show = move |connection: &Connection| as_of::show(connection, lease, position);
            if self.change(show).await? { Ok(()) } else { Err(target::lost(lease, "it")) }
        }
        .boxed()
    }

    fn compare(&self, comparing: Comparing) -> BoxFuture<'_, Result<Comparison, ApplyError>> {
        compare::compare(self, comparing).boxed()
    }

    fn request_rebuild(
        &self,
        request: RebuildRequest,
    ) -> BoxFuture<'_, Result<(RebuildRow, bool), StoreError>> {
        let work = move |connection: &Connection| {
            in_transaction(connection, ENGINE_PATIENCE, |connection| {
                rows::request(connection, &request)
            })
        };
        async move { self.writer.run_job(work).await? }.boxed()
    }

    fn rebuilds(
        &self,
        open: bool,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<RebuildRow>, StoreError>> {
        self.ask(move |connection| rows::list(connection, None, open, max))
    }

    fn take_rebuild(
        &self,
        rebuild: i32,
        worker: Uuid,
        worker_name: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Option<RebuildLease>, StoreError>> {
        self.change(move |connection| lease::take(connection, rebuild, worker, &worker_name, ttl))
    }

    fn rebuild_carriers(&self, rebuild: i32) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.ask(move |connection| rows::carriers(connection, rebuild))
    }

    fn beat_rebuild(
        &self,
        lease: RebuildLease,
        ttl: Duration,
        figures: RebuildFigures,
    ) -> BoxFuture<'_, Result<Option<RebuildRow>, StoreError>> {
        self.change(move |connection| lease::beat(connection, lease, ttl, &figures))
    }

    fn leave_rebuild(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), StoreError>> {
        self.change(move |connection| lease::leave(connection, lease))
    }

    fn steer_rebuild(
        &self,
        rebuild: i32,
        wanted: Wanted,
        actor: String,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change(move |connection| rows::steer(connection, rebuild, wanted, &actor))
    }

    fn end_rebuild(
        &self,
        lease: RebuildLease,
        figures: RebuildFigures,
        actor: String,
        given_up: Option<StatusChange>,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.change(move |connection| {
            let ended = lease::end(connection, lease, &figures, &actor)?;
            if let Some(change) = given_up.filter(|_| ended) {
                operate::change_status(connection, &change)?;
            }
            Ok(ended)
        })
    }

    fn make_target(
        &self,
        lease: RebuildLease,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Generation, ProjectionError>> {
        let patience = self.options.request_timeout;
        let work = move |connection: &Connection| {
            in_transaction(connection, patience, |connection| {
                target::make(connection, lease, &projection)
            })
        };
        async move { self.writer.run(work).await? }.boxed()
    }

    fn target_leases(&self, lease: RebuildLease) -> BoxFuture<'_, Result<Vec<Lease>, ApplyError>> {
        let work = move |connection: &Connection| {
            in_transaction(connection, ENGINE_PATIENCE, |connection| {
                let leases = lease::target_leases(connection, lease).map_err(store_error)?;
                leases.ok_or(ApplyError::LeaseLost)
            })
        };
        async move { self.writer.run_job(work).await? }.boxed()
    }

    fn discard_target(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), ApplyError>> {
        let work = move |connection: &Connection| {
            in_transaction(connection, ENGINE_PATIENCE, |connection| {
                match target::discard(connection, lease, "rebuild").map_err(store_error)? {
                    true => Ok(()),
                    false => Err(ApplyError::LeaseLost),
                }
            })
        };
        async move { self.writer.run_job(work).await? }.boxed()
    }

    fn leftovers(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>> {
        self.ask(remove::leftovers)
    }

    fn remove_generation(
        &self,
        generation: i32,
        projector: Option<Projector>,
        actor: String,
    ) -> BoxFuture<'_, Result<Removed, ProjectionError>> {
        remove::remove(self, generation, projector, actor).boxed()
    }

    fn withdraw(
        &self,
        generation: i32,
        actor: String,
    ) -> BoxFuture<'_, Result<(), ProjectionError>> {
        remove::withdraw(self, generation, actor).boxed()
    }

    fn generation_facts(&self) -> BoxFuture<'_, Result<Vec<GenerationFacts>, StoreError>> {
        self.ask(facts::generation_facts)
    }

    fn count_events(
        &self,
        types: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<Counted, StoreError>> {
        self.ask(move |connection| facts::count_events(connection, types.as_deref()))
    }
}
