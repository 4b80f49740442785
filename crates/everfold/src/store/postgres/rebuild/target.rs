//! Making the generation that a rebuild fills: as a registration makes one, but always beside what is
//! there, also of the same version. Where one was made ahead of time, that is taken.

use tokio_postgres::types::Type;

use super::ownership::take_checkpoints;
use super::spare;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::definition::{Definition, Lifecycle, ProjectionKind};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::rebuild::row::RebuildLease;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::gates;
use crate::store::postgres::projection::register::{
    TIMEOUTS, check_unchanged, complete, find, make, wait_for_turn,
};
use crate::store::postgres::projection::tables::Indexes;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::PostgresUnit;

const LOOK: &str = "SELECT target FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL";
const SET_TARGET: &str = "UPDATE everfold.rebuilds SET target = $3 \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL \
    RETURNING greatest(extract(epoch FROM expires_at - clock_timestamp()) * 1000, 0)::integer";

/// Whether history is copied in large parts, from its beginning, is decided later; then it is better to
/// have no indexes yet.
const MAY_BE_COPIED: &str = "SELECT kind IN ('beside', 'in-place') \
        AND NOT coalesce((options->>'by_batches')::boolean, false) \
    FROM everfold.rebuilds WHERE id = $1";
const DEFER: &str = "UPDATE everfold.generations SET indexes_deferred = true WHERE id = $1";

pub(super) async fn make_target(
    store: &PostgresStore,
    lease: RebuildLease,
    projection: &Projection,
) -> Result<Generation, ProjectionError> {
    let mut turns = 0;
    loop {
        let error = match try_make(store, lease, projection).await {
            Err(ProjectionError::Store(error)) => error,
            outcome => return outcome,
        };
        wait_for_turn(error, &mut turns).await?;
    }
}

async fn try_make(
    store: &PostgresStore,
    lease: RebuildLease,
    projection: &Projection,
) -> Result<Generation, ProjectionError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = make_in(&mut unit, lease, projection).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn make_in(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    projection: &Projection,
) -> Result<Generation, ProjectionError> {
    let definition = &projection.definition;
    check_unchanged(unit, definition).await?;
    // A try before this one may have got through without an answer.
    if let Some(target) = look(unit, lease, &definition.name).await? {
        return Ok(find(unit, target).await?);
    }
    let indexes = indexes(unit, lease, definition).await?;
    let made = match spare::take(unit, lease, definition, indexes).await? {
        Some(spare) => spare,
        None => make(unit, projection, indexes).await?,
    };
    lock(unit, lease, definition.lifecycle).await?;
    let reason = format!("rebuild {} fills it", lease.rebuild);
    complete(unit, definition, &made, GenerationStatus::Building, Some(reason)).await?;
    if indexes == Indexes::Later {
        defer_indexes(unit, made.id).await?;
    }
    let ttl = set_target(unit, lease, made.id, &definition.name).await?;
    take_checkpoints(unit, made.id, lease.worker, ttl).await?;
    Ok(find(unit, made.id).await?)
}

/// Notes that indexes of its tables are still to be made.
pub(super) async fn defer_indexes(
    unit: &mut PostgresUnit<'_>,
    generation: i32,
) -> Result<(), StoreError> {
    unit.ask(DEFER, &[(&generation, Type::INT4)]).await.map(drop)
}

/// Indexes come after the copy, if there may be one.
async fn indexes(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    definition: &Definition,
) -> Result<Indexes, StoreError> {
    if definition.kind() == ProjectionKind::Handler {
        return Ok(Indexes::Now);
    }
    let rows = unit.ask(MAY_BE_COPIED, &[(&lease.rebuild, Type::INT4)]).await?;
    match rows.first().is_some_and(|row| row.get(0)) {
        true => Ok(Indexes::Later),
        false => Ok(Indexes::Now),
    }
}

/// The rebuild's row and, for an inline generation, the registry gate: every append that did not see
/// the generation has ended, and its events can be seen. Between tries neither is held.
async fn lock(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    lifecycle: Lifecycle,
) -> Result<(), StoreError> {
    let row = format!("SELECT FROM everfold.rebuilds WHERE id = {} FOR UPDATE", lease.rebuild);
    match lifecycle {
        Lifecycle::Inline => gates::lock_row_and_registry_at_last(unit, &row).await,
        Lifecycle::CatchUp => unit.ask(&row, &[]).await.map(drop),
    }
}

/// The target that there is, if the lease holds.
async fn look(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    name: &str,
) -> Result<Option<i32>, ProjectionError> {
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.ask(LOOK, &params).await?;
    let row = rows.first().ok_or_else(|| lost(lease, name))?;
    Ok(row.get(0))
}

/// Names the target, if the lease holds; how long it still does.
async fn set_target(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    generation: i32,
    name: &str,
) -> Result<i32, ProjectionError> {
    let params: [Param<'_>; 3] =
        [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8), (&generation, Type::INT4)];
    let rows = unit.ask(SET_TARGET, &params).await?;
    let row = rows.first().ok_or_else(|| lost(lease, name))?;
    Ok(row.get::<_, Option<i32>>(0).unwrap_or_default())
}

/// Somebody else has taken the rebuild, or ended it.
pub(super) fn lost(lease: RebuildLease, name: &str) -> ProjectionError {
    let message = format!(
        "is rebuilt by somebody else now, or its rebuild {} has ended; nothing was changed here",
        lease.rebuild
    );
    ProjectionError::Refused { projection: name.to_owned(), message }
}
