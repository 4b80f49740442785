//! Writers of every kind, beside whom read models are rebuilt: through the library, with and without the
//! code of the projections, by plain SQL, in transactions with several appends, savepoints and
//! rollbacks, long ones, and such as read the read model before or after. Nobody gives up: what was not
//! answered is repeated with the same event ids until it is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everfold::{AppendError, ExpectedVersion, NewEvent, Store, StreamAppend, Uuid};
use everfold_testkit::Seed;
use tokio::task::JoinHandle;

use crate::session::{LIMIT, Session, describe};
use crate::workers::moved;

const STREAMS: u64 = 12;
/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// What writers have done so far.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) rolled_back: AtomicU64,
    /// Tries that were repeated.
    pub(crate) failed: AtomicU64,
    /// Ids of the events whose append was answered.
    confirmed: Mutex<Vec<Uuid>>,
    /// The longest that one append took, in microseconds: of those that wait for no other append.
    longest: AtomicU64,
}

impl Written {
    fn took(&self, begun: Instant) {
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest.fetch_max(took, Ordering::Relaxed);
    }

    /// The longest append.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }

    fn confirm(&self, ids: &[Uuid]) {
        self.confirmed.lock().unwrap().extend_from_slice(ids);
    }

    /// Fails unless exactly what was answered is stored. Ids are unique in the log.
    pub(crate) async fn assert_all_stored(&self, truth: &Session) {
        let rows = truth.rows("SELECT id FROM everfold.events").await.expect("the log can be read");
        let id =
            |row: &Vec<Option<String>>| row[0].as_deref().expect("an id").parse().expect("a uuid");
        let stored: HashSet<Uuid> = rows.iter().map(id).collect();
        let confirmed: HashSet<Uuid> = self.confirmed.lock().unwrap().iter().copied().collect();
        let lost: Vec<&Uuid> = confirmed.difference(&stored).collect();
        let unasked: Vec<&Uuid> = stored.difference(&confirmed).collect();
        assert!(lost.is_empty(), "answered, and not in the log: {lost:?}");
        assert!(unasked.is_empty(), "in the log, and not answered: {unasked:?}");
    }
}

pub(crate) struct Writers {
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    written: Arc<Written>,
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
            match self.seed.chance(0.2) {
                false => {
                    let stream = stream(&mut self.seed);
                    self.append(&stream, &events, &written).await;
                }
                true => {
                    let of = |event| (stream(&mut self.seed), event);
                    let appends = events.into_iter().map(of).collect();
                    self.append_many(appends, &written).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(self.seed.within(10..60))).await;
        }
    }

    async fn append(&self, stream: &str, events: &[NewEvent], written: &Written) {
        loop {
            match self.store.append(stream, ExpectedVersion::Any, events.to_vec()).await {
                Ok(_) => break,
                Err(error) => again(&error, written).await,
            }
        }
        let ids: Vec<Uuid> = events.iter().map(NewEvent::id).collect();
        written.confirm(&ids);
    }

    /// Each member is answered on its own.
    async fn append_many(&self, mut appends: Vec<(String, NewEvent)>, written: &Written) {
        while !appends.is_empty() {
            let many = appends.iter().map(|(stream, event)| {
                StreamAppend::new(stream.clone(), ExpectedVersion::Any, [event.clone()])
            });
            let outcomes = match self.store.append_many(many.collect::<Vec<_>>()).await {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    again(&error, written).await;
                    continue;
                }
            };
            let mut left = Vec::new();
            for (append, outcome) in appends.into_iter().zip(outcomes) {
                match outcome {
                    Ok(_) => written.confirm(&[append.1.id()]),
                    Err(error) => {
                        again(&error, written).await;
                        left.push(append);
                    }
                }
            }
            appends = left;
        }
    }
}

/// What failed is repeated, if that is any use.
async fn again(error: &AppendError, written: &Written) {
    assert!(error.is_transient(), "an append was refused: {error}");
    written.failed.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(AGAIN).await;
}

struct Plain {
    url: String,
    number: usize,
    habit: Habit,
    view: &'static str,
    seed: Seed,
}

/// A transaction, decided on once, so that it can be repeated.
#[derive(Default)]
struct Planned {
    steps: Vec<String>,
    /// Behind the first append.
    pause: Option<Duration>,
    ids: Vec<Uuid>,
    rolls_back: bool,
}

impl Plain {
    async fn run(mut self, stop: Arc<AtomicBool>, written: Arc<Written>) {
        let mut session = Session::reopen(&self.url).await;
        while !stop.load(Ordering::Relaxed) {
            let planned = self.plan();
            let begun = Instant::now();
            while let Err(error) = planned.run(&session).await {
                assert!(begun.elapsed() < LIMIT * 2, "not answered for long: {}", describe(&error));
                written.failed.fetch_add(1, Ordering::Relaxed);
                if session.try_run("ROLLBACK").await.is_err() {
                    session = Session::reopen(&self.url).await;
                }
                tokio::time::sleep(AGAIN).await;
            }
            if matches!(self.habit, Habit::One) {
                written.took(begun);
            }
            match planned.rolls_back {
                true => drop(written.rolled_back.fetch_add(1, Ordering::Relaxed)),
                false => written.confirm(&planned.ids),
            }
            tokio::time::sleep(Duration::from_millis(self.seed.within(10..60))).await;
        }
    }

    /// An append of one event with an id of its own.
    fn append(&mut self, planned: &mut Planned) -> String {
        let id = Uuid::now_v7();
        planned.ids.push(id);
        // Streams and accounts that are nobody else's: long transactions hold up no others, and the
        // time that single appends take is not that of a wait for others.
        let (stream, account) = match self.habit {
            Habit::Long => {
                let own = format!("long-{}", self.seed.below(3));
                (own.clone(), own)
            }
            Habit::One => (format!("one-{}", self.number), format!("one-{}", self.number)),
            _ => (stream(&mut self.seed), format!("a-{}", self.seed.below(24))),
        };
        format!(
            "SELECT everfold.append_event('{stream}', NULL, 'Moved', '{{\"account\": \"{account}\"}}', \
             id => '{id}')"
        )
    }

    fn plan(&mut self) -> Planned {
        let read = format!("SELECT count(*) FROM {}", self.view);
        let mut planned = Planned::default();
        let begin = || "BEGIN".to_owned();
        let commit = || "COMMIT".to_owned();
        planned.steps = match self.habit {
            Habit::One => vec![self.append(&mut planned)],
            Habit::Several => {
                let (one, two) = (self.append(&mut planned), self.append(&mut planned));
                let mut steps = vec![begin(), one, "SAVEPOINT s".to_owned(), two.clone()];
                if self.seed.chance(0.4) {
                    steps.extend(["ROLLBACK TO s".to_owned(), two]);
                }
                planned.rolls_back = self.seed.chance(0.2);
                steps.push(if planned.rolls_back { "ROLLBACK".to_owned() } else { commit() });
                steps
            }
            Habit::Long => {
                planned.pause = Some(Duration::from_millis(self.seed.within(50..300)));
                vec![begin(), self.append(&mut planned), self.append(&mut planned), commit()]
            }
            Habit::AppendThenRead => {
                vec![format!("BEGIN; {}; {read}; COMMIT", self.append(&mut planned))]
            }
            Habit::ReadThenAppend => vec![begin(), read, self.append(&mut planned), commit()],
            Habit::Many => {
                let stream = stream(&mut self.seed);
                planned.ids = vec![Uuid::now_v7(), Uuid::now_v7()];
                let event = |(n, id): (usize, &Uuid)| {
                    format!(r#"{{"type": "Moved", "id": "{id}", "data": {{"account": "a-{n}"}}}}"#)
                };
                let events: Vec<String> = planned.ids.iter().enumerate().map(event).collect();
                vec![format!("SELECT everfold.append('{stream}', NULL, '[{}]')", events.join(", "))]
            }
        };
        planned
    }
}

impl Planned {
    async fn run(&self, session: &Session) -> Result<(), tokio_postgres::Error> {
        for (number, step) in self.steps.iter().enumerate() {
            if let Some(pause) = self.pause.filter(|_| number == 2) {
                tokio::time::sleep(pause).await;
            }
            session.try_run(step).await?;
        }
        Ok(())
    }
}
