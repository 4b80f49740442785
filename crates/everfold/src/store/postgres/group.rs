//! Group append: appends that come while one is under way share the next transaction.
//!
//! ```text
//!   append ─> queue ─> leader takes all that wait ─> one call, one commit ─> each its own result
//!                 └──── while it runs, the queue fills again ────┘
//! ```
//!
//! An append that finds a leader's place free is sent at once, so nothing waits for company. A
//! group never waits for a stream that somebody else's transaction holds: such a member is taken
//! out and waits on a connection of its own. A group that fails as a whole is done again one by
//! one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;

use super::append::{self, Outcome};
use super::connect::Connections;
use super::error::code::STREAM_BUSY;
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
    options: Arc<StoreOptions>,
    queue: Mutex<Queue>,
    /// Leaves connections for groups when many members wait for busy streams.
    busy: Semaphore,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Member>,
    leaders: usize,
}

impl Group {
    pub(super) fn new(connections: Arc<Connections>, options: Arc<StoreOptions>) -> Self {
        let busy = Semaphore::new((options.pool_size / 2).max(1));
        let (queue, tasks) = (Mutex::default(), TaskTracker::new());
        Group(Arc::new(Shared { connections, options, queue, busy, tasks }))
    }

    pub(super) async fn append(&self, append: StreamAppend) -> Reply {
        let (reply, result) = oneshot::channel();
        self.submit(Member { append, reply });
        result.await.unwrap_or_else(|_| {
            let message = "the append was ended because its runtime shut down";
            Err(StoreError::new(StoreErrorKind::Closed, message).into())
        })
    }

    /// Queues a member, and starts a leader if there is a place for one.
    fn submit(&self, member: Member) {
        let mut queue = self.0.lock();
        queue.waiting.push_back(member);
        if queue.leaders < self.0.options.groups_max {
            queue.leaders += 1;
            self.0.tasks.spawn(lead(Arc::clone(&self.0)));
        }
    }

    /// Waits until everything that was queued is done.
    pub(super) async fn finish(&self) {
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
        let mut events = 0;
        let mut taken = Vec::new();
        while let Some(member) = queue.waiting.front() {
            events += member.append.events.len();
            let full = taken.len() >= self.options.group_appends_max
                || events > self.options.group_events_max;
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

async fn lead(shared: Arc<Shared>) {
    while let Some(members) = shared.take() {
        run(&shared, members).await;
    }
}

async fn run(shared: &Arc<Shared>, members: Vec<Member>) {
    let connection = match shared.connections.get().await {
        Ok(connection) => connection,
        Err(error) => return refuse_all(members, &error),
    };
    if members.len() > 1 {
        let appends: Vec<&StreamAppend> = members.iter().map(|member| &member.append).collect();
        match append::append_group(&connection, &appends, false).await {
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
    for member in members {
        let outcome = match append::append(&connection, &member.append, false).await {
            Err(AppendError::Store(error)) if error.code() == Some(STREAM_BUSY) => Outcome::Busy,
            outcome => Outcome::Done(outcome),
        };
        settle(shared, member, outcome);
    }
}

fn settle(shared: &Arc<Shared>, member: Member, outcome: Outcome) {
    match outcome {
        // A caller that is gone has nothing to be told.
        Outcome::Done(result) => drop(member.reply.send(result)),
        Outcome::Busy => drop(shared.tasks.spawn(wait_for_stream(Arc::clone(shared), member))),
    }
}

/// Appends a member alone, waiting for whoever holds its stream.
async fn wait_for_stream(shared: Arc<Shared>, member: Member) {
    let _place = shared.busy.acquire().await;
    let result = match shared.connections.get().await {
        Ok(connection) => append::append(&connection, &member.append, true).await,
        Err(error) => Err(error.into()),
    };
    drop(member.reply.send(result));
}

/// The same error for every member; each of them may try again with its ids.
fn refuse_all(members: Vec<Member>, error: &StoreError) {
    for member in members {
        drop(member.reply.send(Err(error.duplicate().into())));
    }
}
