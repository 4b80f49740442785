//! The SQLite backend: the same meaning as on PostgreSQL, with simpler means.
//!
//! ```text
//!   append, import ──> writer: one thread, one connection, a group of appends per commit
//!   read ────────────> pool: a few reading connections on blocking threads
//!   hint <──────────── writer, after each commit of this handle
//! ```
//!
//! `BEGIN IMMEDIATE` makes writers take turns, also those of other processes. So commit order is
//! position order, and the high-water mark is the highest position.

mod append;
mod connection;
mod diagnose;
mod error;
mod group;
mod import;
mod json;
mod pool;
mod projection;
mod read;
mod rebuild;
pub(crate) mod schema;
#[cfg(feature = "testing")]
mod scratch;
mod snapshots;
mod waiting;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use rusqlite::Connection;
use tokio::sync::Notify;

use super::{AllPage, Backend, LogPage, Page, StagedImport, StreamPage};
use crate::append::{Appended, StreamAppend};
use crate::diagnosis::Diagnosis;
use crate::error::{AppendError, ImportError, OpenError, StoreError, StoreErrorKind};
use crate::import::{ImportChunk, ImportProgress, ImportedChunk};
use crate::options::StoreOptions;
use crate::projection::HealthOptions;
use crate::snapshot::StoredSnapshot;
use crate::{Position, StreamId, Version};

pub use append::append_in;
use error::store_error;
use pool::ReadPool;
use projection::Projections;
#[cfg(feature = "testing")]
pub(crate) use scratch::{query_rows, table_columns, table_rows};
use writer::Writer;

/// The fields are dropped in this order: the connection that writes is the last one, and cleans up.
struct SqliteStore {
    pool: Arc<ReadPool>,
    writer: Arc<Writer>,
    projections: Arc<Projections>,
    hint: Arc<Notify>,
    path: PathBuf,
    options: Arc<StoreOptions>,
}

/// Opens a file, making it and its schema if that is wanted, and checks what events depend on.
pub(crate) async fn open(
    path: &Path,
    options: Arc<StoreOptions>,
) -> Result<Arc<dyn Backend>, OpenError> {
    let path = connection::absolute(path);
    let opening = tokio::task::spawn_blocking(move || {
        let connection = open_writer(&path, &options)?;
        let hint = Arc::new(Notify::new());
        let projections = Arc::new(Projections::new(&options));
        let writer = Arc::new(Writer::start(
            connection,
            Arc::clone(&projections),
            &options,
            Arc::clone(&hint),
        )?);
        let pool = ReadPool::new(path.clone(), &options);
        Ok(SqliteStore { pool, writer, projections, hint, path, options })
    });
    match opening.await {
        Ok(outcome) => outcome.map(|store| Arc::new(store) as Arc<dyn Backend>),
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(closed().into()),
        },
    }
}

fn open_writer(path: &Path, options: &StoreOptions) -> Result<Connection, OpenError> {
    let migrate = options.migrate.unwrap_or(true);
    let patience = options.request_timeout;
    let connection = connection::open_writable(path, options.create && migrate, patience)?;
    if !migrate {
        // Before anything is changed: it may be somebody else's file.
        schema::check_revision(&connection)?;
    }
    connection::prepare_writer(&connection, options.durability, patience)?;
    if migrate {
        schema::migrate(&connection, patience)?;
    }
    schema::assert_safe(&connection)?;
    projection::register_functions(&connection).map_err(store_error)?;
    Ok(connection)
}

/// The error of whoever comes after the store was closed.
fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::HandleClosed, "the store was closed")
}

impl SqliteStore {
    async fn append_many(
        &self,
        appends: Vec<StreamAppend>,
    ) -> Result<Vec<Result<Appended, AppendError>>, AppendError> {
        let patience = self.options.request_timeout;
        let projections = Arc::clone(&self.projections);
        let work = move |connection: &Connection| {
            group::append_all(connection, &projections, &appends, patience)
        };
        Ok(self.writer.run_in_time(work).await??)
    }

    async fn save_snapshot(
        &self,
        stream: StreamId,
        name: String,
        snapshot: StoredSnapshot,
    ) -> Result<(), StoreError> {
        let patience = self.options.request_timeout;
        let work = move |connection: &Connection| {
            connection::in_transaction(connection, patience, |connection| {
                snapshots::save(connection, &stream, &name, &snapshot).map_err(store_error)
            })
        };
        self.writer.run(work).await?
    }
}

/// There is one writer, so there is nothing to get ready before its turn.
struct Staged {
    writer: Arc<Writer>,
    projections: Arc<Projections>,
    patience: Duration,
    chunk: ImportChunk,
}

impl StagedImport for Staged {
    fn store(self: Box<Self>) -> BoxFuture<'static, Result<ImportedChunk, ImportError>> {
        let Staged { writer, projections, patience, chunk } = *self;
        let work = move |connection: &Connection| {
            connection::in_transaction(connection, patience, |connection| {
                let inline = projections.inline(connection).map_err(store_error)?;
                import::import_chunk(connection, &chunk, &inline)
            })
        };
        async move { writer.run(work).await? }.boxed()
    }
}

impl Backend for SqliteStore {
    fn append(&self, append: StreamAppend) -> BoxFuture<'_, Result<Appended, AppendError>> {
        self.writer.append(append).boxed()
    }

    fn append_many(
        &self,
        appends: Vec<StreamAppend>,
    ) -> BoxFuture<'_, Result<Vec<Result<Appended, AppendError>>, AppendError>> {
        self.append_many(appends).boxed()
    }

    fn read_stream(&self, page: StreamPage) -> BoxFuture<'_, Result<Page, StoreError>> {
        let bytes_max = self.options.page_bytes_max;
        self.pool.read(move |connection| read::read_stream(connection, &page, bytes_max)).boxed()
    }

    fn read_all(&self, page: AllPage) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        let bytes_max = self.options.page_bytes_max;
        self.pool.read(move |connection| read::read_all(connection, &page, bytes_max)).boxed()
    }

    fn stream_version(&self, stream: StreamId) -> BoxFuture<'_, Result<Version, StoreError>> {
        self.pool.read(move |connection| append::stream_version(connection, &stream)).boxed()
    }

    fn high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>> {
        self.pool.read(read::high_water_mark).boxed()
    }

    /// Every reader of the file sees the mark itself; there is nothing to publish.
    fn publish_high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>> {
        self.high_water_mark()
    }

    fn hint(&self) -> BoxFuture<'_, ()> {
        self.hint.notified().boxed()
    }

    fn load_snapshot(
        &self,
        stream: StreamId,
        name: String,
    ) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        self.pool.read(move |connection| snapshots::load(connection, &stream, &name)).boxed()
    }

    fn save_snapshot(
        &self,
        stream: StreamId,
        name: String,
        snapshot: StoredSnapshot,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.save_snapshot(stream, name, snapshot).boxed()
    }

    fn import_progress(&self, name: String) -> BoxFuture<'_, Result<ImportProgress, StoreError>> {
        self.pool.read(move |connection| import::progress(connection, &name)).boxed()
    }

    fn stage_import(&self, chunk: ImportChunk) -> BoxFuture<'_, Box<dyn StagedImport>> {
        let (writer, patience) = (Arc::clone(&self.writer), self.options.request_timeout);
        let projections = Arc::clone(&self.projections);
        let staged: Box<dyn StagedImport> =
            Box::new(Staged { writer, projections, patience, chunk });
        std::future::ready(staged).boxed()
    }

    fn diagnose(&self, _: HealthOptions) -> BoxFuture<'_, Result<Diagnosis, StoreError>> {
        diagnose::diagnose(&self.path, &self.writer, &self.pool).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            self.pool.close();
            self.writer.close().await;
        }
        .boxed()
    }
}
