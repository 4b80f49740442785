//! The one thread that writes, and the queue before it.
//!
//! ```text
//!   append ─┐                 ┌─ BEGIN IMMEDIATE
//!   append ─┼─ queue ─ group ─┤  each member: stored, repeat, conflict or refused
//!   append ─┘                 └─ COMMIT ──> answers, then a hint for followers
//! ```
//!
//! The thread takes what waits, and never waits for more to come: a lone append pays one commit,
//! and many at once share one. A member's failure undoes that member alone. If the transaction as a
//! whole fails, each member is tried by itself, because one of them may be what it failed on.
//!
//! Transactions of the engine (batches of projections, leases) let what waits go first. While appends
//! keep coming, a job that took some time leaves the file to them for three times as long, so that
//! neither starves the other.
//!
//! When the queue is closed the thread finishes what is in it and ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{Notify, mpsc, oneshot};

use super::group::append_each;
use super::projection::Projections;
use super::waiting::{Claim, Patience, answered};
use crate::append::{Appended, StreamAppend};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::options::StoreOptions;

/// As many groups may wait in the queue; further callers wait for a place.
const GROUPS_QUEUED_MAX: usize = 4;

/// While appends wait they get so many times the time that the last job took before the next one.
const APPENDS_SHARE: u32 = 3;

/// The thread itself says so first when it cannot have the file in time.
const END_MARGIN: Duration = Duration::from_secs(1);

pub(super) type Outcome = Result<Appended, AppendError>;
type Work = Box<dyn FnOnce(&Connection) + Send>;

enum Request {
    Append(Member),
    /// Anything else that writes, in transactions of its own.
    Work(Work),
    /// The same, for the engine: others go first.
    Job(Work),
}

/// An append that waits for its outcome.
struct Member {
    append: StreamAppend,
    answer: oneshot::Sender<Outcome>,
    claim: Claim,
}

pub(super) struct Writer {
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    thread: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    patience: Duration,
}

impl Writer {
    /// Starts the thread. `hint` is notified after every commit.
    pub(super) fn start(
        connection: Connection,
        projections: Arc<Projections>,
        options: &StoreOptions,
        hint: Arc<Notify>,
    ) -> Result<Self, StoreError> {
        let capacity = options.group_appends_max.saturating_mul(GROUPS_QUEUED_MAX);
        let (queue, requests) = mpsc::channel(capacity.min(tokio::sync::Semaphore::MAX_PERMITS));
        let thread = WriterThread {
            connection,
            projections,
            requests,
            next: None,
            jobs: VecDeque::new(),
            served_at: Instant::now(),
            appends_until: Instant::now(),
            hint,
            appends_max: options.group_appends_max,
            events_max: options.group_events_max,
            patience: options.request_timeout,
        };
        let handle = std::thread::Builder::new()
            .name("everfold-writer".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| {
                let message = format!("the writer thread could not be started: {error}");
                StoreError::new(StoreErrorKind::Exhausted, message).with_source(error)
            })?;
        Ok(Writer {
            queue: Mutex::new(Some(queue)),
            thread: tokio::sync::Mutex::new(Some(handle)),
            patience: options.request_timeout,
        })
    }

    /// Appends, together with whatever else waits.
    pub(super) async fn append(&self, append: StreamAppend) -> Outcome {
        let ((answer, outcome), claim) = (oneshot::channel(), Claim::default());
        let member = Member { append, answer, claim: claim.clone() };
        let queueing = self.send(Request::Append(member));
        let outcome = answered(queueing, outcome, &claim, self.in_time()).await?;
        outcome.unwrap_or_else(|| Err(stopped().into()))
    }

    /// Runs `work` on the writing connection, however long it takes once it was begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let patience = Patience { to_begin: self.patience, to_end: None };
        self.queue_work(work, patience).await
    }

    /// The same for work that waits for the file, and is done soon after.
    pub(super) async fn run_in_time<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.queue_work(work, self.in_time()).await
    }

    fn in_time(&self) -> Patience {
        Patience { to_begin: self.patience, to_end: Some(self.patience + END_MARGIN) }
    }

    /// The same for a transaction of the engine, behind appends that wait.
    pub(super) async fn run_job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, outcome) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            // The caller may have gone; the work is done all the same.
            let _ = answer.send(work(connection));
        });
        self.send(Request::Job(work)).await?;
        outcome.await.map_err(|_| stopped())
    }

    async fn queue_work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
        patience: Patience,
    ) -> Result<T, StoreError> {
        let ((answer, outcome), claim) = (oneshot::channel(), Claim::default());
        let begun = claim.clone();
        let work: Work = Box::new(move |connection| {
            if begun.begin() {
                // The caller may have gone; the work is done all the same.
                let _ = answer.send(work(connection));
            }
        });
        let queueing = self.send(Request::Work(work));
        answered(queueing, outcome, &claim, patience).await?.ok_or_else(stopped)
    }

    /// Takes no more requests, finishes those in the queue and ends the thread.
    pub(super) async fn close(&self) {
        drop(self.take_queue());
        let mut thread = self.thread.lock().await;
        if let Some(handle) = thread.take() {
            // A thread that panicked has said so already.
            let _ = tokio::task::spawn_blocking(move || handle.join()).await;
        }
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        let queue = self.queue.lock().expect("nothing panics with the queue locked").clone();
        let Some(queue) = queue else {
            return Err(super::closed());
        };
        queue.send(request).await.map_err(|_| ended())
    }

    fn take_queue(&self) -> Option<mpsc::Sender<Request>> {
        self.queue.lock().expect("nothing panics with the queue locked").take()
    }
}

impl Drop for Writer {
    /// Blocks until the queue is done, which is one commit as a rule.
    fn drop(&mut self) {
        drop(self.take_queue());
        if let Some(handle) = self.thread.get_mut().take() {
            let _ = handle.join();
        }
    }
}

/// The thread went away with a request in hand: it panicked.
fn stopped() -> StoreError {
    let message = "the writer thread stopped; whether the append was stored is unknown";
    StoreError::new(StoreErrorKind::Closed, message)
}

/// The thread is gone for good.
fn ended() -> StoreError {
    let message = "the writer thread of this store has ended after a panic; open the store again";
    StoreError::new(StoreErrorKind::HandleClosed, message)
}

/// A transaction of the engine that waits for its turn.
struct Job {
    queued_at: Instant,
    work: Work,
}

struct WriterThread {
    connection: Connection,
    projections: Arc<Projections>,
    requests: mpsc::Receiver<Request>,
    /// Taken from the queue, and no part of the group at hand.
    next: Option<Request>,
    /// Taken from the queue, to be done when no appends wait or their time is over.
    jobs: VecDeque<Job>,
    /// When the last of all else was begun.
    served_at: Instant,
    /// Until then jobs let appends go first.
    appends_until: Instant,
    hint: Arc<Notify>,
    appends_max: usize,
    events_max: usize,
    patience: Duration,
}

impl WriterThread {
    fn run(mut self) {
        loop {
            let request = self.next.take().or_else(|| self.try_next());
            match request {
                request if self.job_is_due(request.is_some()) => {
                    self.next = request;
                    self.run_job();
                }
                Some(request) => self.serve(request),
                // Closed and empty: the end.
                None => match self.requests.blocking_recv() {
                    Some(request) => self.next = self.set_aside(request),
                    None => break,
                },
            }
        }
    }

    /// Whether a job goes before whatever else waits: if that has had its turn since the job came,
    /// and its share of the time since the job before.
    fn job_is_due(&self, others_wait: bool) -> bool {
        self.jobs.front().is_some_and(|job| {
            let had_their_turn =
                self.served_at >= job.queued_at && Instant::now() >= self.appends_until;
            !others_wait || had_their_turn
        })
    }

    fn serve(&mut self, request: Request) {
        self.served_at = Instant::now();
        match request {
            Request::Append(first) => {
                let group = self.collect(first);
                self.append_group(group);
            }
            Request::Work(work) => {
                work(&self.connection);
                self.hint.notify_one();
            }
            Request::Job(work) => self.queue_job(work),
        }
    }

    fn queue_job(&mut self, work: Work) {
        self.jobs.push_back(Job { queued_at: Instant::now(), work });
    }

    fn run_job(&mut self) {
        if let Some(job) = self.jobs.pop_front() {
            let begun = Instant::now();
            (job.work)(&self.connection);
            self.appends_until = Instant::now() + begun.elapsed() * APPENDS_SHARE;
        }
    }

    /// What waits in the queue, without jobs: those are set aside.
    fn try_next(&mut self) -> Option<Request> {
        while let Ok(request) = self.requests.try_recv() {
            if let Some(request) = self.set_aside(request) {
                return Some(request);
            }
        }
        None
    }

    fn set_aside(&mut self, request: Request) -> Option<Request> {
        match request {
            Request::Job(work) => {
                self.queue_job(work);
                None
            }
            request => Some(request),
        }
    }

    /// The first member and those that wait behind it, up to the bounds.
    fn collect(&mut self, first: Member) -> Vec<Member> {
        let mut events = first.append.events.len();
        let mut group = vec![first];
        while group.len() < self.appends_max {
            match self.requests.try_recv() {
                Ok(Request::Append(member))
                    if events + member.append.events.len() <= self.events_max =>
                {
                    events += member.append.events.len();
                    group.push(member);
                }
                Ok(Request::Job(work)) => self.queue_job(work),
                Ok(request) => {
                    self.next = Some(request);
                    break;
                }
                Err(_) => break,
            }
        }
        group
    }

    fn append_group(&self, group: Vec<Member>) {
        let begun = group.into_iter().filter(|member| member.claim.begin());
        let (appends, answers): (Vec<StreamAppend>, Vec<_>) =
            begun.map(|member| (member.append, member.answer)).unzip();
        if appends.is_empty() {
            return;
        }
        let outcomes = append_each(&self.connection, &self.projections, &appends, self.patience);
        let stored = outcomes.iter().any(Result::is_ok);
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Whoever does not wait any more knows that the outcome is unknown.
            let _ = answer.send(outcome);
        }
        if stored {
            self.hint.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpectedVersion, NewEvent};

    #[tokio::test]
    async fn panic_of_the_writer_is_an_error_for_callers() {
        let connection = Connection::open_in_memory().unwrap();
        let options = StoreOptions::default();
        let projections = Arc::new(Projections::new(&options));
        let writer = Writer::start(connection, projections, &options, Arc::default()).unwrap();
        let error = writer.run(|_| panic!("on purpose")).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Closed);

        let event = NewEvent::from_json("Added", "{}").unwrap();
        let append = StreamAppend::new("s", ExpectedVersion::Any, [event]);
        let AppendError::Store(error) = writer.append(append).await.unwrap_err() else {
            panic!("another error");
        };
        // The first request after the panic may still get into the queue that nobody reads.
        assert!(matches!(error.kind(), StoreErrorKind::HandleClosed | StoreErrorKind::Closed));
        writer.close().await;
    }

    fn writer() -> Arc<Writer> {
        let options = StoreOptions::default();
        let projections = Arc::new(Projections::new(&options));
        let connection = Connection::open_in_memory().unwrap();
        Arc::new(Writer::start(connection, projections, &options, Arc::default()).unwrap())
    }

    #[tokio::test]
    async fn jobs_let_what_waits_go_first() {
        let writer = writer();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let done = Arc::clone(&done);
            move |_: &Connection| done.lock().unwrap().push(name)
        };
        let (job, other) = (note("job"), note("other"));
        // All of them are queued before the thread goes on.
        let ((), job, other, ()) = tokio::join!(
            biased;
            async { writer.run(move |_| held.recv().unwrap()).await.unwrap() },
            writer.run_job(job),
            writer.run(other),
            async { hold.send(()).unwrap() },
        );
        job.and(other).unwrap();
        assert_eq!(*done.lock().unwrap(), ["other", "job"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn jobs_get_their_turn_while_others_keep_coming() {
        let writer = writer();
        let stop = tokio_util::sync::CancellationToken::new();
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let (writer, stop) = (Arc::clone(&writer), stop.clone());
                tokio::spawn(async move {
                    while !stop.is_cancelled() {
                        writer.run(|_| ()).await.unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            writer.run_job(|_| ()).await.unwrap();
        }
        stop.cancel();
        for task in busy {
            task.await.unwrap();
        }
    }
}
