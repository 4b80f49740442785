//! The failure: somebody's transaction has appended to a stream and stays open. Whoever appends to
//! that stream must wait for it.
//!
//! At risk: the appends to all other streams that happen to share a group with the one that waits.
//!
//! Guaranteed: a group never waits for a stream. The member of the busy stream is taken out, waits
//! alone and is stored when the other transaction ends; the others are stored at once, also when
//! more members wait than there are connections. The negative control is one call that does wait
//! for all its streams, as `append_many` is documented to: it is held up as a whole.

use std::time::Duration;

use everfold::{ExpectedVersion, StreamAppend, Version};
use futures::future::join_all;

use crate::checker::assert_versions_without_holes;
use crate::session::{LIMIT, Session, empty_store, event, open_with};

/// Much shorter than the busy transaction, which ends only when the test says so.
const AT_ONCE: Duration = Duration::from_secs(20);

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
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    everfold_testkit::eventually("the call waits", LIMIT, async || {
        foreign.number(waiting).await == 1
    })
    .await;
    assert_eq!(foreign.number("SELECT count(*) FROM everfold.events").await, 1);
    assert!(!held.is_finished());
    foreign.run("COMMIT").await;
    let outcomes = held.await.unwrap().unwrap();
    assert!(outcomes.len() == 21 && outcomes.iter().all(Result::is_ok));
}
