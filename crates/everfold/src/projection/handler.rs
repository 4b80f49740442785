//! Handler projections: code that gets a batch of events and the open transaction.

#[cfg(feature = "postgres")]
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
    /// Whether this is a generation that readers do not see: it is built from history beside another
    /// one, which has applied these events, or will. Side effects stay off then.
    pub replayed: bool,
}

/// A handler on PostgreSQL. What it writes through the transaction is committed with the checkpoint,
/// or not at all: it must neither commit nor roll back by itself.
///
/// It may be called again with the same events, after a failure or a crash. What it did through the
/// transaction is gone then; what it did elsewhere is not.
///
/// It has [`handler_timeout`](crate::RunnerOptions::handler_timeout) in a transaction. If a statement
/// fails and it goes on all the same, it has failed too: nothing of such a transaction can be kept.
///
/// ```
/// use everfold::postgres::{PostgresHandler, tokio_postgres::Transaction};
/// use everfold::{HandlerBatch, HandlerError, Projection};
/// use futures::future::BoxFuture;
///
/// struct WordCount;
///
/// impl PostgresHandler for WordCount {
///     fn set_up<'a>(
///         &'a self,
///         home: &'a str,
///         transaction: &'a Transaction<'_>,
///     ) -> BoxFuture<'a, Result<(), HandlerError>> {
///         Box::pin(async move {
///             let create = format!("CREATE TABLE {home}.words (word text PRIMARY KEY, n bigint NOT NULL)");
///             Ok(transaction.batch_execute(&create).await?)
///         })
///     }
///
///     fn apply<'a>(
///         &'a self,
///         batch: HandlerBatch<'a>,
///         transaction: &'a Transaction<'_>,
///     ) -> BoxFuture<'a, Result<(), HandlerError>> {
///         Box::pin(async move {
///             let count = format!(
///                 "INSERT INTO {}.words AS w VALUES ($1, 1) ON CONFLICT (word) DO UPDATE SET n = w.n + 1",
///                 batch.home
///             );
///             for event in batch.events {
///                 let text: String = event.data_as()?;
///                 for word in text.split_whitespace() {
///                     transaction.execute(&count, &[&word]).await?;
///                 }
///             }
///             Ok(())
///         })
///     }
/// }
///
/// let words = Projection::postgres_handler("words", 1, WordCount).events(["Said"]).build()?;
/// # let _ = words;
/// # Ok::<(), everfold::ProjectionError>(())
/// ```
#[cfg(feature = "postgres")]
pub trait PostgresHandler: Send + Sync + 'static {
    /// Makes the tables of a new generation. They belong into the schema `home`.
    ///
    /// # Errors
    /// Whatever it returns fails the registration, or the rebuild, and nothing is made.
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (home, transaction);
        Box::pin(async { Ok(()) })
    }

    /// Applies events, in their order.
    ///
    /// # Errors
    /// Whatever it returns undoes the batch. It is called again with parts of it, until the event that
    /// fails is alone; that one is tried some more times, and then the projection's
    /// [policy](crate::OnError) decides.
    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Called with an event that was given up (`on_error = "skip"`, or a dead letter discarded).
    ///
    /// # Errors
    /// Whatever it returns is recorded with the event, and undoes what it wrote here. The event is given
    /// up all the same.
    fn skipped<'a>(
        &'a self,
        event: &'a RecordedEvent,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (event, transaction);
        Box::pin(async { Ok(()) })
    }

    /// Removes what `set_up` made outside its schema, when the generation is dropped, in a transaction
    /// of its own of at most ten seconds. The schema itself is dropped by everfold, afterwards. It may be
    /// called again, if the process died in between, and is not called where a process drops the
    /// generation that does not have this code.
    ///
    /// # Errors
    /// Whatever it returns is recorded, and the schema is dropped all the same.
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
/// checkpoint, or not at all: it must neither commit nor roll back by itself.
///
/// It may be called again with the same events, after a failure or a crash. What it did through the
/// connection is gone then; what it did elsewhere is not.
///
/// It has [`handler_timeout`](crate::RunnerOptions::handler_timeout) in a transaction: statements after
/// that fail. Appends wait while it runs, so let it wait for nothing else.
///
/// ```
/// use everfold::sqlite::{SqliteHandler, rusqlite};
/// use everfold::{ExpectedVersion, HandlerBatch, HandlerError, NewEvent, Projection, Runner, Store};
///
/// struct WordCount;
///
/// impl SqliteHandler for WordCount {
///     fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
///         let create = format!("CREATE TABLE {home}words (word TEXT PRIMARY KEY, n INTEGER NOT NULL)");
///         Ok(connection.execute_batch(&create)?)
///     }
///
///     fn apply(
///         &self,
///         batch: HandlerBatch<'_>,
///         connection: &rusqlite::Connection,
///     ) -> Result<(), HandlerError> {
///         let count = format!(
///             "INSERT INTO {}words AS w VALUES (?1, 1) ON CONFLICT (word) DO UPDATE SET n = w.n + 1",
///             batch.home
///         );
///         for event in batch.events {
///             let text: String = event.data_as()?;
///             for word in text.split_whitespace() {
///                 connection.prepare_cached(&count)?.execute([word])?;
///             }
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("notes.db");
/// # let store = Store::open(&format!("sqlite:{}", file.display())).await?;
/// let said = NewEvent::new("Said", &"to be or not to be")?;
/// store.append("hamlet", ExpectedVersion::Any, [said]).await?;
/// let words = Projection::sqlite_handler("words", 1, WordCount).events(["Said"]).build()?;
/// Runner::new(&store).projection(words).run_once().await?;
///
/// let connection = rusqlite::Connection::open(&file)?;
/// let query = "SELECT n FROM read_model_words WHERE word = 'be'";
/// let n: i64 = connection.query_row(query, [], |row| row.get(0))?;
/// assert_eq!(n, 2);
/// # Ok(()) }
/// ```
#[cfg(feature = "sqlite")]
pub trait SqliteHandler: Send + Sync + 'static {
    /// Makes the tables of a new generation. Their names begin with `home`.
    ///
    /// # Errors
    /// Whatever it returns fails the registration, or the rebuild, and nothing is made.
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let _ = (home, connection);
        Ok(())
    }

    /// Applies events, in their order.
    ///
    /// # Errors
    /// Whatever it returns undoes the batch. It is called again with parts of it, until the event that
    /// fails is alone; that one is tried some more times, and then the projection's
    /// [policy](crate::OnError) decides.
    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError>;

    /// Called with an event that was given up (`on_error = "skip"`, or a dead letter discarded).
    ///
    /// # Errors
    /// Whatever it returns is recorded with the event, and undoes what it wrote here. The event is given
    /// up all the same.
    fn skipped(
        &self,
        event: &RecordedEvent,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let _ = (event, connection);
        Ok(())
    }

    /// Removes what `set_up` made under names without the prefix, when the generation is dropped. What
    /// has the prefix is dropped by everfold, afterwards.
    ///
    /// # Errors
    /// Whatever it returns is recorded, and the generation is dropped all the same.
    fn tear_down(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let _ = (home, connection);
        Ok(())
    }
}
