//! The failure: somebody's transaction has appended to a stream and stays open. Whoever appends to
//! that stream must wait for it.
//!
//! At risk: the appends to all other streams that happen to share a group with the one that waits;
//! and everything else that needs a connection, once all of them wait.
//!
//! Guaranteed: a group never waits for a stream. The member of the busy stream is taken out, waits
//! alone and is stored when the other transaction ends; the others are stored at once, also when
//! more members wait than there are connections. Appends that wait leave connections for the rest,
//! and one that its caller gave up leaves none behind. The negative control is one call that does
//! wait for all its streams, as `append_many` is documented to: it is held up as a whole.

use std::time::Duration;

use everfold::{
    AppendError, Appended, DocumentProjection, ExpectedVersion, Projection, RecordedEvent, Store,
    StoreOptions, StreamAppend, Version,
};
use everfold_testkit::{TestDatabase, eventually};
use futures::future::join_all;
use tokio::task::JoinHandle;

use crate::checker::assert_versions_without_holes;
use crate::session::{LIMIT, Session, empty_store, event, open_with};

/// Much shorter than the busy transaction, which ends only when the test says so.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Documents that one event is too much for, so that its group is done again one by one.
struct Picky;

#[derive(serde::Deserialize)]
enum Event {
    Happened {
        /// The other session's has none.
        #[serde(default)]
        token: String,
    },
}

impl DocumentProjection for Picky {
    type Event = Event;
    type Document = u64;

    fn evolve(&self, n: Option<u64>, event: &Event, _: &RecordedEvent) -> Option<u64> {
        let Event::Happened { token } = event;
        assert!(token != "refused", "it is refused");
        Some(n.unwrap_or_default() + 1)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_that_is_done_one_by_one_goes_on_behind_a_busy_stream() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.pool_size = 4).await;
    store
        .register(Projection::document("picky", 1, Picky).inline().build().unwrap())
        .await
        .unwrap();
    let foreign = Session::open(&database.url()).await;
    foreign.run("BEGIN").await;
    foreign.append("busy").await;
    let append = |n: usize| {
        let (stream, token) = match n % 5 {
            1 => (format!("refused-{n}"), "refused"),
            3 => ("busy".to_owned(), "waits"),
            _ => (format!("other-{n}"), "other"),
        };
        let store = store.clone();
        tokio::spawn(
            async move { store.append(stream, ExpectedVersion::Any, [event(token)]).await },
        )
    };
    let mut appends: Vec<_> = (0..60).map(append).collect();
    let mut waiting = Vec::new();
    for (n, task) in appends.drain(..).enumerate() {
        if n % 5 == 3 {
            waiting.push(task);
            continue;
        }
        let outcome = tokio::time::timeout(AT_ONCE, task).await;
        let outcome = outcome.expect("the others are not held up").unwrap();
        match outcome {
            Err(AppendError::Projection { .. }) if n % 5 == 1 => {}
            outcome => assert!(outcome.is_ok() && n % 5 != 1, "{n}: {outcome:?}"),
        }
    }
    foreign.run("COMMIT").await;
    for task in waiting {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_is_not_held_up_by_a_busy_stream() {
    for end in ["COMMIT", "ROLLBACK"] {
        let database = empty_store().await;
        let store = open_with(&database.url(), |options| options.pool_size = 4).await;
        let foreign = Session::open(&database.url()).await;
        foreign.run("BEGIN").await;
        foreign.append("busy").await;

        // Far more members wait for the busy stream than there are connections.
        let waiting: Vec<_> = (0..12)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move {
                    store.append("busy", ExpectedVersion::Any, [event(&n.to_string())]).await
                })
            })
            .collect();
        for round in 0..5 {
            let others = (0..20).map(|n| {
                let expected = ExpectedVersion::Exact(Version(round));
                store.append(format!("other-{n}"), expected, [event("other")])
            });
            let outcomes = tokio::time::timeout(AT_ONCE, join_all(others)).await;
            for outcome in outcomes.expect("the other streams are not held up") {
                outcome.unwrap();
            }
        }
        assert!(waiting.iter().all(|task| !task.is_finished()), "the stream is still held");
        assert_eq!(foreign.number("SELECT count(*) FROM everfold.events").await, 101);

        foreign.run(end).await;
        let mut versions = Vec::new();
        for task in waiting {
            let outcome = tokio::time::timeout(LIMIT, task).await.expect("the stream is free");
            versions.push(outcome.unwrap().unwrap().version.0);
        }
        versions.sort_unstable();
        let first = if end == "COMMIT" { 2 } else { 1 };
        assert_eq!(versions, (first..first + 12).collect::<Vec<u64>>(), "{end}");
        assert_versions_without_holes(&foreign).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_waits_for_all_its_streams_is_held_up_as_a_whole() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |_| {}).await;
    let foreign = Session::open(&database.url()).await;
    foreign.run("BEGIN").await;
    foreign.append("busy").await;
    let many = (0..20).map(|n| format!("other-{n}")).chain(["busy".to_owned()]);
    let many: Vec<StreamAppend> = many
        .map(|stream| StreamAppend::new(stream, ExpectedVersion::Any, [event("many")]))
        .collect();
    let held = tokio::spawn({
        let store = store.clone();
        async move { store.append_many(many).await }
    });
    until_waiting(&foreign).await;
    assert_eq!(foreign.number("SELECT count(*) FROM everfold.events").await, 1);
    assert!(!held.is_finished());
    foreign.run("COMMIT").await;
    let outcomes = held.await.unwrap().unwrap();
    assert!(outcomes.len() == 21 && outcomes.iter().all(Result::is_ok));
}

/// A foreign transaction that has appended to the stream `busy`, and a store beside it.
async fn scene(change: impl FnOnce(&mut StoreOptions)) -> (TestDatabase, Store, Session) {
    let database = empty_store().await;
    let store = open_with(&database.url(), change).await;
    let foreign = Session::open(&database.url()).await;
    foreign.run("BEGIN").await;
    foreign.append("busy").await;
    (database, store, foreign)
}

/// So many appends that wait for the busy stream, each in a task of its own.
fn wait_for_busy(store: &Store, count: usize) -> Vec<JoinHandle<Result<Appended, AppendError>>> {
    let append = |n: usize| {
        let (store, event) = (store.clone(), event(&n.to_string()));
        tokio::spawn(async move { store.append("busy", ExpectedVersion::Any, [event]).await })
    };
    (0..count).map(append).collect()
}

/// Waits until somebody waits for a stream.
async fn until_waiting(session: &Session) {
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("somebody waits for a stream", LIMIT, async || session.number(waiting).await > 0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_on_another_stream_is_not_held_up_by_a_busy_one() {
    let (_database, store, foreign) = scene(|options| options.pool_size = 4).await;
    let waiting = wait_for_busy(&store, 12);
    for _ in 0..10 {
        let hot = (0..40).map(|_| store.append("hot", ExpectedVersion::Any, [event("hot")]));
        let outcomes = tokio::time::timeout(AT_ONCE, join_all(hot)).await;
        for outcome in outcomes.expect("the hot stream is not held up by the busy one") {
            outcome.unwrap();
        }
    }
    foreign.run("COMMIT").await;
    for task in waiting {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_not_held_up_by_appends_that_wait() {
    for group_append in [true, false] {
        let change = |options: &mut StoreOptions| {
            options.pool_size = 4;
            options.group_append = group_append;
        };
        let (database, store, foreign) = scene(change).await;
        let other = Session::open(&database.url()).await;
        let waiting = wait_for_busy(&store, 12);
        let many: Vec<_> = (0..6)
            .map(|_| {
                let store = store.clone();
                let append = StreamAppend::new("busy", ExpectedVersion::Any, [event("many")]);
                tokio::spawn(async move { store.append_many([append]).await })
            })
            .collect();
        let reading = tokio::time::timeout(AT_ONCE, async {
            for _ in 0..20 {
                other.append("other").await;
                store.read_stream("other").collect().await.unwrap();
                store.high_water_mark().await.unwrap();
            }
        });
        reading.await.expect("reading is not held up");
        foreign.run("COMMIT").await;
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        for task in many {
            task.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_a_caller_gave_up_does_not_keep_its_connection() {
    for group_append in [true, false] {
        let change = |options: &mut StoreOptions| {
            options.pool_size = 2;
            options.group_append = group_append;
        };
        let (_database, store, foreign) = scene(change).await;
        for _ in 0..4 {
            let tasks = wait_for_busy(&store, 1);
            until_waiting(&foreign).await;
            tasks.iter().for_each(JoinHandle::abort);
        }
        let append = store.append("other", ExpectedVersion::Any, [event("other")]);
        let outcome = tokio::time::timeout(AT_ONCE, append).await;
        outcome.expect("the connections are free").unwrap();
        foreign.run("COMMIT").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_is_not_answered_in_time_does_not_stay_on_the_server() {
    let change = |options: &mut StoreOptions| {
        options.request_timeout = Duration::from_millis(200);
        options.pool_size = 4;
    };
    let (_database, store, foreign) = scene(change).await;
    for task in wait_for_busy(&store, 4) {
        let outcome = task.await.unwrap();
        assert!(outcome.is_err_and(|error| error.is_transient()));
    }
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND backend_type = 'client backend'";
    let found = foreign.number(sessions).await;
    println!("{found} sessions after 4 appends that were not answered in time");
    assert!(found <= 7, "{found} sessions for a pool of 4");
    foreign.run("COMMIT").await;
}
