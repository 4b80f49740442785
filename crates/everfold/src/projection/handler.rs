//! Handler projections: code that gets a batch of events and the open transaction.

use futures::future::BoxFuture;

use crate::RecordedEvent;

/// What a handler fails with: anything that says what happened.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Events for a handler, in their order.
#[derive(Debug)]
#[non_exhaustive]
pub struct HandlerBatch<'a> {
    /// The events.
    pub events: &'a [RecordedEvent],
    /// Where the projection's tables are: on PostgreSQL their schema (`{home}.orders`), on SQLite the
    /// prefix of their names (`{home}orders`). Plain text that needs no quoting.
    pub home: &'a str,
    /// Whether these events were applied before, by an earlier generation: side effects stay off.
    pub replayed: bool,
}

/// A handler on PostgreSQL. What it writes through the transaction is committed with the checkpoint.
#[cfg(feature = "postgres")]
pub trait PostgresHandler: Send + Sync + 'static {
    /// Makes the tables of a new generation. They belong into the schema `home`.
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (home, transaction);
        Box::pin(async { Ok(()) })
    }

    /// Applies events, in their order.
    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Called with an event that was given up (`on_error = "skip"`, or a dead letter discarded).
    fn skipped<'a>(
        &'a self,
        event: &'a RecordedEvent,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (event, transaction);
        Box::pin(async { Ok(()) })
    }

    /// Removes what `set_up` made outside its schema. The schema itself is dropped by everfold.
    fn tear_down<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (home, transaction);
        Box::pin(async { Ok(()) })
    }
}

/// A handler on SQLite, called on the thread that writes. What it writes is committed with the
/// checkpoint.
#[cfg(feature = "sqlite")]
pub trait SqliteHandler: Send + Sync + 'static {
    /// Makes the tables of a new generation. Their names begin with `home`.
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let _ = (home, connection);
        Ok(())
    }

    /// Applies events, in their order.
    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError>;

    /// Called with an event that was given up (`on_error = "skip"`, or a dead letter discarded).
    fn skipped(
        &self,
        event: &RecordedEvent,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let _ = (event, connection);
        Ok(())
    }

    /// Removes what `set_up` made under names without the prefix.
    fn tear_down(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let _ = (home, connection);
        Ok(())
    }
}
