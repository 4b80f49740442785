//! A few connections for reading, opened when they are first needed and used on blocking threads.
//!
//! In a write-ahead log readers see the last commit and wait for nobody.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::connection::open_readable;
use super::error::store_error;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;

pub(super) struct ReadPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// As many permits as there may be connections; closed with the store.
    permits: Arc<Semaphore>,
    /// Longest wait for a connection.
    wait_max: Duration,
    /// Longest wait of a connection for a lock.
    lock_wait_max: Duration,
}

impl ReadPool {
    pub(super) fn new(path: PathBuf, options: &StoreOptions) -> Arc<Self> {
        Arc::new(ReadPool {
            path,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(options.pool_size)),
            wait_max: options.connect_timeout,
            lock_wait_max: options.request_timeout,
        })
    }

    /// Runs `work` with a connection, on a blocking thread. It runs to its end also when the
    /// caller stops waiting.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.permit().await?;
        let pool = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            let connection = pool.connection()?;
            let outcome = work(&connection).map_err(store_error);
            pool.give_back(connection);
            drop(permit);
            outcome
        });
        match reading.await {
            Ok(outcome) => outcome,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(StoreError::new(
                    StoreErrorKind::HandleClosed,
                    "the read was ended because its runtime shut down",
                )),
            },
        }
    }

    /// Lets no new read begin and closes the connections that nobody uses.
    pub(super) fn close(&self) {
        self.permits.close();
        self.lock_idle().clear();
    }

    async fn permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        match tokio::time::timeout(self.wait_max, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(super::closed()),
            Err(_) => {
                let message = format!(
                    "no reading connection was free within {:?}; raise pool_size or read less at once",
                    self.wait_max
                );
                Err(StoreError::new(StoreErrorKind::Unreachable, message))
            }
        }
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        match self.lock_idle().pop() {
            Some(connection) => Ok(connection),
            None => open_readable(&self.path, self.lock_wait_max),
        }
    }

    fn give_back(&self, connection: Connection) {
        if !self.permits.is_closed() {
            self.lock_idle().push(connection);
        }
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while connections are taken or given back")
    }
}
