//! Appends that never give up: each event is tried, with its id, until it is confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use everfold::{Appended, ExpectedVersion, Store, Uuid};
use everfold_testkit::eventually;
use tokio::task::JoinHandle;

use crate::session::{LIMIT, event};

/// Pause before an append is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// Tasks that append through one store, each to a stream of its own.
pub(crate) struct SteadyAppends {
    tasks: Vec<JoinHandle<Confirmed>>,
    stop: Arc<AtomicBool>,
    confirmed: Arc<AtomicU64>,
}

/// What was confirmed, and how many tries had to be repeated for it.
type Confirmed = (Vec<(Uuid, Appended)>, u64);

impl SteadyAppends {
    pub(crate) fn start(store: &Store, appenders: usize) -> SteadyAppends {
        let (stop, confirmed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let tasks = (0..appenders)
            .map(|n| {
                let stream = format!("appender-{n}");
                tokio::spawn(append_until(store.clone(), stream, stop.clone(), confirmed.clone()))
            })
            .collect();
        SteadyAppends { tasks, stop, confirmed }
    }

    /// Waits until so many more appends are confirmed.
    pub(crate) async fn until_confirmed(&self, more: u64) {
        let before = self.confirmed.load(Ordering::Relaxed);
        eventually("appends are confirmed", LIMIT, async || {
            self.confirmed.load(Ordering::Relaxed) > before + more
        })
        .await;
    }

    /// Lets every append under way be confirmed, and starts no more.
    pub(crate) async fn stop(self) -> Confirmed {
        self.stop.store(true, Ordering::Relaxed);
        let (mut appended, mut repeats) = (Vec::new(), 0);
        for task in self.tasks {
            let (more, repeated) = task.await.expect("the appender does not panic");
            appended.extend(more);
            repeats += repeated;
        }
        (appended, repeats)
    }
}

async fn append_until(
    store: Store,
    stream: String,
    stop: Arc<AtomicBool>,
    confirmed: Arc<AtomicU64>,
) -> Confirmed {
    let (mut appended, mut repeats) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let event = event("steady");
        let done = loop {
            match store.append(&stream, ExpectedVersion::Any, [event.clone()]).await {
                Ok(done) => break done,
                Err(error) => assert!(error.is_transient(), "not worth trying again: {error}"),
            }
            repeats += 1;
            tokio::time::sleep(PAUSE).await;
        };
        appended.push((event.id(), done));
        confirmed.fetch_add(1, Ordering::Relaxed);
    }
    (appended, repeats)
}
