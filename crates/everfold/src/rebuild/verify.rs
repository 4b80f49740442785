//! Verifying a read model: recomputing it from the log, while appends and workers go on, and comparing.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use super::compare::{Comparison, Difference};
use crate::Position;
use crate::error::ProjectionError;
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::operator::operator;
use crate::projection::projector::ApplyError;
use crate::store::{Store, Verified, Verifying};

/// What of a read model is verified.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum VerifyScope {
    /// All of it.
    #[default]
    All,
    /// So many keys, picked at random from the log. What was added to the read model without any event
    /// is not found.
    Sample(usize),
    /// These keys: streams, unless the projection has another key.
    Keys(Vec<String>),
}

impl VerifyScope {
    /// In one word: `all`, `sample` or `keys`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            VerifyScope::All => "all",
            VerifyScope::Sample(_) => "sample",
            VerifyScope::Keys(_) => "keys",
        }
    }
}

/// How a read model is verified. `VerifyOptions::default()` verifies all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// What of it: all.
    pub scope: VerifyScope,
    /// Most rows that are returned and recorded of those that differ: 10.
    pub examples: usize,
    /// Most memory for documents that are folded, in bytes: 256 MiB. Above it the log is read several
    /// times.
    pub memory_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions { scope: VerifyScope::All, examples: 10, memory_max: 256 << 20 }
    }
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Verification {
    /// Its number in the store.
    pub id: i64,
    /// The projection.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// What was verified: `all`, `sample` or `keys`.
    pub scope: String,
    /// The last event that was in the read model at that moment.
    pub position: Position,
    /// Rows that were compared, those included that only the read model or only the log has.
    pub compared: u64,
    /// Rows that are not as the log says.
    pub differences: u64,
    /// The first of them.
    pub examples: Vec<Difference>,
    /// How long it took.
    pub duration: Duration,
    /// Who asked for it.
    pub verified_by: String,
    /// When it ended.
    pub verified_at: Timestamp,
}

impl Store {
    /// Recomputes a read model from the log and compares it with what readers see, while appends and
    /// runners go on. Events that it owes or has put aside are left out on both sides. Changes nothing;
    /// what was found is recorded, and shown by [`Store::verifications`] and in the projection's status.
    ///
    /// On PostgreSQL it is one transaction, which keeps vacuum from removing what is newer than it, and
    /// for projections in SQL and handlers it needs room for a second read model.
    ///
    /// ```
    /// use everfold::{VerifyOptions, VerifyScope};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let found = store.verify("carts", VerifyOptions::default()).await?;
    /// assert_eq!((found.compared, found.differences), (2, 0));
    ///
    /// let mut options = VerifyOptions::default();
    /// options.scope = VerifyScope::Keys(vec!["cart-1".into()]);
    /// assert_eq!(store.verify("carts", options).await?.compared, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if
    /// readers see no version of it, if its code is not registered here, or if its rows do not tell which
    /// keys they belong to and not all of it is to be verified; [`ProjectionError::Failed`] if an event
    /// that was applied cannot be applied any more. Differences are no error.
    pub async fn verify(
        &self,
        name: &str,
        options: VerifyOptions,
    ) -> Result<Verification, ProjectionError> {
        let generation = Arc::new(self.generation_of(name).await?);
        self.verify_as(generation, options, operator()).await
    }

    pub(crate) async fn verify_as(
        &self,
        generation: Arc<Generation>,
        options: VerifyOptions,
        actor: String,
    ) -> Result<Verification, ProjectionError> {
        let refused = |message: &str| ProjectionError::Refused {
            projection: generation.name.clone(),
            message: message.to_owned(),
        };
        if !generation.is_active {
            return Err(refused("has no version that readers see, so there is nothing to verify"));
        }
        let projector = self.hub().projector_of(&generation).ok_or_else(|| {
            refused(
                "is written in Rust, and this process does not have its code; verify it from the \
                 application that registers it",
            )
        })?;
        let begun = Instant::now();
        let scope = options.scope.as_str();
        let verifying = Verifying {
            generation: Arc::clone(&generation),
            projector,
            upcasters: self.upcasters_shared(),
            scope: options.scope,
            examples: options.examples,
            memory_max: options.memory_max,
        };
        let verified = self.backend().verify(verifying).await;
        let verified = verified.map_err(|error| unverified(error, &generation))?;
        self.record(&generation, scope, verified, begun.elapsed(), actor).await
    }

    async fn record(
        &self,
        generation: &Generation,
        scope: &str,
        verified: Verified,
        duration: Duration,
        verified_by: String,
    ) -> Result<Verification, ProjectionError> {
        let Verified { comparison, position } = verified;
        let Comparison { compared, differences, examples, .. } = comparison;
        let message = (differences > 0).then(|| SystemMessage {
            generation: Some(generation.id),
            kind: "verified",
            position: Some(position),
            key: None,
            actor: verified_by.clone(),
            message: format!(
                "{differences} of {compared} rows of version {} are not as the log says (verified: \
                 {scope})",
                generation.version
            ),
        });
        let verification = Verification {
            id: 0,
            name: generation.name.clone(),
            version: generation.version,
            scope: scope.to_owned(),
            position,
            compared,
            differences,
            examples,
            duration,
            verified_by,
            verified_at: Timestamp::UNIX_EPOCH,
        };
        let recorded = self.backend().record_verification(generation.id, verification, message);
        Ok(recorded.await?)
    }

    /// When a projection was verified last, whatever generation that was.
    pub(crate) async fn last_verified(
        &self,
        generation: &Generation,
    ) -> Result<Option<Timestamp>, ProjectionError> {
        let (namespace, name) = (generation.namespace.clone(), generation.name.clone());
        let last = self.backend().verifications(namespace, name, 1).await?;
        Ok(last.first().map(|last| last.verified_at))
    }

    /// What verifications of a projection found, the newest first; at most 1,000.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection.
    pub async fn verifications(&self, name: &str) -> Result<Vec<Verification>, ProjectionError> {
        self.generations_of(name).await?;
        let namespace = self.options().namespace.clone();
        Ok(self.backend().verifications(namespace, name.to_owned(), LIST_MAX).await?)
    }
}

const LIST_MAX: usize = 1_000;

fn unverified(error: ApplyError, generation: &Generation) -> ProjectionError {
    let projection = generation.name.clone();
    match error {
        ApplyError::Store(error) => ProjectionError::Store(error),
        ApplyError::Refused { message, position: Some(_) } | ApplyError::Broken { message } => {
            ProjectionError::Failed { projection, reason: message }
        }
        ApplyError::Refused { message, position: None } => {
            ProjectionError::Refused { projection, message }
        }
        ApplyError::OutOfTime(late) => ProjectionError::Failed { projection, reason: late.message },
        ApplyError::LeaseLost => {
            let message = "was removed while it was verified".to_owned();
            ProjectionError::Refused { projection, message }
        }
    }
}

/// Positions below which random events are looked for, more than keys are asked for: some have the same.
pub(crate) fn sample_positions(up_to: Position, keys: usize) -> Vec<Position> {
    let tries = keys.saturating_mul(4).clamp(16, 1_000_000) as u64;
    let random = RandomState::new();
    (0..tries).map(|number| Position(random.hash_one(number) % up_to.0.max(1))).collect()
}
