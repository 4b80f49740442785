//! Up to where and in which parts history is copied: decided once, and stored with the rebuild.

use tokio_postgres::types::Type;

use super::finish::{Statistics, make_deferred};
use super::{TIMEOUTS, in_transaction, lock_lease};
use crate::Position;
use crate::error::StoreError;
use crate::projection::definition::ProjectionKind;
use crate::projection::projector::ApplyError;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::functions::HASHES;
use crate::store::postgres::projection::unit::PostgresUnit;
use crate::store::postgres::rebuild::facts::count_events;
use crate::store::{CopyPlan, Copying};

/// Fewer events are as fast in batches.
const EVENTS_MIN: u64 = 2_000;
/// Events that the database applies at once. Every part reads all of the log, so the fewer the better,
/// as long as what it sorts and groups fits into memory.
const SQL_PART_EVENTS: u64 = 4_000_000;
const SQL_PARTS_MAX: u64 = 64;
/// As many where appends come in, which are given way to between two parts.
const SQL_PART_EVENTS_CROWDED: u64 = 500_000;

const READ: &str = "SELECT r.cutoff, count(p) FILTER (WHERE NOT p.done), \
        coalesce(sum(p.events), 0)::bigint, coalesce((r.options->>'by_batches')::boolean, false), \
        (r.options->>'up_to')::bigint \
    FROM everfold.rebuilds r LEFT JOIN everfold.rebuild_parts p ON p.rebuild = r.id \
    WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL GROUP BY r.id";
/// An earlier rebuild of the same generation that did not get to its end: what it copied is there.
const ADOPT: &str = "WITH earlier AS (SELECT e.id, e.cutoff FROM everfold.rebuilds e \
        WHERE e.target = $2 AND e.id <> $1 AND e.cutoff > 0 \
          AND EXISTS (SELECT FROM everfold.rebuild_parts WHERE rebuild = e.id) \
        ORDER BY e.id DESC LIMIT 1), \
    parts AS (UPDATE everfold.rebuild_parts SET rebuild = $1 \
        WHERE rebuild IN (SELECT id FROM earlier)) \
    UPDATE everfold.rebuilds SET cutoff = (SELECT cutoff FROM earlier) \
    WHERE id = $1 AND cutoff = 0 AND EXISTS (SELECT FROM earlier) RETURNING cutoff";
const IS_EMPTY: &str = "SELECT coalesce(max(position), 0) = 0 FROM (SELECT position \
    FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE) c";
const STORE_CUTOFF: &str = "UPDATE everfold.rebuilds SET cutoff = $2 WHERE id = $1";
const STORE_PARTS: &str = "INSERT INTO everfold.rebuild_parts (rebuild, low, high, events) \
    SELECT $1, number * $3 / $2, (number + 1) * $3 / $2, $4 / $2 \
    FROM generate_series(0, $2 - 1) AS number";

/// What is stored of a plan.
struct Stored {
    plan: CopyPlan,
    by_batches: bool,
    up_to: Option<Position>,
}

pub(in super::super) async fn plan_copy(
    store: &PostgresStore,
    copying: &Copying,
) -> Result<CopyPlan, ApplyError> {
    let stored = in_transaction(store, copying, TIMEOUTS, async |unit| {
        let stored = read(unit, copying).await?;
        if stored.plan.cutoff > Position::START || !adopt(unit, copying).await? {
            return Ok(stored);
        }
        read(unit, copying).await
    })
    .await?;
    if stored.plan.cutoff > Position::START {
        return Ok(stored.plan);
    }
    let kind = copying.generation.kind;
    let plan = match kind == ProjectionKind::Handler || stored.by_batches {
        true => CopyPlan::default(),
        false => draw_up(store, copying, stored.up_to).await?,
    };
    in_transaction(store, copying, TIMEOUTS, async |unit| settle(unit, copying, plan).await).await
}

/// Looks how much there is.
async fn draw_up(
    store: &PostgresStore,
    copying: &Copying,
    up_to: Option<Position>,
) -> Result<CopyPlan, StoreError> {
    let types = copying.generation.event_types.clone();
    let events = count_events(&store.engine, types).await?.number;
    // A statement of its own, before any event is read: every event up to it can be seen from now on.
    let mark = store.position_of("SELECT everfold.high_water_mark()").await?;
    let cutoff = mark.min(up_to.unwrap_or(mark));
    let events = events.min(cutoff.0);
    if events < EVENTS_MIN {
        return Ok(CopyPlan::default());
    }
    let parts = match copying.generation.kind {
        ProjectionKind::Sql => {
            let crowded = copying.pace.is_crowded();
            let most = if crowded { SQL_PART_EVENTS_CROWDED } else { SQL_PART_EVENTS };
            events.div_ceil(most).min(SQL_PARTS_MAX)
        }
        // Cut in two whenever memory is short.
        ProjectionKind::Document | ProjectionKind::Handler => 1,
    };
    Ok(CopyPlan { cutoff, parts: usize::try_from(parts).unwrap_or(1), events })
}

/// Stores a plan, unless there is one. Without parts, the generation gets all that batches need.
async fn settle(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    plan: CopyPlan,
) -> Result<CopyPlan, ApplyError> {
    let (rebuild, generation) = (copying.lease.rebuild, copying.generation.id);
    if plan.parts == 0 {
        make_deferred(unit, copying, Statistics::Leave).await?;
        lock_lease(unit, copying.lease).await?;
        return Ok(CopyPlan::default());
    }
    lock_lease(unit, copying.lease).await?;
    let stored = read(unit, copying).await?;
    if stored.plan.cutoff > Position::START {
        return Ok(stored.plan);
    }
    let empty = unit.query(IS_EMPTY, &[(&generation, Type::INT4)]).await?;
    if !empty.first().is_some_and(|row| row.get(0)) {
        make_deferred(unit, copying, Statistics::Leave).await?;
        return Ok(CopyPlan::default());
    }
    let (cutoff, parts) = (plan.cutoff.to_stored(), plan.parts as i64);
    let events = i64::try_from(plan.events).unwrap_or(i64::MAX);
    unit.query(STORE_CUTOFF, &[(&rebuild, Type::INT4), (&cutoff, Type::INT8)]).await?;
    let params: [Param<'_>; 4] = [
        (&rebuild, Type::INT4),
        (&parts, Type::INT8),
        (&HASHES, Type::INT8),
        (&events, Type::INT8),
    ];
    unit.query(STORE_PARTS, &params).await?;
    Ok(plan)
}

async fn read(unit: &mut PostgresUnit<'_>, copying: &Copying) -> Result<Stored, ApplyError> {
    let lease = copying.lease;
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.query(READ, &params).await?;
    let row = rows.first().ok_or(ApplyError::LeaseLost)?;
    let plan = CopyPlan {
        cutoff: Position::from_stored(row.get(0)),
        parts: usize::try_from(row.get::<_, i64>(1)).unwrap_or(0),
        events: row.get::<_, i64>(2).unsigned_abs(),
    };
    let up_to = row.get::<_, Option<i64>>(4).map(Position::from_stored);
    Ok(Stored { plan, by_batches: row.get(3), up_to })
}

/// Takes over what an earlier rebuild copied into the same generation.
async fn adopt(unit: &mut PostgresUnit<'_>, copying: &Copying) -> Result<bool, ApplyError> {
    let params: [Param<'_>; 2] =
        [(&copying.lease.rebuild, Type::INT4), (&copying.generation.id, Type::INT4)];
    lock_lease(unit, copying.lease).await?;
    Ok(!unit.query(ADOPT, &params).await?.is_empty())
}
