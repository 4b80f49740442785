//! What everybody who works on a rebuild in this process shares: the lease, the figures, and what is
//! wanted of it. A sign of life goes out every second or two, whatever the work is busy with.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::projector::ApplyError;
use crate::rebuild::Comparison;
use crate::rebuild::pace::Pace;
use crate::rebuild::row::{
    RebuildFigures, RebuildLease, RebuildPhase, RebuildReport, RebuildRow, Wanted,
};
use crate::runner::backoff::Backoff;
use crate::store::{Store, jitter};

/// Most time between two signs of life; at least ten of them go into the life of a lease.
const BEAT: Duration = Duration::from_secs(1);
/// Longest pause after trouble with the database.
const TROUBLE_MAX: Duration = Duration::from_secs(5);

/// Why work on a rebuild ends before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// Somebody else works on it.
    Lost,
    /// This process stops; whoever takes it next goes on.
    Stopped,
    /// An operator has cancelled it.
    Cancelled,
    /// It is built, and readers are not switched over: why.
    NotPromoted(String),
    /// It cannot go on: why.
    Failed(String),
}

pub(super) type Step<T = ()> = Result<T, Halt>;

pub(super) struct Desk {
    pub(super) store: Store,
    pub(super) lease: RebuildLease,
    pub(super) done: Arc<AtomicU64>,
    pub(super) pace: Arc<Pace>,
    pub(super) lease_ttl: Duration,
    figures: Mutex<(RebuildPhase, u64, Option<String>)>,
    report: Mutex<RebuildReport>,
    wanted: watch::Sender<Wanted>,
    /// Whoever works ends: the lease is lost, or this process stops.
    pub(super) gone: CancellationToken,
    lost: AtomicBool,
    /// Whether an operator may still cancel it.
    cancellable: AtomicBool,
    /// Whether all that is left is to write down how it ended, whatever operators want.
    closing: AtomicBool,
    beat: Notify,
}

impl Desk {
    pub(super) fn new(
        store: Store,
        lease: RebuildLease,
        row: &RebuildRow,
        stop: CancellationToken,
    ) -> Self {
        Desk {
            store,
            lease,
            done: Arc::new(AtomicU64::new(row.events_done)),
            pace: Arc::new(Pace::new(&row.options.options)),
            lease_ttl: row.options.options.lease_ttl,
            figures: Mutex::new((row.phase, row.events_total, row.message.clone())),
            report: Mutex::new(row.report.clone()),
            wanted: watch::Sender::new(row.wanted),
            gone: stop,
            lost: AtomicBool::new(false),
            cancellable: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            beat: Notify::new(),
        }
    }

    /// Enters a phase, which is told at once.
    pub(super) fn enter(&self, phase: RebuildPhase) {
        {
            let mut figures = self.figures.lock().expect("nothing panics with this locked");
            (figures.0, figures.2) = (phase, None);
        }
        self.beat.notify_one();
    }

    /// What it waits for, or nothing.
    pub(super) fn say(&self, message: Option<String>) {
        let mut figures = self.figures.lock().expect("nothing panics with this locked");
        if figures.2 != message {
            figures.2 = message;
            drop(figures);
            self.beat.notify_one();
        }
    }

    /// What came of comparing it with what readers see.
    pub(super) fn compared(&self, found: &Comparison) {
        self.report.lock().expect("nothing panics with this locked").comparison =
            Some(found.clone());
        self.beat.notify_one();
    }

    /// How long the switch took, which is how long it held appends up at most.
    pub(super) fn held(&self, held: Duration) {
        let held = u64::try_from(held.as_micros()).ok();
        self.report.lock().expect("nothing panics with this locked").held_us = held;
    }

    /// The switch is made; whether that ends a pause is to be said.
    pub(super) fn switched_from(&self, source: Option<&Generation>) {
        if source.is_some_and(|source| source.status == GenerationStatus::Paused) {
            self.report.lock().expect("nothing panics with this locked").ended_pause = true;
        }
    }

    pub(super) fn has_ended_pause(&self) -> bool {
        self.report.lock().expect("nothing panics with this locked").ended_pause
    }

    /// How many events there are in all, as far as is known; it never shrinks below what is done.
    pub(super) fn expect(&self, total: u64) {
        self.figures.lock().expect("nothing panics with this locked").1 = total;
    }

    pub(super) fn count(&self, events: u64) {
        self.done.fetch_add(events, Ordering::Relaxed);
    }

    /// From here on there is no way back.
    pub(super) fn cannot_be_cancelled(&self) {
        self.cancellable.store(false, Ordering::Relaxed);
    }

    /// It ends, whatever operators want.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> RebuildFigures {
        let (phase, total, message) =
            self.figures.lock().expect("nothing panics with this locked").clone();
        let events_done = self.done.load(Ordering::Relaxed);
        let events_total = total.max(events_done);
        let report = Some(self.report.lock().expect("nothing panics with this locked").clone());
        RebuildFigures { phase: Some(phase), events_done, events_total, message, report }
    }

    /// Signs of life, until the lease is lost or the work ends.
    pub(super) async fn keep_alive(&self) {
        loop {
            let begun = Instant::now();
            let beat =
                self.store.backend().beat_rebuild(self.lease, self.lease_ttl, self.figures());
            match beat.await {
                Ok(Some(row)) => {
                    self.pace.commit_took(begun.elapsed());
                    self.wanted.send_replace(row.wanted);
                }
                Ok(None) => return self.lose(),
                Err(error) if error.kind() == StoreErrorKind::HandleClosed => {
                    return self.gone.cancel();
                }
                Err(error) => {
                    tracing::warn!(%error, "a rebuild's sign of life failed, trying again");
                }
            }
            if self.is_copying() {
                self.look_around().await;
            }
            tokio::select! {
                () = self.gone.cancelled() => return,
                () = self.beat.notified() => {}
                () = tokio::time::sleep(jitter(BEAT.min(self.lease_ttl / 10))) => {}
            }
        }
    }

    /// Looks whether there are appends to give way to.
    pub(super) async fn look_around(&self) {
        // It is no more than a hint, and signs of life are due.
        match tokio::time::timeout(BEAT, self.store.backend().is_crowded()).await {
            Ok(Ok(crowded)) => self.pace.set_crowded(crowded),
            Ok(Err(error)) => tracing::debug!(%error, "how many appends come in is not known"),
            Err(_) => {}
        }
    }

    fn is_copying(&self) -> bool {
        self.figures.lock().expect("nothing panics with this locked").0 == RebuildPhase::Copying
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.gone.cancel();
    }

    /// Waits while it is paused; ends the work if it is to end.
    pub(super) async fn go_on(&self) -> Step {
        let mut wanted = self.wanted.subscribe();
        loop {
            if self.gone.is_cancelled() {
                return Err(self.why_gone());
            }
            let now = *wanted.borrow_and_update();
            if self.closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            match now {
                Wanted::Run => return Ok(()),
                Wanted::Cancel if self.cancellable.load(Ordering::Relaxed) => {
                    return Err(Halt::Cancelled);
                }
                Wanted::Cancel => return Ok(()),
                Wanted::Pause => {}
            }
            tokio::select! {
                () = self.gone.cancelled() => {}
                _ = wanted.changed() => {}
            }
        }
    }

    pub(super) fn why_gone(&self) -> Halt {
        if self.lost.load(Ordering::Relaxed) { Halt::Lost } else { Halt::Stopped }
    }

    /// A pause that ends when the work does.
    pub(super) async fn pause(&self, pause: Duration) -> Step {
        tokio::select! {
            () = self.gone.cancelled() => Err(self.why_gone()),
            () = tokio::time::sleep(pause) => self.go_on().await,
        }
    }

    /// Does something until it goes through, while the database has trouble that passes.
    pub(super) async fn patiently<T, E: Into<Trouble>, F: Future<Output = Result<T, E>>>(
        &self,
        mut what: impl FnMut() -> F,
    ) -> Step<T> {
        let mut troubles = Backoff::new(Duration::from_millis(50), TROUBLE_MAX);
        loop {
            self.go_on().await?;
            match what().await.map_err(Into::into) {
                Ok(done) => return Ok(done),
                Err(trouble) => self.wait_out(trouble, &mut troubles).await?,
            }
        }
    }

    /// Waits if the trouble passes, and ends the work if it does not.
    pub(super) async fn wait_out(&self, trouble: Trouble, troubles: &mut Backoff) -> Step {
        match trouble {
            Trouble::Passes(error) => {
                tracing::warn!(%error, "a rebuild has trouble with the database, trying again");
                self.say(Some(format!("trying again: {error}")));
                self.pause(troubles.pause()).await
            }
            Trouble::LeaseLost => {
                self.lose();
                Err(Halt::Lost)
            }
            Trouble::Closed => Err(Halt::Stopped),
            Trouble::Stays(message) => Err(Halt::Failed(message)),
        }
    }
}

/// What went wrong, by what can be done about it.
pub(super) enum Trouble {
    Passes(StoreError),
    LeaseLost,
    Closed,
    Stays(String),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::HandleClosed => Trouble::Closed,
            _ if error.is_transient() || error.kind() == StoreErrorKind::Busy => {
                Trouble::Passes(error)
            }
            _ => Trouble::Stays(error.to_string()),
        }
    }
}

impl From<ApplyError> for Trouble {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Store(error) => error.into(),
            ApplyError::LeaseLost => Trouble::LeaseLost,
            ApplyError::Refused { message, .. } | ApplyError::Broken { message } => {
                Trouble::Stays(message)
            }
            ApplyError::OutOfTime(late) => Trouble::Stays(late.message),
        }
    }
}

impl From<ProjectionError> for Trouble {
    fn from(error: ProjectionError) -> Self {
        match error {
            ProjectionError::Store(error) => error.into(),
            error => Trouble::Stays(error.to_string()),
        }
    }
}
