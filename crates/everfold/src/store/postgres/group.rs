//! Group append: appends that come while one is under way share the next transaction.
//!
//! ```text
//!   append ─> queue ─> leader takes all that wait ─> one call, one commit ─> each its own result
//!                 └──── while it runs, the queue fills again ────┘
//! ```
//!
//! An append that finds a leader's place free is sent at once, so nothing waits for company. A
//! group never waits for a stream that somebody else's transaction holds: such a member is taken
//! out and waits on a connection of its own. Further members for that stream stay here, behind the
//! one that waits, so that one stream costs one connection however many append to it. A group that
//! fails as a whole is done again one by one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::append::{self, Outcome};
use super::connect::Connections;
use super::error::code::STREAM_BUSY;
use super::inline::Inline;
use crate::StreamId;
use crate::append::{Appended, StreamAppend};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::options::StoreOptions;

type Reply = Result<Appended, AppendError>;

struct Member {
    append: StreamAppend,
    reply: oneshot::Sender<Reply>,
}

pub(super) struct Group(Arc<Shared>);

struct Shared {
    connections: Arc<Connections>,
    inline: Arc<Inline>,
    options: Arc<StoreOptions>,
    queue: Mutex<Queue>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Member>,
    leaders: usize,
    /// Streams that a member waits for on a connection of its own, and the members behind it.
    held: HashMap<StreamId, Vec<Member>>,
    closed: bool,
}

impl Group {
    pub(super) fn new(
        connections: Arc<Connections>,
        inline: Arc<Inline>,
        options: Arc<StoreOptions>,
    ) -> Self {
        let (queue, tasks) = (Mutex::default(), TaskTracker::new());
        Group(Arc::new(Shared { connections, inline, options, queue, tasks }))
    }

    pub(super) async fn append(&self, append: StreamAppend) -> Reply {
        if self.0.lock().closed {
            let error = StoreError::new(StoreErrorKind::HandleClosed, "the store was closed");
            return Err(error.into());
        }
        let (reply, result) = oneshot::channel();
        submit(&self.0, Member { append, reply });
        result.await.unwrap_or_else(|_| {
            let message = "the append was ended because its runtime shut down";
            Err(StoreError::new(StoreErrorKind::Closed, message).into())
        })
    }

    /// Takes no more, and waits until everything that was queued is done.
    pub(super) async fn finish(&self) {
        self.0.lock().closed = true;
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic while the queue is changed")
    }

    /// The members of the next group, or `None`, which ends the leader.
    fn take(&self) -> Option<Vec<Member>> {
        let mut queue = self.lock();
        let (mut events, mut bytes) = (0, 0);
        let mut taken = Vec::new();
        while let Some(member) = queue.waiting.front() {
            events += member.append.events.len();
            bytes += member.append.bytes();
            let full = taken.len() >= self.options.group_appends_max
                || events > self.options.group_events_max
                || bytes > self.options.group_bytes_max;
            if full && !taken.is_empty() {
                break;
            }
            taken.extend(queue.waiting.pop_front());
        }
        if taken.is_empty() {
            queue.leaders -= 1;
            return None;
        }
        Some(taken)
    }
}

/// Queues a member, and starts a leader if there is a place for one.
fn submit(shared: &Arc<Shared>, member: Member) {
    let mut queue = shared.lock();
    queue.waiting.push_back(member);
    if queue.leaders < shared.options.groups_max {
        queue.leaders += 1;
        drop(queue);
        let leader = Leader { shared: Arc::clone(shared), leads: true };
        shared.tasks.spawn(lead(leader));
    }
}

/// A leader's place. One that ends before its time (its runtime shuts down) leaves the place, and
/// the members that counted on it learn that nobody knows what became of them.
struct Leader {
    shared: Arc<Shared>,
    leads: bool,
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.leads {
            let mut queue = self.shared.lock();
            queue.leaders -= 1;
            let left = match queue.leaders {
                0 => std::mem::take(&mut queue.waiting),
                _ => VecDeque::new(),
            };
            drop(queue);
            drop(left);
        }
    }
}

async fn lead(mut leader: Leader) {
    let shared = Arc::clone(&leader.shared);
    while let Some(members) = shared.take() {
        run(&shared, members).await;
    }
    leader.leads = false;
}

async fn run(shared: &Arc<Shared>, members: Vec<Member>) {
    let mut connection = match shared.connections.get().await {
        Ok(connection) => connection,
        Err(error) => return refuse_all(members, &error),
    };
    if members.len() > 1 {
        let appends: Vec<&StreamAppend> = members.iter().map(|member| &member.append).collect();
        match append::append_group(&mut connection, &shared.inline, &appends, false).await {
            Ok(outcomes) => {
                drop(connection);
                for (member, outcome) in members.into_iter().zip(outcomes) {
                    settle(shared, member, outcome);
                }
                return;
            }
            Err(AppendError::Store(error)) if error.is_closed() => {
                return refuse_all(members, &error);
            }
            // Whoever was the cause finds out alone; the others are stored.
            Err(error) => tracing::debug!(%error, "group append failed, appending one by one"),
        }
    }
    let mut members = members.into_iter();
    while let Some(member) = members.next() {
        let append = append::append(&mut connection, &shared.inline, &member.append, false);
        let outcome = match append.await {
            Err(AppendError::Store(error)) if error.code() == Some(STREAM_BUSY) => Outcome::Busy,
            // The connection is gone for the others too.
            Err(AppendError::Store(error)) if error.is_closed() => {
                refuse_all(members.collect(), &error);
                settle(shared, member, Outcome::Done(Err(error.into())));
                return;
            }
            outcome => Outcome::Done(outcome),
        };
        settle(shared, member, outcome);
    }
}

fn settle(shared: &Arc<Shared>, member: Member, outcome: Outcome) {
    match outcome {
        // A caller that is gone has nothing to be told.
        Outcome::Done(result) => drop(member.reply.send(result)),
        Outcome::Busy => wait_for_stream(shared, member),
    }
}

/// Takes a member of a busy stream out: the first waits for the stream, others wait for the first.
fn wait_for_stream(shared: &Arc<Shared>, member: Member) {
    match shared.lock().held.entry(member.append.stream.clone()) {
        Entry::Occupied(mut behind) => return behind.get_mut().push(member),
        Entry::Vacant(place) => {
            place.insert(Vec::new());
        }
    }
    let stream = Some(member.append.stream.clone());
    let held = Held { shared: Arc::clone(shared), stream };
    shared.tasks.spawn(append_waiting(held, member));
}

/// The place of the first that waits for a stream. Should it end before its time, those behind it
/// learn that nobody knows what became of them.
struct Held {
    shared: Arc<Shared>,
    /// `None` once the place was left: from then on it may be another's.
    stream: Option<StreamId>,
}

impl Held {
    /// Leaves the place; returns those who waited behind it.
    fn release(&mut self) -> Vec<Member> {
        let stream = self.stream.take();
        stream.and_then(|stream| self.shared.lock().held.remove(&stream)).unwrap_or_default()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.release());
    }
}

/// Appends a member alone, waiting for whoever holds its stream; then those behind it are queued
/// again, or get its error if the connection was lost over the wait.
async fn append_waiting(mut held: Held, member: Member) {
    let shared = Arc::clone(&held.shared);
    let result = match shared.connections.get_to_wait().await {
        Ok(mut connection) => {
            append::append(&mut connection, &shared.inline, &member.append, true).await
        }
        Err(error) => Err(error.into()),
    };
    let behind = held.release();
    match &result {
        Err(AppendError::Store(error)) if error.is_transient() => refuse_all(behind, error),
        _ => behind.into_iter().for_each(|member| submit(&shared, member)),
    }
    drop(member.reply.send(result));
}

/// The same error for every member; each of them may try again with its ids.
fn refuse_all(members: Vec<Member>, error: &StoreError) {
    for member in members {
        drop(member.reply.send(Err(error.duplicate().into())));
    }
}
