//! Connections: a small pool, with named statements or, behind a pooler in transaction mode,
//! unnamed ones.
//!
//! A connection that failed or did not answer in time is thrown away, never handed out again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, RowStream};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{connect_error, store_error};
use super::target::Target;
use crate::error::{OpenError, StoreError, StoreErrorKind};
use crate::options::{Pooler, StoreOptions};

/// A parameter with its type, so that no round trip is needed to ask for it.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) struct Connections {
    pool: Pool,
    target: Target,
    /// Named statements stay prepared on their connection; a pooler would mix connections up.
    named_statements: bool,
    connect_timeout: Duration,
    request_timeout: Duration,
    /// Places for appends that wait for a stream: half of the connections, so that the other half
    /// is left for reading and for appends that need not wait.
    waiting: Arc<Semaphore>,
}

impl Connections {
    pub(super) async fn open(url: &str, options: &StoreOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url)?;
        let pooler = match target.pooler().unwrap_or(options.pooler) {
            Pooler::Detect => detect(&target, options.connect_timeout).await?,
            told => told,
        };
        // Compiling our statements takes longer than running them.
        let target =
            if pooler == Pooler::Direct { target.with_options("-c jit=off") } else { target };
        Ok(Connections {
            pool: pool(&target, options.pool_size, options.connect_timeout),
            target,
            named_statements: pooler != Pooler::Transaction,
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
            waiting: Arc::new(Semaphore::new((options.pool_size / 2).max(1))),
        })
    }

    /// A pool of its own to the same place, for work that must not take connections away from
    /// others. None is made before it is needed.
    pub(super) fn apart(&self, size: usize) -> Connections {
        Connections {
            pool: pool(&self.target, size, self.connect_timeout),
            target: self.target.clone(),
            named_statements: self.named_statements,
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            waiting: Arc::new(Semaphore::new((size / 2).max(1))),
        }
    }

    /// A connection for a statement that may wait for other transactions. There are fewer of
    /// these, and they are waited for as long as for an answer.
    pub(super) async fn get_to_wait(&self) -> Result<Connection, StoreError> {
        let place = Arc::clone(&self.waiting).acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(self.request_timeout, place).await else {
            let message = format!(
                "other appends waited for busy streams of {} for {:?}; see `everfold doctor` for \
                 who holds them",
                self.target.place(),
                self.request_timeout
            );
            return Err(StoreError::new(StoreErrorKind::Exhausted, message));
        };
        let mut connection = self.get().await?;
        connection._place = Some(place);
        Ok(connection)
    }

    /// A connection from the pool.
    pub(super) async fn get(&self) -> Result<Connection, StoreError> {
        let object = self.pool.get().await.map_err(|error| self.pool_error(error))?;
        Ok(Connection {
            object: Some(object),
            named_statements: self.named_statements,
            request_timeout: self.request_timeout,
            tls: self.target.tls(),
            pool: self.pool.clone(),
            broken: AtomicBool::new(false),
            _place: None,
        })
    }

    fn pool_error(&self, error: PoolError) -> StoreError {
        let place = self.target.place();
        match error {
            PoolError::Backend(error) => connect_error(error, place),
            PoolError::Timeout(TimeoutType::Wait) => {
                let max = self.pool.status().max_size;
                let message = format!(
                    "all {max} connections to {place} were busy for {:?}; raise pool_size",
                    self.connect_timeout
                );
                StoreError::new(StoreErrorKind::Exhausted, message)
            }
            PoolError::Timeout(_) => {
                let message = format!(
                    "cannot connect to {place}: no answer within {:?}",
                    self.connect_timeout
                );
                StoreError::new(StoreErrorKind::Unreachable, message)
            }
            PoolError::Closed => {
                StoreError::new(StoreErrorKind::HandleClosed, "the store was closed")
            }
            error => StoreError::new(StoreErrorKind::Other, error.to_string()).with_source(error),
        }
    }

    /// Whether a pooler in transaction mode is between us and the server.
    pub(super) fn through_pooler(&self) -> bool {
        !self.named_statements
    }

    /// Where connections go, for making one outside the pool.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }
}

fn pool(target: &Target, size: usize, timeout: Duration) -> Pool {
    let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(target.config().clone(), target.tls(), config);
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .build()
        .expect("a pool with a runtime can have timeouts")
}

/// A connection out of the pool; dropping it gives it back, or closes it if it is broken.
pub(super) struct Connection {
    object: Option<Object>,
    named_statements: bool,
    request_timeout: Duration,
    tls: MakeRustlsConnect,
    pool: Pool,
    broken: AtomicBool,
    /// Held by connections on which something may wait.
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// For a transaction of the driver's own kind.
    pub(super) fn client_mut(&mut self) -> &mut Object {
        self.object.as_mut().expect("a connection has its client until it is dropped")
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Makes sure that a statement is sent as soon as it is run.
    pub(super) async fn prepare(&self, sql: &str, types: &[Type]) -> Result<(), QueryError> {
        if !self.named_statements {
            return Ok(());
        }
        self.in_time(self.client().prepare_typed_cached(sql, types)).await.map(drop)
    }

    pub(super) fn client(&self) -> &Object {
        self.object.as_ref().expect("a connection has its client until it is dropped")
    }

    pub(super) fn named_statements(&self) -> bool {
        self.named_statements
    }

    /// Runs a statement with typed parameters. The error is the driver's, for callers that read
    /// more in it than [`store_error`] does.
    pub(super) async fn try_query(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, QueryError> {
        let mut unanswered = Unanswered(Some(self));
        let outcome = self.in_time(async {
            if !self.named_statements {
                return self.client().query_typed(sql, params).await;
            }
            let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
            let statement = self.client().prepare_typed_cached(sql, &types).await?;
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            self.client().query(&statement, &values).await
        });
        let outcome = outcome.await;
        unanswered.0 = None;
        outcome
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.try_query(sql, params).await.map_err(QueryError::into_store_error)
    }

    pub(super) async fn query_one(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Row, StoreError> {
        let mut rows = self.query(sql, params).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            _ => Err(StoreError::new(StoreErrorKind::Other, "the server did not return one row")),
        }
    }

    /// Runs a statement whose rows are read one by one.
    pub(super) async fn query_stream(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<RowStream, StoreError> {
        let outcome = self
            .in_time(async {
                if !self.named_statements {
                    return self.client().query_typed_raw(sql, params.iter().cloned()).await;
                }
                let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client().prepare_typed_cached(sql, &types).await?;
                let values = params.iter().map(|(value, _)| *value);
                self.client().query_raw(&statement, values).await
            })
            .await;
        outcome.map_err(QueryError::into_store_error)
    }

    /// Waits for an answer as long as is allowed. A connection that fails to give one is not used
    /// again: nobody knows what it is doing.
    pub(super) async fn in_time<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, QueryError> {
        match tokio::time::timeout(self.request_timeout, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if error.as_db_error().is_none() {
                    self.broken.store(true, Ordering::Relaxed);
                }
                Err(QueryError::Driver(error))
            }
            Err(_) => {
                self.unanswered();
                Err(QueryError::NoAnswer(self.request_timeout))
            }
        }
    }

    /// The server did not answer: those connections that lie idle may be as dead as this one.
    pub(super) fn unanswered(&self) {
        self.pool.retain(|_, _| false);
        self.give_up();
    }

    /// Asks the server to stop what it does for nobody, and never uses the connection again.
    pub(super) fn give_up(&self) {
        self.discard();
        let (cancel, tls) = (self.client().cancel_token(), self.tls.clone());
        // While a runtime shuts down there is none to ask with.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(cancel.cancel_query(tls).await) });
        }
    }

    /// Asks the server to stop what it does, unless it is told that all is done before it is dropped:
    /// for statements that take long and that nobody may want any more.
    pub(super) fn stop_unless_done(&self) -> StopUnlessDone {
        StopUnlessDone(Some((self.client().cancel_token(), self.tls.clone())))
    }

    /// Gives the connection back after all when it is dropped.
    pub(super) fn keep(&self) {
        self.broken.store(false, Ordering::Relaxed);
    }

    /// Closes the connection when it is dropped, instead of giving it back.
    pub(super) fn discard(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Runs statements that take no parameters, without preparing them.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        let outcome = self.in_time(self.client().batch_execute(sql)).await;
        outcome.map_err(QueryError::into_store_error)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.broken.load(Ordering::Relaxed) {
            drop(self.object.take().map(Object::take));
        }
    }
}

/// See [`Connection::stop_unless_done`].
pub(super) struct StopUnlessDone(Option<(tokio_postgres::CancelToken, MakeRustlsConnect)>);

impl StopUnlessDone {
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for StopUnlessDone {
    fn drop(&mut self) {
        let Some((cancel, tls)) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(cancel.cancel_query(tls).await) });
        }
    }
}

/// Gives the connection up if the caller does not wait for the answer: whoever got the connection
/// next would have to, and an append that waits for a stream can take long.
struct Unanswered<'a>(Option<&'a Connection>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.give_up();
        }
    }
}

/// Why a request has no result.
pub(super) enum QueryError {
    Driver(tokio_postgres::Error),
    NoAnswer(Duration),
}

impl QueryError {
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            QueryError::Driver(error) => store_error(error),
            QueryError::NoAnswer(timeout) => {
                let message = format!("the server did not answer within {timeout:?}");
                StoreError::new(StoreErrorKind::Closed, message)
            }
        }
    }
}

/// So often a pooler is looked for. Others that use it at the same time may hand the session that was
/// Finds out whether a pooler is between us and the server. A server takes a setting of ours at the
/// start of a session and still has it later; a pooler refuses it, or forgets it when it hands
/// sessions around. What is not surely the server itself is treated as a pooler in transaction mode,
/// with which everything works, if not as fast.
async fn detect(target: &Target, timeout: Duration) -> Result<Pooler, StoreError> {
    let probe = async {
        let (client, connection) = target.connect_with("-c everfold.direct=yes").await?;
        tokio::spawn(connection);
        let sql = "SELECT current_setting('everfold.direct', true)";
        let rows = client.query_typed(sql, &[]).await?;
        let setting: Option<String> = rows.first().and_then(|row| row.get(0));
        Ok::<_, tokio_postgres::Error>(setting.as_deref() == Some("yes"))
    };
    match tokio::time::timeout(timeout, probe).await {
        Ok(Ok(true)) => Ok(Pooler::Direct),
        Ok(Ok(false)) => Ok(Pooler::Transaction),
        Ok(Err(error)) if refuses_setting(&error) => Ok(Pooler::Transaction),
        Ok(Err(error)) => Err(connect_error(error, target.place())),
        Err(_) => {
            let message =
                format!("cannot connect to {}: no answer within {timeout:?}", target.place());
            Err(StoreError::new(StoreErrorKind::Unreachable, message))
        }
    }
}

/// A pooler that does not know the setting says so as a broken protocol.
fn refuses_setting(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        error.code() == &SqlState::PROTOCOL_VIOLATION && error.message().contains("parameter")
    })
}
