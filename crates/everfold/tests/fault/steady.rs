//! Appends that never give up: each event is tried, with its id, until it is confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use everfold::{AppendError, Appended, ExpectedVersion, NewEvent, Store, Uuid};
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

/// What the given appender appends as its n-th, and where.
type Make = fn(usize, u64) -> (String, NewEvent);

/// How fast an appender goes on: as fast as it can, or with a pause after each append.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    Full,
    Every(Duration),
}

impl SteadyAppends {
    pub(crate) fn start(store: &Store, appenders: usize) -> SteadyAppends {
        let make = |appender, _| (format!("appender-{appender}"), event("steady"));
        SteadyAppends::start_with(store, appenders, Pace::Full, make)
    }

    pub(crate) fn start_with(
        store: &Store,
        appenders: usize,
        pace: Pace,
        make: Make,
    ) -> SteadyAppends {
        let (stop, confirmed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let start = |number| {
            let (stop, confirmed) = (stop.clone(), confirmed.clone());
            let appender = Appender { store: store.clone(), number, pace, make, stop, confirmed };
            tokio::spawn(appender.run())
        };
        let tasks = (0..appenders).map(start).collect();
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

/// A handler whose statement was on its way when the network stalled has used up its time: nobody can
/// tell that from one that hangs.
fn is_late_handler(error: &AppendError) -> bool {
    error.to_string().contains("its handler was not done within")
}

struct Appender {
    store: Store,
    number: usize,
    pace: Pace,
    make: Make,
    stop: Arc<AtomicBool>,
    confirmed: Arc<AtomicU64>,
}

impl Appender {
    async fn run(self) -> Confirmed {
        let (mut appended, mut repeats) = (Vec::new(), 0);
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let (stream, event) = (self.make)(self.number, n);
            let done = loop {
                match self.store.append(&stream, ExpectedVersion::Any, [event.clone()]).await {
                    Ok(done) => break done,
                    Err(error) => assert!(
                        error.is_transient() || is_late_handler(&error),
                        "not worth trying again: {error}"
                    ),
                }
                repeats += 1;
                tokio::time::sleep(PAUSE).await;
            };
            appended.push((event.id(), done));
            self.confirmed.fetch_add(1, Ordering::Relaxed);
            if let Pace::Every(pause) = self.pace {
                tokio::time::sleep(pause).await;
            }
        }
        (appended, repeats)
    }
}
