//! Copying history into a new generation, up to a fixed position and in parts: keys whose hash is in a
//! range. Each part is one transaction, so that whoever goes on knows what is done.
//!
//! ```text
//!   plan ──> parts in `rebuild_parts` ──> sql:       the database applies all events of a part at once
//!                                    └──> documents: readers ─ COPY ─> folder, one a thread ─ COPY ─> table
//!   finish: indexes, statistics, checkpoints at the cutoff
//! ```
//!
//! The lease is looked at when a part begins, and its row is locked when a part ends: in between, signs
//! of life are written to it. A worker that has lost it commits nothing.

mod ahead;
mod documents;
mod finish;
mod folder;
mod late;
mod plan;
mod reader;
mod row;
mod sql;

use std::borrow::Cow;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::error::{StoreError, StoreErrorKind};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::RebuildLease;
use crate::store::Copying;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::PostgresUnit;

pub(super) use documents::copy_part as copy_documents;
pub(super) use finish::finish_copy;
pub(super) use folder::{Manner, Progress};
pub(in crate::store::postgres) use late::Claims;
pub(super) use plan::plan_copy;
pub(super) use reader::{Folders, Reading};
pub(super) use sql::copy_part as copy_sql;

/// A statement takes as long as history is long. The client watches over it: it is stopped if nobody
/// wants it any more, and the server looks whether the client is still there where it can.
const TIMEOUTS: &str = "SET LOCAL jit = off; SET LOCAL lock_timeout = '10min'; \
    SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '20s'; \
    SELECT set_config('client_connection_check_interval', '2s', true) WHERE version() LIKE '%linux%'";
/// Nobody waits longer for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long somebody who finds all parts taken waits before he looks again, if nobody tells him to.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const LOOK_AT_LEASE: &str = "SELECT coalesce(owner_name, 'rebuild') FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL";
const LOCK_LEASE: &str = "SELECT coalesce(owner_name, 'rebuild') FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL FOR UPDATE";

/// A part: keys whose hash is at least `low` and below `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    low: i64,
    high: i64,
    /// How many events it has, as far as is known.
    events: i64,
}

/// Runs work in a transaction that may take long, and stops it if it is to end.
async fn in_transaction<T>(
    store: &PostgresStore,
    copying: &Copying,
    set_up: impl Into<Cow<'static, str>>,
    work: impl AsyncFnOnce(&mut PostgresUnit<'_>) -> Result<T, ApplyError>,
) -> Result<T, ApplyError> {
    let mut connection = store.engine.get().await?;
    let stop = connection.stop_unless_done();
    let mut unit = begin(&mut connection, &store.options, set_up).await?;
    let answer = std::mem::replace(&mut unit.request_timeout, ANSWER_MAX);
    let outcome = tokio::select! {
        outcome = work(&mut unit) => Some(outcome),
        () = copying.cancel.cancelled() => None,
    };
    unit.request_timeout = answer;
    unit.abandoned = outcome.is_none();
    let (outcome, end) = finish(unit, outcome.unwrap_or_else(|| Err(stopped()))).await;
    end.settle(&connection);
    stop.done();
    outcome
}

/// Whether the lease holds, so far.
async fn look_at_lease(unit: &mut PostgresUnit<'_>, lease: RebuildLease) -> Result<(), ApplyError> {
    lease_by(LOOK_AT_LEASE, unit, lease).await.map(drop)
}

/// Makes sure that the lease holds until the end of the transaction, and says who has it.
async fn lock_lease(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
) -> Result<String, ApplyError> {
    lease_by(LOCK_LEASE, unit, lease).await
}

async fn lease_by(
    sql: &str,
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
) -> Result<String, ApplyError> {
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.query(sql, &params).await?;
    Ok(rows.first().ok_or(ApplyError::LeaseLost)?.get(0))
}

/// Waits before parts are looked for again.
async fn pause(copying: &Copying) -> Result<(), ApplyError> {
    tokio::select! {
        () = tokio::time::sleep(LOOK_AGAIN) => Ok(()),
        () = copying.part_done.notified() => Ok(()),
        () = copying.cancel.cancelled() => Err(stopped()),
    }
}

/// Leaves the database to others for a while, or until nobody wants this any more.
async fn rest(copying: &Copying, rest: Duration) {
    if !rest.is_zero() {
        let _ = tokio::time::timeout(rest, copying.cancel.cancelled()).await;
    }
}

/// Whoever works on the rebuild does not want this any more.
fn stopped() -> ApplyError {
    let message = "copying history was stopped; it goes on where it was when the rebuild does";
    ApplyError::Store(StoreError::new(StoreErrorKind::Other, message))
}
