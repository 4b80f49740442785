//! Wake-ups between processes: LISTEN and a coalesced NOTIFY, on one connection of its own.
//!
//! Never in an append's transaction: a NOTIFY there makes all commits of the cluster take turns.
//! Never relied on: whoever misses one finds the events by polling. Behind a pooler in transaction
//! mode there is no LISTEN, and so no wake-up at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::poll_fn;
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client};
use tokio_util::sync::CancellationToken;

use super::connect::Connections;
use super::target::Target;
use crate::options::StoreOptions;
use crate::store::jitter;

/// At most one NOTIFY in this time: followers poll more often than that while events come in.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause before a lost connection is made again.
const RECONNECT: Duration = Duration::from_secs(2);

pub(super) struct Wake {
    shared: Arc<Shared>,
    /// Set until the connection is first needed.
    start: Mutex<Option<Target>>,
    started: AtomicBool,
    stop: CancellationToken,
}

struct Shared {
    /// Something was appended through this handle: others want to know.
    to_tell: Notify,
    /// Something may have been appended anywhere.
    hint: Notify,
}

impl Wake {
    pub(super) fn new(connections: &Connections, options: &StoreOptions) -> Self {
        let target = connections.target().clone();
        let wanted = options.notify && !connections.through_pooler();
        Wake {
            shared: Arc::new(Shared { to_tell: Notify::new(), hint: Notify::new() }),
            start: Mutex::new(wanted.then_some(target)),
            started: AtomicBool::new(!wanted),
            stop: CancellationToken::new(),
        }
    }

    /// Events were committed through this handle.
    pub(super) fn appended(&self) {
        self.shared.hint.notify_one();
        self.shared.to_tell.notify_one();
        self.ensure_started();
    }

    /// Resolves when there may be new events.
    pub(super) async fn hint(&self) {
        self.ensure_started();
        self.shared.hint.notified().await;
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// The connection is made with the first append or the first follower.
    fn ensure_started(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let target = self.start.lock().expect("no panic while starting").take();
        if let Some(target) = target {
            let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
            tokio::spawn(async move {
                stop.run_until_cancelled(keep_listening(&target, &shared)).await;
            });
        }
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn keep_listening(target: &Target, shared: &Arc<Shared>) {
    loop {
        if let Err(error) = listen(target, shared).await {
            tracing::debug!(%error, "wake-ups are off, polling finds new events");
            if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                return; // a standby has no LISTEN
            }
        }
        tokio::time::sleep(jitter(RECONNECT)).await;
    }
}

/// Listens and tells until the connection is lost.
async fn listen(target: &Target, shared: &Arc<Shared>) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = target.connect().await?;
    let to_hint = Arc::clone(shared);
    let reading = async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(_) = message? {
                to_hint.hint.notify_one();
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = tell(&client, shared) => ended,
    }
}

async fn tell(client: &Client, shared: &Shared) -> Result<(), tokio_postgres::Error> {
    // A wake-up need not survive a crash, so its commit does not wait for the disk.
    client.batch_execute("SET synchronous_commit = off; LISTEN everfold_events").await?;
    loop {
        shared.to_tell.notified().await;
        client.batch_execute("NOTIFY everfold_events").await?;
        tokio::time::sleep(PAUSE).await;
    }
}
