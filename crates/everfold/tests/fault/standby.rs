//! The failure: a reader works on a hot standby. It cannot see the primary's locks, and the
//! sequence it sees is ahead of the truth, so every local idea of the mark is wrong there.
//!
//! At risk: events that are in flight on the primary and arrive at the standby out of order.
//!
//! Guaranteed: on a standby the mark is the one that the primary published; before one was
//! published, reading says what to do; up to it, a reader on the standby misses nothing. Appends
//! are refused there with an error of their own kind. A checkpoint from the standby stays right
//! when the standby is promoted.

use std::time::Duration;

use everfold::{AppendError, ExpectedVersion, ReadError, Store, StoreErrorKind};
use everfold_testkit::{Cluster, ClusterOptions, Seed, TestDatabase, eventually};
use tokio::sync::watch;

use crate::checker::compare;
use crate::load::{self, Load};
use crate::readers::{self, Reader};
use crate::session::{LIMIT, Session, event, open, open_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_on_a_standby_misses_nothing_up_to_the_published_mark() {
    let primary = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&primary).await;
    let store = open(&database.url()).await;
    let admin = Session::open(&database.url()).await;
    // The negative control: a mark worked out on the standby itself.
    let check = [("IF pg_is_in_recovery() THEN", "IF false THEN")];
    admin.alter("local", "high_water_mark", &check).await;
    let standby = primary.standby().unwrap();
    let url = standby.url(database.name());
    let on_standby = Store::open(&url).await.expect("a standby can be opened for reading");

    assert_clear_error(&on_standby).await;
    assert_read_only(&on_standby).await;
    store.append("cart", ExpectedVersion::NoStream, [event("first")]).await.unwrap();
    assert_eq!(store.publish_high_water_mark().await.unwrap().0, 1);
    eventually("the mark arrives", LIMIT, async || on_standby.high_water_mark().await.is_ok())
        .await;
    assert_eq!(on_standby.read_all().collect().await.unwrap().len(), 1);

    let (end, last) = watch::channel(None);
    let publisher = open_with(&database.url(), |options| {
        options.publish_mark_every = Some(Duration::from_millis(20));
    })
    .await;
    let publishing = tokio::spawn(readers::by_follow(publisher.clone(), last.clone()));
    let follower = tokio::spawn(readers::by_follow(on_standby.clone(), last.clone()));
    let by_mark = tokio::spawn(readers::by_mark(url.clone(), last.clone()));
    let local = tokio::spawn(readers::by_local_mark(url, last));
    let load = Load { appenders: 16, duration: Duration::from_secs(6), ..Load::default() };
    let mut seed = Seed::from_env_or_random();
    let (done, _) = load::run(&load, &database.url(), None, &mut seed).await;
    assert!(done.errors.is_empty(), "{:?}", done.errors);
    let last = admin.append("the-end").await;
    // While the primary's follower runs, it publishes; nobody does so by hand.
    eventually("the last mark arrives", LIMIT, async || {
        on_standby.high_water_mark().await.unwrap().0 as i64 == last
    })
    .await;
    end.send_replace(Some(last));

    let stored = admin.positions().await;
    println!("{} events on the primary: {done}", stored.len());
    for (name, reader) in [
        ("primary, Store::follow", publishing),
        ("standby, Store::follow", follower),
        ("standby, published mark, then events", by_mark),
    ] {
        let comparison = compare(&stored, &readers::finish(name, reader).await);
        println!("  {name}: {comparison}");
        assert!(comparison.is_exact(), "{name}: {comparison:?}");
    }
    let local = compare(&stored, &readers::finish("local mark", local).await);
    println!("  standby, mark worked out there: {local}");
    assert!(!local.missed.is_empty(), "the load proves nothing: a local mark missed no event");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_a_standby_misses_nothing_when_the_standby_is_promoted() {
    let primary = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&primary).await;
    let store = open(&database.url()).await;
    let standby = primary.standby().unwrap();
    let url = standby.url(database.name());
    let on_standby = Store::open(&url).await.unwrap();
    for _ in 0..50 {
        store.append("cart", ExpectedVersion::Any, [event("before")]).await.unwrap();
    }
    // In flight when the primary dies: its position is gone with it.
    let open = Session::open(&database.url()).await;
    open.run("BEGIN").await;
    open.append("open").await;
    let last = store.append("cart", ExpectedVersion::Any, [event("last")]).await.unwrap();
    assert_eq!(store.publish_high_water_mark().await.unwrap().0, 50, "51 is in flight");
    let mut reader = Reader::default();
    let session = Session::open(&url).await;
    eventually("everything arrives", LIMIT, async || {
        session.positions().await.last() == Some(&(last.last_position.0 as i64))
            && session.rows("SELECT FROM everfold.published_mark").await.unwrap().len() == 1
    })
    .await;
    assert_eq!(reader.poll(&session).await, 50);

    primary.crash().unwrap();
    standby.promote().unwrap();
    for _ in 0..20 {
        let stored = on_standby.append("cart", ExpectedVersion::Exists, [event("after")]).await;
        assert!(stored.unwrap().first_position > last.last_position);
    }
    let mark = reader.poll(&session).await;
    let stored = session.positions().await;
    assert_eq!(stored.last(), Some(&mark), "the mark is the new primary's own");
    let comparison = compare(&stored, &reader.seen);
    println!("{} events over a promotion: {comparison}", stored.len());
    assert!(comparison.is_exact() && stored.len() == 71, "{comparison:?}");
    Store::open(&url).await.expect("the start-up checks hold on the new primary");
}

/// Before a mark is published, every way to read by position says what to do.
async fn assert_clear_error(standby: &Store) {
    let mark = standby.high_water_mark().await.expect_err("no mark was published");
    let read = standby.read_all().collect().await.expect_err("no mark was published");
    let follow = standby.follow().events().next().await.expect_err("no mark was published");
    for error in [ReadError::from(mark), read, follow] {
        let ReadError::Store(error) = error else { panic!("{error:?}") };
        assert_eq!(error.code(), Some("EF006"), "{error}");
        let message = error.to_string();
        assert!(message.contains("no high-water mark has been published"), "{message}");
        assert!(message.contains("SELECT everfold.publish_high_water_mark()"), "{message}");
    }
}

async fn assert_read_only(standby: &Store) {
    let outcome = standby.append("cart", ExpectedVersion::NoStream, [event("late")]).await;
    let Err(AppendError::Store(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    let error = standby.publish_high_water_mark().await.expect_err("a standby publishes nothing");
    assert!(matches!(error.kind(), StoreErrorKind::ReadOnly | StoreErrorKind::Other), "{error}");
}
