//! Dead letters and skips, as operators see and treat them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::generation::{DeadLetterInfo, Generation, SkipInfo};
use super::job::{HANDLER_TIMEOUT, Job, JobOutcome, RETRY_EVENTS, Task};
use super::operator::operator;
use super::projector::{ApplyError, Projector};

use crate::error::ProjectionError;
use crate::store::{Store, jitter};
use crate::{Position, StreamId};

/// Most rows that one list returns.
pub(super) const LIST_MAX: usize = 10_000;
/// How often a treatment is tried while somebody else is in the way.
const TRIES_MAX: u32 = 8;
/// First pause between two tries; it doubles.
const PAUSE: Duration = Duration::from_millis(50);

/// An event that could not be applied, or one that waits behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Where the event stands in the log.
    pub position: Position,
    /// Its stream.
    pub stream_id: StreamId,
    /// Its type.
    pub event_type: String,
    /// Its key in this projection: later events of the key wait behind it.
    pub key: String,
    /// The failed event that this one waits behind; `None` if this one failed itself.
    pub behind: Option<Position>,
    /// What went wrong.
    pub error: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was put aside.
    pub created_at: Timestamp,
    /// When it was last tried.
    pub tried_at: Option<Timestamp>,
    /// Whether a runner was asked to try it again.
    pub retry_wanted: bool,
}

/// An event that an inline projection owes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skip {
    /// Where the event stands in the log.
    pub position: Position,
    /// Its key in this projection.
    pub key: String,
    /// Why the append did not apply it.
    pub reason: String,
    /// When.
    pub skipped_at: Timestamp,
}

/// What became of a dead letter that was to be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retried {
    /// It is applied, and so are the events that waited behind it.
    Applied {
        /// How many events in all.
        events: u64,
    },
    /// It, or one of those behind it, failed again and is the dead letter now.
    FailedAgain {
        /// Which event.
        position: Position,
        /// What went wrong.
        error: String,
    },
    /// This process does not have the projection's code; a runner that has it will try.
    Requested,
}

impl Store {
    /// Events that a projection could not apply and those that wait behind them, by position; at most
    /// 10,000.
    ///
    /// ```
    /// use everfold::{ExpectedVersion, NewEvent, OnError, Projection, Retried, Runner};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let carts =
    ///     Projection::document("carts", 1, Carts).on_error(OnError::DeadLetter).inline().build()?;
    /// store.register(carts).await?;
    /// let wrong = NewEvent::from_json("ItemAdded", r#"{"quantity": "many"}"#)?;
    /// let right = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
    /// store.append("cart-1", ExpectedVersion::Any, [wrong]).await?;
    /// store.append("cart-1", ExpectedVersion::Any, [right]).await?; // waits behind it
    ///
    /// let letters = store.dead_letters("carts").await?;
    /// assert_eq!(letters.len(), 2);
    /// let failed = letters[0].position;
    /// assert_eq!(letters[1].behind, Some(failed));
    ///
    /// // It fails again, unless something was mended. Given up, what waits behind it goes on.
    /// let retried = store.retry_dead_letter("carts", failed).await?;
    /// assert!(matches!(retried, Retried::FailedAgain { .. }));
    /// store.discard_dead_letter("carts", failed, "sent by a test").await?;
    /// assert!(store.dead_letters("carts").await?.is_empty());
    /// assert_eq!(store.documents::<Cart>("carts").get("cart-1").await?, Some(Cart { items: 2 }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection.
    pub async fn dead_letters(&self, name: &str) -> Result<Vec<DeadLetter>, ProjectionError> {
        let generation = self.generation_of(name).await?;
        let rows = self.backend().list_dead_letters(generation.id, LIST_MAX).await?;
        Ok(rows.into_iter().map(DeadLetter::new).collect())
    }

    /// Events that an inline projection owes, by position; at most 10,000. A [`Runner`](crate::Runner)
    /// settles them by itself; [`Store::drain`] has an example.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection.
    pub async fn skips(&self, name: &str) -> Result<Vec<Skip>, ProjectionError> {
        let generation = self.generation_of(name).await?;
        let rows = self.backend().list_skips(generation.id, LIST_MAX).await?;
        let skip = |row: SkipInfo| Skip {
            position: row.position,
            key: row.key,
            reason: row.reason,
            skipped_at: row.skipped_at,
        };
        Ok(rows.into_iter().map(skip).collect())
    }

    /// Tries a dead letter again, then the events that wait behind it, in their order. Where this process
    /// does not have the projection's code, a runner that has it is asked to. [`Store::dead_letters`] has an
    /// example.
    ///
    /// # Errors
    /// [`ProjectionError::NoDeadLetter`] if there is none at that position, [`ProjectionError::Unknown`] if
    /// there is no such projection, [`ProjectionError::Failed`] if it could not be tried. That it failed
    /// again is no error, but [`Retried::FailedAgain`].
    pub async fn retry_dead_letter(
        &self,
        name: &str,
        position: Position,
    ) -> Result<Retried, ProjectionError> {
        let generation = self.generation_of(name).await?;
        self.retry(Arc::new(generation), position, operator()).await
    }

    /// Tries all dead letters of a projection again; what became of each, by position.
    ///
    /// # Errors
    /// As [`Store::retry_dead_letter`]; those that were treated before stay so.
    pub async fn retry_dead_letters(
        &self,
        name: &str,
    ) -> Result<Vec<(Position, Retried)>, ProjectionError> {
        let generation = Arc::new(self.generation_of(name).await?);
        let rows = self.backend().list_dead_letters(generation.id, LIST_MAX).await?;
        let failed = rows.into_iter().filter(|row| row.row.behind.is_none());
        let mut outcomes = Vec::new();
        for position in failed.map(|row| row.row.position) {
            match self.retry(Arc::clone(&generation), position, operator()).await {
                Ok(outcome) => outcomes.push((position, outcome)),
                // A runner or another operator was faster.
                Err(ProjectionError::NoDeadLetter { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    /// Gives a dead letter up, with a record of who, when and the reason, then applies the events that wait
    /// behind it. A handler is told by its `skipped`. [`Store::dead_letters`] has an example.
    ///
    /// # Errors
    /// [`ProjectionError::NoDeadLetter`] if there is none at that position;
    /// [`ProjectionError::Refused`] if this process does not have the projection's code: discard it in the
    /// application that registers it.
    pub async fn discard_dead_letter(
        &self,
        name: &str,
        position: Position,
        reason: &str,
    ) -> Result<Retried, ProjectionError> {
        let generation = Arc::new(self.generation_of(name).await?);
        let Some(projector) = self.hub().projector(&generation) else {
            return Err(ProjectionError::Refused {
                projection: name.to_owned(),
                message:
                    "is written in Rust, and this process does not have its code; discard its \
                          dead letters from the application that registers it"
                        .to_owned(),
            });
        };
        let (reason, actor) = (reason.to_owned(), operator());
        let task = Task::Discard { position, reason, events_max: RETRY_EVENTS, actor };
        self.treat((generation, projector), task, position, HANDLER_TIMEOUT).await
    }

    pub(crate) async fn retry(
        &self,
        generation: Arc<Generation>,
        position: Position,
        actor: String,
    ) -> Result<Retried, ProjectionError> {
        if let Some(projector) = self.hub().projector(&generation) {
            let runnable = (generation, projector);
            return self.retry_with(runnable, position, actor, HANDLER_TIMEOUT).await;
        }
        match self.backend().want_retry(generation.id, Some(position)).await? {
            0 => Err(no_dead_letter(&generation, position)),
            _ => Ok(Retried::Requested),
        }
    }

    /// Tries a dead letter again with the code that is here, which has so much time in a transaction.
    pub(crate) async fn retry_with(
        &self,
        runnable: (Arc<Generation>, Projector),
        position: Position,
        actor: String,
        handler_timeout: Duration,
    ) -> Result<Retried, ProjectionError> {
        let task = Task::Retry { position, events_max: RETRY_EVENTS, actor };
        self.treat(runnable, task, position, handler_timeout).await
    }

    /// Runs a job again while somebody else is in the way.
    async fn run_patiently(&self, job: Job) -> Result<JobOutcome, ApplyError> {
        for attempt in 0..TRIES_MAX {
            match self.backend().run(job.clone()).await {
                Err(ApplyError::Store(error)) if error.is_transient() => {
                    tracing::debug!(%error, attempt, "a dead letter could not be treated yet");
                    tokio::time::sleep(jitter(PAUSE * 2u32.pow(attempt))).await;
                }
                outcome => return outcome,
            }
        }
        self.backend().run(job).await
    }

    /// Runs the task, and goes on with what did not fit into one transaction.
    async fn treat(
        &self,
        (generation, projector): (Arc<Generation>, Projector),
        mut task: Task,
        position: Position,
        handler_timeout: Duration,
    ) -> Result<Retried, ProjectionError> {
        let mut events = 0;
        let mut given_up = None;
        loop {
            let upcasters = self.upcasters_shared();
            let (generation, projector) = (Arc::clone(&generation), projector.clone());
            let actor = task.actor().to_owned();
            let job = Job {
                handler_timeout,
                given_up: given_up.clone(),
                ..Job::new(Arc::clone(&generation), projector, upcasters, task.clone())
            };
            let outcome = match self.run_patiently(job).await {
                Err(ApplyError::OutOfTime(late)) if given_up.is_none() => {
                    match late.culprit(task.events_max()) {
                        Some(position) => given_up = Some((position, late.message)),
                        None => task = task.with_fewer(),
                    }
                    continue;
                }
                outcome => outcome.map_err(|error| untreated(error, &generation, position))?,
            };
            given_up = None;
            let JobOutcome { applied, more, failure, missing, .. } = outcome;
            if missing && events > 0 {
                // Somebody else has taken the rest on.
                return Ok(Retried::Applied { events });
            }
            if missing {
                return Err(no_dead_letter(&generation, position));
            }
            self.hub().has_moved();
            events += applied;
            match failure {
                Some(failure) if more => {
                    let position = failure.position;
                    task = Task::Retry { position, events_max: RETRY_EVENTS, actor };
                }
                Some(failure) => {
                    let (position, error) = (failure.position, failure.message);
                    return Ok(Retried::FailedAgain { position, error });
                }
                None => return Ok(Retried::Applied { events }),
            }
        }
    }
}

fn untreated(error: ApplyError, generation: &Generation, position: Position) -> ProjectionError {
    let failed = |reason| ProjectionError::Failed { projection: generation.name.clone(), reason };
    match error {
        ApplyError::Store(error) => ProjectionError::Store(error),
        ApplyError::Refused { message, .. } | ApplyError::Broken { message } => failed(message),
        ApplyError::OutOfTime(late) => failed(late.message),
        ApplyError::LeaseLost => no_dead_letter(generation, position),
    }
}

fn no_dead_letter(generation: &Generation, position: Position) -> ProjectionError {
    ProjectionError::NoDeadLetter { projection: generation.name.clone(), position }
}

impl DeadLetter {
    fn new(info: DeadLetterInfo) -> Self {
        let DeadLetterInfo { row, stream_id, event_type, created_at, tried_at, retry_wanted } =
            info;
        DeadLetter {
            position: row.position,
            stream_id,
            event_type,
            key: row.key,
            behind: row.behind,
            error: row.error,
            attempts: row.attempts,
            created_at,
            tried_at,
            retry_wanted,
        }
    }
}
