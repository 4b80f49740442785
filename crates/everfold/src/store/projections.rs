//! What a database must be able to do for projections, beside the transactions of [`Unit`].
//!
//! [`Unit`]: super::Unit

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::generation::{
    DeadLetterInfo, Generation, GenerationState, GenerationStatus, Lease, MessageInfo, SkipInfo,
};
use crate::projection::job::{Job, JobOutcome};
use crate::projection::projector::{ApplyError, Projector};
use crate::read::ReadModelRows;
use crate::rebuild::row::RebuildLease;

/// What [`ProjectionBackend::register`] found or did.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) generation: Generation,
    /// Whether it was made just now.
    pub(crate) created: bool,
}

/// A worker's sign of life, and what it can run.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    pub(crate) worker: Uuid,
    pub(crate) name: String,
    /// Generations whose shards it may take.
    pub(crate) carries: Vec<i32>,
    pub(crate) lease_ttl: Duration,
    /// Generations that do not get on here: they are left to other workers, if there are any. Only a
    /// server can do that; in a file nobody writes until the one who hangs goes on.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    pub(crate) stuck: Vec<i32>,
}

/// An inline projection in Rust that appends through this handle apply themselves.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    pub(crate) generation: Arc<Generation>,
    pub(crate) projector: Projector,
}

/// How far a projection is from a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The lowest checkpoint of the active generation; for an inline one the mark itself.
    pub(crate) position: Position,
    /// Skips, dead letters and held events at or below the position asked for.
    pub(crate) owed: u64,
    pub(crate) status: GenerationStatus,
    pub(crate) reason: Option<String>,
}

/// Where the log stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) mark: Position,
    /// The highest position that can be seen, which a mark that is held is behind.
    pub(crate) highest: Position,
    /// The database's clock.
    pub(crate) now: jiff::Timestamp,
}

/// A change of a generation's status: by an operator, by a runner that gives up an inline one, or by
/// whoever works on a rebuild.
#[derive(Debug, Clone)]
pub(crate) struct StatusChange {
    pub(crate) generation: i32,
    /// Nothing is changed if it is in none of these.
    pub(crate) from: Vec<GenerationStatus>,
    pub(crate) to: GenerationStatus,
    pub(crate) reason: Option<String>,
    pub(crate) actor: String,
    /// On behalf of a rebuild: nothing is changed if it is somebody else's by now, or has ended.
    pub(crate) rebuild: Option<RebuildLease>,
}

/// A document as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredDocument {
    pub(crate) key: String,
    /// JSON text.
    pub(crate) document: String,
    pub(crate) position: Position,
}

/// Which documents: those whose fields have these values (JSON text), after a key, in key order.
#[derive(Debug, Clone)]
pub(crate) struct DocumentQuery {
    pub(crate) namespace: String,
    /// The projection's name.
    pub(crate) name: String,
    pub(crate) keys: Option<Vec<String>>,
    /// Path (`customer.city`) and JSON value.
    pub(crate) fields: Vec<(String, serde_json::Value)>,
    pub(crate) after: Option<String>,
    pub(crate) max: usize,
}

/// Which system messages.
#[derive(Debug, Clone)]
pub(crate) struct MessagesAbout {
    pub(crate) namespace: String,
    /// `None`: all projections.
    pub(crate) projection: Option<String>,
    /// `None`: of all kinds.
    pub(crate) kinds: Option<Vec<String>>,
    pub(crate) max: usize,
}

/// Which rows of a read model: those whose columns have these values as text, by the first column.
#[derive(Debug, Clone)]
pub(crate) struct RowQuery {
    pub(crate) namespace: String,
    pub(crate) table: String,
    /// The version that readers see.
    pub(crate) version: u32,
    pub(crate) equal: Vec<(String, String)>,
    pub(crate) max: usize,
}

/// What a database must be able to do for projections.
pub(crate) trait ProjectionBackend: Send + Sync {
    /// Makes a generation for the projection, or finds the one that is there.
    fn register(
        &self,
        projection: Projection,
    ) -> BoxFuture<'_, Result<Registration, ProjectionError>>;
    /// Every generation that is not retired, in the order of their ids.
    fn generations(&self) -> BoxFuture<'_, Result<Vec<Generation>, StoreError>>;
    /// The same with checkpoints, leases, skips, dead letters and lag.
    fn states(&self) -> BoxFuture<'_, Result<Vec<GenerationState>, StoreError>>;
    /// Says that the worker lives, prolongs its leases, takes its share of free ones, and gives up
    /// what is more than that. Returns all leases that it has now.
    fn tick(&self, tick: Tick) -> BoxFuture<'_, Result<Vec<Lease>, StoreError>>;
    /// Gives up all leases of a worker and its row, so that others take over at once.
    fn leave(&self, worker: Uuid) -> BoxFuture<'_, Result<(), StoreError>>;
    /// Runs a job in a transaction of its own.
    fn run(&self, job: Job) -> BoxFuture<'_, Result<JobOutcome, ApplyError>>;
    /// Which of these generations owe open skips that no dead letter holds.
    fn owing(&self, generations: Vec<i32>) -> BoxFuture<'_, Result<Vec<i32>, StoreError>>;
    /// How far a projection is; `None` if there is no such projection.
    fn reach(
        &self,
        namespace: String,
        name: String,
        position: Position,
    ) -> BoxFuture<'_, Result<Option<Reach>, StoreError>>;
    /// The mark, the highest position, and the time there.
    fn heads(&self) -> BoxFuture<'_, Result<Heads, StoreError>>;
    /// Changes a generation's status and records it (kind `status`), in one transaction. For an
    /// inline one under the registry gate and its own gate, both exclusive. Clears the attempts and
    /// failures of its checkpoints and raises their epochs, so that no batch goes on under the old
    /// status. `false` if it was in none of the statuses named, or the rebuild's lease is lost.
    fn change_status(&self, change: StatusChange) -> BoxFuture<'_, Result<bool, StoreError>>;
    /// Dead letters and the events held behind them, in rising order, at most `max`.
    fn list_dead_letters(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<DeadLetterInfo>, StoreError>>;
    /// Open skips in rising order, at most `max`.
    fn list_skips(
        &self,
        generation: i32,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<SkipInfo>, StoreError>>;
    /// System messages of a namespace, those of what is retired and removed too, the newest first.
    fn list_messages(
        &self,
        about: MessagesAbout,
    ) -> BoxFuture<'_, Result<Vec<MessageInfo>, StoreError>>;
    /// Asks the runner that carries the generation to try a dead letter again (`None`: all of
    /// them): sets `retry_wanted` where `behind` is NULL. How many there were.
    fn want_retry(
        &self,
        generation: i32,
        position: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, StoreError>>;
    /// Dead letters of these generations with `retry_wanted`, in rising order, at most `max`.
    fn wanted_retries(
        &self,
        generations: Vec<i32>,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<(i32, Position)>, StoreError>>;
    /// Appends through this handle apply these from now on.
    fn carry(&self, carried: Carried);
    /// Appends through this handle have nothing more to do with a generation. Nothing to do on SQLite,
    /// where each append reads the registry.
    fn stop_carrying(&self, generation: i32) {
        let _ = generation;
    }
    /// Documents of the active generation.
    fn documents(
        &self,
        query: DocumentQuery,
    ) -> BoxFuture<'_, Result<Vec<StoredDocument>, StoreError>>;
    /// Rows of a read model as readers see it. None where a column that was named is not there.
    fn rows(&self, query: RowQuery) -> BoxFuture<'_, Result<ReadModelRows, StoreError>>;
    /// Deletes from the run log and the system messages what is older.
    fn prune(&self, older_than: Duration) -> BoxFuture<'_, Result<(), StoreError>>;
}
