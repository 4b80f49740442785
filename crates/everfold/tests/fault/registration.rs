//! The failure: an inline projection is registered, or its status changed, beside appends: behind a
//! transaction that stays open, and by a process that is cut off in the middle.
//!
//! At risk: an event that is in no read model, because its append did not see the projection; and
//! appends that wait for as long as somebody else's transaction lasts.
//!
//! Guaranteed: the registration waits for every append that may not have seen it, in short tries, and
//! the others wait for moments only; an append that was there first is counted, so the projection is
//! not silently active over a store with events; a registration that dies leaves nothing behind.

use std::time::{Duration, Instant};

use everfold::{ExpectedVersion, GenerationStatus, Projection, Store};
use everfold_testkit::eventually;

use crate::session::{LIMIT, Session, empty_store, event, open_with};

fn happened(name: &str) -> Projection {
    Projection::sql(name, 1)
        .create(format!("CREATE TABLE read_model.{name} (stream_id TEXT)"))
        .apply(format!("INSERT INTO read_model.{name} SELECT stream_id FROM batch"))
        .inline()
        .build()
        .expect("the projection is a good one")
}

/// Who waits for the registry gate exclusively.
const WAITS_FOR_GATE: &str = "SELECT count(*) FROM pg_locks WHERE NOT granted
    AND mode = 'ExclusiveLock' AND classid = 'everfold.store'::regclass
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Appends to other streams over three tries for the gate; the longest wait of one.
async fn append_beside(store: &Store, session: &Session) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        for waits in [true, false] {
            let deadline = Instant::now() + LIMIT;
            while (session.number(WAITS_FOR_GATE).await > 0) != waits {
                assert!(Instant::now() < deadline, "the gate is tried for again and again");
                let start = Instant::now();
                store.append("other", ExpectedVersion::Any, [event("other")]).await.unwrap();
                longest = longest.max(start.elapsed());
            }
        }
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registering_behind_an_open_append_holds_the_others_up_for_moments_only() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    let (open, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN").await;
    open.append("open").await;
    let registering = tokio::spawn({
        let store = store.clone();
        async move { store.register(happened("seen")).await }
    });
    let longest = append_beside(&store, &session).await;
    println!("the longest append beside a registration took {longest:?}");
    assert!(longest < Duration::from_secs(5), "an append waited {longest:?}");
    assert!(!registering.is_finished());
    open.run("COMMIT").await;
    let registered = registering.await.unwrap().unwrap();
    assert_eq!(registered.status, GenerationStatus::Building, "there are events that it lacks");
    assert!(registered.reason.unwrap().contains("everfold rebuild seen"));
}

/// The one append that did not see the projection is open when it is registered in an empty store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_did_not_see_the_registration_is_seen_by_it() {
    for commits in [true, false] {
        let database = empty_store().await;
        let store = open_with(&database.url(), |_| {}).await;
        let (open, session) =
            (Session::open(&database.url()).await, Session::open(&database.url()).await);
        open.run("BEGIN").await;
        open.append("open").await;
        let registering = tokio::spawn({
            let store = store.clone();
            async move { store.register(happened("seen")).await }
        });
        eventually("the registration waits", LIMIT, async || {
            session.number(WAITS_FOR_GATE).await > 0
        })
        .await;
        open.run(if commits { "COMMIT" } else { "ROLLBACK" }).await;
        let status = registering.await.unwrap().unwrap().status;
        match commits {
            true => assert_eq!(status, GenerationStatus::Building),
            false => {
                assert_eq!(status, GenerationStatus::Active);
                session.append("next").await;
                assert_eq!(session.number("SELECT count(*) FROM read_model.seen").await, 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pausing_behind_an_open_append_holds_the_others_up_for_moments_only() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    store.register(happened("seen")).await.unwrap();
    let (open, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN").await;
    open.append("open").await;
    let pausing = tokio::spawn({
        let store = store.clone();
        async move { store.pause("seen").await }
    });
    let longest = append_beside(&store, &session).await;
    assert!(longest < Duration::from_secs(5), "an append waited {longest:?}");
    open.run("COMMIT").await;
    pausing.await.unwrap().unwrap();
    session.append("after").await;
    // Every event is applied, or owed.
    let applied = session.number("SELECT count(*) FROM read_model.seen").await;
    let owed = session.number("SELECT count(*) FROM everfold.skips").await;
    assert_eq!(owed, 1);
    assert_eq!(applied + owed, session.number("SELECT count(*) FROM everfold.events").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_that_is_killed_leaves_nothing_behind() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |_| {}).await;
    let (open, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN").await;
    open.append("open").await;
    let registering = tokio::spawn({
        let store = store.clone();
        async move { store.register(happened("seen")).await }
    });
    let waiting = WAITS_FOR_GATE.replace("count(*)", "pid");
    eventually("the registration is killed", LIMIT, async || {
        for pid in session.numbers(&waiting).await {
            session.run(&format!("SELECT pg_terminate_backend({pid})")).await;
        }
        registering.is_finished()
    })
    .await;
    registering.await.unwrap().expect_err("its session was ended");
    let left = "SELECT (SELECT count(*) FROM everfold.projections)
        + (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'everfold\\_%')";
    assert_eq!(session.number(left).await, 0);
    open.run("ROLLBACK").await;
    let registered = store.register(happened("seen")).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Active);
}

/// The registration has the gate and then waits for a lock that somebody else holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_that_waits_with_the_gate_in_hand_lets_it_go_soon() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    let (open, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN; LOCK TABLE everfold.system_messages IN ACCESS EXCLUSIVE MODE").await;
    let registering = tokio::spawn({
        let store = store.clone();
        async move { store.register(happened("seen")).await }
    });
    let has_gate = "SELECT count(*) FROM pg_locks WHERE granted
        AND mode = 'ExclusiveLock' AND classid = 'everfold.store'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let mut longest = Duration::ZERO;
    for _ in 0..2 {
        eventually("it has the gate", LIMIT, async || session.number(has_gate).await > 0).await;
        let start = Instant::now();
        store.append("other", ExpectedVersion::Any, [event("other")]).await.unwrap();
        longest = longest.max(start.elapsed());
    }
    println!("the longest append beside a registration took {longest:?}");
    assert!(longest < Duration::from_secs(2), "an append waited {longest:?}");
    open.run("COMMIT").await;
    let registered = registering.await.unwrap().unwrap();
    assert_eq!(registered.status, GenerationStatus::Building, "there are events by now");
}
