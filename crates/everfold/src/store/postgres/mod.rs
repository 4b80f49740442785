//! The PostgreSQL backend. The append protocol and the high-water mark live in the database, in
//! `sql/postgres/functions`; here is what calls them.
//!
//! ```text
//!   append ──> group (leader and followers) ──> append: one call, one round trip, one commit
//!   read ────> connect: a pool of a few connections, named or unnamed statements
//!   hint <──── wake: LISTEN / coalesced NOTIFY on a connection of its own
//! ```

mod append;
mod connect;
mod diagnose;
mod error;
mod group;
mod import;
mod inline;
mod projection;
mod read;
mod rebuild;
pub(crate) mod schema;
#[cfg(feature = "testing")]
mod scratch;
mod snapshots;
mod target;
mod tls;
mod types;
mod wake;

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio_postgres::types::Type;

use super::{AllPage, Backend, LogPage, Page, StagedImport, StreamPage};
use crate::append::{Appended, StreamAppend};
use crate::diagnosis::{Diagnosis, MarkHolder};
use crate::error::{AppendError, OpenError, StoreError};
use crate::import::{ImportChunk, ImportProgress};
use crate::options::StoreOptions;
use crate::projection::HealthOptions;
use crate::snapshot::StoredSnapshot;
use crate::{Position, StreamId, Version};

pub use append::append_in;
use connect::Connections;
use error::code::STREAM_BUSY;
use group::Group;
use inline::Inline;
#[cfg(feature = "testing")]
pub(crate) use scratch::{
    create_database, drop_database, drop_schemas, query_rows, table_columns, table_rows,
};
pub use target::connect;
use wake::Wake;

struct PostgresStore {
    connections: Arc<Connections>,
    /// For runners and registrations: apart, so that they and appends never wait for each other.
    engine: Connections,
    group: Group,
    inline: Arc<Inline>,
    wake: Arc<Wake>,
    options: Arc<StoreOptions>,
    /// Parts of history that are copied just now.
    claims: rebuild::Claims,
}

/// Opens a store: finds out how the server is reached, brings the schema up to date if asked to,
/// and checks what events depend on.
pub(super) async fn open(
    url: &str,
    options: Arc<StoreOptions>,
) -> Result<Arc<dyn Backend>, OpenError> {
    if options.migrate == Some(true) {
        schema::apply(url).await?;
    }
    let connections = Arc::new(Connections::open(url, &options).await?);
    schema::check_revision(&connections).await?;
    diagnose::assert_safe(&connections).await?;
    let wake = Arc::new(Wake::new(&connections, &options));
    let inline = Arc::new(Inline::new(Arc::clone(&options.upcasters)));
    let group = Group::new(Arc::clone(&connections), Arc::clone(&inline), Arc::clone(&options));
    let engine = connections.apart(options.runner_pool_size);
    let claims = rebuild::Claims::default();
    Ok(Arc::new(PostgresStore { connections, engine, group, inline, wake, options, claims }))
}

impl PostgresStore {
    async fn append(&self, append: StreamAppend) -> Result<Appended, AppendError> {
        let outcome = match self.options.group_append {
            true => self.group.append(append).await,
            false => self.append_alone(append).await,
        };
        if outcome.is_ok() {
            self.wake.appended();
        }
        outcome
    }

    /// Waits for a stream that somebody else holds only where others are not held up by it.
    async fn append_alone(&self, append: StreamAppend) -> Result<Appended, AppendError> {
        let mut connection = self.connections.get().await?;
        match append::append(&mut connection, &self.inline, &append, false).await {
            Err(AppendError::Store(error)) if error.code() == Some(STREAM_BUSY) => {}
            outcome => return outcome,
        }
        drop(connection);
        let mut connection = self.connections.get_to_wait().await?;
        append::append(&mut connection, &self.inline, &append, true).await
    }

    async fn append_many(
        &self,
        appends: Vec<StreamAppend>,
    ) -> Result<Vec<Result<Appended, AppendError>>, AppendError> {
        let mut connection = self.connections.get_to_wait().await?;
        let outcomes = append::append_many(&mut connection, &self.inline, &appends).await?;
        self.wake.appended();
        Ok(outcomes)
    }

    async fn stream_version(&self, stream: &StreamId) -> Result<Version, StoreError> {
        let sql = "SELECT coalesce(max(version), 0) FROM everfold.events WHERE stream_id = $1";
        let connection = self.connections.get().await?;
        let row = connection.query_one(sql, &[(&stream.as_str(), Type::TEXT)]).await?;
        Ok(Version::from_stored(row.get(0)))
    }

    async fn position_of(&self, sql: &'static str) -> Result<Position, StoreError> {
        let connection = self.connections.get().await?;
        Ok(Position::from_stored(connection.query_one(sql, &[]).await?.get(0)))
    }
}

impl Backend for PostgresStore {
    fn append(&self, append: StreamAppend) -> BoxFuture<'_, Result<Appended, AppendError>> {
        self.append(append).boxed()
    }

    fn append_many(
        &self,
        appends: Vec<StreamAppend>,
    ) -> BoxFuture<'_, Result<Vec<Result<Appended, AppendError>>, AppendError>> {
        self.append_many(appends).boxed()
    }

    fn read_stream(&self, page: StreamPage) -> BoxFuture<'_, Result<Page, StoreError>> {
        read::read_stream(&self.connections, page, &self.options).boxed()
    }

    fn read_all(&self, page: AllPage) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        read::read_all(&self.connections, page, &self.options).boxed()
    }

    fn stream_version(&self, stream: StreamId) -> BoxFuture<'_, Result<Version, StoreError>> {
        async move { self.stream_version(&stream).await }.boxed()
    }

    fn high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>> {
        self.position_of("SELECT everfold.high_water_mark()").boxed()
    }

    fn publish_high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>> {
        self.position_of("SELECT everfold.publish_high_water_mark()").boxed()
    }

    fn hint(&self) -> BoxFuture<'_, ()> {
        self.wake.hint().boxed()
    }

    fn load_snapshot(
        &self,
        stream: StreamId,
        name: String,
    ) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>> {
        async move { snapshots::load(&self.connections, &stream, &name).await }.boxed()
    }

    fn save_snapshot(
        &self,
        stream: StreamId,
        name: String,
        snapshot: StoredSnapshot,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { snapshots::save(&self.connections, &stream, &name, &snapshot).await }.boxed()
    }

    fn import_progress(&self, name: String) -> BoxFuture<'_, Result<ImportProgress, StoreError>> {
        async move { import::progress(&self.connections, &name).await }.boxed()
    }

    fn stage_import(&self, chunk: ImportChunk) -> BoxFuture<'_, Box<dyn StagedImport>> {
        let (connections, wake) = (Arc::clone(&self.connections), Arc::clone(&self.wake));
        import::stage(connections, Arc::clone(&self.options), wake, chunk).boxed()
    }

    fn diagnose(&self, options: HealthOptions) -> BoxFuture<'_, Result<Diagnosis, StoreError>> {
        async move { diagnose::diagnose(&self.connections, &options).await }.boxed()
    }

    fn mark_holders(&self) -> BoxFuture<'_, Result<Vec<MarkHolder>, StoreError>> {
        async move { diagnose::holders(&self.connections.get().await?).await }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            self.group.finish().await;
            self.wake.stop();
            self.engine.close();
            self.connections.close();
        }
        .boxed()
    }
}
