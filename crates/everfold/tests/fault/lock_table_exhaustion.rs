//! The failure: the server's lock table is full ("out of shared memory"), because one transaction
//! appends to very many streams or somebody else takes very many locks.
//!
//! At risk: an append that could not announce and stores its events all the same; or an append of
//! which half is stored.
//!
//! Guaranteed: an append that gets a lock too few fails as a whole and says so; nothing of it is
//! stored, others go on, and the same append succeeds when there is room again.

use everfold::{AppendError, ExpectedVersion, StoreErrorKind};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase};

use crate::checker::{assert_versions_without_holes, compare};
use crate::readers::Reader;
use crate::session::{Session, append_sql, event, open, open_with};

/// A server with room for few locks.
fn small_cluster() -> Cluster {
    let small = [
        ("max_locks_per_transaction", "10"),
        ("max_connections", "15"),
        ("max_prepared_transactions", "0"),
        ("max_worker_processes", "1"),
        ("autovacuum_max_workers", "1"),
        ("max_wal_senders", "1"),
    ];
    let options = ClusterOptions::default();
    let options = small.iter().fold(options, |options, (name, value)| options.setting(name, value));
    Cluster::start(options).unwrap()
}

const FULL: &str = "53200";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_that_fills_the_lock_table_stores_nothing_and_others_go_on() {
    let cluster = small_cluster();
    let database = TestDatabase::create_on(&cluster).await;
    open(&database.url()).await.close().await;
    let (greedy, other) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    let mut reader = Reader::default();
    other.append("other").await;

    greedy.run("BEGIN").await;
    let mut appended = 0;
    let error = loop {
        assert!(appended < 100_000, "the lock table never filled up");
        match greedy.try_run(&append_sql("everfold", &format!("stream-{appended}"))).await {
            Ok(()) => appended += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code().map(|code| code.code()), Some(FULL), "{error:?}");
    assert_eq!(greedy.code_of("SELECT 1").await, "25P02", "the transaction is over");
    reader.poll(&other).await;
    greedy.run("ROLLBACK").await;

    println!("lock table full after {appended} appends in one transaction; none of them is stored");
    other.append("other").await;
    greedy.append("other").await;
    reader.poll(&other).await;
    let comparison = compare(&other.positions().await, &reader.seen);
    assert!(comparison.is_exact() && reader.seen.len() == 3, "{comparison:?} {:?}", reader.seen);
    assert_versions_without_holes(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_without_room_for_its_locks_fails_clean_and_succeeds_later() {
    let cluster = small_cluster();
    let database = TestDatabase::create_on(&cluster).await;
    let store = open_with(&database.url(), |options| {
        options.pool_size = 2;
        options.append_retries_max = 1;
    })
    .await;
    store.append("cart", ExpectedVersion::NoStream, [event("first")]).await.unwrap();
    let hog = Session::open(&database.url()).await;
    let fill = "DO $$ BEGIN FOR n IN 1 .. 1000000 LOOP PERFORM pg_advisory_lock(n); END LOOP;
        EXCEPTION WHEN out_of_memory THEN NULL; END $$";
    hog.run(fill).await;

    let second = event("second");
    let mut failed = 0;
    for streams in [vec!["cart"], vec!["a", "b", "c", "d"]] {
        for stream in streams {
            let outcome = store.append(stream, ExpectedVersion::Any, [second.clone()]).await;
            let Err(AppendError::Store(error)) = outcome else { panic!("{outcome:?}") };
            assert_eq!((error.kind(), error.code()), (StoreErrorKind::Exhausted, Some(FULL)));
            failed += 1;
        }
    }
    hog.run("SELECT pg_advisory_unlock_all()").await;
    assert_eq!(hog.positions().await, [1], "nothing of {failed} failed appends is stored");
    assert_eq!(hog.mark().await, 1);
    let stored = store.append("cart", ExpectedVersion::Any, [second]).await.unwrap();
    assert_eq!(stored.version.0, 2);
    assert_eq!(hog.mark().await, stored.last_position.0 as i64);
    assert_versions_without_holes(&hog).await;
}
