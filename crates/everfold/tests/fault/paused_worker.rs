//! The failure: a worker is paused (SIGSTOP, a virtual machine that is moved, a long page-out) for
//! longer than its lease lives. Another one takes over; then the first goes on where it stood.
//!
//! At risk: a batch that was applied by the other in the meantime is applied again, and the
//! checkpoint is set back; or the projection stands still because the paused one holds its locks.
//!
//! Guaranteed: whoever lost the lease changes nothing, because every write of a holder carries its
//! epoch; and the server ends a transaction that nobody goes on with, so that others need not wait for
//! longer than a lease lives. A checkpoint that is written without the epoch is the negative control.

use std::sync::Mutex;

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::{ExpectedVersion, HandlerBatch, HandlerError, Projection, Runner, Store};
use everfold_testkit::eventually;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::checker::compare_keys;
use crate::session::{LIMIT, Session, empty_store, open};
use crate::workers::{
    Worker, applied, assert_exact, child_url, moved, open_worker, orders, quick, run, sharded,
    shown, small_batches, start_appends, stop_appends, stored,
};

/// How many shards each worker has now, by its name; names of processes end in their number.
async fn shards_of(truth: &Session, ending: &str) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM everfold.checkpoints c JOIN everfold.workers w ON w.id = c.owner \
         WHERE w.name LIKE '%{ending}' AND c.expires_at > clock_timestamp()"
    );
    truth.number(&sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_was_paused_while_idle_goes_on_without_harm() {
    let database = empty_store().await;
    let (url, truth) = (database.url(), Session::open(&database.url()).await);
    let store = open(&url).await;
    store.register(sharded()).await.unwrap();
    let first = Worker::start(&url);
    let first_has = async || shards_of(&truth, &format!(":{}", first.id())).await;
    for round in 1..=3 {
        eventually("the first worker has shards", LIMIT, async || first_has().await > 0).await;
        let head = store.append("s-0", ExpectedVersion::Any, [moved(round)]).await.unwrap();
        store.wait_for("applied", head.last_position, LIMIT).await.unwrap();
        first.pause();
        let second = run(&open_worker(&url).await, "second", sharded()).await;
        let appends = start_appends(&store);
        let all = async || shards_of(&truth, "second").await == 8;
        eventually("the other takes over", LIMIT, all).await;
        appends.until_confirmed(100).await;
        // It wakes with leases that are not its own any more, and with work in sight.
        first.resume();
        let shared = async || first_has().await > 0 && shards_of(&truth, "second").await > 0;
        eventually("both have a share again", LIMIT, shared).await;
        appends.until_confirmed(50).await;
        let head = stop_appends(appends).await;
        store.wait_for("applied", head, LIMIT).await.unwrap();
        assert_exact(&truth, &format!("paused and taken over {round} times")).await;
        second.stop().await;
    }
}

/// Waits in the middle of a batch, once, until it is told to go on.
struct Waiting(Mutex<Option<mpsc::UnboundedReceiver<String>>>);

impl Waiting {
    fn projection(orders: Option<mpsc::UnboundedReceiver<String>>) -> Projection {
        Projection::postgres_handler("applied", 1, Waiting(Mutex::new(orders)))
            .events(["Moved"])
            .settings(small_batches())
            .build()
            .unwrap()
    }
}

impl PostgresHandler for Waiting {
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
            for event in batch.events {
                let data: serde_json::Value = event.data_as()?;
                let (account, position) = (data["account"].as_str().unwrap(), event.position);
                let write = format!(
                    "INSERT INTO {}.applied AS a VALUES ('{account}', ARRAY[{position}]) \
                     ON CONFLICT (account) DO UPDATE SET positions = a.positions || {position}::bigint",
                    batch.home
                );
                transaction.batch_execute(&write).await?;
            }
            let orders = self.0.lock().unwrap().take();
            if let Some(mut orders) = orders {
                println!("all is written");
                // It keeps its thread, so that the engine's time limit cannot stop it when it wakes.
                tokio::task::block_in_place(|| orders.blocking_recv());
                println!("going on");
            }
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is paused in the middle of a batch"]
async fn child_waits_in_a_batch() {
    let Some(url) = child_url() else { return };
    let store = open_worker(&url).await;
    let (go_on, wait) = mpsc::unbounded_channel();
    let runner = Runner::new(&store).projection(Waiting::projection(Some(wait))).options(quick());
    let _runner = runner.start().await.unwrap();
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        // Nobody waits for a second one.
        let _ = go_on.send(order);
    }
}

async fn fill(store: &Store, events: u64) -> everfold::Position {
    let mut last = None;
    for n in 0..events {
        last = Some(store.append("s-1", ExpectedVersion::Any, [moved(n)]).await.unwrap());
    }
    last.unwrap().last_position
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_was_paused_in_a_batch_is_fenced_out_and_changes_nothing() {
    let database = empty_store().await;
    let (url, truth) = (database.url(), Session::open(&database.url()).await);
    let store = open(&url).await;
    store.register(Waiting::projection(None)).await.unwrap();
    let head = fill(&store, 50).await;
    let mut paused = Worker::start_test("paused_worker::child_waits_in_a_batch", &url, &[]);
    paused.until_it_says("all is written");
    paused.pause();
    // The paused transaction has the checkpoint's row: the server ends it, and the other goes on.
    let other = run(&open_worker(&url).await, "other", Waiting::projection(None)).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    let before = shown(&truth).await;
    assert!(compare_keys(&stored(&truth).await, &before).is_exact());

    paused.resume();
    paused.tell("go on");
    paused.until_it_says("going on");
    // It lives on, as one worker among others.
    let name = format!(":{}", paused.id());
    let live = format!(
        "SELECT count(*) FROM everfold.workers WHERE name LIKE '%{name}' \
         AND expires_at > clock_timestamp()"
    );
    eventually("it gives signs of life", LIMIT, async || truth.number(&live).await == 1).await;
    assert_eq!(shown(&truth).await, before, "it changed nothing");
    let head = fill(&store, 30).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&truth, "paused in a batch").await;
    other.stop().await;
}

/// The process gives signs of life all the time; only its handler never does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_whose_handler_blocks_says_so_and_leaves_the_shard_to_another() {
    let database = empty_store().await;
    let (url, truth) = (database.url(), Session::open(&database.url()).await);
    let store = open(&url).await;
    store.register(Waiting::projection(None)).await.unwrap();
    let head = fill(&store, 50).await;
    let mut blocked = Worker::start_test("paused_worker::child_waits_in_a_batch", &url, &[]);
    blocked.until_it_says("all is written");
    let name = format!(":{}", blocked.id());
    let told = async || {
        let status = store.projection("applied").await.unwrap();
        let failure = status.shards[0].failure.clone().unwrap_or_default();
        failure.contains("does not come back") && failure.contains(&name)
    };
    eventually("status says why", LIMIT, told).await;
    // Alone it keeps what it has, or takes it again where a busy machine was late with its sign of life.
    eventually("it has its shard", LIMIT, async || shards_of(&truth, &name).await == 1).await;
    let other = run(&open_worker(&url).await, "other", Waiting::projection(None)).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    let before = shown(&truth).await;
    assert!(compare_keys(&stored(&truth).await, &before).is_exact());
    assert_eq!(shards_of(&truth, "other").await, 1);

    blocked.tell("go on");
    blocked.until_it_says("going on");
    let head = fill(&store, 30).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&truth, "blocked in a batch").await;
    other.stop().await;
    // It is a worker like any other again.
    let head = fill(&store, 10).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    eventually("it has its shard again", LIMIT, async || shards_of(&truth, &name).await == 1).await;
    assert_exact(&truth, "blocked in a batch, and back").await;
}

const LOCK: &str = include_str!("../../sql/postgres/statements/lock_checkpoint.sql");
const ADVANCE: &str = include_str!("../../sql/postgres/statements/advance_checkpoint.sql");

/// A lease as the engine's statements get it.
struct Held {
    generation: i64,
    epoch: i64,
}

impl Held {
    /// Takes the only shard of the only projection, once it is free.
    async fn take(session: &Session, worker: u8, ttl_ms: u32) -> Held {
        let generation =
            session.number("SELECT id FROM everfold.generations WHERE status <> 'spare'").await;
        let tick = format!(
            "SELECT epoch FROM everfold.tick('00000000-0000-7000-8000-00000000000{worker}', \
             'worker {worker}', ARRAY[{generation}], {ttl_ms})"
        );
        eventually("the lease is free", LIMIT, async || !session.numbers(&tick).await.is_empty())
            .await;
        let epoch = session.number("SELECT epoch FROM everfold.checkpoints").await;
        Held { generation, epoch }
    }

    /// A statement of the engine with its parameters.
    fn fill(&self, sql: &str, from: i64, to: i64) -> String {
        let parameters = [self.generation, 0, self.epoch, from, to];
        let sql: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
        let numbered = parameters.iter().enumerate();
        numbered.fold(sql.join("\n"), |sql, (n, value)| {
            sql.replace(&format!("${}", n + 1), &value.to_string())
        })
    }

    /// Applies what stands in the log up to a position and moves the checkpoint; whether it moved.
    async fn apply(&self, session: &Session, advance: &str, to: i64) -> bool {
        let home = session
            .rows("SELECT home FROM everfold.generations WHERE status <> 'spare'")
            .await
            .unwrap();
        let home = home[0][0].as_deref().unwrap();
        session.run(&format!("BEGIN; SELECT {home}.apply_range(0, {to}, 0)")).await;
        let moved = !session.numbers(&self.fill(advance, 0, to)).await.is_empty();
        session.run(if moved { "COMMIT" } else { "ROLLBACK" }).await;
        moved
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_that_is_written_without_the_epoch_doubles_what_the_other_applied() {
    let fence = "AND c.epoch = $3 AND c.position = $4";
    assert_eq!(ADVANCE.matches(fence).count(), 1, "the fence of the engine's statement");
    let without = ADVANCE.replace(fence, "");
    for (name, advance, doubles) in [("with", ADVANCE, false), ("without", &without, true)] {
        let database = empty_store().await;
        let store = open(&database.url()).await;
        store.register(applied().build().unwrap()).await.unwrap();
        let head = fill(&store, 20).await.0 as i64;
        let [first, second] =
            [Session::open(&database.url()).await, Session::open(&database.url()).await];
        let old = Held::take(&first, 1, 50).await;
        let new = Held::take(&second, 2, 60_000).await;
        assert!(new.epoch > old.epoch);
        assert!(new.apply(&second, ADVANCE, head).await);
        // The first one goes on: its next batch finds no lease …
        assert!(first.numbers(&old.fill(LOCK, 0, 0)).await.is_empty());
        // … and a batch that it had begun before cannot be finished.
        assert_eq!(old.apply(&first, advance, head).await, doubles);
        let comparison = compare_keys(&stored(&first).await, &shown(&first).await);
        println!("{name} the epoch: {comparison}");
        assert_eq!(comparison.doubled.len(), if doubles { 20 } else { 0 });
        assert_eq!(comparison.is_exact(), !doubles);
    }
}
