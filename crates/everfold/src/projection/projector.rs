//! What applies events: the one part of a projection that is code.

use std::sync::Arc;
use std::time::Duration;

use super::generation::Generation;
use crate::error::StoreError;
use crate::{Position, RecordedEvent};

/// Why events were not applied.
#[derive(Debug)]
pub(crate) enum ApplyError {
    /// The projection refused: its SQL, its fold or its handler failed. The policy decides.
    Refused {
        message: String,
        /// The event, where it is known.
        #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
        position: Option<Position>,
    },
    /// The read model is not as it was made: a table is gone, or a right to it. No event is to blame,
    /// so none is given up for it: the projection stops under every policy.
    Broken { message: String },
    /// The projection's own code did not come back in time. Nothing that was done in the transaction
    /// can be kept, and the transaction cannot go on.
    OutOfTime(OutOfTime),
    /// The database; if it is transient, trying again is all there is to do.
    Store(StoreError),
    /// Somebody else runs the shard now.
    LeaseLost,
}

/// A call of a handler that took too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutOfTime {
    pub(crate) message: String,
    pub(crate) first: Position,
    pub(crate) last: Position,
    /// Whether no other call had used up some of the time of the transaction.
    pub(crate) had_all_the_time: bool,
}

impl OutOfTime {
    /// Of a call with these events, of which there is at least one.
    pub(crate) fn new(
        generation: &Generation,
        events: &[RecordedEvent],
        limit: Duration,
        had_all_the_time: bool,
    ) -> Self {
        let at = |event: Option<&RecordedEvent>| event.map(|e| e.position).unwrap_or_default();
        let (first, last) = (at(events.first()), at(events.last()));
        let which = match first == last {
            true => format!("the event at position {first}"),
            false => format!("{} events at positions {first} to {last}", events.len()),
        };
        let Generation { name, version, .. } = generation;
        let message = format!(
            "the handler of projection \"{name}\" version {version} was not done with {which} within \
             {limit:?}; what it waits for needs a time limit of its own, or raise handler_timeout"
        );
        OutOfTime { message, first, last, had_all_the_time }
    }

    /// The event, if it can only be that one, among the events of a job.
    pub(crate) fn culprit(&self, events_max: usize) -> Option<Position> {
        let alone = self.first == self.last;
        (alone && (self.had_all_the_time || events_max <= 1)).then_some(self.first)
    }
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> Self {
        ApplyError::Store(error)
    }
}

/// How a projection's events are applied in an open transaction.
#[derive(Clone)]
pub(crate) enum Projector {
    /// By the database, from the scripts in the generation's home.
    Sql,
    /// By folding documents.
    Document(Arc<dyn FoldDocuments>),
    /// By a handler with the open transaction.
    #[cfg(feature = "postgres")]
    PostgresHandler(Arc<dyn super::handler::PostgresHandler>),
    /// By a handler with the open transaction.
    #[cfg(feature = "sqlite")]
    SqliteHandler(Arc<dyn super::handler::SqliteHandler>),
}

impl std::fmt::Debug for Projector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Projector::Sql => "Sql",
            Projector::Document(_) => "Document",
            #[cfg(feature = "postgres")]
            Projector::PostgresHandler(_) => "PostgresHandler",
            #[cfg(feature = "sqlite")]
            Projector::SqliteHandler(_) => "SqliteHandler",
        })
    }
}

/// A document projection without its types. Documents are JSON text.
pub(crate) trait FoldDocuments: Send + Sync {
    /// The key of an event's document; `None` if the projection does not know the type. A panic of
    /// the projection's code comes back as an error.
    fn key_of(&self, event: &RecordedEvent) -> Result<Option<String>, ApplyError>;

    /// Folds events of one key, in their order, into its document; `None` is no document.
    fn fold(
        &self,
        document: Option<&str>,
        events: &[&RecordedEvent],
    ) -> Result<Option<String>, ApplyError>;

    /// No documents yet, to be folded in memory. `careful`: none is lost with an event that fails.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    fn folding(self: Arc<Self>, careful: bool) -> Box<dyn Folding>;
}

/// Documents of many keys, folded in memory with their own types, which may be bound to a thread.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
pub(crate) trait Folding {
    /// As [`FoldDocuments::key_of`]. An event is folded before the next one's key is asked for.
    fn key_of(&mut self, event: &RecordedEvent) -> Result<Option<String>, ApplyError>;

    /// Folds the next event of a key into its document. `hash` is the key's.
    fn apply(&mut self, key: &str, hash: u32, event: &RecordedEvent) -> Result<(), Unfolded>;

    /// Whether it has had events of the key.
    fn holds(&self, key: &str) -> bool;

    /// About how much memory the documents take.
    fn bytes(&self) -> usize;

    /// Forgets keys whose hash is this or more.
    fn keep_below(&mut self, high: u64);

    /// Forgets a key.
    fn forget(&mut self, key: &str);

    /// Takes a document out, in no order. Nothing can be folded from then on.
    fn next(&mut self) -> Option<FoldedDocument>;
}

/// Why an event was not folded.
#[derive(Debug)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
pub(crate) enum Unfolded {
    /// The document is as it was.
    Refused(ApplyError),
    /// The document is lost with it.
    Lost(ApplyError),
}

/// A document that was folded in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
pub(crate) struct FoldedDocument {
    pub(crate) key: String,
    pub(crate) hash: u32,
    /// Nothing, if it cannot be written: which event is to blame only a careful fold tells.
    pub(crate) json: Result<String, ()>,
    /// The last event that was folded into it.
    pub(crate) position: Position,
    pub(crate) stream_version: crate::Version,
}

/// What became of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DocumentChange {
    pub(crate) key: String,
    /// `None`: deleted.
    pub(crate) document: Option<String>,
    /// The last event that was folded into it.
    pub(crate) position: Position,
    pub(crate) stream_version: crate::Version,
}
