//! One transaction of the engine.
//!
//! Timeouts are set in the round trip of the first statement: a process that is paused or cut off in
//! the middle keeps nobody waiting for longer than a lease lives.

use std::borrow::Cow;
use std::time::Duration;

use deadpool_postgres::Transaction;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::projection::projector::ApplyError;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::error::store_error;

macro_rules! statement {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/sql/postgres/statements/",
            $name,
            ".sql"
        ))
    };
}
pub(in crate::store::postgres) use statement;

/// Below the lifetime of a lease (15 s). Compiling a statement takes longer than a batch.
pub(in crate::store::postgres) const TIMEOUTS: &str = "SET LOCAL jit = off; SET LOCAL lock_timeout = '4s'; \
    SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// The same with the time that a handler has, and a little more: the engine is to stop it, not the
/// server. One that blocks its thread cannot be stopped; then the server ends the session, so that
/// others can go on with the shard.
pub(in crate::store::postgres) fn timeouts(handler: Duration) -> Cow<'static, str> {
    let idle = (handler + HANDLER_MARGIN).as_millis();
    let statement = idle.max(10_000);
    if idle == 10_000 {
        return Cow::Borrowed(TIMEOUTS);
    }
    Cow::Owned(format!(
        "SET LOCAL jit = off; SET LOCAL lock_timeout = '4s'; \
         SET LOCAL statement_timeout = '{statement}ms'; \
         SET LOCAL idle_in_transaction_session_timeout = '{idle}ms'"
    ))
}

const HANDLER_MARGIN: Duration = Duration::from_secs(2);

/// An open transaction of the engine.
pub(in crate::store::postgres) struct PostgresUnit<'a> {
    transaction: Transaction<'a>,
    named_statements: bool,
    pub(in crate::store::postgres) request_timeout: Duration,
    /// Most bytes of events read at once.
    pub(in crate::store::postgres) bytes_max: usize,
    /// What goes with the first statement.
    set_up: Option<Cow<'static, str>>,
    pub(in crate::store::postgres) savepoints: u32,
    /// The server has ended the transaction, up to a savepoint or all of it.
    aborted: bool,
    /// The server did not answer.
    pub(in crate::store::postgres) unanswered: bool,
    /// Somebody who used the transaction was stopped in the middle of it.
    pub(in crate::store::postgres) abandoned: bool,
    /// How much of the transaction's time handlers have used.
    pub(in crate::store::postgres) handlers_took: Duration,
}

impl<'a> PostgresUnit<'a> {
    pub(in crate::store::postgres) fn new(
        transaction: Transaction<'a>,
        named_statements: bool,
        request_timeout: Duration,
        options: &StoreOptions,
        set_up: impl Into<Cow<'static, str>>,
    ) -> Self {
        PostgresUnit {
            transaction,
            named_statements,
            request_timeout,
            bytes_max: options.page_bytes_max,
            set_up: Some(set_up.into()),
            savepoints: 0,
            aborted: false,
            unanswered: false,
            abandoned: false,
            handlers_took: Duration::ZERO,
        }
    }

    /// What the caller, not this unit, does with the transaction.
    pub(in crate::store::postgres) fn transaction(&self) -> &Transaction<'a> {
        &self.transaction
    }

    /// Commits. What the server would only answer with a rollback is an error.
    pub(in crate::store::postgres) async fn commit(self) -> Result<(), StoreError> {
        if self.aborted {
            let message = "a statement of the transaction failed, so nothing was stored";
            return Err(StoreError::new(StoreErrorKind::Other, message));
        }
        in_time(self.request_timeout, self.transaction.commit())
            .await
            .map_err(QueryError::into_store_error)
    }

    pub(in crate::store::postgres) async fn rollback(self) -> Result<(), StoreError> {
        in_time(self.request_timeout, self.transaction.rollback())
            .await
            .map_err(QueryError::into_store_error)
    }

    /// Runs a statement with typed parameters, and before the first one what sets the transaction up,
    /// in the same round trip.
    pub(in crate::store::postgres) async fn try_query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, QueryError> {
        self.try_query_by(self.named_statements, sql, params).await
    }

    /// The same with a plan of its own each time.
    pub(in crate::store::postgres) async fn try_query_anew(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, QueryError> {
        self.try_query_by(false, sql, params).await
    }

    async fn try_query_by(
        &mut self,
        named: bool,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, QueryError> {
        let (set_up, transaction) = (self.set_up.take(), &self.transaction);
        let setting = async {
            match set_up {
                Some(sql) => transaction.batch_execute(&sql).await,
                None => Ok(()),
            }
        };
        let querying = async {
            if !named {
                return transaction.query_typed(sql, params).await;
            }
            let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
            let statement = transaction.prepare_typed_cached(sql, &types).await?;
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            transaction.query(&statement, &values).await
        };
        let both = futures::future::try_join(setting, querying);
        let outcome = in_time(self.request_timeout, both).await;
        self.note(&outcome);
        outcome.map(|((), rows)| rows)
    }

    pub(in crate::store::postgres) async fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, ApplyError> {
        let outcome = self.try_query(sql, params).await;
        outcome.map_err(|error| ApplyError::Store(error.into_store_error()))
    }

    /// The same for callers with errors of their own.
    pub(in crate::store::postgres) async fn ask(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.try_query(sql, params).await.map_err(QueryError::into_store_error)
    }

    /// The same with a plan of its own.
    pub(in crate::store::postgres) async fn ask_anew(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.try_query_anew(sql, params).await.map_err(QueryError::into_store_error)
    }

    /// Sets the transaction up now, for somebody who does not ask through this unit.
    pub(in crate::store::postgres) async fn settle_set_up(&mut self) -> Result<(), ApplyError> {
        if self.set_up.is_some() { self.run("").await } else { Ok(()) }
    }

    /// Runs statements that take no parameters.
    pub(in crate::store::postgres) async fn batch(&mut self, sql: &str) -> Result<(), QueryError> {
        let set_up = self.set_up.take().map(|sql| format!("{sql}; ")).unwrap_or_default();
        let sql = format!("{set_up}{sql}");
        let outcome = in_time(self.request_timeout, self.transaction.batch_execute(&sql)).await;
        self.note(&outcome);
        outcome
    }

    pub(in crate::store::postgres) async fn run(&mut self, sql: &str) -> Result<(), ApplyError> {
        let outcome = self.batch(sql).await;
        outcome.map_err(|error| ApplyError::Store(error.into_store_error()))
    }

    pub(in crate::store::postgres) fn note<T>(&mut self, outcome: &Result<T, QueryError>) {
        match outcome {
            Ok(_) => {}
            Err(QueryError::Driver(_)) => self.aborted = true,
            Err(QueryError::NoAnswer(_)) => (self.aborted, self.unanswered) = (true, true),
        }
    }

    /// After an error that somebody else got from the transaction.
    pub(in crate::store::postgres) fn note_abort(&mut self) {
        self.aborted = true;
    }

    /// After somebody else went back to a savepoint.
    pub(in crate::store::postgres) fn note_undone(&mut self) {
        self.aborted = false;
    }
}

/// Waits for an answer as long as is allowed.
pub(in crate::store::postgres) async fn in_time<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, QueryError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(outcome) => outcome.map_err(QueryError::Driver),
        Err(_) => Err(QueryError::NoAnswer(timeout)),
    }
}

/// An error of one of the engine's own statements.
pub(in crate::store::postgres) fn failed(error: tokio_postgres::Error) -> ApplyError {
    ApplyError::Store(store_error(error))
}

pub(in crate::store::postgres) fn stored_positions(positions: &[Position]) -> Vec<i64> {
    positions.iter().map(|position| position.to_stored()).collect()
}
