//! One shard under a lease: batches of a catch-up projection or of a generation that is kept, or drains
//! of an inline one.
//!
//! ```text
//!   wait for work ──> a job in one transaction ──ok──────────> again
//!        ^                     ├─ refused ─> note, pause ────> again; then carefully; then the policy
//!        │                     ├─ database ─> pause ─────────> again, for ever
//!        └─────────────────────┴─ lease lost ─> end, and look for leases anew
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::backoff::{Backoff, BatchSize};
use super::context::{Context, Runnable};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, GenerationStatus, Lease};
use crate::projection::job::{CAREFUL_EVENTS, CAREFUL_SKIPS, Call, Failure, Job, JobOutcome, Task};
use crate::projection::projector::{ApplyError, OutOfTime};
use crate::store::{StatusChange, StoreKind};

/// Longest pause after trouble with the database.
const DATABASE_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Trouble that passes is told in the shard's row when it has come so often in a row.
const TOLD_AFTER: u32 = 5;
/// Most skips that are settled in one transaction.
const DRAIN_EVENTS: usize = 500;

/// Statuses in which a generation is run.
pub(super) const RUNNING: [GenerationStatus; 4] = [
    GenerationStatus::Active,
    GenerationStatus::Building,
    GenerationStatus::Rebuilding,
    GenerationStatus::Kept,
];

/// Where a shard's task stands, for its worker.
pub(super) struct Place {
    position: AtomicU64,
    /// The generation as the worker last read it: its settings may change at any time.
    generation: Mutex<Arc<Generation>>,
    /// Rings when the generation is fed in another way than it was.
    changed: Notify,
    /// Rings when the checkpoint is behind what the task believes: the server that has it now is one
    /// without the last commits.
    pub(super) stepped_back: Notify,
    /// Whether its job is inside a handler.
    pub(super) call: Call,
}

impl Place {
    pub(super) fn new(position: Position, generation: Arc<Generation>) -> Self {
        let (position, generation) = (AtomicU64::new(position.0), Mutex::new(generation));
        let (changed, stepped_back) = (Notify::new(), Notify::new());
        Place { position, generation, changed, stepped_back, call: Call::default() }
    }

    pub(super) fn set_generation(&self, generation: &Arc<Generation>) {
        let mut known = self.generation.lock().expect("nothing panics with this locked");
        if is_drained(&known) != is_drained(generation) {
            self.changed.notify_one();
        }
        *known = Arc::clone(generation);
    }

    fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.generation.lock().expect("nothing panics with this locked"))
    }

    pub(super) fn position(&self) -> Position {
        Position(self.position.load(Ordering::SeqCst))
    }
}

/// What a worker tells the task of a shard.
pub(super) struct Bells {
    pub(super) stop: CancellationToken,
    /// Rings when an inline projection owes something.
    pub(super) owing: Arc<Notify>,
    pub(super) place: Arc<Place>,
}

/// Why a shard's task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was told to.
    Stopped,
    /// Somebody else has the lease.
    LeaseLost,
    /// The projection has failed.
    Failed,
    /// The store was closed.
    Closed,
}

/// What a shard's task does next.
enum Next {
    Go,
    Pause(Duration),
    End(Ended),
}

/// A shard and what it needs to know between two jobs.
pub(super) struct Shard {
    context: Arc<Context>,
    runnable: Runnable,
    lease: Lease,
    stop: CancellationToken,
    owing: Arc<Notify>,
    place: Arc<Place>,
    position: Position,
    mark: Position,
    more: bool,
    size: BatchSize,
    refused: u32,
    refusals: Backoff,
    troubles: Backoff,
    /// Troubles since a job went well.
    in_a_row: u32,
    /// So many more jobs are done carefully.
    careful: usize,
    /// An event that the handler does not come back from: the next careful job deals with it.
    given_up: Option<(Position, String)>,
}

impl Shard {
    pub(super) fn new(
        context: Arc<Context>,
        runnable: Runnable,
        lease: Lease,
        Bells { stop, owing, place }: Bells,
    ) -> Self {
        let (size, refusals) = paces(&context, &runnable.generation);
        let troubles = Backoff::new(Duration::from_millis(50), DATABASE_PAUSE_MAX);
        let (position, mark) = (lease.position, Position::START);
        // A drainer looks once at the start.
        let more = is_drained(&runnable.generation);
        Shard {
            context,
            runnable,
            lease,
            stop,
            owing,
            place,
            position,
            mark,
            more,
            size,
            refused: 0,
            refusals,
            troubles,
            in_a_row: 0,
            careful: 0,
            given_up: None,
        }
    }

    pub(super) async fn run(mut self) -> Ended {
        loop {
            match self.work().await {
                Ok(true) => {}
                Ok(false) => return Ended::Stopped,
                Err(Next::End(ended)) => return ended,
                Err(Next::Pause(pause)) => {
                    if !self.sleep(pause).await {
                        return Ended::Stopped;
                    }
                    continue;
                }
                Err(Next::Go) => continue,
            }
            match self.step().await {
                Next::Go => {}
                Next::End(ended) => return ended,
                Next::Pause(pause) => {
                    if !self.sleep(pause).await {
                        return Ended::Stopped;
                    }
                }
            }
        }
    }

    fn is_drained(&self) -> bool {
        is_drained(&self.runnable.generation)
    }

    /// Waits until there is work; `false` if the task is to end instead.
    async fn work(&mut self) -> Result<bool, Next> {
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        if self.more {
            return Ok(true);
        }
        let (stop, place) = (self.stop.clone(), Arc::clone(&self.place));
        if self.is_drained() {
            let owing = Arc::clone(&self.owing);
            return tokio::select! {
                biased;
                () = stop.cancelled() => Ok(false),
                () = place.changed.notified() => Err(self.changed()),
                () = owing.notified() => Ok(true),
            };
        }
        let past = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(false),
            () = place.changed.notified() => return Err(self.changed()),
            () = place.stepped_back.notified() => {
                // A batch up to the beginning only says where the checkpoint is.
                self.mark = Position::START;
                return Ok(true);
            }
            past = self.context.store.mark_past(self.position) => past,
        };
        match past {
            Ok(mark) => {
                self.mark = mark;
                Ok(true)
            }
            Err(error) => Err(self.trouble(ApplyError::Store(error)).await),
        }
    }

    /// The generation is kept from now on, or not any more: other work is waited for.
    fn changed(&mut self) -> Next {
        self.look_at_settings();
        self.more = self.is_drained();
        Next::Go
    }

    /// `false` if the task is to end.
    async fn sleep(&self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }

    /// Takes over what the registry says by now.
    fn look_at_settings(&mut self) {
        let generation = self.place.generation();
        if generation.settings != self.runnable.generation.settings {
            (self.size, self.refusals) = paces(&self.context, &generation);
        }
        self.runnable.generation = generation;
    }

    /// Does one job. It is finished even if the runner is told to stop meanwhile.
    async fn step(&mut self) -> Next {
        self.look_at_settings();
        let careful = self.careful > 0;
        let task = self.task(careful);
        let started = Instant::now();
        match self.run_job(task.clone()).await {
            Ok(outcome) => self.done(outcome, &task, started.elapsed()).await,
            Err(ApplyError::Refused { message, .. }) => self.refused(message, careful).await,
            Err(ApplyError::OutOfTime(late)) => {
                self.size.took_too_long(task.events_max());
                self.out_of_time(late, task.events_max()).await
            }
            Err(ApplyError::Store(error)) if is_timeout(&error) => {
                self.size.took_too_long(task.events_max());
                self.trouble(ApplyError::Store(error)).await
            }
            // Not the connection, the server or a lock: something that the projection does.
            Err(ApplyError::Store(error)) if error.kind() == StoreErrorKind::Other => {
                self.refused(error.to_string(), careful).await
            }
            Err(ApplyError::Broken { message }) => {
                let reason = self.job(task).broken_reason(&message);
                self.fail(reason).await
            }
            Err(error) => self.trouble(error).await,
        }
    }

    fn task(&self, careful: bool) -> Task {
        let (lease, mark, worker) = (self.lease.clone(), self.mark, self.context.worker);
        let (actor, attempts) = (self.context.options.worker_name.clone(), self.refused);
        match (self.is_drained(), careful) {
            (false, false) => {
                let events_max = self.size.at_most(self.size.events());
                Task::Batch { lease, mark, events_max, worker }
            }
            (false, true) => {
                let events_max = self.size.at_most(CAREFUL_EVENTS);
                Task::CarefulBatch { lease, mark, events_max, worker, actor, attempts }
            }
            (true, false) => {
                Task::Drain { lease, events_max: self.size.at_most(DRAIN_EVENTS), actor }
            }
            (true, true) => {
                let events_max = self.size.at_most(CAREFUL_SKIPS);
                Task::CarefulDrain { lease, events_max, actor, attempts }
            }
        }
    }

    fn job(&self, task: Task) -> Job {
        let Runnable { generation, projector } = self.runnable.clone();
        let upcasters = self.context.store.upcasters_shared();
        Job {
            handler_timeout: self.context.options.handler_limit(),
            given_up: self.given_up.clone(),
            call: self.place.call.clone(),
            ..Job::new(generation, projector, upcasters, task)
        }
    }

    async fn run_job(&self, task: Task) -> Result<JobOutcome, ApplyError> {
        let _place = self.context.places.acquire().await.expect("the semaphore is never closed");
        self.context.store.backend().run(self.job(task)).await
    }

    async fn done(&mut self, outcome: JobOutcome, task: &Task, took: Duration) -> Next {
        let JobOutcome { position, applied, more, failure, .. } = outcome;
        // On SQLite most of the time may be the wait behind appends.
        let took = outcome.took.unwrap_or(took);
        self.troubles.reset();
        self.in_a_row = 0;
        self.context.accepted(self.lease.shard);
        self.given_up = None;
        self.size.went_well();
        if matches!(task, Task::Batch { .. }) {
            self.size.learn(took, more);
        }
        if applied > 0 || position != self.position {
            self.context.store.hub().has_moved();
        }
        (self.position, self.more) = (position, more);
        self.place.position.store(position.0, Ordering::SeqCst);
        if let Some(failure) = failure {
            return self.fail(self.job(task.clone()).failed_reason(&failure)).await;
        }
        if self.careful > 0 {
            self.careful = if more { self.careful - 1 } else { 0 };
        }
        if self.careful == 0 {
            self.refused = 0;
            self.refusals.reset();
        }
        Next::Go
    }

    /// The projection does not take what comes next. After some tries it is looked at carefully.
    async fn refused(&mut self, message: String, careful: bool) -> Next {
        let Runnable { generation, .. } = &self.runnable;
        self.refused += 1;
        self.more = true;
        tracing::warn!(
            projection = generation.name,
            shard = self.lease.shard.shard,
            after = self.position.0,
            attempt = self.refused,
            error = message,
            "events could not be applied"
        );
        if careful {
            // Nothing is left to divide: what fails is not one of the events.
            let message = format!("a batch failed, and none of its events alone: {message}");
            let failure = Failure { position: self.position, message };
            return self.fail(self.job(self.task(true)).failed_reason(&failure)).await;
        }
        if let Err(error) = self.note(message).await {
            return self.trouble(error).await;
        }
        if self.refused > generation.settings.retries {
            let careful = self.size.at_most(CAREFUL_EVENTS);
            self.careful = self.size.events().div_ceil(careful) + 1;
            return Next::Go;
        }
        Next::Pause(self.refusals.pause())
    }

    async fn note(&self, failure: String) -> Result<(), ApplyError> {
        let lease = self.lease.clone();
        self.run_job(Task::NoteFailure { lease, failure }).await.map(drop)
    }

    /// The handler does not come back. With fewer events each time, the one that is to blame comes to
    /// be alone, without a careful job, which could shut out appends meanwhile. Then it counts like
    /// any that failed, until it is given up without another call.
    async fn out_of_time(&mut self, late: OutOfTime, events_max: usize) -> Next {
        let Some(position) = late.culprit(events_max) else {
            let projection = &self.runnable.generation.name;
            tracing::warn!(projection, error = late.message, "trying again with fewer events");
            self.more = true;
            return match self.note(late.message).await {
                Ok(()) => Next::Go,
                Err(error) => self.trouble(error).await,
            };
        };
        if self.given_up.as_ref().is_some_and(|(given_up, _)| *given_up == position) {
            // Its hook for events that are left out does not come back either.
            let failure = Failure { position, message: late.message };
            return self.fail(self.job(self.task(true)).failed_reason(&failure)).await;
        }
        let next = self.refused(late.message.clone(), false).await;
        if self.careful > 0 {
            self.given_up = Some((position, late.message));
        }
        next
    }

    /// The projection has failed. A batch has written that itself; for others it is written here,
    /// where appends can be shut out.
    async fn fail(&mut self, reason: String) -> Next {
        let generation = &self.runnable.generation;
        let change = StatusChange {
            generation: generation.id,
            from: RUNNING.to_vec(),
            to: GenerationStatus::Failed,
            reason: Some(reason.clone()),
            actor: self.context.options.worker_name.clone(),
            rebuild: None,
        };
        while let Err(error) = self.context.store.backend().change_status(change.clone()).await {
            tracing::warn!(projection = generation.name, %error, "its failure cannot be noted");
            if !error.is_transient() || !self.sleep(self.troubles.clone().pause()).await {
                break;
            }
        }
        self.context.failed(generation, reason);
        self.context.store.hub().has_moved();
        Next::End(Ended::Failed)
    }

    /// Trouble that is not the projection's. What does not pass by itself is told in the shard's row,
    /// as far as that can be written, and to whoever has the runner's handle.
    async fn trouble(&mut self, error: ApplyError) -> Next {
        let (error, passes) = match error {
            ApplyError::LeaseLost => return Next::End(Ended::LeaseLost),
            ApplyError::Store(error) if error.kind() == StoreErrorKind::HandleClosed => {
                return Next::End(Ended::Closed);
            }
            ApplyError::Store(error) => (error.to_string(), error.is_transient()),
            ApplyError::Refused { message, .. } | ApplyError::Broken { message } => (message, true),
            ApplyError::OutOfTime(late) => (late.message, true),
        };
        let projection = &self.runnable.generation.name;
        self.in_a_row += 1;
        if passes {
            tracing::warn!(projection, error, "the database failed a projection, trying again");
        } else {
            tracing::error!(projection, error, "the database refuses a projection, trying again");
            self.context.refused(self.lease.shard, error.clone());
        }
        // A mark is only good for the server that gave it, which may be another one from now on.
        self.mark = Position::START;
        self.more = self.is_drained();
        if (!passes || self.in_a_row >= TOLD_AFTER)
            && let Err(ApplyError::LeaseLost) = self.note(format!("the database: {error}")).await
        {
            return Next::End(Ended::LeaseLost);
        }
        Next::Pause(self.troubles.pause())
    }
}

/// Whether appends feed a generation, so that there is nothing to do for it here but what they left out.
/// One that is kept is fed by batches, inline or not.
pub(super) fn is_drained(generation: &Generation) -> bool {
    generation.lifecycle == Lifecycle::Inline && generation.status != GenerationStatus::Kept
}

/// How large batches are, and how long it waits between tries.
fn paces(context: &Context, generation: &Generation) -> (BatchSize, Backoff) {
    let aim = context.options.batch_duration.unwrap_or(match context.store.kind() {
        StoreKind::Postgres => Duration::from_millis(250),
        StoreKind::Sqlite => Duration::from_millis(50),
    });
    let settings = &generation.settings;
    let size = BatchSize::new(settings.batch_events as usize, aim);
    (size, Backoff::new(settings.retry_delay, settings.retry_delay_max))
}

/// Whether the server gave up what it was doing because it took too long.
fn is_timeout(error: &StoreError) -> bool {
    matches!(error.code(), Some("57014" | "25P03"))
}
