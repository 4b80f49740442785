//! The failure: the server is restarted, crashes, or the network between is cut, refuses or hangs,
//! while a follower reads.
//!
//! At risk: a projection that stops with an error at night; or one that goes on with a hole or
//! with events twice.
//!
//! Guaranteed: [`Store::follow`](everfold::Store::follow) waits out whatever passes, and goes on
//! just behind the last event it gave: none missing, none twice, in order. A read that does not
//! follow is the negative control: the same fault ends it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use everfold::{Store, StoreErrorKind};
use everfold_testkit::{Cluster, ClusterOptions, PgBouncer, Proxy, TestDatabase, eventually};
use tokio::task::JoinHandle;

use crate::checker::compare;
use crate::session::{LIMIT, Session, open_with};
use crate::steady::SteadyAppends;

/// A follower behind a proxy, and what it has seen.
struct Follower {
    store: Store,
    seen: Arc<Mutex<Vec<i64>>>,
    task: JoinHandle<()>,
}

impl Follower {
    async fn start(url: &str) -> Follower {
        let store = open_with(url, |options| {
            options.migrate = None;
            options.request_timeout = Duration::from_millis(500);
            options.connect_timeout = Duration::from_millis(1_000);
            options.page_events_max = 50;
        })
        .await;
        let seen = Arc::<Mutex<Vec<i64>>>::default();
        let task = tokio::spawn(follow(store.clone(), Arc::clone(&seen)));
        Follower { store, seen, task }
    }

    fn last(&self) -> i64 {
        self.seen.lock().unwrap().last().copied().unwrap_or(0)
    }

    /// Waits until it has passed everything that is stored now.
    async fn until_caught_up(&self, truth: &Session) {
        let stored = *truth.positions().await.last().expect("something is stored");
        eventually("the follower goes on", LIMIT, async || {
            assert!(!self.task.is_finished(), "the follower ended");
            self.last() >= stored
        })
        .await;
    }
}

async fn follow(store: Store, seen: Arc<Mutex<Vec<i64>>>) {
    let mut events = store.follow().events();
    while let Some(event) = events.next().await.expect("a follower waits trouble out") {
        seen.lock().unwrap().push(event.position.0 as i64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_survives_restarts_crashes_and_a_broken_network_and_misses_nothing() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let store = open_with(&database.url(), |_| {}).await;
    let proxy = Proxy::start(cluster.address()).await.unwrap();
    let follower = Follower::start(&database.url_at(proxy.address())).await;
    let appends = SteadyAppends::start(&store, 4);

    for fault in ["restart", "crash", "cut", "refuse", "stall", "crash"] {
        appends.until_confirmed(60).await;
        let witness = Session::open(&database.url_at(proxy.address())).await;
        match fault {
            "restart" => cluster.restart_fast().unwrap(),
            "crash" => {
                cluster.crash().unwrap();
                cluster.start_again().unwrap();
            }
            "cut" => proxy.cut().await,
            "refuse" => {
                proxy.refuse().await;
                proxy.cut().await;
                until_unreachable(&follower.store).await;
                proxy.accept().await.unwrap();
            }
            _ => {
                proxy.stall();
                until_unanswered(&follower.store).await;
                proxy.resume();
            }
        }
        if fault != "stall" {
            eventually("the fault ends connections", LIMIT, async || witness.is_closed()).await;
        }
        let before = follower.last();
        let truth = Session::reopen(&database.url()).await;
        follower.until_caught_up(&truth).await;
        println!("{fault}: the follower was at {before} and is at {}", follower.last());
    }

    let (confirmed, repeats) = appends.stop().await;
    let truth = Session::open(&database.url()).await;
    follower.until_caught_up(&truth).await;
    follower.task.abort();
    let stored = truth.positions().await;
    assert_eq!(stored.len(), confirmed.len());
    let comparison = compare(&stored, &follower.seen.lock().unwrap());
    println!("{} events, {repeats} appends repeated: follower {comparison}", stored.len());
    assert!(comparison.is_exact(), "{comparison:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_behind_a_pooler_survives_what_the_pooler_says_about_a_lost_server() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let store = open_with(&database.url(), |_| {}).await;
    let pooler = PgBouncer::start(&cluster.server()).unwrap();
    let url = format!("{}?pooler=transaction", pooler.url(database.name()));
    let follower = Follower::start(&url).await;
    let pooled = SteadyAppends::start(&Store::open(&url).await.unwrap(), 2);
    let appends = SteadyAppends::start(&store, 2);
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND datname = current_database()";
    let mut kills = 0;
    for _ in 0..20 {
        appends.until_confirmed(20).await;
        kills += Session::open(&database.url()).await.number(kill).await;
    }
    cluster.crash().unwrap();
    cluster.start_again().unwrap();
    appends.until_confirmed(20).await;
    pooled.until_confirmed(20).await;

    let confirmed = [appends.stop().await.0, pooled.stop().await.0].concat();
    let truth = Session::open(&database.url()).await;
    follower.until_caught_up(&truth).await;
    let stored = truth.positions().await;
    // The two loads use streams of the same names, so only their number can be compared.
    assert_eq!(stored.len(), confirmed.len());
    let comparison = compare(&stored, &follower.seen.lock().unwrap());
    println!("{} events behind a pooler, {kills} kills, 1 crash: {comparison}", stored.len());
    assert!(comparison.is_exact(), "{comparison:?}");
}

/// Waits until a request got no answer in time.
async fn until_unanswered(store: &Store) {
    eventually("a request is not answered in time", LIMIT, async || {
        store.high_water_mark().await.is_err_and(|error| error.is_transient())
    })
    .await;
}

/// Waits until no new connection can be made.
async fn until_unreachable(store: &Store) {
    eventually("no connection can be made", LIMIT, async || {
        store.high_water_mark().await.is_err_and(|e| e.kind() == StoreErrorKind::Unreachable)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_that_does_not_follow_is_ended_by_the_same_fault() {
    let database = crate::session::empty_store().await;
    let truth = Session::open(&database.url()).await;
    for _ in 0..20 {
        truth.append("cart").await;
    }
    let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
    let url = database.url_at(proxy.address());
    let store = open_with(&url, |options| options.page_events_max = 1).await;
    let mut events = store.read_all().events();
    events.next().await.unwrap().unwrap();
    proxy.refuse().await;
    proxy.cut().await;
    let error = loop {
        match events.next().await {
            Ok(event) => assert!(event.is_some(), "the read got past the fault"),
            Err(error) => break error,
        }
    };
    let everfold::ReadError::Store(error) = error else { panic!("{error:?}") };
    assert!(error.is_transient(), "the caller may try again: {error}");
}
