//! The failure: the connection is lost after the append was sent and before its answer came. It may
//! be committed or not; nobody on this side can know.
//!
//! At risk: the event is lost if the caller gives up, and stored twice if it tries again.
//!
//! Guaranteed: event ids are the key. [`Store::append`] tries again with the same ids and returns
//! the first result, whether the first try was committed, never arrived, or is still racing with
//! the second; through group append too. Tried again with new ids, the event is doubled: the
//! negative control.

use std::sync::Arc;

use everfold::{
    AppendError, Appended, ExpectedVersion, NewEvent, Store, StoreError, StreamAppend, Version,
};
use everfold_testkit::{Proxy, Seed, TestDatabase};
use futures::future::join_all;
use tokio::sync::Barrier;

use crate::checker::{assert_versions_without_holes, copies};
use crate::session::{Session, empty_store, event, open, open_with};
use crate::steady::SteadyAppends;

/// A store behind a proxy that loses connections, and a session that sees the truth.
struct Scene {
    _database: TestDatabase,
    proxy: Proxy,
    store: Store,
    truth: Session,
}

impl Scene {
    async fn new(retries: u32, group_append: bool) -> Scene {
        let database = empty_store().await;
        let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
        let url = database.url_at(proxy.address());
        let store = open_with(&url, |options| {
            options.append_retries_max = retries;
            options.group_append = group_append;
        })
        .await;
        let truth = Session::open(&database.url()).await;
        Scene { _database: database, proxy, store, truth }
    }

    /// (position, version) of each event of a stream.
    async fn stream(&self, stream: &str) -> Vec<(i64, i64)> {
        let sql = format!(
            "SELECT position, version FROM everfold.events WHERE stream_id = '{stream}' ORDER BY 1"
        );
        let rows = self.truth.rows(&sql).await.unwrap();
        let number = |text: &Option<String>| text.as_ref().unwrap().parse().unwrap();
        rows.iter().map(|row| (number(&row[0]), number(&row[1]))).collect()
    }
}

/// What the caller is told, as positions and version.
fn told(appended: &Appended) -> (i64, i64, i64) {
    let numbers =
        [appended.first_position.0, appended.last_position.0, appended.version.0].map(|n| n as i64);
    (numbers[0], numbers[1], numbers[2])
}

/// The moment at which the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// The server has committed; its answer is lost.
    AfterCommit,
    /// The server never got the request.
    BeforeArrival,
}

impl Cut {
    fn set(self, proxy: &Proxy, pattern: &str) {
        match self {
            Cut::AfterCommit => proxy.cut_after_client_message(pattern.as_bytes()),
            Cut::BeforeArrival => proxy.cut_before_client_message(pattern.as_bytes()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_whose_answer_is_lost_returns_the_first_result() {
    for group_append in [true, false] {
        let scene = Scene::new(5, group_append).await;
        let mut version = Version::NONE;
        for (n, cut) in [Cut::AfterCommit, Cut::BeforeArrival].into_iter().enumerate() {
            // A blind retry would conflict with itself under the first two conditions, and store
            // twice under the third.
            for (m, expected) in
                [ExpectedVersion::Exact(version), version.next().into(), ExpectedVersion::Any]
                    .into_iter()
                    .enumerate()
            {
                let token = format!("lost-{n}-{m}");
                cut.set(&scene.proxy, &token);
                let appended = scene.store.append("cart", expected, [event(&token)]).await;
                let appended = appended.expect("the retry returns the first result");
                assert!(!scene.proxy.is_waiting_for_message(), "the connection was lost");
                let stored = scene.stream("cart").await;
                version = version.next();
                assert_eq!(stored.len() as u64, version.0, "{cut:?}, {expected:?}: stored once");
                let (position, stored_version) = *stored.last().unwrap();
                assert_eq!(told(&appended), (position, position, stored_version));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_of_several_events_whose_answer_is_lost_returns_the_first_result() {
    let scene = Scene::new(5, true).await;
    for cut in [Cut::AfterCommit, Cut::BeforeArrival] {
        let stream = format!("{cut:?}");
        cut.set(&scene.proxy, "second-of-three");
        let events = ["first", "second-of-three", "third"].map(event);
        let appended =
            scene.store.append(&stream, ExpectedVersion::NoStream, events).await.unwrap();
        let stored = scene.stream(&stream).await;
        assert_eq!(stored.iter().map(|(_, version)| *version).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(told(&appended), (stored[0].0, stored[2].0, 3));

        cut.set(&scene.proxy, "many-b");
        let many = ["a", "b", "c"].map(|name| {
            let stream = format!("{stream}-{name}");
            StreamAppend::new(stream, ExpectedVersion::NoStream, [event(&format!("many-{name}"))])
        });
        let outcomes = scene.store.append_many(many).await.unwrap();
        assert!(!scene.proxy.is_waiting_for_message());
        for (name, outcome) in ["a", "b", "c"].into_iter().zip(outcomes) {
            let stored = scene.stream(&format!("{stream}-{name}")).await;
            assert_eq!(stored.len(), 1);
            assert_eq!(told(&outcome.unwrap()), (stored[0].0, stored[0].0, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_whose_answer_is_lost_returns_each_member_its_first_result() {
    for cut in [Cut::AfterCommit, Cut::BeforeArrival] {
        let scene = Scene::new(5, true).await;
        for round in 0..5 {
            cut.set(&scene.proxy, &format!("member-{round}-13"));
            let members = (0..40).map(|n| {
                let store = scene.store.clone();
                let event = event(&format!("member-{round}-{n}"));
                async move {
                    let expected = ExpectedVersion::Exact(Version(round));
                    store.append(format!("stream-{n}"), expected, [event]).await
                }
            });
            let outcomes = join_all(members).await;
            assert!(!scene.proxy.is_waiting_for_message(), "a group was lost");
            for (n, outcome) in outcomes.into_iter().enumerate() {
                let stored = scene.stream(&format!("stream-{n}")).await;
                assert_eq!(stored.len() as u64, round + 1, "{cut:?}: stored once");
                let (position, version) = *stored.last().unwrap();
                assert_eq!(told(&outcome.unwrap()), (position, position, version));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_whose_sessions_are_killed_are_stored_once_and_nobody_notices() {
    let database = empty_store().await;
    let url = format!("{}?application_name=victim", database.url());
    let (grouped, alone) =
        (open(&url).await, open_with(&url, |options| options.group_append = false).await);
    let killer = Session::open(&database.url()).await;
    let running: Vec<_> =
        [&grouped, &alone].map(|store| SteadyAppends::start(store, 6)).into_iter().collect();
    let mut kills = 0;
    for _ in 0..15 {
        // Kills much denser than this would use up all tries of an unlucky append.
        for appends in &running {
            appends.until_confirmed(100).await;
        }
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE application_name = 'victim' AND datname = current_database()";
        kills += killer.number(kill).await;
    }
    let (mut confirmed, mut failed) = (0, 0);
    for appends in running {
        let (appended, repeats) = appends.stop().await;
        confirmed += appended.len();
        failed += repeats;
    }
    println!("{confirmed} appends over {kills} killed sessions, {failed} failed");
    assert_eq!(failed, 0, "the store tries again by itself");
    assert_eq!(killer.positions().await.len(), confirmed);
    assert_versions_without_holes(&killer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_with_a_new_id_stores_the_event_twice() {
    let scene = Scene::new(0, true).await;
    scene.proxy.cut_after_client_message(b"control");
    let lost = scene.store.append("cart", ExpectedVersion::Any, [event("control")]).await;
    let Err(AppendError::Store(error)) = lost else { panic!("{lost:?}") };
    assert!(StoreError::is_closed(&error), "the caller is told that it cannot be known: {error}");
    assert_eq!(scene.stream("cart").await.len(), 1, "yet it is stored");
    scene.store.append("cart", ExpectedVersion::Any, [event("control")]).await.unwrap();
    assert_eq!(scene.stream("cart").await.len(), 2, "a new event to the store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_events_appended_at_the_same_time_are_stored_once_and_all_get_one_result() {
    let database = empty_store().await;
    let direct = open_with(&database.url(), |options| options.group_append = false).await;
    let stores = [open(&database.url()).await, open(&database.url()).await, direct];
    let mut seed = Seed::from_env_or_random();
    let (mut ids, mut calls) = (Vec::new(), 0);
    for round in 0..60 {
        let events: Vec<NewEvent> =
            (0..seed.within(1..4)).map(|n| event(&format!("{round}-{n}"))).collect();
        ids.extend(events.iter().map(|event| event.id().to_string()));
        let stream = format!("stream-{}", round % 5);
        let version = stores[0].stream_version(&stream).await.unwrap();
        let expected = match seed.below(2) {
            0 => ExpectedVersion::Any,
            _ => ExpectedVersion::Exact(version),
        };
        let start = Arc::new(Barrier::new(9));
        let tasks = (0..9).map(|n| {
            let (store, start) = (stores[n % 3].clone(), Arc::clone(&start));
            let append = StreamAppend::new(&stream, expected, events.clone());
            let (stream, events, many) = (stream.clone(), events.clone(), n >= 6);
            tokio::spawn(async move {
                start.wait().await;
                match many {
                    true => store.append_many([append]).await?.remove(0),
                    false => store.append(stream, expected, events).await,
                }
            })
        });
        let outcomes: Vec<Appended> =
            join_all(tasks).await.into_iter().map(|task| task.unwrap().unwrap()).collect();
        calls += outcomes.len();
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
        assert_eq!(outcomes[0].version.0, version.0 + events.len() as u64);
    }
    let truth = Session::open(&database.url()).await;
    let copies = copies(&truth).await;
    println!("{} events appended by {calls} racing calls: {} stored", ids.len(), copies.len());
    assert_eq!(copies.len(), ids.len());
    assert!(ids.iter().all(|id| copies.get(id) == Some(&1)), "{copies:?}");
    assert_versions_without_holes(&truth).await;
}
