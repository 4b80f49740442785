//! The failure: a new version is rolled out. Several processes bring the schema up to date at once,
//! beside others that append; one of them is killed on the way; an old one comes back later.
//!
//! At risk: half a schema, two of something, appends that fail or wait while functions are
//! replaced, and an old process that works on a schema it does not understand.
//!
//! Guaranteed: any number may apply at once and all succeed; appends beside it never fail and wait
//! only for moments; a killed one leaves nothing behind; a newer schema is refused by name. The
//! negative controls: the same SQL without the lock fails for all but one, and a replacement that
//! waits without a limit holds up every append.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everfold::{
    AppliedSchema, ExpectedVersion, MigrateError, OpenError, Schema, Store, StoreOptions,
};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase, eventually};
use futures::future::join_all;
use tokio::sync::Barrier;

use crate::checker::assert_versions_without_holes;
use crate::session::{LIMIT, Session, append_sql, empty_store, event, open_with};
use crate::steady::SteadyAppends;

const PROCESSES: usize = 8;

/// Runs the same at once, so many times.
async fn at_once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    run: impl Fn() -> F,
) -> Vec<T> {
    let start = Arc::new(Barrier::new(PROCESSES));
    let tasks = (0..PROCESSES).map(|_| {
        let (run, start) = (run(), Arc::clone(&start));
        tokio::spawn(async move {
            start.wait().await;
            run.await
        })
    });
    join_all(tasks).await.into_iter().map(|task| task.expect("no panic")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_applied_by_eight_at_once_is_applied_once() {
    let database = TestDatabase::create().await;
    let schema = Schema::of(&database.url()).unwrap();
    let outcomes = at_once(|| {
        let schema = schema.clone();
        async move { schema.apply().await }
    });
    let applied: Vec<AppliedSchema> =
        outcomes.await.into_iter().map(|outcome| outcome.expect("all succeed")).collect();
    // Each migration is a transaction of its own, so that one can go on where another has been faster.
    let mut migrations: Vec<&String> = applied.iter().flat_map(|one| &one.migrations).collect();
    migrations.sort_unstable();
    assert_eq!(migrations, ["0001_events", "0002_projections", "0003_rebuilds"], "{applied:?}");
    let replaced = applied.iter().filter(|applied| applied.functions_replaced).count();
    assert_eq!(replaced, 1, "{applied:?}");
    assert_eq!(schema.drift().await.unwrap(), [] as [String; 0]);
    let session = Session::open(&database.url()).await;
    assert_eq!(session.number("SELECT count(*) FROM everfold.store").await, 1);
    assert_eq!(session.append("cart").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_sql_without_the_lock_fails_for_all_but_one() {
    let database = TestDatabase::create().await;
    let sql = Schema::of(&database.url()).unwrap().sql();
    let outcomes = at_once(|| {
        let (url, sql) = (database.url(), sql.clone());
        async move { Session::open(&url).await.try_run(&sql).await.is_ok() }
    });
    let succeeded = outcomes.await.into_iter().filter(|&succeeded| succeeded).count();
    assert_eq!(succeeded, 1, "the race is real");
}

/// Makes the functions look like those of another version.
const OUTDATED: &str = "UPDATE everfold.store SET functions_hash = 'of another version'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_beside_running_appends_fails_none_of_them() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    let schema = Schema::of(&database.url()).unwrap();
    let session = Session::open(&database.url()).await;
    let appends = SteadyAppends::start(&store, 8);
    for _ in 0..5 {
        session.run(OUTDATED).await;
        let applied = tokio::join!(schema.apply(), schema.apply(), appends.until_confirmed(50));
        let replaced = [applied.0.unwrap(), applied.1.unwrap()].map(|a| a.functions_replaced);
        assert!(replaced == [true, false] || replaced == [false, true], "{replaced:?}");
    }
    let (confirmed, repeats) = appends.stop().await;
    println!("{} appends beside 5 replacements of their functions", confirmed.len());
    assert_eq!(repeats, 0, "no append failed");
    assert_eq!(session.positions().await.len(), confirmed.len());
    assert_versions_without_holes(&session).await;
    assert_eq!(schema.drift().await.unwrap(), [] as [String; 0]);
}

/// Who waits for the registry gate exclusively.
const WAITS_FOR_GATE: &str = "SELECT count(*) FROM pg_locks WHERE NOT granted
    AND mode = 'ExclusiveLock' AND classid = 'everfold.store'::regclass
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_behind_an_open_append_holds_the_others_up_for_moments_only() {
    let database = empty_store().await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    let (open, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN").await;
    open.append("open").await;
    session.run(OUTDATED).await;
    let schema = Schema::of(&database.url()).unwrap();
    let applying = tokio::spawn(async move { schema.apply().await });

    // Over three of its tries, the others append.
    let (mut longest, mut appended) = (Duration::ZERO, 0);
    for _ in 0..3 {
        for waits in [true, false] {
            let deadline = Instant::now() + LIMIT;
            while (session.number(WAITS_FOR_GATE).await > 0) != waits {
                assert!(Instant::now() < deadline, "the apply tries again and again");
                let start = Instant::now();
                store.append("other", ExpectedVersion::Any, [event("other")]).await.unwrap();
                longest = longest.max(start.elapsed());
                appended += 1;
            }
        }
    }
    println!("{appended} appends while an apply waited for the gate, the longest {longest:?}");
    assert!(longest < Duration::from_secs(5), "an append waited {longest:?}");
    assert!(!applying.is_finished());
    open.run("COMMIT").await;
    assert!(applying.await.unwrap().unwrap().functions_replaced);
    assert_versions_without_holes(&session).await;
}

/// Long enough for an append to be done many times over, short enough to wait for its absence.
const MOMENT: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_gate_without_a_limit_holds_up_every_append() {
    let database = empty_store().await;
    let (open, greedy) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    let (other, session) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    open.run("BEGIN").await;
    open.append("open").await;
    let gate = "SELECT pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)";
    let replacing = tokio::spawn(async move { greedy.run(gate).await });
    eventually("the gate is waited for", LIMIT, async || session.number(WAITS_FOR_GATE).await == 1)
        .await;
    let pid = other.pid().await;
    let append = tokio::spawn(async move { other.run(&append_sql("everfold", "other")).await });
    session.until_waiting(pid).await;
    tokio::time::sleep(MOMENT).await;
    assert!(!append.is_finished(), "it waits as long as the open transaction lasts");
    open.run("COMMIT").await;
    replacing.await.unwrap();
    append.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_that_is_killed_or_overtaken_on_the_way_leaves_nothing_half_done() {
    // A server of its own: the migration stops where it makes roles, which all databases share.
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    for killed in [true, false] {
        let database = TestDatabase::create_on(&cluster).await;
        let schema = Schema::of(&database.url()).unwrap();
        let rival = Session::open(&database.url()).await;
        rival.run("BEGIN; CREATE ROLE everfold_writer NOLOGIN").await;
        let applying = tokio::spawn({
            let schema = schema.clone();
            async move { schema.apply().await }
        });
        let waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
        eventually("the migration waits for the role", LIMIT, async || {
            !rival.numbers(waiting).await.is_empty()
        })
        .await;
        if !killed {
            rival.run("COMMIT").await;
            applying.await.unwrap().expect("somebody else made the role");
            assert_eq!(schema.drift().await.unwrap(), [] as [String; 0]);
            continue;
        }
        let pid = rival.number(waiting).await;
        rival.run(&format!("SELECT pg_terminate_backend({pid})")).await;
        applying.await.unwrap().expect_err("it was killed");
        rival.run("ROLLBACK").await;
        let left = schema.drift().await;
        assert!(matches!(left, Err(MigrateError::Missing)), "{left:?}");
        schema.apply().await.expect("it can be run again");
        rival.run("DROP OWNED BY everfold_writer; DROP ROLE everfold_writer").await;
        Store::open(&database.url()).await.expect("the store does not need the roles");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_schema_is_refused_by_name_and_left_alone() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    session.run("INSERT INTO everfold.migrations (revision, name) VALUES (999, 'later')").await;
    session.run(OUTDATED).await;

    let mut migrate = StoreOptions::default();
    migrate.migrate = Some(true);
    for opened in
        [Store::open(&database.url()).await, Store::open_with(&database.url(), migrate).await]
    {
        let Err(OpenError::Schema(error)) = opened else { panic!("{opened:?}") };
        assert_newer(&error);
    }
    let schema = Schema::of(&database.url()).unwrap();
    assert_newer(&schema.apply().await.expect_err("the schema is newer"));
    assert_newer(&schema.drift().await.expect_err("the schema is newer"));
    let untouched =
        "SELECT count(*) FROM everfold.store WHERE functions_hash = 'of another version'";
    assert_eq!(session.number(untouched).await, 1);
}

fn assert_newer(error: &MigrateError) {
    assert!(matches!(error, MigrateError::Newer { found: 999, known: 1.. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("999") && message.contains("upgrade everfold"), "{message}");
}
