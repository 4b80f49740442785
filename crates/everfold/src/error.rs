//! Every public error type of the store.
//!
//! One enum per family of operations, each convertible to [`Error`]. Trouble with the database
//! itself is a [`StoreError`], which answers questions instead of showing a driver's type.

use std::fmt;

use uuid::Uuid;

use crate::codec::{DecodeError, EncodeError};
use crate::{ExpectedVersion, Position, StreamId, Version};

/// Any error of this crate, for callers that do not tell them apart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Opening a store failed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An append was not stored.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// Reading failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An import stopped.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The schema could not be read or changed.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// A value could not be written as an event.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A stored event does not fit the type asked for.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A projection could not be read, registered or run.
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an append was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The stream is not at the version that was expected. Read it again and decide again.
    #[error("version conflict on stream \"{stream}\": expected {expected}, actual {}", existing(*.actual))]
    VersionConflict {
        /// The stream.
        stream: StreamId,
        /// What the append expected.
        expected: ExpectedVersion,
        /// What the stream's version is.
        actual: Version,
    },
    /// An event id is stored already, and this append is not a plain repeat of the one that
    /// stored it.
    #[error(
        "{message}; use a new id for a new event, a retry repeats ids, types and data unchanged"
    )]
    IdConflict {
        /// Which id, and where it stands.
        message: String,
    },
    /// The append breaks a rule before any database is asked.
    #[error(transparent)]
    Invalid(#[from] InvalidAppend),
    /// The caller's transaction is above READ COMMITTED.
    #[error(
        "append needs READ COMMITTED: begin the transaction with ISOLATION LEVEL READ COMMITTED \
         (above it, its snapshot may be older than a registration or a rebuild)"
    )]
    IsolationTooHigh,
    /// An inline projection refused an event, and its policy is to stop.
    #[error(
        "inline projection \"{projection}\" refused the event: {message}; the append was not stored"
    )]
    Projection {
        /// The projection's name.
        projection: String,
        /// What it said.
        message: String,
    },
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AppendError {
    /// Whether the same append, with the same ids, may succeed when it is simply tried again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, AppendError::Store(error) if error.is_transient())
    }

    /// Whether it is worth it before the caller is told.
    pub(crate) fn is_worth_a_retry(&self) -> bool {
        matches!(self, AppendError::Store(error) if error.is_transient() && !error.waited)
    }
}

/// The same question to every error that may be the database's.
macro_rules! transient {
    ($($error:ident { $($variant:ident)|+ }),* $(,)?) => {$(
        impl $error {
            /// Whether the same operation may succeed when it is simply tried again.
            #[must_use]
            pub fn is_transient(&self) -> bool {
                match self {
                    $($error::$variant(error) => error.is_transient(),)+
                    _ => false,
                }
            }
        }
    )*};
}
transient!(
    Error { Open | Append | Read | Import | Migrate | Projection | Store },
    ReadError { Store },
    OpenError { Schema | Store },
    MigrateError { Store },
    ImportError { Store },
    ProjectionError { Store },
);

fn existing(version: Version) -> String {
    if version == Version::NONE { "no stream".to_owned() } else { version.to_string() }
}

/// A rule that an append breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAppend {
    /// No events.
    #[error("append to stream \"{stream}\" has no events; give at least one")]
    Empty {
        /// The stream.
        stream: StreamId,
    },
    /// More events than one append may have.
    #[error(
        "append to stream \"{stream}\" has {count} events, at most {max} are allowed; \
         split it into several appends"
    )]
    TooManyEvents {
        /// The stream.
        stream: StreamId,
        /// How many.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// More data than one append may have.
    #[error(
        "append to stream \"{stream}\" has {bytes} bytes of data, at most {max} are allowed; \
         split it into several appends"
    )]
    TooManyBytes {
        /// The stream.
        stream: StreamId,
        /// How many.
        bytes: usize,
        /// How many are allowed.
        max: usize,
    },
    /// A stream id that is empty or too long.
    #[error("stream id has {bytes} bytes, allowed are 1 to {max}")]
    StreamIdLength {
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        max: usize,
    },
    /// An event type that is empty or too long.
    #[error("event type of event {number} has {bytes} bytes, allowed are 1 to {max}")]
    EventTypeLength {
        /// Which event of the append, from 1.
        number: usize,
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        max: usize,
    },
    /// A schema version of 0 or past the range.
    #[error("schema version of event {number} is {found}, allowed are 1 to {max}")]
    SchemaVersion {
        /// Which event of the append, from 1.
        number: usize,
        /// What it is.
        found: u32,
        /// The highest allowed.
        max: u32,
    },
    /// Data or metadata over the limit.
    #[error(
        "{part} of event {number} (\"{event_type}\") has {bytes} bytes, at most {max} are allowed; \
         keep large content elsewhere and refer to it"
    )]
    TooLarge {
        /// `data` or `metadata`.
        part: &'static str,
        /// Which event of the append, from 1.
        number: usize,
        /// Its type.
        event_type: String,
        /// Its size.
        bytes: usize,
        /// The largest allowed.
        max: usize,
    },
    /// A NUL character, which neither store can hold in text.
    #[error(
        "{part} of event {number} holds a NUL character (\\u0000), which cannot be stored; remove it"
    )]
    Nul {
        /// `stream id`, `event type`, `data` or `metadata`.
        part: &'static str,
        /// Which event of the append, from 1.
        number: usize,
    },
    /// Half of a surrogate pair, which is no character.
    #[error(
        "{part} of event {number} holds half of a surrogate pair (\\ud800 to \\udfff alone), which is \
         no character; remove it"
    )]
    HalfPair {
        /// `data` or `metadata`.
        part: &'static str,
        /// Which event of the append, from 1.
        number: usize,
    },
    /// Data that is JSON, but not in the sense of the database: numbers out of its range, or
    /// nesting that is too deep.
    #[error("data cannot be stored as JSON: {message}")]
    Json {
        /// What the database said.
        message: String,
    },
    /// The same id twice in one append.
    #[error("event id {id} stands twice in one append; give every event an id of its own")]
    DuplicateId {
        /// The id.
        id: Uuid,
    },
    /// Another rule that the database keeps.
    #[error("{message}")]
    Other {
        /// What the database said.
        message: String,
    },
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An event does not fit the type asked for.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An upcaster refused an event.
    #[error(
        "upcaster of \"{event_type}\" from schema version {schema_version} failed at position \
         {position}: {message}"
    )]
    Upcast {
        /// Where the event stands.
        position: Position,
        /// Its type.
        event_type: String,
        /// The version of its shape.
        schema_version: u32,
        /// What the upcaster said.
        message: String,
    },
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store that this build knows.
    #[error("cannot open \"{url}\": {reason}; use postgres://user@host/database or sqlite:file.db")]
    Url {
        /// The URL, without a password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An option is out of range.
    #[error("store option {option} is {found}: {reason}")]
    Option {
        /// Which option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A start-up check failed: events would be lost or doubled, so the store does not open.
    #[error("the store is not safe to use: {message}; {hint}")]
    Unsafe {
        /// What was found.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The schema is missing, old, new or could not be applied.
    #[error(transparent)]
    Schema(#[from] MigrateError),
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why the schema could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database has no everfold schema.
    #[error(
        "the database has no everfold schema; run `everfold schema apply`, or open the store with `migrate`"
    )]
    Missing,
    /// The schema is older than this version needs.
    #[error(
        "the schema is at revision {found}, this everfold needs {needed}; run `everfold schema apply`"
    )]
    Older {
        /// The database's revision.
        found: u32,
        /// The revision needed.
        needed: u32,
    },
    /// The schema is newer than this version knows.
    #[error(
        "the schema is at revision {found}, this everfold knows revisions up to {known}; upgrade everfold"
    )]
    Newer {
        /// The database's revision.
        found: u32,
        /// The newest revision known.
        known: u32,
    },
    /// A migration failed and was rolled back.
    #[error("migration {revision} failed and was rolled back: {source}")]
    Failed {
        /// Which one.
        revision: u32,
        /// Why.
        source: StoreError,
    },
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an import stopped. What was committed before stays, and the import can go on from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A line cannot be imported.
    #[error(
        "line {line}: {message}; mend it and run the import again, it goes on behind what is stored"
    )]
    Line {
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// The source is not the one that was imported so far under this name.
    #[error(
        "import \"{name}\" stopped after line {line}, but that line now reads differently; \
         give this file a name of its own"
    )]
    OtherSource {
        /// The import's name.
        name: String,
        /// The last line that was imported.
        line: u64,
    },
    /// Another process imports under the same name.
    #[error(
        "import \"{name}\" is under way in another process; let one of them finish, then run it again"
    )]
    UnderWay {
        /// The import's name.
        name: String,
    },
    /// An inline projection refused an event, and its policy is to stop.
    #[error(
        "inline projection \"{projection}\" refused an event: {message}; the lines from {line} on \
         were not imported"
    )]
    Projection {
        /// The projection's name.
        projection: String,
        /// What it said.
        message: String,
        /// The first line of the transaction that was undone.
        line: u64,
    },
    /// The source could not be read.
    #[error("the import's source cannot be read: {0}")]
    Source(#[from] std::io::Error),
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a projection could not be read, registered or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// Its definition breaks a rule. The message says which, where, and what to do.
    #[error("projection \"{projection}\": {message}")]
    Invalid {
        /// Which projection.
        projection: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file of a project folder cannot be used.
    #[error("{file}: {message}")]
    File {
        /// The file or folder.
        file: String,
        /// What is wrong with it.
        message: String,
    },
    /// Its SQL does not work.
    #[error("projection \"{projection}\": {file}:{line}: {message}")]
    Sql {
        /// Which projection.
        projection: String,
        /// The file.
        file: String,
        /// The line, from 1.
        line: u32,
        /// What the database said.
        message: String,
    },
    /// The definition is not the one that was registered under this version.
    #[error(
        "projection \"{projection}\" version {version} was changed ({what}) since it was registered; \
         raise its version to build the new one beside the old, or undo the change"
    )]
    Changed {
        /// Which projection.
        projection: String,
        /// Its version.
        version: u32,
        /// What differs.
        what: String,
    },
    /// A newer version is registered.
    #[error(
        "projection \"{projection}\" is registered with version {registered}, this is version \
         {version}; deploy the newer code, or raise the version"
    )]
    Older {
        /// Which projection.
        projection: String,
        /// The version given.
        version: u32,
        /// The newest registered.
        registered: u32,
    },
    /// A table belongs to another projection.
    #[error(
        "projection \"{projection}\" makes the table read_model.{table}, which belongs to \
         \"{owner}\"; give it another name"
    )]
    TableTaken {
        /// Which projection.
        projection: String,
        /// The table.
        table: String,
        /// Whose it is.
        owner: String,
    },
    /// There is no such projection.
    #[error("there is no projection \"{name}\"{suggestion}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// A name like it, or nothing.
        suggestion: String,
    },
    /// The runner cannot work like that.
    #[error("the runner cannot start: {message}")]
    Runner {
        /// Why.
        message: String,
    },
    /// What was asked for does not fit the state it is in. The message says why, and what to do.
    #[error("projection \"{projection}\" {message}")]
    Refused {
        /// Which projection.
        projection: String,
        /// Why not.
        message: String,
    },
    /// There is no dead letter at this position.
    #[error(
        "projection \"{projection}\" has no dead letter at position {position}; \
         `everfold dead-letters list` shows those there are"
    )]
    NoDeadLetter {
        /// Which projection.
        projection: String,
        /// The position asked for.
        position: Position,
    },
    /// It stopped because an event could not be applied.
    #[error("projection \"{projection}\" failed: {reason}")]
    Failed {
        /// Which projection.
        projection: String,
        /// The event, what was wrong with it, and what to do.
        reason: String,
    },
    /// A stored document does not fit the type asked for.
    #[error(
        "the document \"{key}\" of projection \"{projection}\" does not fit the type asked for: \
         {source}; give new fields a default (#[serde(default)]), or raise the projection's version \
         and rebuild it"
    )]
    Document {
        /// Which projection.
        projection: String,
        /// The document's key.
        key: String,
        /// What did not fit.
        #[source]
        source: serde_json::Error,
    },
    /// The projection did not get there in time.
    #[error(
        "projection \"{projection}\" did not reach position {position} within {waited:?}: {reason}"
    )]
    NotReached {
        /// Which projection.
        projection: String,
        /// The position that was waited for.
        position: Position,
        /// How long.
        waited: std::time::Duration,
        /// Where it stands, and why.
        reason: String,
    },
    /// The database refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The database refused, or could not be reached. The driver's own error is the source.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    code: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    waited: bool,
}

/// What kind of trouble a [`StoreError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection could be made, or none was free in time.
    Unreachable,
    /// The connection was lost; whether the last statement took effect is unknown.
    Closed,
    /// User or password was refused.
    Authentication,
    /// The user may not do this.
    Privilege,
    /// The database, schema or a function of everfold is not there.
    Missing,
    /// The database takes no writes: a standby, a read-only transaction or file.
    ReadOnly,
    /// Somebody else holds what is needed: a lock timeout, a deadlock, a busy file.
    Busy,
    /// The database is out of something: disk, memory, locks, connections.
    Exhausted,
    /// The file is not an everfold store.
    NotAStore,
    /// The store handle was closed.
    HandleClosed,
    /// Anything else.
    Other,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        StoreError { kind, message: message.into(), code: None, source: None, waited: false }
    }

    /// Whoever asked has waited for as long as he is willing to: nobody tries again for him.
    #[cfg(feature = "sqlite")]
    pub(crate) fn after_waiting(mut self) -> Self {
        self.waited = true;
        self
    }

    pub(crate) fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The same error for somebody else; the driver's own stays with the first.
    pub(crate) fn duplicate(&self) -> Self {
        let (message, code) = (self.message.clone(), self.code.clone());
        StoreError { kind: self.kind, message, code, source: None, waited: self.waited }
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same operation may succeed when it is tried again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        use StoreErrorKind::{Busy, Closed, Exhausted, Unreachable};
        matches!(self.kind, Unreachable | Closed | Busy | Exhausted)
    }

    /// Whether the connection is gone, so that the outcome of a write is unknown. Repeating an
    /// append with the same event ids is safe.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.kind == StoreErrorKind::Closed
    }

    /// The database's own code: an SQLSTATE, or SQLite's extended result code.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_says_whether_another_try_may_help() {
        let store = |kind| StoreError::new(kind, "the database said no");
        let transient = [
            (StoreErrorKind::Busy, true),
            (StoreErrorKind::Closed, true),
            (StoreErrorKind::Exhausted, true),
            (StoreErrorKind::Unreachable, true),
            (StoreErrorKind::Privilege, false),
            (StoreErrorKind::Other, false),
        ];
        for (kind, expected) in transient {
            let migrate = || MigrateError::Store(store(kind));
            let answers = [
                Error::from(AppendError::from(store(kind))).is_transient(),
                Error::from(ReadError::from(store(kind))).is_transient(),
                Error::from(OpenError::Schema(migrate())).is_transient(),
                Error::from(migrate()).is_transient(),
                Error::from(ImportError::from(store(kind))).is_transient(),
                Error::from(ProjectionError::from(store(kind))).is_transient(),
                Error::from(store(kind)).is_transient(),
            ];
            assert_eq!(answers, [expected; 7], "{kind:?}");
        }
        assert!(!Error::from(MigrateError::Missing).is_transient());
    }
}
