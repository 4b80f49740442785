//! everfold is an event store and read-model engine on PostgreSQL and on an embedded SQLite file.
#![doc = include_str!("docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// What others build on says how it fails, what must not be ignored, and what it is when it is printed.
#![warn(clippy::missing_errors_doc, clippy::must_use_candidate, missing_debug_implementations)]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("everfold needs a backend: enable the feature `sqlite` or `postgres`");

mod append;
mod codec;
mod decider;
mod diagnosis;
mod error;
mod event;
mod import;
mod metadata;
mod nearest;
mod options;
mod position;
mod projection;
mod read;
mod rebuild;
mod runner;
mod snapshot;
mod store;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod upcast;

pub use append::{Appended, StreamAppend};
pub use codec::{DecodeError, EncodeError, event_types};
pub use decider::{CommandError, CommandHandler, Decider, Handled, Loaded};
pub use diagnosis::{Diagnosis, Finding, MarkHolder, Severity};
pub use error::{
    AppendError, Error, ImportError, InvalidAppend, MigrateError, OpenError, ProjectionError,
    ReadError, StoreError, StoreErrorKind,
};
pub use event::{NewEvent, RecordedEvent};
pub use import::{ImportOptions, ImportProgress, Imported};
pub use metadata::Metadata;
pub use options::{Durability, Limits, Pooler, StoreOptions};
pub use position::{Position, Version};
pub use projection::{
    DeadLetter, DocumentBody, DocumentProjection, GenerationStatus, HandlerBatch, HandlerBody,
    HandlerError, HealthOptions, HealthProblem, LastVerification, Lifecycle, MessageQuery, OnError,
    Projection, ProjectionBuilder, ProjectionKind, ProjectionMessage, ProjectionSettings,
    ProjectionStatus, Registered, Retried, ShardStatus, Skip, SqlBody, Trend,
};
pub use read::{
    Document, DocumentStream, EventStream, ReadAll, ReadDocuments, ReadModelRows, ReadStream,
    RowOptions, TypedEvent, TypedEventStream,
};
pub use rebuild::{
    Comparison, Difference, Plan, PlannedAction, PlannedChange, ReadModelSnapshot, Rebuild,
    RebuildKind, RebuildOptions, RebuildPhase, RebuildPreview, RebuildProgress, ReplayOptions,
    Retirable, Retired, Verification, VerifyOptions, VerifyScope,
};
pub use runner::{Runner, RunnerFailure, RunnerHandle, RunnerOptions};
pub use snapshot::SnapshotPolicy;
pub use store::{AppliedSchema, Schema, Store, StoreKind};
pub use stream::{ExpectedVersion, StreamId};
pub use upcast::Upcasters;

/// Connections and transactions of the caller's own on PostgreSQL, and appending inside them.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use crate::projection::PostgresHandler;
    pub use crate::store::postgres::{append_in, connect};
    pub use tokio_postgres;
}

/// Appending inside a caller's own SQLite transaction.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use crate::projection::SqliteHandler;
    pub use crate::store::sqlite::append_in;
    pub use rusqlite;
}

pub use uuid::Uuid;

/// What the command shares with the library. No part of the API.
#[doc(hidden)]
pub mod __private {
    pub use crate::nearest::nearest;
}
