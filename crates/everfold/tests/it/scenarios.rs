//! Rebuilds from the outside, beside transactions of other people's: they stay open, are prepared, read
//! and append. PostgreSQL only, where transactions overlap.

use std::sync::Mutex;

use everfold::{RebuildOptions, RebuildPhase, RebuildProgress, Store};
use everfold_testkit::eventually;
use tokio_postgres::Client;

use crate::chain::LIMIT;
use crate::fixture::{Fixture, append, counted};
use crate::rebuild::{count, expected, found, numbers};

/// Runs each test with sessions of its own and through the pooler.
macro_rules! on_postgres {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test($crate::fixture::Fixture::postgres().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn pgbouncer() {
                super::$test($crate::fixture::Fixture::pgbouncer().await).await;
            }
        }
    )*};
}

on_postgres! {
    new_projection_without_a_status_row,
    append_that_stays_open_is_named_and_the_switch_is_made_without_the_fence,
    append_that_skips_commits_after_the_switch_without_the_fence,
    prepared_append_is_named_and_waited_for,
    append_that_is_prepared_while_it_is_waited_for,
    caller_who_appends_and_then_reads_is_waited_for,
    two_projections_are_rebuilt_at_once,
}

/// A transaction of somebody's who has appended and stays open.
async fn in_flight(fixture: &Fixture, stream: &str, n: u64) -> Client {
    let client = fixture.database().connect().await;
    let sql = format!(
        "BEGIN; SELECT everfold.append_event('{stream}', NULL, 'Counted', '{{\"n\": {n}}}')"
    );
    client.batch_execute(&sql).await.unwrap();
    client
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Few tries, so that the switch is soon made without the fence.
fn impatient() -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.fence_tries = 3;
    options
}

/// A second generation is built, and readers are to be switched to it. Appends that are under way when
/// it is made would be waited for by that.
async fn given(fixture: &Fixture) -> Store {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..20).await;
    build(&store, "numbers").await;
    store
}

async fn build(store: &Store, name: &str) {
    let mut options = RebuildOptions::default();
    options.promote = false;
    let rebuild = store.rebuild(name, options).await.unwrap();
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Built);
}

async fn now(store: &Store) -> RebuildProgress {
    store.rebuilds().await.unwrap().swap_remove(0)
}

/// Waits until the rebuild says this.
async fn says(store: &Store, text: &str) {
    let said = Mutex::new(None);
    let waiting = eventually(text, LIMIT * 2, async || {
        let message = now(store).await.message;
        let found = message.as_ref().is_some_and(|message| message.contains(text));
        *said.lock().unwrap() = message;
        found
    });
    let ended = tokio::time::timeout(LIMIT, waiting).await;
    assert!(ended.is_ok(), "it does not say \"{text}\", but {:?}", said.lock().unwrap());
}

/// What readers see, and what they go back to, are folds of the log.
async fn assert_folds(fixture: &Fixture, store: &Store) {
    assert_eq!(found(fixture).await, expected(store, "").await);
    assert!(store.skips("numbers").await.unwrap().is_empty());
    let back = store.rollback("numbers", RebuildOptions::default()).await.unwrap();
    assert_eq!(back.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_eq!(found(fixture).await, expected(store, "").await, "the one before");
}

/// An append has looked for projections, and there was none.
async fn new_projection_without_a_status_row(fixture: Fixture) {
    let store = fixture.store().await;
    count(&store, 0..5).await;
    let before = in_flight(&fixture, "a", 5).await;
    let registering = tokio::spawn({
        let store = store.clone();
        async move { store.register(numbers(1, true)).await.unwrap() }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
        AND classid = 'everfold.store'::regclass \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let observer = fixture.database().connect().await;
    eventually("the registration waits for it", LIMIT, async || {
        observer.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    run(&before, "COMMIT").await;
    let registered = registering.await.unwrap();
    assert_eq!(registered.status, everfold::GenerationStatus::Building, "there are events");
    append(&store, "a", counted([6])).await;
    let rebuild = store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    append(&store, "a", counted([7])).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn append_that_stays_open_is_named_and_the_switch_is_made_without_the_fence(
    fixture: Fixture,
) {
    let store = given(&fixture).await;
    let open = in_flight(&fixture, "a", 20).await;
    run(&open, "SET application_name = 'checkout'").await;
    let rebuild = store.promote("numbers", impatient()).await.unwrap();
    says(&store, "waiting for process").await;
    assert!(now(&store).await.message.unwrap().contains("application checkout"));
    assert_eq!(now(&store).await.switched_at, None);
    append(&store, "b", counted(20..25)).await;
    assert!(found(&fixture).await["b"].ends_with(",23,24"), "appends go on");
    run(&open, "COMMIT").await;
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_folds(&fixture, &store).await;
}

async fn append_that_skips_commits_after_the_switch_without_the_fence(fixture: Fixture) {
    let store = given(&fixture).await;
    let before = in_flight(&fixture, "a", 20).await;
    let rebuild = store.promote("numbers", impatient()).await.unwrap();
    says(&store, "waiting for process").await;
    // It finds the new generation, and records that it has left it out.
    let skips = in_flight(&fixture, "b", 20).await;
    run(&before, "COMMIT").await;
    eventually("readers are switched", LIMIT, async || now(&store).await.switched_at.is_some())
        .await;
    let switched = now(&store).await;
    assert_eq!(switched.finished_at, None, "what is owed is waited for");
    run(&skips, "COMMIT").await;
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_folds(&fixture, &store).await;
}

async fn prepared_append_is_named_and_waited_for(fixture: Fixture) {
    for settle in ["COMMIT", "ROLLBACK"] {
        let fixture = match fixture.url == fixture.database().url() {
            true => Fixture::postgres().await,
            false => Fixture::pgbouncer().await,
        };
        let store = given(&fixture).await;
        let name = format!("order-{}", fixture.database().name());
        let prepared = in_flight(&fixture, "a", 20).await;
        run(&prepared, &format!("PREPARE TRANSACTION '{name}'")).await;
        drop(prepared);
        let rebuild = store.promote("numbers", impatient()).await.unwrap();
        says(&store, &format!("held up by prepared transaction '{name}'")).await;
        says(&store, &format!("waiting for prepared transaction '{name}'")).await;
        append(&store, "b", counted([20])).await;
        assert_eq!(now(&store).await.switched_at, None);
        let session = fixture.database().connect().await;
        run(&session, &format!("{settle} PREPARED '{name}'")).await;
        assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
        assert_folds(&fixture, &store).await;
    }
}

async fn append_that_is_prepared_while_it_is_waited_for(fixture: Fixture) {
    let store = given(&fixture).await;
    let name = format!("order-{}", fixture.database().name());
    let open = in_flight(&fixture, "a", 20).await;
    let rebuild = store.promote("numbers", impatient()).await.unwrap();
    says(&store, "waiting for process").await;
    run(&open, &format!("PREPARE TRANSACTION '{name}'")).await;
    says(&store, &format!("waiting for prepared transaction '{name}'")).await;
    assert_eq!(now(&store).await.switched_at, None);
    run(&open, &format!("COMMIT PREPARED '{name}'")).await;
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_folds(&fixture, &store).await;
}

/// He holds the gate, then the view: a switch that took the view first would wait for him with it.
async fn caller_who_appends_and_then_reads_is_waited_for(fixture: Fixture) {
    let store = given(&fixture).await;
    // The view shows both from here on.
    let there = store.promote("numbers", RebuildOptions::default()).await.unwrap();
    there.finish().await.unwrap();
    let caller = in_flight(&fixture, "a", 20).await;
    let read = "SELECT n FROM read_model.numbers WHERE key = 'a'";
    let seen: String = caller.query_one(read, &[]).await.unwrap().get(0);
    assert!(seen.ends_with(",20"), "he sees what he wrote: {seen}");
    let rebuild = store.rollback("numbers", RebuildOptions::default()).await.unwrap();
    says(&store, "held up by process").await;
    let again: String = caller.query_one(read, &[]).await.unwrap().get(0);
    assert_eq!(again, seen);
    run(&caller, "COMMIT").await;
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_folds(&fixture, &store).await;
}

/// The same appends feed both.
async fn two_projections_are_rebuilt_at_once(fixture: Fixture) {
    let store = given(&fixture).await;
    let sums = "INSERT INTO read_model.sums AS t (key, n)
        SELECT stream_id, sum(CAST(data->>'n' AS BIGINT)) FROM batch WHERE true GROUP BY 1
        ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n";
    let sums = everfold::Projection::sql("sums", 1)
        .create("CREATE TABLE read_model.sums (key TEXT PRIMARY KEY, n BIGINT NOT NULL)")
        .apply(sums)
        .events(["Counted"])
        .inline();
    store.register(sums.build().unwrap()).await.unwrap();
    let first = store.rebuild("sums", RebuildOptions::default()).await.unwrap();
    assert_eq!(first.finish().await.unwrap().phase, RebuildPhase::Done);
    build(&store, "sums").await;

    let open = in_flight(&fixture, "a", 20).await;
    let (one, other) = (
        store.promote("numbers", RebuildOptions::default()).await.unwrap(),
        store.promote("sums", RebuildOptions::default()).await.unwrap(),
    );
    eventually("both are held up", LIMIT, async || {
        let all = store.rebuilds().await.unwrap();
        let held = |rebuild: &&RebuildProgress| {
            rebuild.message.as_deref().is_some_and(|message| message.contains("held up by"))
        };
        all.iter().filter(held).count() == 2
    })
    .await;
    append(&store, "b", counted([20])).await;
    run(&open, "COMMIT").await;
    let (one, other) = tokio::join!(one.finish(), other.finish());
    assert_eq!(
        (one.unwrap().phase, other.unwrap().phase),
        (RebuildPhase::Done, RebuildPhase::Done)
    );
    append(&store, "c", counted([20])).await;
    let rows = fixture.rows("SELECT key, n FROM read_model.sums ORDER BY key").await;
    assert_eq!(rows.iter().map(|row| row[1].clone()).collect::<Vec<_>>(), [210, 210, 210]);
    assert_folds(&fixture, &store).await;
}
