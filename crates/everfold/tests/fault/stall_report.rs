//! The failure: a transaction appends and is then forgotten: a debugger, a hung process, a pool
//! that lost track. The high-water mark stands still behind it, and all readers with it.
//!
//! At risk: hours of searching; and, with marks made of transaction ids, a stall behind any long
//! transaction in the whole cluster.
//!
//! Guaranteed: the diagnosis names the holder (process, application, since when, which query) and
//! says how to end it; the mark goes on the moment it ends; and a transaction that has not appended
//! here never holds it, in this database or another. A reader by transaction ids on the same
//! scene is the negative control: it stalls.

use std::time::Duration;

use everfold::{Diagnosis, Finding, HealthOptions, Position, Severity, Store};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase, eventually};

use crate::session::{LIMIT, Session, empty_store, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_appender_is_named_and_the_mark_goes_on_when_it_ends() {
    let database = empty_store().await;
    let store = open(&database.url()).await;
    let other = Session::open(&database.url()).await;
    other.append("before").await;
    let idle = Session::open(&format!("{}?application_name=checkout", database.url())).await;
    let pid = idle.pid().await;
    idle.run("BEGIN").await;
    idle.append("forgotten").await;
    let last = other.append("after").await;
    assert_eq!(store.high_water_mark().await.unwrap(), Position(1));

    let diagnosis = store.diagnose().await.unwrap();
    assert_eq!(diagnosis.high_water_mark, Some(Position(1)));
    let [holder] = diagnosis.holders.as_slice() else { panic!("{:?}", diagnosis.holders) };
    assert_eq!((holder.holds_at, holder.pid), (Position(1), Some(pid as i32)));
    assert_eq!(holder.application.as_deref(), Some("checkout"));
    assert_eq!(holder.state.as_deref(), Some("idle in transaction"));
    assert!(holder.query.as_ref().unwrap().contains("append_event('forgotten'"), "{holder:?}");
    assert!(holder.since.is_some() && holder.seconds.is_some_and(|seconds| seconds >= 0.0));
    assert!(holder.user.is_some() && holder.client.is_some() && holder.prepared.is_none());

    // An append may take a moment; one that takes long becomes a finding, with what to do.
    let finding = until_found(&store).await;
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.message.contains(&format!("pid {pid} (checkout, idle in transaction)")));
    let advice = format!("SELECT pg_terminate_backend({pid})");
    assert!(finding.hint.as_ref().unwrap().contains(&advice), "{finding:?}");
    let mut patience = HealthOptions::default();
    assert_eq!(store.health(&patience).await.unwrap(), [], "a minute is allowed");
    patience.mark_held_for = Duration::ZERO;
    let problems = store.health(&patience).await.unwrap();
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!((problem.check, problem.severity), ("mark", Severity::Problem));
    assert!(problem.message.contains(&format!("the session with pid {pid}")), "{problem:?}");
    other.run(&advice).await;
    eventually("the mark goes on", LIMIT, async || other.mark().await == last).await;
    assert_eq!(store.health(&patience).await.unwrap(), []);
    let diagnosis = store.diagnose().await.unwrap();
    assert!(diagnosis.holders.is_empty() && mark_finding(&diagnosis).is_none(), "{diagnosis:?}");
}

fn mark_finding(diagnosis: &Diagnosis) -> Option<Finding> {
    diagnosis.findings.iter().find(|finding| finding.check == "mark").cloned()
}

async fn until_found(store: &Store) -> Finding {
    let limit = tokio::time::Instant::now() + LIMIT;
    loop {
        match mark_finding(&store.diagnose().await.unwrap()) {
            Some(finding) => return finding,
            None => assert!(tokio::time::Instant::now() < limit, "the stall is not reported"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Rows that a reader by transaction ids may read: of transactions older than all that are open.
const BY_TRANSACTION_ID: &str = "SELECT count(*) FROM everfold.events
    WHERE xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_that_has_not_appended_never_holds_the_mark() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    open(&database.url()).await.close().await;
    let elsewhere = TestDatabase::create_on(&cluster).await;
    let reader = Session::open(&database.url()).await;

    for (number, (url, unrelated)) in [
        (database.url(), "BEGIN; CREATE TABLE mine (n int); INSERT INTO mine VALUES (1)"),
        (elsewhere.url(), "BEGIN; CREATE TABLE mine (n int); INSERT INTO mine VALUES (1)"),
        (database.url(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM everfold.events"),
        (database.url(), "BEGIN; LOCK TABLE everfold.events IN ROW EXCLUSIVE MODE"),
        (database.url(), "SELECT pg_advisory_lock_shared(0), pg_advisory_lock_shared(0, 0)"),
    ]
    .into_iter()
    .enumerate()
    {
        let session = Session::open(&url).await;
        session.run(unrelated).await;
        let last = reader.append("cart").await;
        assert_eq!(reader.mark().await, last, "held by: {unrelated}");
        if number < 2 {
            assert_eq!(reader.number(BY_TRANSACTION_ID).await, number as i64, "it does stall");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_in_a_copy_of_the_database_does_not_hold_the_mark_of_the_original() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    open(&database.url()).await.close().await;
    // A copy has the same object ids, so its announcements look the same but for the database.
    let admin = Session::open(&cluster.url("postgres")).await;
    admin.run(&format!("CREATE DATABASE copy TEMPLATE {}", database.name())).await;
    let copy = Session::open(&cluster.url("copy")).await;
    copy.run("BEGIN").await;
    copy.append("forgotten").await;

    let session = Session::open(&database.url()).await;
    let last = session.append("cart").await;
    assert_eq!(session.mark().await, last);
    assert_eq!(copy.mark().await, 0);
    let same_key = "SELECT count(*) FROM pg_locks WHERE classid = 'everfold.events'::regclass";
    assert_eq!(session.number(same_key).await, 1, "only the database tells them apart");
}
