//! Running until everything of now is applied: for schedulers.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::context::Identity;
use super::rebuilds::open_here;
use super::{Runner, RunnerHandle};
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, GenerationState, GenerationStatus, ShardState};
use crate::projection::registry::past_the_end;
use crate::rebuild::fill::unfilled;
use crate::rebuild::row::Wanted;

/// First pause between two looks; it doubles while nothing happens.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(500);

impl Runner {
    /// Registers the projections, applies everything up to the high-water mark of now, together with
    /// other runners if there are some, and ends: for schedulers. Paused projections are left alone.
    ///
    /// ```
    /// use everfold::{ExpectedVersion, NewEvent, Projection, Runner};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let added = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
    /// store.append("cart-1", ExpectedVersion::Any, [added]).await?;
    ///
    /// let carts = Projection::document("carts", 1, Carts).build()?;
    /// Runner::new(&store).projection(carts).run_once().await?;
    /// assert_eq!(store.documents::<Cart>("carts").get("cart-1").await?, Some(Cart { items: 2 }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Runner::start`], and [`ProjectionError::Failed`] if a projection has failed; the others
    /// are caught up by then.
    pub async fn run_once(self) -> Result<(), ProjectionError> {
        let handle = self.start().await?;
        let outcome = handle.catch_up().await;
        handle.stop().await;
        outcome
    }
}

impl RunnerHandle {
    /// Waits until the projections of this runner have applied everything up to the high-water mark of
    /// now, whoever applies it. Paused ones are left alone.
    ///
    /// # Errors
    /// [`ProjectionError::Failed`] if a projection has failed, or the database refuses what it needs;
    /// the others are caught up by then.
    pub async fn catch_up(&self) -> Result<(), ProjectionError> {
        let store = &self.context.store;
        let mark = store.high_water_mark().await?;
        let mut moved = store.hub().watch();
        let mut pause = PAUSE_MIN;
        loop {
            moved.borrow_and_update();
            let looked = Instant::now();
            let behind = self.behind(mark).await;
            let took = looked.elapsed();
            match behind {
                Ok(Behind::Some) => {}
                Ok(Behind::None { failed: None }) => return Ok(()),
                Ok(Behind::None { failed: Some(failed) }) => return Err(failed),
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, "where projections stand could not be read");
                }
                Err(error) => return Err(error.into()),
            }
            match tokio::time::timeout(pause, moved.changed()).await {
                // However fast the batches are, a small part of the time is spent looking.
                Ok(_) => tokio::time::sleep((took * 20).clamp(PAUSE_MIN, PAUSE_MAX)).await,
                Err(_) => pause = (pause * 2).min(PAUSE_MAX),
            }
        }
    }

    /// Whether a projection of this runner has something to do up to the mark.
    async fn behind(&self, mark: Position) -> Result<Behind, StoreError> {
        let given: HashSet<&Identity> = self.context.given.keys().collect();
        // Earlier than the checkpoints: what it switches to is among them.
        let open = open_here(&self.context).await?;
        if self.context.options.rebuilds > 0 && open.iter().any(|row| row.wanted == Wanted::Run) {
            return Ok(Behind::Some);
        }
        let states = self.context.store.backend().states().await?;
        // Later than the checkpoints, which are never past it.
        let highest = self.context.store.backend().heads().await?.highest;
        let (mut failed, mut owing) = (None, Vec::new());
        let unfilled = unfilled(states.iter().map(|state| &state.generation));
        for state in states {
            if !given.contains(&Identity::of(&state.generation)) {
                continue;
            }
            match state.generation.status {
                // Nobody is to work on its first fill now, or the last one has failed.
                _ if unfilled.contains(&state.generation.id) => {
                    let left = self.context.store.fills().await?.left_alone(&state.generation);
                    if let Some(left) = left.filter(|left| left.failed) {
                        failed.get_or_insert(has_failed(&state, left.reason));
                    }
                }
                GenerationStatus::Paused | GenerationStatus::Retired | GenerationStatus::Spare => {}
                GenerationStatus::Failed => {
                    let reason = state.generation.reason.clone().unwrap_or_default();
                    failed.get_or_insert(has_failed(&state, reason));
                }
                // The worker sees it at its next heartbeat, and stops the projection.
                _ if is_ahead(&state, highest) => return Ok(Behind::Some),
                _ if is_behind(&state, mark) => match self.context.refusal(state.generation.id) {
                    Some(refusal) => {
                        let reason = format!("the database: {refusal}");
                        failed.get_or_insert(has_failed(&state, reason));
                    }
                    None => return Ok(Behind::Some),
                },
                _ if state.open_skips > 0 && is_drained(&state) => owing.push(state.generation.id),
                _ => {}
            }
        }
        // Those of keys with a dead letter wait for an operator.
        if !owing.is_empty() && !self.context.store.backend().owing(owing).await?.is_empty() {
            return Ok(Behind::Some);
        }
        Ok(Behind::None { failed })
    }
}

enum Behind {
    Some,
    None { failed: Option<ProjectionError> },
}

fn has_failed(state: &GenerationState, reason: String) -> ProjectionError {
    ProjectionError::Failed { projection: state.generation.name.clone(), reason }
}

fn is_ahead(state: &GenerationState, highest: Position) -> bool {
    let ahead = |shard: &ShardState| past_the_end(&state.generation, shard.position, highest);
    state.shards.iter().find_map(ahead).is_some()
}

fn is_behind(state: &GenerationState, mark: Position) -> bool {
    let Generation { lifecycle, status, .. } = &state.generation;
    (*lifecycle == Lifecycle::CatchUp || *status == GenerationStatus::Kept)
        && state.shards.iter().any(|shard| shard.position < mark)
}

/// Whether runners settle what it owes.
fn is_drained(state: &GenerationState) -> bool {
    let Generation { lifecycle, status, .. } = &state.generation;
    *lifecycle == Lifecycle::Inline && *status == GenerationStatus::Active
}
