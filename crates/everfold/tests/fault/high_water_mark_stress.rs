//! The failure: positions are drawn in one order and committed in another, so a reader that asks
//! for "everything after the last one I saw" passes over events that are still in flight.
//!
//! At risk: events that no projection ever sees, silently.
//!
//! Guaranteed: a reader up to the high-water mark sees every committed event exactly once, in
//! order, whatever the appenders do: sleep, last, roll back, use savepoints and exception blocks,
//! are prepared and settled later, or are killed. The naive reader on the same load is the negative
//! control: where it misses nothing, the load proved nothing.

use std::time::Duration;

use everfold_testkit::{Cluster, ClusterOptions, PgBouncer, Seed, TestDatabase, eventually};
use tokio::sync::watch;

use crate::checker::{assert_versions_without_holes, compare};
use crate::load::{self, Done, Load};
use crate::readers;
use crate::session::{LIMIT, Session, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_up_to_the_mark_miss_nothing_under_a_hostile_load() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let load = Load { duration: Duration::from_secs(15), ..Load::default() };
    stress(&database, &database.url(), &load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_up_to_the_mark_miss_nothing_behind_a_pooler_in_transaction_mode() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let pooler = PgBouncer::start_with_pool_size(&cluster.server(), 40).unwrap();
    let load = Load { duration: Duration::from_secs(8), ..Load::default() };
    stress(&database, &pooler.url(database.name()), &load).await;
}

/// Some of the types that the load appends, and that of the last event.
const SOME_TYPES: [&str; 3] = ["B", "S", "Happened"];

/// Runs the load and all readers at `url`; looks at the outcome straight in the database.
async fn stress(database: &TestDatabase, url: &str, load: &Load) {
    let mut seed = Seed::from_env_or_random();
    let direct = database.url();
    let store = open(&direct).await;
    let follower = everfold::Store::open(url).await.expect("the store opens, pooler or not");
    let (end, last) = watch::channel(None);
    let by_mark = tokio::spawn(readers::by_mark(url.to_owned(), last.clone()));
    let by_read_all = tokio::spawn(readers::by_read_all(url.to_owned(), last.clone()));
    let by_type = readers::by_follow_of_types(follower.clone(), &SOME_TYPES, last.clone());
    let by_type = tokio::spawn(by_type);
    let by_follow = tokio::spawn(readers::by_follow(follower, last.clone()));
    let naive = tokio::spawn(readers::naive(url.to_owned(), last.clone()));
    let by_wait_set = tokio::spawn(readers::by_wait_set(direct.clone(), last));

    let (done, kills) = load::run(load, url, Some(&direct), &mut seed).await;
    let session = Session::open(&direct).await;
    let last = session.append("the-end").await;
    eventually("the mark reaches the last event", LIMIT, async || session.mark().await == last)
        .await;
    end.send_replace(Some(last));

    let stored = session.positions().await;
    let (events, gaps) = (stored.len(), last - stored.len() as i64);
    let (seconds, appenders) = (load.duration.as_secs(), load.appenders);
    println!(
        "{events} events, {gaps} gaps, {appenders} appenders, {seconds} s, {kills} kills: {done}"
    );
    for (name, reader) in [
        ("mark, then events", by_mark),
        ("everfold.read_all", by_read_all),
        ("Store::follow", by_follow),
        ("wait-set oracle", by_wait_set),
    ] {
        let comparison = compare(&stored, &readers::finish(name, reader).await);
        println!("  {name}: {comparison}");
        assert!(comparison.is_exact(), "{name}: {comparison:?}");
    }
    let some = format!(
        "SELECT position FROM everfold.events WHERE type = ANY ('{{{}}}') ORDER BY position",
        SOME_TYPES.join(",")
    );
    let some = session.numbers(&some).await;
    let comparison = compare(&some, &readers::finish("some types", by_type).await);
    println!("  Store::follow of some types ({} events): {comparison}", some.len());
    assert!(comparison.is_exact(), "some types: {comparison:?}");
    let naive = compare(&stored, &readers::finish("naive", naive).await);
    println!("  naive: {naive}");
    assert!(!naive.missed.is_empty(), "the load proves nothing: the naive reader missed no event");

    assert_hostile(&done, kills);
    assert_acknowledged_are_stored(&session, &done).await;
    assert_versions_without_holes(&session).await;
    store.close().await;
}

/// The load had in it all that it is meant to have.
fn assert_hostile(done: &Done, kills: u64) {
    assert!(done.errors.is_empty(), "appends failed for no good reason: {:?}", done.errors);
    let parts =
        [done.committed, done.rolled_back, done.long, done.savepoints, done.prepared, kills];
    assert!(parts.iter().all(|&count| count > 0), "a part of the load is missing: {done:?}");
}

/// Every append that was confirmed is there, where it was confirmed.
async fn assert_acknowledged_are_stored(session: &Session, done: &Done) {
    let rows = session.rows("SELECT position, stream_id FROM everfold.events").await.unwrap();
    let stored: std::collections::HashMap<String, String> = rows
        .into_iter()
        .map(|mut row| (row[0].take().expect("a position"), row[1].take().expect("a stream")))
        .collect();
    for (stream, first, last) in &done.acknowledged {
        for position in [first, last] {
            assert_eq!(stored.get(&position.to_string()), Some(stream), "position {position}");
        }
    }
}
