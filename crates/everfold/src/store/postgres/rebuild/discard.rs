//! Beginning again with another target, where history cannot be copied in parts.

use tokio_postgres::types::Type;

use crate::projection::projector::ApplyError;
use crate::rebuild::row::RebuildLease;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{TIMEOUTS, statement};

const DISCARD: &str = statement!("discard_target");

pub(super) async fn discard_target(
    store: &PostgresStore,
    lease: RebuildLease,
) -> Result<(), ApplyError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let outcome = match unit.query(DISCARD, &params).await {
        Ok(rows) if rows.is_empty() => Err(ApplyError::LeaseLost),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}
