//! A hostile load of appends: transactions that sleep, last, roll back, use savepoints and
//! exception blocks, are prepared and settled later, or are killed on the way.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use everfold_testkit::Seed;
use tokio::task::JoinSet;

use crate::session::{Session, describe, is_lost};

/// What the load is like.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) appenders: usize,
    pub(crate) duration: Duration,
    /// Whether transactions may be prepared (the server must allow it).
    pub(crate) prepare: bool,
    /// Longest of the short sleeps inside transactions, in milliseconds.
    pub(crate) sleep_ms_max: u64,
    /// One transaction in a hundred sleeps this long.
    pub(crate) long_ms: u64,
}

impl Default for Load {
    fn default() -> Self {
        let duration = Duration::from_secs(5);
        Load { appenders: 32, duration, prepare: true, sleep_ms_max: 12, long_ms: 1_000 }
    }
}

/// What the load did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) committed: u64,
    pub(crate) rolled_back: u64,
    pub(crate) long: u64,
    pub(crate) savepoints: u64,
    pub(crate) prepared: u64,
    /// Connections that were lost under an appender.
    pub(crate) lost: u64,
    /// (stream, first position, last position) of appends whose commit was confirmed.
    pub(crate) acknowledged: Vec<(String, i64, i64)>,
    /// Errors that nobody expected.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done { committed, rolled_back, long, savepoints, prepared, lost, .. } = self;
        write!(f, "{committed} transactions committed, {rolled_back} rolled back, {long} long, ")?;
        write!(f, "{savepoints} with savepoints, {prepared} prepared, {lost} connections lost")
    }
}

impl AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.long += other.long;
        self.savepoints += other.savepoints;
        self.prepared += other.prepared;
        self.lost += other.lost;
        self.acknowledged.extend(other.acknowledged);
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// Runs a load to its end. With `kill_at`, appenders' sessions on that database are ended at
/// random meanwhile; the number of those kills is the second result.
pub(crate) async fn run(
    load: &Load,
    url: &str,
    kill_at: Option<&str>,
    seed: &mut Seed,
) -> (Done, u64) {
    let deadline = Instant::now() + load.duration;
    let url = format!("{url}?application_name=appender");
    let mut appenders = JoinSet::new();
    for number in 0..load.appenders {
        let appender = Appender {
            number,
            load: load.clone(),
            url: url.clone(),
            seed: seed.fork(),
            done: Done::default(),
            unsettled: None,
        };
        appenders.spawn(appender.run(deadline));
    }
    let kills = match kill_at {
        Some(url) => kill_until(url, deadline, seed.fork()).await,
        None => 0,
    };
    let mut done = Done::default();
    while let Some(outcome) = appenders.join_next().await {
        done += outcome.expect("the appender does not panic");
    }
    (done, kills)
}

/// Ends the session of an appender every now and then.
async fn kill_until(url: &str, deadline: Instant, mut seed: Seed) -> u64 {
    let session = Session::open(url).await;
    let mut kills = 0;
    while Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(seed.within(50..250))).await;
        let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'appender' \
            AND datname = current_database() ORDER BY pid";
        let pids = session.numbers(pids).await;
        if !pids.is_empty() {
            session.run(&format!("SELECT pg_terminate_backend({})", seed.pick(&pids))).await;
            kills += 1;
        }
    }
    kills
}

struct Appender {
    number: usize,
    load: Load,
    url: String,
    seed: Seed,
    done: Done,
    /// A prepared transaction that must still be settled, and how.
    unsettled: Option<Prepared>,
}

struct Prepared {
    settle: String,
    commits: bool,
    appended: Vec<(String, i64, i64)>,
}

impl Appender {
    async fn run(mut self, deadline: Instant) -> Done {
        let mut session = None;
        while Instant::now() < deadline || self.unsettled.is_some() {
            let open = match session.take() {
                Some(open) => open,
                None => match Session::try_open(&self.url).await {
                    Ok(open) => open,
                    Err(_) => continue,
                },
            };
            match self.transaction(&open).await {
                Ok(()) => session = Some(open),
                Err(error) if is_lost(&error) => self.done.lost += 1,
                Err(error) => *self.done.errors.entry(describe(&error)).or_default() += 1,
            }
        }
        self.done
    }

    async fn transaction(&mut self, session: &Session) -> Result<(), tokio_postgres::Error> {
        if self.unsettled.is_some() {
            return self.settle(session).await;
        }
        let long = self.seed.chance(0.01);
        self.done.long += u64::from(long);
        session.try_run("BEGIN").await?;
        let mut appended = Vec::new();
        match self.seed.below(100) {
            0..8 => self.roll_back_to_savepoint(session, &mut appended).await?,
            8..16 => self.release_savepoint(session, &mut appended).await?,
            16..22 => self.exception_block(session, &mut appended).await?,
            _ => {
                for _ in 0..self.seed.within(1..4) {
                    self.append(session, &mut appended).await?;
                    self.sleep(session, false).await?;
                }
            }
        }
        self.append_to_shared(session, &mut appended).await?;
        self.sleep(session, long).await?;
        if self.load.prepare && self.seed.chance(0.06) {
            return self.prepare(session, appended).await;
        }
        if self.seed.chance(0.10) {
            session.try_run("ROLLBACK").await?;
            self.done.rolled_back += 1;
        } else {
            session.try_run("COMMIT").await?;
            self.acknowledge(appended);
        }
        Ok(())
    }

    fn acknowledge(&mut self, appended: Vec<(String, i64, i64)>) {
        self.done.committed += 1;
        self.done.acknowledged.extend(appended);
    }

    /// One append to a stream of this appender, through one of the doors.
    async fn append(
        &mut self,
        session: &Session,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        let stream = format!("appender-{}-{}", self.number, self.seed.below(3));
        let call = match self.seed.below(4) {
            0 => format!(
                "everfold.append('{stream}', NULL, ARRAY['A', 'B', 'C'], \
                 ARRAY['1', '2', '3']::jsonb[])"
            ),
            1 => format!("everfold.append('{stream}', NULL, '[{{\"type\": \"J\", \"data\": 1}}]')"),
            2 => format!(
                "everfold.append_many('[{{\"stream_id\": \"{stream}\", \"events\": \
                 [{{\"type\": \"M\", \"data\": 1}}, {{\"type\": \"M\", \"data\": 2}}]}}]')"
            ),
            _ => format!("everfold.append_event('{stream}', NULL, 'E', '{{}}')"),
        };
        self.call(session, stream, &call, appended).await
    }

    /// Sometimes the last append of a transaction goes to a stream that all share. Only the last:
    /// in another order appenders would deadlock, as documented.
    async fn append_to_shared(
        &mut self,
        session: &Session,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        if !self.seed.chance(0.1) {
            return Ok(());
        }
        let stream = format!("shared-{}", self.seed.below(20));
        let call = format!("everfold.append_event('{stream}', NULL, 'S', '{{}}')");
        self.call(session, stream, &call, appended).await
    }

    async fn call(
        &mut self,
        session: &Session,
        stream: String,
        call: &str,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        let rows =
            session.rows(&format!("SELECT first_position, last_position FROM {call}")).await?;
        let number = |column: usize| -> i64 {
            let text = rows[0][column].as_ref().expect("an append without condition is stored");
            text.parse().expect("a position is a number")
        };
        appended.push((stream, number(0), number(1)));
        Ok(())
    }

    async fn roll_back_to_savepoint(
        &mut self,
        session: &Session,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        self.done.savepoints += 1;
        if self.seed.chance(0.5) {
            self.append(session, appended).await?;
        }
        session.try_run("SAVEPOINT here").await?;
        self.append(session, &mut Vec::new()).await?;
        self.sleep(session, false).await?;
        session.try_run("ROLLBACK TO here").await?;
        self.sleep(session, false).await?;
        self.append(session, appended).await
    }

    async fn release_savepoint(
        &mut self,
        session: &Session,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        self.done.savepoints += 1;
        session.try_run("SAVEPOINT here").await?;
        self.append(session, appended).await?;
        self.sleep(session, false).await?;
        session.try_run("RELEASE here").await
    }

    /// An append that an exception block undoes, then one that stays.
    async fn exception_block(
        &mut self,
        session: &Session,
        appended: &mut Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        self.done.savepoints += 1;
        let undone = format!("appender-{}-0", self.number);
        let block = format!(
            "DO $$ BEGIN
                 PERFORM everfold.append_event('{undone}', NULL, 'Undone', '{{}}');
                 PERFORM pg_sleep(0.002);
                 RAISE EXCEPTION 'undo';
             EXCEPTION WHEN raise_exception THEN NULL; END $$"
        );
        session.try_run(&block).await?;
        self.append(session, appended).await
    }

    async fn prepare(
        &mut self,
        session: &Session,
        appended: Vec<(String, i64, i64)>,
    ) -> Result<(), tokio_postgres::Error> {
        let name = format!("load-{}-{}", self.number, self.seed.next_u64());
        let commits = self.seed.chance(0.8);
        let verb = if commits { "COMMIT" } else { "ROLLBACK" };
        let settle = format!("{verb} PREPARED '{name}'");
        // Noted before it is sent: if the answer is lost, it may be prepared all the same.
        self.unsettled = Some(Prepared { settle, commits, appended });
        session.try_run(&format!("PREPARE TRANSACTION '{name}'")).await?;
        self.done.prepared += 1;
        self.sleep(session, false).await?;
        self.settle(session).await
    }

    async fn settle(&mut self, session: &Session) -> Result<(), tokio_postgres::Error> {
        let Some(prepared) = &self.unsettled else { return Ok(()) };
        match session.try_run(&prepared.settle).await {
            // It was never prepared, or was settled just before the connection was lost.
            Err(error) if error.code().is_some_and(|code| code.code() == "42704") => {
                self.unsettled = None;
            }
            outcome => {
                outcome?;
                let prepared = self.unsettled.take().expect("it was there");
                match prepared.commits {
                    true => self.acknowledge(prepared.appended),
                    false => self.done.rolled_back += 1,
                }
            }
        }
        Ok(())
    }

    /// Time passes inside the transaction.
    async fn sleep(&mut self, session: &Session, long: bool) -> Result<(), tokio_postgres::Error> {
        let ms = match long {
            true => self.load.long_ms,
            false if self.seed.chance(0.5) => return Ok(()),
            false => self.seed.below(self.load.sleep_ms_max),
        };
        session.try_run(&format!("SELECT pg_sleep({ms} / 1000.0)")).await
    }
}
