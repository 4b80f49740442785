//! What applies events: the one part of a projection that is code.

use std::sync::Arc;

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
    /// The database; if it is transient, trying again is all there is to do.
    Store(StoreError),
    /// Somebody else runs the shard now.
    LeaseLost,
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
