//! Sessions of workers that have lost the rebuild and still hold a part of it: their process stands still in
//! the middle of a COPY, say. What they do is never committed, so that they are ended instead of waited for.

use std::collections::HashSet;
use std::sync::Mutex;

use tokio_postgres::types::Type;

use super::{Part, TIMEOUTS, in_transaction, look_at_lease};
use crate::projection::projector::ApplyError;
use crate::store::Copying;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;

/// Parts that this process works on are not to be touched.
const END_HOLDERS: &str = "SELECT pg_catalog.pg_terminate_backend(l.pid) \
    FROM everfold.rebuild_parts p \
    JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.granted \
     AND l.transactionid = p.xmax AND l.pid <> pg_catalog.pg_backend_pid() \
    WHERE p.rebuild = $1 AND NOT p.done AND p.low <> ALL ($2) \
      AND EXISTS (SELECT FROM everfold.rebuilds r \
          WHERE r.id = $1 AND r.epoch = $3 AND r.finished_at IS NULL)";

/// Parts that somebody in this process works on, by rebuild, epoch and the lowest hash.
#[derive(Debug, Default)]
pub(in crate::store::postgres) struct Claims(Mutex<HashSet<(i32, i64, i64)>>);

/// Gives a part back when it is dropped.
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    of: (i32, i64, i64),
}

impl Claims {
    /// `None` if somebody here works on it.
    pub(super) fn claim(&self, copying: &Copying, part: Part) -> Option<Claim<'_>> {
        let of = (copying.lease.rebuild, copying.lease.epoch, part.low);
        let mut claimed = self.0.lock().expect("nothing panics with this locked");
        claimed.insert(of).then(|| Claim { claims: self, of })
    }

    fn of(&self, copying: &Copying) -> Vec<i64> {
        let lease = (copying.lease.rebuild, copying.lease.epoch);
        let claimed = self.0.lock().expect("nothing panics with this locked");
        claimed.iter().filter(|of| (of.0, of.1) == lease).map(|of| of.2).collect()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().expect("nothing panics with this locked").remove(&self.of);
    }
}

/// Ends whoever holds a part that nobody here works on, except for `mine`. Who may not do so waits.
pub(super) async fn end_late_holders(
    store: &PostgresStore,
    copying: &Copying,
    mine: Option<Part>,
) -> Result<(), ApplyError> {
    let mut claimed = store.claims.of(copying);
    claimed.retain(|low| mine.is_none_or(|mine| mine.low != *low));
    let ended = in_transaction(store, copying, TIMEOUTS, async |unit| {
        look_at_lease(unit, copying.lease).await?;
        // The lease once more in the statement itself: this process may have stood still in between.
        let params: [Param<'_>; 3] = [
            (&copying.lease.rebuild, Type::INT4),
            (&claimed, Type::INT8_ARRAY),
            (&copying.lease.epoch, Type::INT8),
        ];
        Ok(unit.query(END_HOLDERS, &params).await?.len())
    })
    .await;
    match ended {
        Ok(0) => Ok(()),
        Ok(sessions) => {
            tracing::warn!(sessions, "ended sessions of a worker that has lost the rebuild");
            Ok(())
        }
        Err(ApplyError::LeaseLost) => Err(ApplyError::LeaseLost),
        Err(error) => {
            tracing::warn!(?error, "whoever holds a part of a rebuild could not be ended");
            Ok(())
        }
    }
}
