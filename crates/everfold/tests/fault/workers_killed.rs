//! The failure: workers are killed (SIGKILL) at any moment, their sessions are ended by the server's
//! operator, and processes come and go, while appends go on; directly and behind a pooler.
//!
//! At risk: a batch applied twice because its checkpoint was not written, or left out because it was;
//! two workers on one shard; a shard that nobody takes up again.
//!
//! Guaranteed: the read model is what a fold of the log by position gives, for each key. Read model
//! and checkpoint are one transaction, and the lease of a dead worker runs out. A handler that writes
//! past the transaction is the negative control: the same kill doubles what it wrote.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::{
    ExpectedVersion, HandlerBatch, HandlerError, Position, Projection, Runner, Store, StreamAppend,
};
use everfold_testkit::{PgBouncer, Seed};
use futures::future::BoxFuture;

use crate::checker::{Comparison, compare_keys};
use crate::session::{LIMIT, Session, describe, empty_store, open};
use crate::workers::{
    Worker, assert_exact, child_url, moved, open_worker, orders, quick, sharded, shown, signal,
    small_batches, start_appends, stop_appends, stored, until_moved,
};

/// What was done to workers.
#[derive(Debug, Default)]
struct Done {
    killed: u64,
    left: u64,
    sessions: i64,
}

/// Workers that come and go, as many as are named, one number after the other.
async fn come_and_go(truth: &Session, url: &str, numbers: &[usize], rounds: usize) -> Done {
    let mut seed = Seed::from_env_or_random();
    let (mut workers, mut done) = (Vec::new(), Done::default());
    for &number in numbers {
        while workers.len() < number {
            workers.push(Worker::start(url));
        }
        for _ in 0..rounds {
            until_moved(truth).await;
            // Anywhere in the work.
            tokio::time::sleep(Duration::from_millis(seed.below(100))).await;
            let place = usize::try_from(seed.below(number as u64)).unwrap();
            match seed.below(10) {
                0..6 => {
                    workers[place].kill();
                    workers[place] = Worker::start(url);
                    done.killed += 1;
                }
                6..8 => {
                    workers.swap_remove(place).leave().await;
                    workers.push(Worker::start(url));
                    done.left += 1;
                }
                _ => done.sessions += end_sessions(truth).await,
            }
        }
    }
    done
}

/// Ends the workers' sessions, as an operator or a failover does.
async fn end_sessions(truth: &Session) -> i64 {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'worker' AND datname = current_database()";
    truth.number(end).await
}

async fn story(store: &Store, truth: &Session, url: &str, numbers: &[usize], rounds: usize) {
    store.register(sharded()).await.unwrap();
    let appends = start_appends(store);
    let done = come_and_go(truth, url, numbers, rounds).await;
    let head = stop_appends(appends).await;
    let last = Worker::start(url);
    store.wait_for("applied", head, LIMIT).await.unwrap();
    let name = format!("{numbers:?} processes, {done:?}");
    assert_exact(truth, &name).await;
    last.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_five_and_ten_processes_that_come_go_and_die_apply_each_event_once_in_order() {
    let database = empty_store().await;
    let (store, truth) = (open(&database.url()).await, Session::open(&database.url()).await);
    let url = format!("{}?application_name=worker", database.url());
    story(&store, &truth, &url, &[2, 5, 10], 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_behind_a_pooler_that_die_apply_each_event_once_in_order() {
    let database = empty_store().await;
    let (store, truth) = (open(&database.url()).await, Session::open(&database.url()).await);
    let pooler = PgBouncer::start(database.server()).unwrap();
    let url = format!("{}?pooler=transaction&application_name=worker", pooler.url(database.name()));
    story(&store, &truth, &url, &[3], 12).await;
}

/// Where in a batch a handler kills its own process, and whether it writes as it should.
const DIE_AT: &str = "EVERFOLD_TEST_DIE_AT";
const OUTSIDE: &str = "EVERFOLD_TEST_OUTSIDE";
const POINTS: [&str; 3] = ["nothing is written", "half is written", "all is written"];
/// The batch in which it dies: the first is committed.
const LAST_BATCH: u32 = 2;

/// Writes the positions of each account, and dies at its point.
#[derive(Default)]
struct Mortal {
    die_at: Option<String>,
    /// Write through another session, so past the transaction.
    outside: Option<String>,
    batches: AtomicU32,
}

impl Mortal {
    fn from_environment() -> Mortal {
        let outside = std::env::var(OUTSIDE).is_ok().then(|| child_url().unwrap());
        Mortal { die_at: std::env::var(DIE_AT).ok(), outside, batches: AtomicU32::new(0) }
    }

    fn projection(self) -> Projection {
        let mut settings = small_batches();
        settings.batch_events = 10;
        Projection::postgres_handler("applied", 1, self)
            .events(["Moved"])
            .key_fields(["data.account"])
            .settings(settings)
            .build()
            .unwrap()
    }

    fn reached(&self, point: &str, batch: u32) {
        if batch == LAST_BATCH && self.die_at.as_deref() == Some(point) {
            signal(std::process::id(), "-KILL");
        }
    }
}

impl PostgresHandler for Mortal {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let create = crate::workers::CREATE.replace("read_model.", &format!("{home}."));
            Ok(transaction.batch_execute(&create).await?)
        })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
            self.reached(POINTS[0], number);
            let outside = match &self.outside {
                Some(url) => Some(Session::open(url).await),
                None => None,
            };
            for (n, event) in batch.events.iter().enumerate() {
                if n == batch.events.len() / 2 {
                    self.reached(POINTS[1], number);
                }
                let data: serde_json::Value = event.data_as()?;
                let (account, position) = (data["account"].as_str().unwrap(), event.position);
                let write = format!(
                    "INSERT INTO {}.applied AS a VALUES ('{account}', ARRAY[{position}]) \
                     ON CONFLICT (account) DO UPDATE SET positions = a.positions || {position}::bigint",
                    batch.home
                );
                match &outside {
                    Some(session) => session.try_run(&write).await.map_err(|e| describe(&e))?,
                    None => transaction.batch_execute(&write).await?,
                }
            }
            self.reached(POINTS[2], number);
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that kills itself in the middle of a batch"]
async fn child_dies_in_a_batch() {
    let Some(url) = child_url() else { return };
    let store = open_worker(&url).await;
    let projection = Mortal::from_environment().projection();
    let runner = Runner::new(&store).projection(projection).options(short_leases());
    let _runner = runner.start().await.unwrap();
    let mut orders = orders();
    while orders.recv().await.is_some() {}
}

fn short_leases() -> everfold::RunnerOptions {
    let mut options = quick();
    options.lease_ttl = Duration::from_millis(600);
    options.heartbeat = Duration::from_millis(150);
    options
}

async fn fill(store: &Store, events: u64) -> Position {
    let append = |n| StreamAppend::new(format!("s-{}", n % 4), ExpectedVersion::Any, [moved(n)]);
    let outcomes = store.append_many((0..events).map(append)).await.unwrap();
    outcomes.into_iter().map(|outcome| outcome.unwrap().last_position).max().unwrap()
}

/// Lets a process die at each point, then a healthy worker finish.
async fn die_at(points: &[&str], outside: bool) -> Comparison {
    let database = empty_store().await;
    let (url, truth) = (database.url(), Session::open(&database.url()).await);
    let store = open(&url).await;
    let head = fill(&store, 150).await;
    for point in points {
        let mut environment = vec![(DIE_AT, *point)];
        if outside {
            environment.push((OUTSIDE, "yes"));
        }
        let test = "workers_killed::child_dies_in_a_batch";
        let mut worker = Worker::start_test(test, &url, &environment);
        let status = worker.ended().await;
        assert_eq!(status.signal(), Some(9), "{point}: the child killed itself: {status}");
    }
    let mortal = Mortal { outside: outside.then(|| url.clone()), ..Mortal::default() };
    let runner = Runner::new(&store).projection(mortal.projection()).options(short_leases());
    let runner = runner.start().await.unwrap();
    store.wait_for("applied", head, LIMIT).await.unwrap();
    let comparison = compare_keys(&stored(&truth).await, &shown(&truth).await);
    let batches = truth.number("SELECT count(*) FROM everfold.run_log").await;
    println!("killed at {points:?}: 150 events, {batches} batches: {comparison}");
    runner.stop().await;
    comparison
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_killed_at_each_point_of_a_batch_leaves_nothing_of_it() {
    let comparison = die_at(&POINTS, false).await;
    assert!(comparison.is_exact(), "{comparison:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_writes_past_the_transaction_doubles_after_the_same_kill() {
    let comparison = die_at(&POINTS[2..], true).await;
    assert_eq!(comparison.doubled.len(), 10, "a batch was written twice: {comparison:?}");
    assert!(comparison.missed.is_empty(), "{comparison:?}");
}
