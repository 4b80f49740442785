//! The failure: several processes read a stream at the same version, each decides, and all append
//! with that version as their condition.
//!
//! At risk: two of them win, and one overwrites the other's decision; or none does; or the losers
//! are told something from which they cannot go on.
//!
//! Guaranteed: exactly one wins; every other gets a version conflict with the version it expected
//! and the one the stream now has, alone and through group append. The negative control leaves out
//! the stream's lock: the loser then gets a bare unique violation instead.

use std::sync::Arc;

use everfold::{AppendError, ExpectedVersion, Store, Version};
use futures::future::join_all;
use tokio::sync::Barrier;

use crate::checker::assert_versions_without_holes;
use crate::session::{Session, empty_store, event, open_with};

const RACERS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_racing_appends_wins_alone() {
    race(false, 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_racing_appends_wins_in_groups() {
    race(true, 80).await;
}

/// Rounds of racers on three stores, all with the same expected version.
async fn race(group_append: bool, rounds: u64) {
    let database = empty_store().await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        let change = |options: &mut everfold::StoreOptions| {
            options.group_append = group_append;
            options.pool_size = 4;
        };
        stores.push(open_with(&database.url(), change).await);
    }
    let mut conflicts = 0;
    for round in 0..rounds {
        let expected = match round {
            0 => ExpectedVersion::NoStream,
            _ => ExpectedVersion::Exact(Version(round)),
        };
        conflicts += assert_one_wins(&stores, expected, Version(round + 1)).await;
    }
    println!("{rounds} rounds, groups {group_append}: {rounds} won, {conflicts} conflicts");
    assert_eq!(conflicts, rounds as usize * (RACERS - 1));
    let session = Session::open(&database.url()).await;
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, rounds as i64);
    assert_versions_without_holes(&session).await;
}

async fn assert_one_wins(stores: &[Store], condition: ExpectedVersion, after: Version) -> usize {
    let start = Arc::new(Barrier::new(RACERS));
    let racers = (0..RACERS).map(|n| {
        let (store, start) = (stores[n % stores.len()].clone(), Arc::clone(&start));
        tokio::spawn(async move {
            start.wait().await;
            store.append("contested", condition, [event(&n.to_string())]).await
        })
    });
    let (mut winners, mut conflicts) = (0, 0);
    for outcome in join_all(racers).await {
        match outcome.unwrap() {
            Ok(appended) => {
                assert_eq!(appended.version, after);
                winners += 1;
            }
            Err(AppendError::VersionConflict { stream, expected, actual }) => {
                assert_eq!((stream.as_str(), expected), ("contested", condition));
                assert_eq!(actual, after, "the loser can go on from here");
                conflicts += 1;
            }
            Err(error) => panic!("a loser was told something else: {error:?}"),
        }
    }
    assert_eq!(winners, 1, "expected {condition}");
    conflicts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_of_the_stream_the_loser_gets_a_unique_violation() {
    let database = empty_store().await;
    let (one, other) = (Session::open(&database.url()).await, Session::open(&database.url()).await);
    let lock = [("NOT everfold.enter_append(the_stream, $8)", "false")];
    one.alter("unlocked", "append_event", &lock).await;
    for (schema, expected) in [("unlocked", "23505"), ("everfold", "EF001")] {
        let append =
            format!("SELECT * FROM {schema}.append_event('{schema}', 0, 'Happened', '{{}}')");
        one.run("BEGIN").await;
        one.run(&append).await;
        let pid = other.pid().await;
        let (code, ()) = tokio::join!(other.code_of(&append), async {
            one.until_waiting(pid).await;
            one.run("COMMIT").await;
        });
        assert_eq!(code, expected, "{schema}");
    }
}
