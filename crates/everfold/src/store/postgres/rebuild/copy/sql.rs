//! A part of a SQL projection: its `apply.sql`, with all events of the part's keys as one batch.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio_postgres::types::Type;

use super::late::{Claim, end_late_holders};
use super::{Part, TIMEOUTS, in_transaction, lock_lease, look_at_lease, pause, rest};
use crate::error::StoreErrorKind;
use crate::projection::projector::ApplyError;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::apply::broken_or_refused;
use crate::store::postgres::projection::names::quoted;
use crate::store::postgres::projection::unit::PostgresUnit;
use crate::store::{Copied, Copying};

/// Groups and sorts of a whole part should not go to disk.
const MEMORY: &str = "SET LOCAL work_mem = '128MB'";
/// How often parts that wait for each other's rows in a circle are tried again.
const TRIES: u32 = 5;

const TAKE_PART: &str = "SELECT low, high, events FROM everfold.rebuild_parts \
    WHERE rebuild = $1 AND NOT done ORDER BY low LIMIT 1 FOR UPDATE SKIP LOCKED";
const IS_DONE: &str = "SELECT NOT EXISTS (SELECT FROM everfold.rebuild_parts \
    WHERE rebuild = $1 AND NOT done)";
const PART_DONE: &str =
    "UPDATE everfold.rebuild_parts SET done = true WHERE rebuild = $1 AND low = $2";

/// What a look for a part came to.
enum Found {
    Copied(Copied),
    /// Somebody else is busy with all that are left.
    Taken,
}

/// Copies a part. Where others are busy with all that are left, waits for them: one of them may fail.
pub(in super::super) async fn copy_part(
    store: &PostgresStore,
    copying: &Copying,
) -> Result<Copied, ApplyError> {
    let (mut tries, mut taken) = (0, 0);
    loop {
        let set_up = format!("{TIMEOUTS}; {MEMORY}");
        let begun = Instant::now();
        // Ours until the transaction has ended.
        let mut claim = None;
        let copied = in_transaction(store, copying, set_up, async |unit| {
            copy(store, unit, copying, &mut claim).await
        })
        .await;
        drop(claim);
        match copied {
            Ok(Found::Copied(copied)) => {
                if let Copied::Part { events } = copied {
                    copying.events_done.fetch_add(events, Ordering::Relaxed);
                    copying.pace.went(events).await;
                    rest(copying, copying.pace.rest_after(begun.elapsed(), 1)).await;
                }
                return Ok(copied);
            }
            Ok(Found::Taken) => {
                // Whoever here has just taken it says so a moment later.
                taken += 1;
                if taken > 1 {
                    end_late_holders(store, copying, None).await?;
                }
                pause(copying).await?;
            }
            Err(ApplyError::Refused { message, .. }) => {
                return Ok(Copied::InBatches { reason: message });
            }
            Err(ApplyError::Store(error)) if error.kind() == StoreErrorKind::Busy => {
                tries += 1;
                if tries >= TRIES {
                    let reason = format!("its parts got in each other's way: {error}");
                    return Ok(Copied::InBatches { reason });
                }
                pause(copying).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn copy<'a>(
    store: &'a PostgresStore,
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    claim: &mut Option<Claim<'a>>,
) -> Result<Found, ApplyError> {
    let rebuild: Param<'_> = (&copying.lease.rebuild, Type::INT4);
    look_at_lease(unit, copying.lease).await?;
    let rows = unit.query(TAKE_PART, std::slice::from_ref(&rebuild)).await?;
    let Some(row) = rows.first() else {
        let done = unit.query(IS_DONE, &[rebuild]).await?;
        let done = done.first().is_some_and(|row| row.get(0));
        return Ok(if done { Found::Copied(Copied::NoneLeft) } else { Found::Taken });
    };
    let part = Part { low: row.get(0), high: row.get(1), events: row.get(2) };
    *claim = store.claims.claim(copying, part);
    if claim.is_none() {
        return Ok(Found::Taken);
    }
    apply(unit, copying, part).await?;
    lock_lease(unit, copying.lease).await?;
    unit.query(PART_DONE, &[rebuild, (&part.low, Type::INT8)]).await?;
    let events = part.events.unsigned_abs();
    Ok(Found::Copied(Copied::Part { events }))
}

async fn apply(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    part: Part,
) -> Result<(), ApplyError> {
    let home = quoted(&copying.generation.home);
    let cutoff = copying.cutoff.to_stored();
    let params: [Param<'_>; 3] =
        [(&cutoff, Type::INT8), (&part.low, Type::INT8), (&part.high, Type::INT8)];
    let sql = format!("SELECT {home}.apply_part($1, $2, $3)");
    match unit.try_query_anew(&sql, &params).await {
        Ok(_) => Ok(()),
        Err(QueryError::Driver(error)) => Err(broken_or_refused(error)),
        Err(error) => Err(ApplyError::Store(error.into_store_error())),
    }
}
