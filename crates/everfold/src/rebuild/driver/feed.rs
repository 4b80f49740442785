//! Applying events to a target by batches, up to a mark, with the same policy as a runner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Target;
use super::desk::{Desk, Halt, Step, Trouble};
use crate::Position;
use crate::error::StoreErrorKind;
use crate::projection::generation::{GenerationStatus, Lease};
use crate::projection::job::{CAREFUL_EVENTS, Job, JobOutcome, Task};
use crate::projection::projector::ApplyError;
use crate::runner::backoff::{Backoff, BatchSize};
use crate::store::StoreKind;

/// Most events in one batch of a rebuild, whatever the settings say for live ones.
const BATCH_EVENTS: usize = 20_000;

/// One shard of a target that is fed.
pub(super) struct Feed {
    desk: Arc<Desk>,
    target: Arc<Target>,
    lease: Lease,
    pub(super) position: Position,
    size: BatchSize,
    refused: u32,
    refusals: Backoff,
    troubles: Backoff,
    /// So many more batches are done carefully.
    careful: usize,
    given_up: Option<(Position, String)>,
}

impl Feed {
    pub(super) fn new(desk: Arc<Desk>, target: Arc<Target>, lease: Lease) -> Self {
        let aim = match desk.store.kind() {
            StoreKind::Postgres => Duration::from_millis(250),
            StoreKind::Sqlite => Duration::from_millis(50),
        };
        let settings = &target.generation.settings;
        let size = BatchSize::new(BATCH_EVENTS.max(settings.batch_events as usize), aim);
        let refusals = Backoff::new(settings.retry_delay, settings.retry_delay_max);
        let troubles = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let position = lease.position;
        Feed {
            desk,
            target,
            lease,
            position,
            size,
            refused: 0,
            refusals,
            troubles,
            careful: 0,
            given_up: None,
        }
    }

    /// Applies everything up to the mark; how many events that were.
    pub(super) async fn feed_to(&mut self, mark: Position) -> Step<u64> {
        let mut applied = 0;
        while self.position < mark {
            self.desk.go_on().await?;
            let events_max = self.size.at_most(match self.careful {
                0 => self.size.events().min(self.desk.pace.at_once()),
                _ => CAREFUL_EVENTS,
            });
            let begun = Instant::now();
            match self.run(mark, events_max).await {
                Ok(outcome) => applied += self.done(outcome, begun.elapsed()).await?,
                Err(error) => self.failed(error, events_max).await?,
            }
        }
        Ok(applied)
    }

    async fn run(&self, mark: Position, events_max: usize) -> Result<JobOutcome, ApplyError> {
        let (lease, worker) = (self.lease.clone(), self.desk.lease.worker);
        let task = match self.careful {
            0 => Task::Batch { lease, mark, events_max, worker },
            _ => {
                let (actor, attempts) = (self.target.actor.clone(), self.refused);
                Task::CarefulBatch { lease, mark, events_max, worker, actor, attempts }
            }
        };
        let job = Job { given_up: self.given_up.clone(), ..self.target.job(&self.desk, task) };
        self.desk.store.backend().run(job).await
    }

    async fn done(&mut self, outcome: JobOutcome, took: Duration) -> Step<u64> {
        let JobOutcome { position, applied, more, failure, .. } = outcome;
        if let Some(failure) = failure {
            return Err(Halt::Failed(failure.message));
        }
        self.troubles.reset();
        self.given_up = None;
        self.size.went_well();
        match self.careful {
            0 => self.size.learn(outcome.took.unwrap_or(took), more),
            _ => self.careful -= 1,
        }
        if self.careful == 0 {
            self.refused = 0;
            self.refusals.reset();
        }
        self.position = position;
        self.desk.say(None);
        self.desk.count(applied);
        self.desk.pace.went(applied).await;
        Ok(applied)
    }

    async fn failed(&mut self, error: ApplyError, events_max: usize) -> Step {
        match error {
            ApplyError::Refused { message, .. } => self.refuse(message).await,
            ApplyError::OutOfTime(late) => {
                self.size.took_too_long(events_max);
                match late.culprit(events_max) {
                    Some(position) => {
                        let again = self.given_up.as_ref().is_some_and(|(at, _)| *at == position);
                        if again {
                            return Err(Halt::Failed(late.message));
                        }
                        self.refuse(late.message.clone()).await?;
                        if self.careful > 0 {
                            self.given_up = Some((position, late.message));
                        }
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            ApplyError::Store(error) if matches!(error.code(), Some("57014" | "25P03")) => {
                self.size.took_too_long(events_max);
                self.desk.wait_out(Trouble::Passes(error), &mut self.troubles).await
            }
            ApplyError::Store(error) if error.kind() == StoreErrorKind::Other => {
                self.refuse(error.to_string()).await
            }
            error => self.desk.wait_out(error.into(), &mut self.troubles).await,
        }
    }

    /// The projection does not take what comes next: after some tries it is looked at carefully.
    async fn refuse(&mut self, message: String) -> Step {
        if self.careful > 0 {
            let message = format!("a batch failed, and none of its events alone: {message}");
            return Err(Halt::Failed(message));
        }
        self.refused += 1;
        self.desk.say(Some(format!("trying again: {message}")));
        if self.refused > self.target.generation.settings.retries {
            let careful = self.size.at_most(CAREFUL_EVENTS);
            self.careful = self.size.events().div_ceil(careful) + 1;
            return Ok(());
        }
        self.desk.pause(self.refusals.pause()).await
    }
}

/// Statuses in which a target takes batches.
pub(super) fn is_fed(status: GenerationStatus) -> bool {
    matches!(
        status,
        GenerationStatus::Building | GenerationStatus::Rebuilding | GenerationStatus::Kept
    )
}
