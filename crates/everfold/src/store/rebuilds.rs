//! What a database must be able to do for rebuilds, beside the transactions of [`Unit`].
//!
//! [`Unit`]: super::Unit

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::generation::{Generation, Lease};
use crate::projection::projector::{ApplyError, Projector};
use crate::rebuild::Comparison;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildRequest, RebuildRow, Wanted};
use crate::upcast::Upcasters;

use super::StatusChange;

/// How history is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CopyPlan {
    /// The last position that is copied; what is behind it is caught up with in batches.
    pub(crate) cutoff: Position,
    /// Parts that are not copied yet. None: all of it is done in batches.
    pub(crate) parts: usize,
    /// Wanted events up to the cutoff, as far as that can be told cheaply.
    pub(crate) events: u64,
}

/// What is needed to copy one part of history into a generation.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
#[derive(Debug, Clone)]
pub(crate) struct Copying {
    pub(crate) lease: RebuildLease,
    pub(crate) generation: Arc<Generation>,
    pub(crate) projection: Projection,
    pub(crate) upcasters: Arc<Upcasters>,
    pub(crate) cutoff: Position,
    pub(crate) memory_max: usize,
    /// Most transactions at once.
    pub(crate) at_once: usize,
    /// Counted up while events are applied.
    pub(crate) events_done: Arc<AtomicU64>,
    /// Waits if it goes too fast.
    pub(crate) pace: Arc<crate::rebuild::pace::Pace>,
    pub(crate) cancel: CancellationToken,
    /// Told whenever a part is done here, to those who find all of them taken.
    pub(crate) part_done: Arc<Notify>,
}

/// How a part of history was copied.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Copied {
    /// A part is done.
    Part { events: u64 },
    /// There is no part left that nobody works on.
    NoneLeft,
    /// An event failed, or keys got in each other's way: what was copied is thrown away, and history
    /// is done in batches, where the policy can look at each event.
    InBatches { reason: String },
}

/// What is needed to compare a new generation with the one that readers see.
#[derive(Debug, Clone)]
pub(crate) struct Comparing {
    pub(crate) lease: RebuildLease,
    /// The one that is built.
    pub(crate) target: Arc<Generation>,
    /// The one that readers see.
    pub(crate) source: Arc<Generation>,
    /// The target's.
    pub(crate) projector: Projector,
    pub(crate) upcasters: Arc<Upcasters>,
    /// So many rows that differ are returned.
    pub(crate) examples: usize,
}

/// Somebody whose transaction holds a gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GateHolder {
    /// The transaction, for as long as it lasts or until it is prepared, which gives it another name.
    pub(crate) transaction: String,
    /// Whether it is prepared for a two-phase commit.
    pub(crate) is_prepared: bool,
    /// Who and since when, in words.
    pub(crate) description: String,
}

/// How a generation was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Removed {
    Done,
    /// Somebody may still see it: transactions older than the switch, in words.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    Seen(Vec<String>),
}

/// What a plan has to know of a generation beside what the registry lists.
#[derive(Debug, Clone)]
pub(crate) struct GenerationFacts {
    pub(crate) id: i32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: u32,
    /// Retired, and its tables are still there.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(crate) is_retired: bool,
    /// As it was registered, with the settings.
    pub(crate) definition: serde_json::Value,
    /// Whether a live worker can run it.
    pub(crate) is_carried: bool,
    /// Rows of its tables, as far as that can be told cheaply.
    pub(crate) rows: Option<u64>,
    /// What its tables and indexes take on disk, where that can be told.
    pub(crate) bytes: Option<u64>,
}

/// A number that is exact, or about right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) number: u64,
    pub(crate) exact: bool,
}

/// What a database must be able to do for rebuilds.
///
/// Whoever works on a rebuild holds its lease; methods that take one change nothing and answer
/// [`ApplyError::LeaseLost`] if it is somebody else's by now.
pub(crate) trait RebuildBackend: Send + Sync {
    /// Asks for a rebuild, or finds the one that is open for the projection (`true`).
    fn request_rebuild(
        &self,
        request: RebuildRequest,
    ) -> BoxFuture<'_, Result<(RebuildRow, bool), StoreError>>;
    /// Rebuilds of all projections, the newest first: those that are open, or the last `max`.
    fn rebuilds(
        &self,
        open: bool,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<RebuildRow>, StoreError>>;
    /// Takes a rebuild that nobody works on, or whose worker died, and with it the leases of the
    /// target's shards. `None` if somebody else works on it, or it has ended.
    fn take_rebuild(
        &self,
        rebuild: i32,
        worker: Uuid,
        worker_name: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Option<RebuildLease>, StoreError>>;
    /// The names of live workers that can build what a rebuild is to build, and so take it up.
    fn rebuild_carriers(&self, rebuild: i32) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;
    /// A sign of life with progress; the row as it is then, or `None` if the lease is lost.
    fn beat_rebuild(
        &self,
        lease: RebuildLease,
        ttl: Duration,
        figures: RebuildFigures,
    ) -> BoxFuture<'_, Result<Option<RebuildRow>, StoreError>>;
    /// Gives the lease up, so that somebody else can go on at once.
    fn leave_rebuild(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), StoreError>>;
    /// What an operator wants of an open rebuild; `false` if it has ended. One that nobody works on is
    /// cancelled by this itself, if it has not switched yet.
    fn steer_rebuild(
        &self,
        rebuild: i32,
        wanted: Wanted,
        actor: String,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;
    /// Ends a rebuild in the phase named in the figures, which is one of the last, and records it
    /// (kind `rebuild`); what becomes of a target that is not switched to happens in the same
    /// transaction. `false` if the lease is lost.
    fn end_rebuild(
        &self,
        lease: RebuildLease,
        figures: RebuildFigures,
        actor: String,
        given_up: Option<StatusChange>,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Makes an empty generation of the projection with the status `building`, as the rebuild's
    /// target, with the leases of its shards. For an inline one under the registry gate, at the end.
    /// Indexes that nothing needs while history is copied come later, in `finish_copy`.
    fn make_target(
        &self,
        lease: RebuildLease,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Generation, ProjectionError>>;
    /// Makes an empty generation of the projection ahead of time, if readers see this very definition,
    /// and lets the views show it as soon as it is active; `make_target` puts it to use. Gives up spares
    /// of other definitions. Waits for nobody for long, and does nothing where there is nothing to do, or
    /// where the user may not. Nothing to do on SQLite.
    fn prepare_spare(&self, projection: Projection) -> BoxFuture<'_, Result<(), ProjectionError>> {
        let _ = projection;
        async { Ok(()) }.boxed()
    }
    /// The leases of the target's shards, for jobs.
    fn target_leases(&self, lease: RebuildLease) -> BoxFuture<'_, Result<Vec<Lease>, ApplyError>>;
    /// Whether appends come in so fast that whoever copies should give way to them.
    fn is_crowded(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        async { Ok(false) }.boxed()
    }
    /// Decides, once, up to where and in which parts history is copied; later calls return what is
    /// left. A store that copies in batches alone returns a plan without parts.
    fn plan_copy(&self, copying: Copying) -> BoxFuture<'_, Result<CopyPlan, ApplyError>> {
        let _ = copying;
        async { Ok(CopyPlan::default()) }.boxed()
    }
    /// Copies one part of history that nobody works on, in a transaction of its own.
    fn copy_part(&self, copying: Copying) -> BoxFuture<'_, Result<Copied, ApplyError>> {
        let _ = copying;
        async { Ok(Copied::NoneLeft) }.boxed()
    }
    /// Makes indexes and constraints, and sets the checkpoints of all shards to the cutoff. May be
    /// called again after it was interrupted. Does nothing where nothing was copied.
    fn finish_copy(&self, copying: Copying) -> BoxFuture<'_, Result<(), ApplyError>> {
        let _ = copying;
        async { Ok(()) }.boxed()
    }
    /// Gives up a target of which some parts were copied and others failed, so that a new one is made
    /// and filled in batches (sets `by_batches` in the stored options and `target` to nothing, forgets
    /// the parts). It is marked `retired`, unless readers see it.
    fn discard_target(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), ApplyError>>;
    /// Fills the target from a snapshot: tables, checkpoints, dead letters, skips.
    fn restore_snapshot(
        &self,
        lease: RebuildLease,
        snapshot: i32,
    ) -> BoxFuture<'_, Result<(), ApplyError>>;
    /// Shows the target, which nobody feeds, under names of its own: the read model as of a position.
    fn show_as_of(
        &self,
        lease: RebuildLease,
        position: Position,
    ) -> BoxFuture<'_, Result<(), ProjectionError>>;
    /// Retired generations whose tables are still there: somebody saw them when they were retired.
    fn leftovers(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>> {
        async { Ok(Vec::new()) }.boxed()
    }
    /// Compares the target with the source, row by row, at one moment: the target as it would be if it
    /// had exactly the events that the source has then. Changes nothing. Refused
    /// ([`ApplyError::Refused`]) if the source stays behind the target because nobody feeds it.
    fn compare(&self, comparing: Comparing) -> BoxFuture<'_, Result<Comparison, ApplyError>>;
    /// Lets the readers' views show the target as soon as the row says so, without changing what they
    /// show now. Nothing to do on SQLite, where the switch replaces the views.
    fn widen_views(&self, lease: RebuildLease) -> BoxFuture<'_, Result<(), ProjectionError>> {
        let _ = lease;
        async { Ok(()) }.boxed()
    }
    /// Transactions that hold one of these generations' gates right now.
    fn gate_holders(
        &self,
        generations: Vec<i32>,
    ) -> BoxFuture<'_, Result<Vec<GateHolder>, StoreError>> {
        let _ = generations;
        async { Ok(Vec::new()) }.boxed()
    }
    /// Removes a generation that readers do not see, with its tables, functions, checkpoints, skips and
    /// dead letters, and narrows the views. Marks it `retired` first (an inline one that appends list
    /// under its gate). `projector` is asked to tear down what a handler set up.
    fn remove_generation(
        &self,
        generation: i32,
        projector: Option<Projector>,
        actor: String,
    ) -> BoxFuture<'_, Result<Removed, ProjectionError>>;

    /// Takes the projection of this generation away from appends, runners and readers: all of its
    /// generations are retired, and none is active any more, in one transaction (inline ones under their
    /// gates). What is left is removed with `remove_generation`. Refused while a rebuild of it is open,
    /// or others' views depend on those of readers.
    fn withdraw(
        &self,
        generation: i32,
        actor: String,
    ) -> BoxFuture<'_, Result<(), ProjectionError>>;

    /// What a plan has to know of generations: those that are not retired, and those that are and
    /// still have tables, in the order of their ids.
    fn generation_facts(&self) -> BoxFuture<'_, Result<Vec<GenerationFacts>, StoreError>>;
    /// About how many events of these types there are; `None`: of all.
    fn count_events(
        &self,
        types: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<Counted, StoreError>>;
}
