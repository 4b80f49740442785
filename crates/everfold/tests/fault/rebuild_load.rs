//! Writers of every kind, beside whom read models are rebuilt: through the library, with and without the
//! code of the projections, by plain SQL, in transactions with several appends, savepoints and
//! rollbacks, long ones, and such as read the read model before or after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everfold::{ExpectedVersion, Store, StreamAppend};
use everfold_testkit::Seed;
use tokio::task::JoinHandle;

use crate::session::Session;
use crate::workers::moved;

const STREAMS: u64 = 12;

/// What writers have done so far.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) stored: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// The longest that one append took, in microseconds: of those that wait for no other append.
    longest: AtomicU64,
}

impl Written {
    fn took(&self, begun: Instant) {
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest.fetch_max(took, Ordering::Relaxed);
    }

    /// The longest append since the last look.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }
}

pub(crate) struct Writers {
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    pub(crate) written: Arc<Written>,
}

/// What one transaction of plain SQL does.
#[derive(Clone, Copy)]
enum Habit {
    One,
    Several,
    Long,
    AppendThenRead,
    ReadThenAppend,
    Many,
}

const HABITS: [Habit; 8] = [
    Habit::One,
    Habit::Several,
    Habit::Long,
    Habit::AppendThenRead,
    Habit::ReadThenAppend,
    Habit::Many,
    Habit::One,
    Habit::Several,
];

impl Writers {
    /// Sixteen and more of them: through handles that carry the projections and one that does not, and
    /// by plain SQL.
    pub(crate) fn start(carrying: &Store, old: &Store, url: &str, view: &'static str) -> Writers {
        let mut seed = Seed::from_env_or_random();
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<Written>::default());
        let mut tasks = Vec::new();
        for (store, number) in [(carrying, 5), (old, 3)] {
            for _ in 0..number {
                let by = Library { store: store.clone(), seed: seed.fork() };
                tasks.push(tokio::spawn(by.run(stop.clone(), written.clone())));
            }
        }
        for (number, habit) in HABITS.into_iter().enumerate() {
            let by = Plain { url: url.to_owned(), number, habit, view, seed: seed.fork() };
            tasks.push(tokio::spawn(by.run(stop.clone(), written.clone())));
        }
        Writers { tasks, stop, written }
    }

    pub(crate) async fn stop(self) -> Arc<Written> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writer does not panic");
        }
        self.written
    }
}

fn stream(seed: &mut Seed) -> String {
    format!("s-{}", seed.below(STREAMS))
}

struct Library {
    store: Store,
    seed: Seed,
}

impl Library {
    async fn run(mut self, stop: Arc<AtomicBool>, written: Arc<Written>) {
        while !stop.load(Ordering::Relaxed) {
            let events = self.seed.within(1..4);
            let events: Vec<_> = (0..events).map(|_| moved(self.seed.below(1_000))).collect();
            let appended = match self.seed.chance(0.2) {
                false => {
                    let stream = stream(&mut self.seed);
                    self.store.append(&stream, ExpectedVersion::Any, events).await.map(drop)
                }
                true => {
                    let appends = events.into_iter().map(|event| {
                        let stream = stream(&mut self.seed);
                        StreamAppend::new(stream, ExpectedVersion::Any, [event])
                    });
                    self.store.append_many(appends.collect::<Vec<_>>()).await.map(drop)
                }
            };
            match appended {
                Ok(()) => written.stored.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    assert!(
                        error.is_transient() || stop.load(Ordering::Relaxed),
                        "an append was refused: {error}"
                    );
                    written.failed.fetch_add(1, Ordering::Relaxed)
                }
            };
            tokio::time::sleep(Duration::from_millis(self.seed.within(10..60))).await;
        }
    }
}

struct Plain {
    url: String,
    number: usize,
    habit: Habit,
    view: &'static str,
    seed: Seed,
}

impl Plain {
    async fn run(mut self, stop: Arc<AtomicBool>, written: Arc<Written>) {
        let mut session = Session::reopen(&self.url).await;
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match self.transaction(&session).await {
                Ok(true) => written.stored.fetch_add(1, Ordering::Relaxed),
                Ok(false) => written.rolled_back.fetch_add(1, Ordering::Relaxed),
                Err(_) => {
                    if session.try_run("ROLLBACK").await.is_err() {
                        session = Session::reopen(&self.url).await;
                    }
                    written.failed.fetch_add(1, Ordering::Relaxed)
                }
            };
            if matches!(self.habit, Habit::One) {
                written.took(begun);
            }
            tokio::time::sleep(Duration::from_millis(self.seed.within(10..60))).await;
        }
    }

    fn append(&mut self) -> String {
        // Streams and accounts that are nobody else's: long transactions hold up no others, and the
        // time that single appends take is not that of a wait for others.
        let own = match self.habit {
            Habit::Long => Some(format!("long-{}", self.seed.below(3))),
            Habit::One => Some(format!("one-{}", self.number)),
            _ => None,
        };
        if let Some(own) = own {
            return format!(
                "SELECT everfold.append_event('{own}', NULL, 'Moved', '{{\"account\": \"{own}\"}}')"
            );
        }
        format!(
            "SELECT everfold.append_event('{}', NULL, 'Moved', '{{\"account\": \"a-{}\"}}')",
            stream(&mut self.seed),
            self.seed.below(24)
        )
    }

    /// `false` if it was rolled back.
    async fn transaction(&mut self, session: &Session) -> Result<bool, tokio_postgres::Error> {
        let read = format!("SELECT count(*) FROM {}", self.view);
        let (one, two) = (self.append(), self.append());
        match self.habit {
            Habit::One => session.try_run(&one).await?,
            Habit::Several => {
                session.try_run("BEGIN").await?;
                session.try_run(&one).await?;
                session.try_run("SAVEPOINT s").await?;
                session.try_run(&two).await?;
                if self.seed.chance(0.4) {
                    session.try_run("ROLLBACK TO s").await?;
                    session.try_run(&two).await?;
                }
                if self.seed.chance(0.2) {
                    session.try_run("ROLLBACK").await?;
                    return Ok(false);
                }
                session.try_run("COMMIT").await?;
            }
            Habit::Long => {
                session.try_run("BEGIN").await?;
                session.try_run(&one).await?;
                let pause = Duration::from_millis(self.seed.within(50..300));
                tokio::time::sleep(pause).await;
                session.try_run(&two).await?;
                session.try_run("COMMIT").await?;
            }
            Habit::AppendThenRead => {
                session.try_run(&format!("BEGIN; {one}; {read}; COMMIT")).await?;
            }
            Habit::ReadThenAppend => {
                session.try_run("BEGIN").await?;
                session.try_run(&read).await?;
                session.try_run(&one).await?;
                session.try_run("COMMIT").await?;
            }
            Habit::Many => {
                let many = format!(
                    "SELECT everfold.append('{}', NULL, '[{{\"type\": \"Moved\", \"data\": \
                     {{\"account\": \"a-1\"}}}}, {{\"type\": \"Moved\", \"data\": {{\"account\": \
                     \"a-2\"}}}}]')",
                    stream(&mut self.seed)
                );
                session.try_run(&many).await?;
            }
        }
        Ok(true)
    }
}
