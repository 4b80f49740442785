//! The begin and the end of a transaction of the engine: a connection whose transaction did not end
//! well is never used again.

use std::borrow::Cow;

use tokio_postgres::IsolationLevel;

use super::unit::{PostgresUnit, in_time};
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::store::postgres::connect::{Connection, QueryError};

/// Begins a transaction. Until it has [ended](finish), a connection that is dropped is closed.
pub(in crate::store::postgres) async fn begin<'a>(
    connection: &'a mut Connection,
    options: &StoreOptions,
    set_up: impl Into<Cow<'static, str>>,
) -> Result<PostgresUnit<'a>, StoreError> {
    connection.discard();
    let (named, timeout) = (connection.named_statements(), connection.request_timeout());
    let builder = connection.client_mut().build_transaction();
    let start = builder.isolation_level(IsolationLevel::ReadCommitted).start();
    let transaction = in_time(timeout, start).await.map_err(QueryError::into_store_error)?;
    Ok(PostgresUnit::new(transaction, named, timeout, options, set_up))
}

/// How a transaction ended.
#[must_use]
pub(in crate::store::postgres) enum End {
    /// The connection can be used again.
    Clean,
    Broken,
    /// It was left in the middle, and the server may still be busy with it.
    Abandoned,
    /// The server did not answer.
    Unanswered,
}

impl End {
    pub(in crate::store::postgres) fn settle(self, connection: &Connection) {
        match self {
            End::Clean => connection.keep(),
            End::Broken => {}
            End::Abandoned => connection.give_up(),
            End::Unanswered => connection.unanswered(),
        }
    }
}

/// Commits what went well, and rolls back what did not.
pub(in crate::store::postgres) async fn finish<T, E: From<StoreError>>(
    unit: PostgresUnit<'_>,
    outcome: Result<T, E>,
) -> (Result<T, E>, End) {
    if unit.unanswered {
        return (outcome, End::Unanswered);
    }
    if unit.abandoned {
        return (outcome, End::Abandoned);
    }
    match outcome {
        Ok(done) => match unit.commit().await {
            Ok(()) => (Ok(done), End::Clean),
            Err(error) => (Err(error.into()), End::Broken),
        },
        Err(error) => {
            let end = if unit.rollback().await.is_ok() { End::Clean } else { End::Broken };
            (Err(error), end)
        }
    }
}
