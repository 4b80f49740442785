//! The failure: the server crashes or restarts, or the network between is cut, refuses or hangs,
//! under running workers; at each statement of a batch, and anywhere.
//!
//! At risk: a batch whose commit nobody knows about, applied again or left out; a worker that gives
//! up, or that waits for ever on a connection which is dead.
//!
//! Guaranteed: the position is read anew under the lease before each batch, so that what was committed
//! is not applied again; trouble is waited out; a connection that failed is never used again. The read
//! model is what a fold of the log gives.

use std::time::Duration;

use everfold::{ExpectedVersion, Pooler, RunnerHandle, Store};
use everfold_testkit::{Cluster, ClusterOptions, Proxy, TestDatabase, eventually};

use crate::session::{LIMIT, Session, empty_store, open, open_with};
use crate::workers::{
    applied, assert_exact, moved, open_worker, run, sharded, start_appends, stop_appends,
    until_moved,
};

/// A worker whose requests are given up soon.
async fn impatient(url: &str, name: &str) -> (Store, RunnerHandle) {
    let store = open_with(url, |options| {
        options.migrate = None;
        options.request_timeout = Duration::from_millis(500);
        options.connect_timeout = Duration::from_secs(1);
    })
    .await;
    let runner = run(&store, name, sharded()).await;
    (store, runner)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_survive_crashes_and_restarts_of_the_server() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let store = open(&database.url()).await;
    store.register(sharded()).await.unwrap();
    let appends = start_appends(&store);
    let mut workers = Vec::new();
    for name in ["first", "second"] {
        workers.push(run(&open_worker(&database.url()).await, name, sharded()).await);
    }
    for fault in ["crash", "restart", "crash", "crash"] {
        appends.until_confirmed(60).await;
        until_moved(&Session::open(&database.url()).await).await;
        match fault {
            "restart" => cluster.restart_fast().unwrap(),
            _ => {
                cluster.crash().unwrap();
                cluster.start_again().unwrap();
            }
        }
        until_moved(&Session::reopen(&database.url()).await).await;
    }
    appends.until_confirmed(60).await;
    let head = stop_appends(appends).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&Session::open(&database.url()).await, "3 crashes, 1 restart").await;
    for worker in workers {
        assert!(worker.failed().is_empty(), "{:?}", worker.failed());
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_behind_a_broken_network_goes_on_when_it_is_back() {
    let database = empty_store().await;
    let (store, truth) = (open(&database.url()).await, Session::open(&database.url()).await);
    store.register(sharded()).await.unwrap();
    let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
    let (handle, worker) = impatient(&database.url_at(proxy.address()), "behind a proxy").await;
    let appends = start_appends(&store);
    let unreachable = async || handle.high_water_mark().await.is_err();
    for fault in ["cut", "refuse", "stall", "cut", "stall"] {
        until_moved(&truth).await;
        match fault {
            "cut" => proxy.cut().await,
            "refuse" => {
                proxy.refuse().await;
                proxy.cut().await;
                eventually("the server cannot be reached", LIMIT, unreachable).await;
                proxy.accept().await.unwrap();
            }
            _ => {
                proxy.stall();
                eventually("the server does not answer", LIMIT, unreachable).await;
                proxy.resume();
            }
        }
        appends.until_confirmed(30).await;
        until_moved(&truth).await;
    }
    let head = stop_appends(appends).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&truth, "2 cuts, 1 refusal, 2 stalls").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_is_cut_off_is_replaced_and_comes_back_without_harm() {
    let database = empty_store().await;
    let (store, truth) = (open(&database.url()).await, Session::open(&database.url()).await);
    store.register(sharded()).await.unwrap();
    let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
    let (_, cut_off) = impatient(&database.url_at(proxy.address()), "cut off").await;
    let appends = start_appends(&store);
    until_moved(&truth).await;
    // Bytes hang, connections live: the server cannot know, and ends transactions by their timeout.
    proxy.stall();
    let replacing = run(&open_worker(&database.url()).await, "replacing", sharded()).await;
    appends.until_confirmed(50).await;
    let head = stop_appends(appends).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&truth, "one of two workers cut off").await;

    proxy.resume();
    let appends = start_appends(&store);
    let back = "SELECT count(DISTINCT w.name) FROM everfold.checkpoints c \
        JOIN everfold.workers w ON w.id = c.owner WHERE c.expires_at > clock_timestamp()";
    eventually("both have a share", LIMIT, async || truth.number(back).await == 2).await;
    appends.until_confirmed(50).await;
    let head = stop_appends(appends).await;
    store.wait_for("applied", head, LIMIT).await.unwrap();
    assert_exact(&truth, "both again").await;
    cut_off.stop().await;
    replacing.stop().await;
}

/// What a worker sends for one batch, in this order: a part of each statement.
const STATEMENTS: [&str; 8] = [
    "START TRANSACTION",
    "Locks the row of a shard",
    "FROM everfold.dead_letters",
    "everfold.events",
    ".apply_range(",
    "Moves a shard's checkpoint",
    "INSERT INTO everfold.run_log",
    "COMMIT",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_lost_at_each_statement_of_a_batch_neither_loses_nor_doubles() {
    let database = empty_store().await;
    let (store, truth) = (open(&database.url()).await, Session::open(&database.url()).await);
    let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
    // As behind a pooler: the text of each statement is sent each time.
    let behind = open_with(&database.url_at(proxy.address()), |options| {
        options.migrate = None;
        options.pooler = Pooler::Transaction;
    })
    .await;
    let worker = run(&behind, "behind a proxy", applied().build().unwrap()).await;
    for round in 0..2 {
        for (n, statement) in STATEMENTS.into_iter().enumerate() {
            // The server has done what it was asked to, and the answer is lost; or it never was.
            match round {
                0 => proxy.cut_after_client_message(statement.as_bytes()),
                _ => proxy.cut_before_client_message(statement.as_bytes()),
            }
            let head = store.append("s-0", ExpectedVersion::Any, [moved(n as u64), moved(1)]).await;
            let head = head.unwrap().last_position;
            eventually(statement, LIMIT, async || !proxy.is_waiting_for_message()).await;
            store.wait_for("applied", head, LIMIT).await.unwrap();
        }
    }
    assert_exact(&truth, "16 connections lost at chosen statements").await;
    assert!(worker.failed().is_empty(), "{:?}", worker.failed());
    worker.stop().await;
}
