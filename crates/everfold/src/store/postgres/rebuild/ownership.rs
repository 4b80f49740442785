//! Who works on a rebuild: a lease with an epoch, as that of a shard, and the leases of the target's
//! shards with it. The rebuild's row is locked before checkpoints, always.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::row::{columns, rebuild as read, stored};
use crate::Position;
use crate::error::StoreError;
use crate::projection::generation::{GenerationStatus, Lease, ShardId};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase, RebuildRow};
use crate::store::StatusChange;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::gates;
use crate::store::postgres::projection::operate::change_status_in;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{PostgresUnit, TIMEOUTS, statement};
use crate::store::postgres::types::JsonText;

const TAKE: &str = statement!("take_rebuild");
const LOCK_CHECKPOINTS: &str =
    "SELECT FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE";
const TAKE_CHECKPOINTS: &str = "UPDATE everfold.checkpoints \
    SET epoch = epoch + 1, owner = $2, \
        expires_at = clock_timestamp() + make_interval(secs => $3 / 1000.0) \
    WHERE generation = $1";
/// One statement and one small commit: how long it takes is how long commits take.
const BEAT: &str = concat!(
    "UPDATE everfold.rebuilds r \
     SET expires_at = clock_timestamp() + make_interval(secs => $3 / 1000.0), \
         phase = coalesce($4, r.phase), events_done = $5, events_total = $6, message = $7, report = coalesce($8, r.report) \
     FROM everfold.projections p \
     WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL AND p.id = r.projection RETURNING ",
    columns!()
);
const LEAVE: &str = "WITH left_it AS (UPDATE everfold.rebuilds SET owner = NULL, expires_at = NULL \
        WHERE id = $1 AND epoch = $2 AND finished_at IS NULL RETURNING target) \
    UPDATE everfold.checkpoints u SET owner = NULL, expires_at = NULL \
    FROM (SELECT c.generation, c.shard FROM everfold.checkpoints c \
            JOIN left_it l ON c.generation = l.target AND c.owner = $3 \
           ORDER BY c.shard FOR UPDATE OF c SKIP LOCKED) free \
    WHERE u.generation = free.generation AND u.shard = free.shard";
const END: &str = statement!("end_rebuild");
const LEASES: &str = "SELECT c.generation, c.shard, c.epoch, c.position FROM everfold.rebuilds r \
    LEFT JOIN everfold.checkpoints c ON c.generation = r.target AND c.owner = $3 \
    WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL ORDER BY c.shard";

pub(super) fn milliseconds(ttl: Duration) -> i32 {
    i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX)
}

pub(super) async fn take(
    store: &PostgresStore,
    rebuild: i32,
    worker: Uuid,
    worker_name: &str,
    ttl: Duration,
) -> Result<Option<RebuildLease>, StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = take_in(&mut unit, rebuild, worker, worker_name, milliseconds(ttl)).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn take_in(
    unit: &mut PostgresUnit<'_>,
    rebuild: i32,
    worker: Uuid,
    worker_name: &str,
    ttl: i32,
) -> Result<Option<RebuildLease>, StoreError> {
    let params: [Param<'_>; 4] = [
        (&rebuild, Type::INT4),
        (&worker, Type::UUID),
        (&worker_name, Type::TEXT),
        (&ttl, Type::INT4),
    ];
    let rows = unit.ask(TAKE, &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    if let Some(target) = row.get::<_, Option<i32>>(1) {
        // A batch that whoever had it before us has in hand ends first.
        take_checkpoints(unit, target, worker, ttl).await?;
    }
    Ok(Some(RebuildLease { rebuild, epoch: row.get(0), worker }))
}

/// Makes a worker the owner of all shards, and fences out whoever ran them.
pub(super) async fn take_checkpoints(
    unit: &mut PostgresUnit<'_>,
    generation: i32,
    worker: Uuid,
    ttl: i32,
) -> Result<(), StoreError> {
    unit.ask(LOCK_CHECKPOINTS, &[(&generation, Type::INT4)]).await?;
    let params: [Param<'_>; 3] =
        [(&generation, Type::INT4), (&worker, Type::UUID), (&ttl, Type::INT4)];
    unit.ask(TAKE_CHECKPOINTS, &params).await.map(drop)
}

pub(super) async fn beat(
    store: &PostgresStore,
    lease: RebuildLease,
    ttl: Duration,
    figures: &RebuildFigures,
) -> Result<Option<RebuildRow>, StoreError> {
    let (done, total) = (stored(figures.events_done), stored(figures.events_total));
    let (ttl, phase) = (milliseconds(ttl), figures.phase.map(RebuildPhase::as_str));
    let report = stored_report(figures);
    let report = report.as_deref().map(JsonText::new);
    let params: [Param<'_>; 8] = [
        (&lease.rebuild, Type::INT4),
        (&lease.epoch, Type::INT8),
        (&ttl, Type::INT4),
        (&phase, Type::TEXT),
        (&done, Type::INT8),
        (&total, Type::INT8),
        (&figures.message, Type::TEXT),
        (&report, Type::JSONB),
    ];
    let rows = store.engine.get().await?.query(BEAT, &params).await?;
    rows.first().map(read).transpose()
}

fn stored_report(figures: &RebuildFigures) -> Option<String> {
    figures.report.as_ref().and_then(|report| serde_json::to_string(report).ok())
}

pub(super) async fn leave(store: &PostgresStore, lease: RebuildLease) -> Result<(), StoreError> {
    let params: [Param<'_>; 3] =
        [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8), (&lease.worker, Type::UUID)];
    store.engine.get().await?.query(LEAVE, &params).await.map(drop)
}

pub(super) async fn end(
    store: &PostgresStore,
    lease: RebuildLease,
    figures: &RebuildFigures,
    actor: &str,
    given_up: Option<&StatusChange>,
) -> Result<bool, StoreError> {
    let mut connection = store.engine.get().await?;
    let set_up = if given_up.is_some() { gates::TIMEOUTS } else { TIMEOUTS };
    let mut unit = begin(&mut connection, &store.options, set_up).await?;
    let outcome = end_in(&mut unit, lease, figures, actor, given_up).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn end_in(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    figures: &RebuildFigures,
    actor: &str,
    given_up: Option<&StatusChange>,
) -> Result<bool, StoreError> {
    let of = (lease.rebuild, lease.epoch);
    let ended = end_statement(unit, of, figures, actor, true).await?;
    if let Some(change) = given_up.filter(|_| ended) {
        // Appends leave alone what is being built and what is retired alike.
        let behind_gates = change.to != GenerationStatus::Retired;
        change_status_in(unit, behind_gates, change).await?;
    }
    Ok(ended)
}

/// Ends a rebuild at an epoch; `false` if it has another by now.
pub(super) async fn end_statement(
    unit: &mut PostgresUnit<'_>,
    (rebuild, epoch): (i32, i64),
    figures: &RebuildFigures,
    actor: &str,
    with_events: bool,
) -> Result<bool, StoreError> {
    let phase = figures.phase.filter(|phase| phase.is_end()).unwrap_or(RebuildPhase::Failed);
    let done = with_events.then(|| stored(figures.events_done));
    let total = with_events.then(|| stored(figures.events_total));
    let params: [Param<'_>; 7] = [
        (&rebuild, Type::INT4),
        (&epoch, Type::INT8),
        (&phase.as_str(), Type::TEXT),
        (&done, Type::INT8),
        (&total, Type::INT8),
        (&figures.message, Type::TEXT),
        (&actor, Type::TEXT),
    ];
    Ok(!unit.ask(END, &params).await?.is_empty())
}

pub(super) async fn target_leases(
    store: &PostgresStore,
    lease: RebuildLease,
) -> Result<Vec<Lease>, ApplyError> {
    let params: [Param<'_>; 3] =
        [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8), (&lease.worker, Type::UUID)];
    let rows = store.engine.get().await?.query(LEASES, &params).await?;
    if rows.is_empty() {
        return Err(ApplyError::LeaseLost);
    }
    let shard = |row: &Row| {
        let generation = row.get::<_, Option<i32>>(0)?;
        let shard = row.get::<_, i32>(1).unsigned_abs();
        let position = Position::from_stored(row.get(3));
        Some(Lease { shard: ShardId { generation, shard }, epoch: row.get(2), position })
    };
    Ok(rows.iter().filter_map(shard).collect())
}
