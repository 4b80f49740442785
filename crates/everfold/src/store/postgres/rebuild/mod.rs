//! Rebuilds on this store.
//!
//! ```text
//!   request: asked for, looked at, steered ──> ownership: who works on it
//!   spare: a generation ahead of time ──> target: the one that is filled ──> copy: history in large parts
//!   views: what readers see, by layout (which generations, and when) and shapes (the catalog)
//!   remove: what nobody sees any more
//! ```

mod as_of;
mod compare;
mod copy;
mod discard;
mod facts;
mod holders;
mod layout;
mod looking;
mod ownership;
mod remove;
mod request;
mod row;
mod rows;
mod scratch;
mod shapes;
mod snapshot;
mod spare;
mod target;
#[cfg(test)]
mod tests;
mod verifications;
mod verify;
mod views;
mod withdraw;

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use uuid::Uuid;

use super::PostgresStore;
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::definition::ProjectionKind;
use crate::projection::generation::{Generation, Lease};
use crate::projection::projector::{ApplyError, Projector};
use crate::rebuild::Comparison;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildRequest, RebuildRow, Wanted};
use crate::store::{
    Comparing, Copied, CopyPlan, Copying, Counted, GateHolder, GenerationFacts, RebuildBackend,
    Removed, StatusChange,
};
pub(super) use copy::Claims;

impl RebuildBackend for PostgresStore {
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
        as_of::show(self, lease, position).boxed()
    }

    fn request_rebuild(
        &self,
        request: RebuildRequest,
    ) -> BoxFuture<'_, Result<(RebuildRow, bool), StoreError>> {
        async move { request::request(self, &request).await }.boxed()
    }

    fn rebuilds(
        &self,
        open: bool,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<RebuildRow>, StoreError>> {
        request::list(self, open, max).boxed()
    }

    fn take_rebuild(
        &self,
        rebuild: i32,
        worker: Uuid,
        worker_name: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Option<RebuildLease>, StoreError>> {
        async move { ownership::take(self, rebuild, worker, &worker_name, ttl).await }.boxed()
    }

    fn rebuild_carriers(&self, rebuild: i32) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        request::carriers(self, rebuild).boxed()
    }

    fn beat_rebuild(
        &self,
        lease: RebuildLease,
        ttl: Duration,
        figures: RebuildFigures,
    ) -> BoxFuture<'_, Result<Option<RebuildRow>, StoreError>> {
        async move { ownership::beat(self, lease, ttl, &figures).await }.boxed()
    }

    fn leave_rebuild(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), StoreError>> {
        ownership::leave(self, lease).boxed()
    }

    fn steer_rebuild(
        &self,
        rebuild: i32,
        wanted: Wanted,
        actor: String,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { request::steer(self, rebuild, wanted, &actor).await }.boxed()
    }

    fn end_rebuild(
        &self,
        lease: RebuildLease,
        figures: RebuildFigures,
        actor: String,
        given_up: Option<StatusChange>,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move { ownership::end(self, lease, &figures, &actor, given_up.as_ref()).await }
            .boxed()
    }

    fn make_target(
        &self,
        lease: RebuildLease,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Generation, ProjectionError>> {
        async move { target::make_target(self, lease, &projection).await }.boxed()
    }

    fn prepare_spare(&self, projection: Projection) -> BoxFuture<'_, Result<(), ProjectionError>> {
        async move { spare::prepare(self, &projection).await }.boxed()
    }

    fn target_leases(&self, lease: RebuildLease) -> BoxFuture<'_, Result<Vec<Lease>, ApplyError>> {
        ownership::target_leases(self, lease).boxed()
    }

    fn discard_target(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), ApplyError>> {
        discard::discard_target(self, lease).boxed()
    }

    fn leftovers(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>> {
        remove::leftovers(self).boxed()
    }

    fn widen_views(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), ProjectionError>> {
        views::widen(self, lease).boxed()
    }

    fn remove_generation(
        &self,
        generation: i32,
        projector: Option<Projector>,
        actor: String,
    ) -> BoxFuture<'_, Result<Removed, ProjectionError>> {
        async move { remove::remove(self, generation, projector, &actor).await }.boxed()
    }

    fn withdraw(
        &self,
        generation: i32,
        actor: String,
    ) -> BoxFuture<'_, Result<(), ProjectionError>> {
        async move { withdraw::withdraw(self, generation, &actor).await }.boxed()
    }

    fn is_crowded(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        facts::is_crowded(&self.engine).boxed()
    }

    fn plan_copy(&self, copying: Copying) -> BoxFuture<'_, Result<CopyPlan, ApplyError>> {
        async move { copy::plan_copy(self, &copying).await }.boxed()
    }

    fn copy_part(&self, copying: Copying) -> BoxFuture<'_, Result<Copied, ApplyError>> {
        async move {
            match copying.generation.kind {
                ProjectionKind::Sql => copy::copy_sql(self, &copying).await,
                ProjectionKind::Document => copy::copy_documents(self, &copying).await,
                ProjectionKind::Handler => Ok(Copied::NoneLeft),
            }
        }
        .boxed()
    }

    fn finish_copy(&self, copying: Copying) -> BoxFuture<'_, Result<(), ApplyError>> {
        async move { copy::finish_copy(self, &copying).await }.boxed()
    }

    fn compare(&self, comparing: Comparing) -> BoxFuture<'_, Result<Comparison, ApplyError>> {
        async move { compare::compare(self, &comparing).await }.boxed()
    }

    fn generation_facts(&self) -> BoxFuture<'_, Result<Vec<GenerationFacts>, StoreError>> {
        facts::generation_facts(&self.connections).boxed()
    }

    fn gate_holders(
        &self,
        generations: Vec<i32>,
    ) -> BoxFuture<'_, Result<Vec<GateHolder>, StoreError>> {
        async move { holders::gate_holders(&self.engine, &generations).await }.boxed()
    }

    fn count_events(
        &self,
        types: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<Counted, StoreError>> {
        facts::count_events(&self.connections, types).boxed()
    }
}
