//! Gates: advisory locks that appends hold shared, and that whoever changes what appends do takes
//! exclusively (docs/design.md, Append). All are transaction scoped.
//!
//! While somebody waits for a gate exclusively, new appends wait behind him. So each try is short, the
//! pauses between tries are nine times as long, and what else the transaction holds stays.

use std::time::Duration;

use super::unit::PostgresUnit;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::projector::ApplyError;
use crate::store::postgres::connect::QueryError;
use crate::store::{FENCE_HELD_TIMES, jitter};

/// Everything that inline generations are, for all appends.
pub(in crate::store::postgres) const REGISTRY: &str =
    "SELECT pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)";

/// For a transaction that does nothing but take gates and change what they guard.
pub(in crate::store::postgres) const TIMEOUTS: &str = "SET LOCAL lock_timeout = '100ms'; \
    SET LOCAL statement_timeout = '1s'; SET LOCAL idle_in_transaction_session_timeout = '1s'";

/// How often gates are tried for before it is given up.
pub(in crate::store::postgres) const TRIES: u32 = 60;

/// With the registry gate in hand.
const HELD: &str = "SET LOCAL lock_timeout = '300ms'; SET LOCAL statement_timeout = '1s'; \
    SET LOCAL idle_in_transaction_session_timeout = '1s'";

const PAUSE_MIN: Duration = Duration::from_millis(850);
const PAUSE_MORE: Duration = Duration::from_millis(200);

const REGISTRY_LOCK: &str = "pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)";

/// The gate of one inline generation.
pub(in crate::store::postgres) fn of_generation(generation: i32) -> String {
    format!("SELECT {}", lock_of(generation))
}

fn lock_of(generation: i32) -> String {
    format!("pg_advisory_xact_lock('everfold.generations'::regclass::oid::int, {generation})")
}

/// What a change of an inline generation's status needs.
pub(in crate::store::postgres) fn all_for(generation: i32) -> String {
    format!("{REGISTRY}; {}", of_generation(generation))
}

/// Takes gates exclusively, within a few tries.
pub(in crate::store::postgres) async fn lock(
    unit: &mut PostgresUnit<'_>,
    gates: &str,
) -> Result<(), ApplyError> {
    lock_within(unit, gates, 5, "SET LOCAL lock_timeout = '4s'").await.map_err(ApplyError::Store)
}

/// Takes the registry gate at the end of a transaction that may have taken its time. From then on it
/// must not: the timeouts come with the gate, so that they hold also for a client that stalls with it.
pub(in crate::store::postgres) async fn lock_registry_at_last(
    unit: &mut PostgresUnit<'_>,
) -> Result<(), StoreError> {
    lock_within(unit, REGISTRY, TRIES, HELD).await
}

/// The same, with a row that is locked before the gate in each try, and given back between tries.
pub(in crate::store::postgres) async fn lock_row_and_registry_at_last(
    unit: &mut PostgresUnit<'_>,
    lock_row: &str,
) -> Result<(), StoreError> {
    lock_within(unit, &format!("{lock_row}; {REGISTRY}"), TRIES, HELD).await
}

/// Takes gates exclusively, within so many tries of 100 ms, and sets what holds from then on. What the
/// transaction did before stays.
async fn lock_within(
    unit: &mut PostgresUnit<'_>,
    gates: &str,
    tries: u32,
    held: &str,
) -> Result<(), StoreError> {
    let sql = format!(
        "SAVEPOINT everfold_gate; SET LOCAL lock_timeout = '100ms'; {gates}; \
         RELEASE SAVEPOINT everfold_gate; {held}"
    );
    for _ in 0..tries {
        let error = match unit.batch(&sql).await {
            Ok(()) => return Ok(()),
            Err(QueryError::Driver(error)) if is_lock_timeout(&error) => error,
            Err(error) => return Err(error.into_store_error()),
        };
        tracing::debug!(%error, "appends hold a gate, trying again");
        let undo = "ROLLBACK TO SAVEPOINT everfold_gate; RELEASE SAVEPOINT everfold_gate";
        unit.batch(undo).await.map_err(QueryError::into_store_error)?;
        unit.note_undone();
        pause().await;
    }
    let message = "transactions that stay open after an append held a gate all the time; try again \
                   when there are fewer of them";
    Err(StoreError::new(StoreErrorKind::Busy, message))
}

/// Takes gates exclusively in one try, that of the registry first if asked for, then these in the order
/// given. Appends that come meanwhile queue behind it, so it is over after `timeout`, and what is done
/// with the gates in hand is bounded too, also for a client that stalls.
pub(super) async fn fence(
    unit: &mut PostgresUnit<'_>,
    registry: bool,
    generations: &[i32],
    timeout: Duration,
) -> Result<(), ApplyError> {
    let registry = registry.then(|| REGISTRY_LOCK.to_owned());
    let locks = registry.into_iter().chain(generations.iter().map(|id| lock_of(*id)));
    // One statement, so that its timeout is that of all of them.
    let locks = locks.collect::<Vec<_>>().join(", ");
    let (wait, held) =
        (timeout.as_millis().max(1), (timeout * FENCE_HELD_TIMES).as_millis().max(1));
    let sql = format!(
        "SET LOCAL lock_timeout = '{wait}ms'; SET LOCAL statement_timeout = '{wait}ms'; \
         SET LOCAL idle_in_transaction_session_timeout = '{held}ms'; SELECT {locks}; \
         SET LOCAL statement_timeout = '{held}ms'"
    );
    match unit.batch(&sql).await {
        Ok(()) => Ok(()),
        Err(QueryError::Driver(error)) if is_lock_timeout(&error) || is_cancelled(&error) => {
            let message = format!(
                "transactions that stay open after an append held a gate for longer than {timeout:?}"
            );
            Err(StoreError::new(StoreErrorKind::Busy, message).into())
        }
        Err(error) => Err(error.into_store_error().into()),
    }
}

/// Lets appends through between two tries.
pub(in crate::store::postgres) async fn pause() {
    tokio::time::sleep(PAUSE_MIN + jitter(PAUSE_MORE)).await;
}

fn is_cancelled(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == "57014")
}

fn is_lock_timeout(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == "55P03")
}
