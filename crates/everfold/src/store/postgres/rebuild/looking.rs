//! A transaction that looks at one moment of the store (REPEATABLE READ), may take its time, and is
//! rolled back at the end whatever it did.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::IsolationLevel;
use tokio_postgres::types::Type;

use super::super::connect::{Connection, Connections, Param, QueryError};
use super::super::projection::transaction::End;
use super::super::projection::unit::PostgresUnit;
use crate::Position;
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::projection::generation::Generation;
use crate::rebuild::holding::{Holding, fed_by_appends};

/// Statements take as long as the read model is large; a client that is gone is not waited for. What is
/// grouped and joined should not go to disk.
const TIMEOUTS: &str = "SET LOCAL jit = off; SET LOCAL lock_timeout = '4s'; \
    SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '60s'; \
    SET LOCAL work_mem = '128MB'";
/// Nobody waits longer for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const CHECKPOINTS: &str =
    "SELECT position FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard";
const HIGHEST: &str = "SELECT coalesce(max(position), 0) FROM everfold.events";
const OWED: &str = "SELECT position FROM everfold.skips WHERE generation = $1 \
    UNION ALL SELECT position FROM everfold.dead_letters WHERE generation = $1";
const GIVEN_UP: &str = "SELECT position FROM everfold.system_messages WHERE generation = $1 \
    AND kind IN ('skipped', 'dead-letter-discarded') AND position IS NOT NULL";

/// Begins to look. The moment is that of the first statement.
pub(super) async fn begin<'a>(
    connection: &'a mut Connection,
    options: &StoreOptions,
) -> Result<PostgresUnit<'a>, StoreError> {
    connection.discard();
    let (named, timeout) = (connection.named_statements(), connection.request_timeout());
    let builder = connection.client_mut().build_transaction();
    let start = builder.isolation_level(IsolationLevel::RepeatableRead).start();
    let transaction = match tokio::time::timeout(timeout, start).await {
        Ok(outcome) => outcome.map_err(|e| QueryError::Driver(e).into_store_error())?,
        Err(_) => return Err(QueryError::NoAnswer(timeout).into_store_error()),
    };
    Ok(PostgresUnit::new(transaction, named, ANSWER_MAX, options, TIMEOUTS))
}

/// Undoes everything that was done meanwhile.
pub(super) async fn end(unit: PostgresUnit<'_>) -> End {
    if unit.abandoned {
        return End::Abandoned;
    }
    match tokio::time::timeout(Duration::from_secs(10), unit.rollback()).await {
        Ok(Ok(())) => End::Clean,
        _ => End::Broken,
    }
}

/// Runs `look` at one moment, and undoes everything it did. Asks the server to stop if nobody waits for
/// it any more.
pub(super) async fn at_one_moment<T, E: From<StoreError>>(
    connections: &Connections,
    options: &StoreOptions,
    look: impl AsyncFnOnce(&mut PostgresUnit<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let mut connection = connections.get().await?;
    let stop = connection.stop_unless_done();
    let mut unit = begin(&mut connection, options).await?;
    let outcome = look(&mut unit).await;
    end(unit).await.settle(&connection);
    stop.done();
    outcome
}

/// What a generation holds at this moment.
pub(super) async fn holding(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
) -> Result<Holding, StoreError> {
    let id: [Param<'_>; 1] = [(&generation.id, Type::INT4)];
    let sql = if fed_by_appends(generation) { HIGHEST } else { CHECKPOINTS };
    let params: &[Param<'_>] = if fed_by_appends(generation) { &[] } else { &id };
    let shards = positions(unit, sql, params).await?;
    let owed = positions::<BTreeSet<_>>(unit, OWED, &id).await?;
    let given_up = positions::<BTreeSet<_>>(unit, GIVEN_UP, &id).await?;
    Ok(Holding { shards, owed, given_up })
}

async fn positions<C: FromIterator<Position>>(
    unit: &mut PostgresUnit<'_>,
    sql: &str,
    params: &[Param<'_>],
) -> Result<C, StoreError> {
    let rows = unit.ask(sql, params).await?;
    Ok(rows.iter().map(|row| Position::from_stored(row.get(0))).collect())
}
