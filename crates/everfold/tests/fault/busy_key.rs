//! The failure: an inline projection has keys across streams, and somebody's transaction has appended
//! an event of a key and stays open. Whoever appends an event of that key must wait for it.
//!
//! At risk: appends of other keys that happen to share a group with the one that waits.
//!
//! Guaranteed: a group waits for a key for a moment only. Members of streams whose key is held are
//! taken out, wait alone and are stored when the other transaction ends, in the order of the log;
//! the others are stored at once.

use std::time::Duration;

use everfold::{
    DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Store, StreamAppend,
    Version,
};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::json;

use crate::checker::assert_versions_without_holes;
use crate::session::{LIMIT, Session, empty_store, open_with};
use crate::workers::{applied, assert_exact};

/// Much shorter than the busy transaction, which ends only when the test says so.
const AT_ONCE: Duration = Duration::from_secs(20);

const HOLD: &str = "BEGIN; \
    SELECT everfold.append_event('foreign', NULL, 'Moved', '{\"account\": \"busy\"}')";

#[derive(Deserialize)]
enum Event {
    Moved {},
}

struct Count;

impl DocumentProjection for Count {
    type Event = Event;
    type Document = u64;

    fn evolve(&self, n: Option<u64>, Event::Moved {}: &Event, _: &RecordedEvent) -> Option<u64> {
        Some(n.unwrap_or_default() + 1)
    }
}

fn moved(account: &str) -> NewEvent {
    NewEvent::new("Moved", &json!({ "account": account })).unwrap()
}

async fn append(store: Store, stream: String, expected: ExpectedVersion, account: &str) -> u64 {
    let appended = store.append(stream, expected, [moved(account)]).await;
    appended.expect("it is stored").version.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_is_not_held_up_by_a_busy_key() {
    for (carries, end) in [(false, "COMMIT"), (true, "COMMIT"), (false, "ROLLBACK")] {
        let database = empty_store().await;
        let store = open_with(&database.url(), |options| options.pool_size = 6).await;
        store.register(applied().inline().build().unwrap()).await.unwrap();
        if carries {
            let count = Projection::document("count", 1, Count).inline().build().unwrap();
            store.register(count).await.unwrap();
        }
        let foreign = Session::open(&database.url()).await;
        foreign.run(HOLD).await;

        // On the stream "mixed" one event of the busy key, and others behind it.
        let waiting: Vec<_> = (0..8)
            .map(|n| {
                let stream = if n < 4 { "mixed".to_owned() } else { format!("waiting-{n}") };
                let account = if n % 4 == 0 || n > 4 { "busy" } else { "mine" };
                tokio::spawn(append(store.clone(), stream, ExpectedVersion::Any, account))
            })
            .collect();
        for round in 0..5 {
            let others = (0..20).map(|n| {
                let expected = ExpectedVersion::Exact(Version(round));
                append(store.clone(), format!("other-{n}"), expected, "other")
            });
            let outcomes = tokio::time::timeout(AT_ONCE, join_all(others)).await;
            let outcomes = outcomes.expect("other keys are not held up");
            assert!(outcomes.into_iter().all(|version| version == round + 1));
        }
        let busy = waiting.iter().filter(|task| !task.is_finished()).count();
        assert!(busy >= 5, "{busy} wait for the key");
        let stored = "SELECT count(*) FROM everfold.events WHERE data->>'account' = 'busy'";
        assert_eq!(foreign.number(stored).await, 1, "none but its own");

        foreign.run(end).await;
        for task in waiting {
            tokio::time::timeout(LIMIT, task).await.expect("the key is free").unwrap();
        }
        assert_versions_without_holes(&foreign).await;
        assert_exact(&foreign, &format!("a busy key, then {end}")).await;
        if carries {
            // The foreign one is owed to it until its stream is appended to again.
            store.append("foreign", ExpectedVersion::Any, [moved("x")]).await.unwrap();
            let counted = "SELECT sum(document::text::bigint) FROM read_model.count";
            assert_eq!(foreign.number(counted).await, 110);
        }
        assert_eq!(foreign.number("SELECT count(*) FROM everfold.skips").await, 0);
    }
}

/// A version that is expected behind a member of a busy key is not judged by a version that the
/// member did not get to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_behind_one_of_a_busy_key_are_judged_when_it_is_stored() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |_| {}).await;
    store.register(applied().inline().build().unwrap()).await.unwrap();
    let foreign = Session::open(&database.url()).await;
    foreign.run(HOLD).await;
    let call = |wait: bool| {
        let row = format!(
            "SELECT array_to_string(outcomes, ',') FROM everfold.append_group(ARRAY['a', 'b'],
                ARRAY[1, 1, 1, 2], ARRAY[0, 1, 0, 0]::bigint[], ARRAY[1, 1, 1, 1],
                array_fill('Moved'::text, ARRAY[4]),
                ARRAY['{{\"account\": \"busy\"}}', '{{\"account\": \"x\"}}', '{{\"account\": \"y\"}}',
                      '{{\"account\": \"z\"}}']::jsonb[],
                array_fill('{{}}'::jsonb, ARRAY[4]),
                ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 4)),
                array_fill(1, ARRAY[4]), {wait})"
        );
        row
    };
    let other = Session::open(&database.url()).await;
    let rows = other.rows(&format!("BEGIN; {}", call(false))).await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("busy,busy,busy,stored"));
    other.run("ROLLBACK").await;
    foreign.run("ROLLBACK").await;
    let rows = other.rows(&call(false)).await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("stored,stored,conflict,stored"));
    assert_exact(&other, "judged when it is stored").await;
}

/// A call that takes one stream at once says that it is busy, as for the stream itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_does_not_wait_is_told_that_a_key_is_busy() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |_| {}).await;
    store.register(applied().inline().build().unwrap()).await.unwrap();
    let foreign = Session::open(&database.url()).await;
    foreign.run(HOLD).await;
    let other = Session::open(&database.url()).await;
    let before = other.rows("SHOW lock_timeout").await.unwrap();
    for call in [
        "append_event('a', NULL, 'Moved', '{\"account\": \"busy\"}', wait => false)",
        "append('a', NULL, ARRAY['Moved'], ARRAY['{\"account\": \"busy\"}']::jsonb[], wait => false)",
    ] {
        assert_eq!(other.code_of(&format!("SELECT everfold.{call}")).await, "EF009", "{call}");
    }
    foreign.run("COMMIT").await;
    // The patience for a key is not left behind in the caller's transaction.
    other.run("BEGIN").await;
    other.run("SELECT everfold.append_event('a', NULL, 'Moved', '{\"account\": \"busy\"}', wait => false)").await;
    assert_eq!(other.rows("SHOW lock_timeout").await.unwrap(), before);
    other.run("COMMIT").await;
    let many = ["a", "b"].map(|stream| {
        StreamAppend::new(stream, ExpectedVersion::Any, [moved("busy"), moved("other")])
    });
    for outcome in store.append_many(many).await.unwrap() {
        outcome.unwrap();
    }
    assert_exact(&other, "told that a key is busy").await;
}

const TASKS: usize = 8;

/// Appends of the same keys, half of them in the opposite order; how many met a deadlock. With
/// `control` the locks are taken in the order of the events.
async fn opposite_orders(control: bool) -> usize {
    // Without an order there are many deadlocks for each append.
    let rounds = if control { 2 } else { 60 };
    let database = empty_store().await;
    let store = open_with(&database.url(), |_| {}).await;
    store.register(applied().inline().build().unwrap()).await.unwrap();
    let truth = Session::open(&database.url()).await;
    if control {
        let sql = "SELECT pg_get_functiondef('everfold.lock_inline_keys'::regproc)";
        let text = truth.rows(sql).await.unwrap().remove(0).remove(0).unwrap();
        let sorted = "array_agg(DISTINCT hashtext(";
        assert_eq!(text.matches(sorted).count(), 1, "what makes the order: {text}");
        truth.run(&text.replace(sorted, "array_agg(hashtext(")).await;
    }
    let tasks = (0..TASKS).map(|task| {
        let url = database.url();
        tokio::spawn(async move {
            let (session, mut deadlocks) = (Session::open(&url).await, 0);
            session.run("SET deadlock_timeout = '20ms'").await;
            let mut accounts: Vec<String> = (0..4).map(|n| format!("a-{n}")).collect();
            if task % 2 == 0 {
                accounts.reverse();
            }
            let event = |account: &String| format!("'{{\"account\": \"{account}\"}}'");
            let data = accounts.iter().map(event).collect::<Vec<_>>().join(", ");
            let append = format!(
                "SELECT everfold.append('s-{task}', NULL, array_fill('Moved'::text, ARRAY[4]), \
                 ARRAY[{data}]::jsonb[])"
            );
            for _ in 0..rounds {
                while let Err(error) = session.try_run(&append).await {
                    assert_eq!(error.code().map(|code| code.code()), Some("40P01"), "{error}");
                    deadlocks += 1;
                }
            }
            deadlocks
        })
    });
    let deadlocks = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(truth.positions().await.len(), 4 * TASKS * rounds);
    assert_exact(&truth, &format!("keys in opposite orders, {deadlocks} deadlocks")).await;
    deadlocks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_of_the_same_keys_in_opposite_orders_do_not_deadlock() {
    assert_eq!(opposite_orders(false).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_that_are_locked_in_the_order_of_events_do_deadlock() {
    assert!(opposite_orders(true).await > 0, "the load must bite");
}
