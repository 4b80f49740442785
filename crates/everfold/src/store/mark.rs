//! One poll of the high-water mark per store handle, shared by all that follow.
//!
//! ```text
//!   append on this handle ──┐
//!   NOTIFY from elsewhere ──┴─hint──> poll ──mark──> every follower
//!   nothing for a while ──────timer──┘
//! ```
//!
//! Hints only make it faster: the timer alone finds everything. The pause grows from `poll_min` to
//! `poll_max` while nothing happens, and falls back when the mark moves or a hint comes.
//!
//! Beside it, and only if asked for, a task that publishes the mark for standbys.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Backend, jitter};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;

/// What the last poll found.
#[derive(Clone, Debug)]
enum Seen {
    Mark(Position),
    /// A failure that trying again does not mend.
    Failed(Arc<StoreError>),
}

/// The shared poller. It runs while somebody waits, and not longer.
pub(crate) struct MarkPoller {
    backend: Weak<dyn Backend>,
    options: Arc<StoreOptions>,
    running: Mutex<Option<watch::Receiver<Seen>>>,
}

impl MarkPoller {
    pub(crate) fn new(backend: &Arc<dyn Backend>, options: Arc<StoreOptions>) -> Self {
        MarkPoller { backend: Arc::downgrade(backend), options, running: Mutex::default() }
    }

    /// Waits until the mark is past `after` and returns it.
    pub(crate) async fn wait_past(&self, after: Position) -> Result<Position, StoreError> {
        let mut seen = self.subscribe();
        loop {
            match seen.borrow_and_update().clone() {
                Seen::Mark(mark) if mark > after => return Ok(mark),
                Seen::Mark(_) => {}
                Seen::Failed(error) => return Err(error.duplicate()),
            }
            if seen.changed().await.is_err() {
                // The poll ended between two followers, or with the store.
                if self.backend.strong_count() == 0 {
                    return Err(StoreError::new(
                        StoreErrorKind::HandleClosed,
                        "the store was closed",
                    ));
                }
                seen = self.subscribe();
            }
        }
    }

    fn subscribe(&self) -> watch::Receiver<Seen> {
        let mut running = self.running.lock().expect("no panic while polling is set up");
        if let Some(receiver) = running.as_ref().filter(|receiver| receiver.has_changed().is_ok()) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(Seen::Mark(Position::START));
        *running = Some(receiver.clone());
        tokio::spawn(poll(self.backend.clone(), Arc::clone(&self.options), sender));
        receiver
    }
}

async fn poll(backend: Weak<dyn Backend>, options: Arc<StoreOptions>, sender: watch::Sender<Seen>) {
    let mut pause = options.poll_min;
    let mut wanted = Instant::now();
    loop {
        let Some(backend) = backend.upgrade() else { return };
        let polled = Instant::now();
        let moved = match backend.high_water_mark().await {
            Ok(mark) => sender.send_if_modified(|seen| moved(seen, mark)),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "the high-water mark could not be read, trying again");
                // The server that answers next may be one without the last commits.
                sender.send_if_modified(|seen| moved(seen, Position::START));
                false
            }
            Err(error) => {
                sender.send_replace(Seen::Failed(Arc::new(error)));
                return;
            }
        };
        // One receiver is kept for those who come later. The poll outlives the last follower for
        // a while, so that one who waits again and again does not start it anew each time.
        if sender.receiver_count() > 1 {
            wanted = Instant::now();
        } else if wanted.elapsed() > options.poll_max * 2 {
            return;
        }
        pause = if moved { options.poll_min } else { grown(pause, &options) };
        if tokio::time::timeout(jitter(pause), backend.hint()).await.is_ok() {
            pause = options.poll_min;
            tokio::time::sleep_until(polled + options.poll_min).await;
        }
    }
}

/// Publishes the mark for standbys again and again, as long as the store is open.
pub(crate) async fn keep_publishing(backend: Weak<dyn Backend>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(backend) = backend.upgrade() else { return };
        match backend.publish_high_water_mark().await {
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::HandleClosed => return,
            Err(error) => tracing::warn!(%error, "the high-water mark could not be published"),
        }
    }
}

/// Marks may step back: for a moment, when an append that started late announces an older bound; for
/// good, when a server that lost its last commits takes over. The newest is what holds, so it is
/// kept either way; followers wait until it is past where they are.
fn moved(seen: &mut Seen, mark: Position) -> bool {
    let same = matches!(seen, Seen::Mark(known) if *known == mark);
    *seen = Seen::Mark(mark);
    !same
}

fn grown(pause: Duration, options: &StoreOptions) -> Duration {
    (pause * 3 / 2).min(options.poll_max)
}
