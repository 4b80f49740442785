//! The one seam behind the store handle: what a database must be able to do for the log. What it must do
//! for projections, rebuilds and verification stands in files of their own.

use futures::future::{BoxFuture, FutureExt};

use super::{ProjectionBackend, RebuildBackend, VerifyBackend};
use crate::append::{Appended, StreamAppend};
use crate::diagnosis::{Diagnosis, MarkHolder};
use crate::error::{AppendError, ImportError, StoreError};
use crate::import::{ImportChunk, ImportProgress, ImportedChunk};
use crate::projection::HealthOptions;
use crate::snapshot::StoredSnapshot;
use crate::{Position, RecordedEvent, StreamId, Version};

/// A page of one stream: events from a version on, in the direction asked for.
pub(crate) struct StreamPage {
    pub(crate) stream: StreamId,
    pub(crate) from: Option<Version>,
    pub(crate) backward: bool,
    pub(crate) max: usize,
}

/// A page of the log: events in (after, up_to], of these types if any are named.
pub(crate) struct AllPage {
    pub(crate) after: Position,
    pub(crate) up_to: Position,
    pub(crate) types: Option<Vec<String>>,
    pub(crate) max: usize,
    /// Whether these types were a good part of the page before; decides how they are looked for.
    pub(crate) dense: bool,
}

/// Types of which there is at least one event in so many positions are looked for by scanning.
pub(crate) const DENSE: u64 = 8;

/// Events of the log, all there are up to `read_to`.
pub(crate) struct LogPage {
    pub(crate) events: Vec<RecordedEvent>,
    pub(crate) read_to: Position,
    /// Whether the types asked for are a good part of what was read over.
    pub(crate) dense: bool,
}

impl LogPage {
    /// A page that ends at its last event if there may be more, and otherwise at `up_to`.
    pub(crate) fn new(page: Page, after: Position, up_to: Position) -> Self {
        let Page { events, more } = page;
        let read_to = match events.last() {
            Some(last) if more => last.position,
            _ => up_to.max(after),
        };
        let dense = events.len() as u64 * DENSE >= read_to.0 - after.0;
        LogPage { events, read_to, dense }
    }
}

/// Events, and whether the range may hold more behind them.
pub(crate) struct Page {
    pub(crate) events: Vec<RecordedEvent>,
    pub(crate) more: bool,
}

/// What a database must be able to do. Appends come in checked; each method is one round trip
/// where the database allows it.
pub(crate) trait Backend: ProjectionBackend + RebuildBackend + VerifyBackend {
    /// One append, alone or together with others that come at the same time.
    fn append(&self, append: StreamAppend) -> BoxFuture<'_, Result<Appended, AppendError>>;
    /// Many appends in one transaction, each with its own outcome, in their order.
    fn append_many(
        &self,
        appends: Vec<StreamAppend>,
    ) -> BoxFuture<'_, Result<Vec<Result<Appended, AppendError>>, AppendError>>;
    fn read_stream(&self, page: StreamPage) -> BoxFuture<'_, Result<Page, StoreError>>;
    fn read_all(&self, page: AllPage) -> BoxFuture<'_, Result<LogPage, StoreError>>;
    fn stream_version(&self, stream: StreamId) -> BoxFuture<'_, Result<Version, StoreError>>;
    fn high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>>;
    fn publish_high_water_mark(&self) -> BoxFuture<'_, Result<Position, StoreError>>;
    /// Resolves when there may be new events. A hint that comes while nobody waits is kept.
    fn hint(&self) -> BoxFuture<'_, ()>;
    fn load_snapshot(
        &self,
        stream: StreamId,
        name: String,
    ) -> BoxFuture<'_, Result<Option<StoredSnapshot>, StoreError>>;
    fn save_snapshot(
        &self,
        stream: StreamId,
        name: String,
        snapshot: StoredSnapshot,
    ) -> BoxFuture<'_, Result<(), StoreError>>;
    fn import_progress(&self, name: String) -> BoxFuture<'_, Result<ImportProgress, StoreError>>;
    /// Gets a chunk ready, as far as that can be done while the one before is being stored.
    fn stage_import(&self, chunk: ImportChunk) -> BoxFuture<'_, Box<dyn StagedImport>>;
    fn diagnose(&self, options: HealthOptions) -> BoxFuture<'_, Result<Diagnosis, StoreError>>;
    /// Appends in flight that the high-water mark waits for, the lowest first. In a file there are none.
    fn mark_holders(&self) -> BoxFuture<'_, Result<Vec<MarkHolder>, StoreError>> {
        async { Ok(Vec::new()) }.boxed()
    }
    /// Ends background work and closes connections; appends under way are finished first.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A chunk of an import that is ready to be stored.
pub(crate) trait StagedImport: Send {
    /// Stores it and moves the import's progress, in one transaction.
    fn store(self: Box<Self>) -> BoxFuture<'static, Result<ImportedChunk, ImportError>>;
}
