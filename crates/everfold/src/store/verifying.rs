//! What a database must be able to do to verify read models, and to copy them.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::Position;
use crate::error::StoreError;
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::projector::{ApplyError, Projector};
use crate::rebuild::{Comparison, ReadModelSnapshot, Verification, VerifyScope};
use crate::upcast::Upcasters;

/// What is needed to verify the generation that readers see.
#[derive(Debug, Clone)]
pub(crate) struct Verifying {
    pub(crate) generation: Arc<Generation>,
    pub(crate) projector: Projector,
    pub(crate) upcasters: Arc<Upcasters>,
    pub(crate) scope: VerifyScope,
    pub(crate) examples: usize,
    pub(crate) memory_max: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verified {
    pub(crate) comparison: Comparison,
    /// The last event that was in it at that moment.
    pub(crate) position: Position,
}

/// What a database must be able to do to verify read models.
pub(crate) trait VerifyBackend: Send + Sync {
    /// Recomputes a read model from the log at one moment, and compares. Changes nothing. A refusal
    /// without a position says why it cannot be done, as a part of a sentence about the projection.
    fn verify(&self, verifying: Verifying) -> BoxFuture<'_, Result<Verified, ApplyError>>;
    /// Records what was found, with a message if there is one; returns it with its number and time.
    fn record_verification(
        &self,
        generation: i32,
        verification: Verification,
        message: Option<SystemMessage>,
    ) -> BoxFuture<'_, Result<Verification, StoreError>>;
    /// What was found, the newest first.
    fn verifications(
        &self,
        namespace: String,
        name: String,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<Verification>, StoreError>>;

    /// Copies a generation's tables as they are at one moment, with checkpoints, dead letters and skips.
    fn take_snapshot(
        &self,
        generation: Arc<Generation>,
        actor: String,
    ) -> BoxFuture<'_, Result<ReadModelSnapshot, StoreError>>;
    /// The snapshots of a projection, the newest first.
    fn snapshots(
        &self,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Vec<ReadModelSnapshot>, StoreError>>;
    fn drop_snapshot(&self, snapshot: i32) -> BoxFuture<'_, Result<(), StoreError>>;
    /// Writes a system message.
    fn note(&self, message: SystemMessage) -> BoxFuture<'_, Result<(), StoreError>>;
}
