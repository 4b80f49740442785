//! Projections: what turns events into read models.
//!
//! ```text
//!   files ──────> folder, script ─┐
//!   documents ──> document ───────┼─> Projection = Definition (data) + Projector (code)
//!   handlers ───> handler ────────┘            │
//!                                    registry: register, status, wait
//!                                              │
//!      inline: the append's transaction        │        catch-up: runner ──> job (one transaction)
//! ```
//!
//! The definition is what the database knows, the projector is what this process can run. The
//! protocols of one transaction (a batch, a drain, a retry of dead letters) are in `job/`, written
//! once over [`Unit`](crate::store::Unit), which each backend implements.

pub(crate) mod builder;
pub(crate) mod definition;
pub(crate) mod differences;
pub(crate) mod document;
mod findings;
mod folder;
mod folding;
mod fresh;
pub(crate) mod generation;
pub(crate) mod handler;
mod health;
pub(crate) mod job;
pub(crate) mod key;
mod letters;
mod messages;
pub(crate) mod operator;
pub(crate) mod projector;
pub(crate) mod registry;
pub(crate) mod script;
pub(crate) mod sql;
mod status;
mod wait;

pub use builder::{DocumentBody, HandlerBody, ProjectionBuilder};
pub use definition::{Lifecycle, OnError, ProjectionKind, ProjectionSettings};
pub use document::DocumentProjection;
pub use generation::{GenerationStatus, LastVerification};
#[cfg(feature = "postgres")]
pub use handler::PostgresHandler;
#[cfg(feature = "sqlite")]
pub use handler::SqliteHandler;
pub use handler::{HandlerBatch, HandlerError};
pub use health::{HealthOptions, HealthProblem};
pub use letters::{DeadLetter, Retried, Skip};
pub use messages::{MessageQuery, ProjectionMessage};
pub use registry::Registered;
pub use sql::SqlBody;
pub use status::{ProjectionStatus, ShardStatus, Trend};

use definition::Definition;
use projector::Projector;

/// A projection: what the registry knows of it, and what applies its events.
#[derive(Debug, Clone)]
pub struct Projection {
    pub(crate) definition: Definition,
    pub(crate) projector: Projector,
}

impl Projection {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Its version, from 1.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.definition.version
    }

    /// When its events are applied.
    #[must_use]
    pub fn lifecycle(&self) -> Lifecycle {
        self.definition.lifecycle
    }
}
