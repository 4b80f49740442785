//! Comparing a new version with the one that readers see before they are switched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everfold::{
    Projection, ProjectionBuilder, RebuildOptions, RebuildPhase, RebuildProgress, SqlBody, Store,
};
use everfold_testkit::eventually;
use serde_json::json;

use crate::chain::{LIMIT, run};
use crate::fixture::{Fixture, append, caught_up, counted, on_every_store};

on_every_store! {
    versions_that_differ_are_told_apart_row_by_row,
    versions_that_are_the_same_do_not_differ_while_events_come_in,
    what_the_old_version_owes_is_no_difference,
}

/// The sum of each stream's numbers, each number plus `more` if it is odd.
fn sums(version: u32, more: u64) -> Projection {
    sums_builder(version, more).build().unwrap()
}

fn sums_builder(version: u32, more: u64) -> ProjectionBuilder<SqlBody> {
    let create = "CREATE TABLE read_model.sums (key TEXT PRIMARY KEY, n BIGINT NOT NULL)";
    let apply = format!(
        "INSERT INTO read_model.sums AS t (key, n)
         SELECT stream_id, sum(CAST(data->>'n' AS BIGINT) + CAST(data->>'n' AS BIGINT) % 2 * {more} + {version} * 0)
           FROM batch WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n"
    );
    Projection::sql("sums", version).create(create).apply(apply).events(["Counted"])
}

/// Builds version 2 beside version 1, to be promoted only if nothing differs.
async fn rebuilt(store: &Store, projection: Projection) -> RebuildProgress {
    store.register(projection).await.unwrap();
    let mut options = RebuildOptions::default();
    options.max_differences = Some(0);
    let rebuild = store.rebuild("sums", options).await.unwrap();
    let _ = rebuild.finish().await;
    store.rebuilds().await.unwrap().swap_remove(0)
}

async fn versions_that_differ_are_told_apart_row_by_row(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "odd", counted([1, 2])).await;
    append(&store, "even", counted([2, 4])).await;
    caught_up(&store, &sums(1, 0)).await;
    let progress = rebuilt(&store, sums(2, 10)).await;
    let found = progress.comparison.clone().unwrap();
    assert_eq!((found.compared, found.differences), (2, 1), "{progress:?}");
    let example = &found.examples[0];
    assert_eq!((example.table.as_str(), &example.key), ("sums", &json!({ "key": "odd" })));
    assert_eq!(example.expected, Some(json!({ "key": "odd", "n": 3 })));
    assert_eq!(example.found, Some(json!({ "key": "odd", "n": 13 })));
    assert_eq!(progress.phase, RebuildPhase::Built, "{progress:?}");
    assert_eq!(store.projection("sums").await.unwrap().version, 1);
}

/// A runner feeds the old version all the time, and it is compared all the same.
async fn versions_that_are_the_same_do_not_differ_while_events_come_in(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    let runner = run(&store, sums(1, 0)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                append(&store, &format!("s-{}", n % 5), counted([n])).await;
                tokio::task::yield_now().await;
            }
        })
    };
    let progress = rebuilt(&store, sums(2, 0)).await;
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    let found = progress.comparison.clone().unwrap();
    assert_eq!(found.differences, 0, "{found:?}");
    assert!(found.compared > 0);
    assert_eq!(progress.phase, RebuildPhase::Done, "{progress:?}");
    runner.stop().await;
}

/// Readers see a version that appends feed, and that owes some events; the next one has them all.
async fn owing(fixture: &Fixture) -> (Store, everfold::Rebuild) {
    let store = fixture.store().await;
    store.register(sums_builder(1, 0).inline().build().unwrap()).await.unwrap();
    append(&store, "a", counted([1])).await;
    append(&store, "b", counted([2])).await;
    store.pause("sums").await.unwrap();
    append(&store, "a", counted([3])).await;
    append(&store, "c", counted([4])).await;
    store.resume("sums").await.unwrap();
    assert_eq!(store.skips("sums").await.unwrap().len(), 2);
    store.register(sums_builder(2, 0).inline().build().unwrap()).await.unwrap();
    let mut options = RebuildOptions::default();
    options.max_differences = Some(0);
    let rebuild = store.rebuild("sums", options).await.unwrap();
    eventually("it compares", LIMIT, async || {
        store.rebuilds().await.unwrap()[0].phase == RebuildPhase::Comparing
    })
    .await;
    (store, rebuild)
}

/// It is late, and that is waited for.
async fn what_the_old_version_owes_is_no_difference(fixture: Fixture) {
    let (store, rebuild) = owing(&fixture).await;
    // More is owed and comes in meanwhile, which neither has yet.
    append(&store, "b", counted([5])).await;
    store.drain("sums").await.unwrap();
    let ended = rebuild.finish().await.unwrap();
    let found = ended.comparison.unwrap();
    assert_eq!((found.compared, found.differences), (3, 0), "{found:?}");
    assert_eq!(ended.phase, RebuildPhase::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_that_owes_all_the_time_is_not_compared_and_nobody_is_switched() {
    let stores = [Fixture::sqlite(), Fixture::postgres().await];
    let told = futures::future::join_all(stores.iter().map(async |fixture| {
        let (store, rebuild) = owing(fixture).await;
        let _ = rebuild.finish().await;
        let ended = store.rebuilds().await.unwrap().swap_remove(0);
        assert_eq!(ended.phase, RebuildPhase::Built, "{ended:?}");
        assert_eq!(store.projection("sums").await.unwrap().version, 1);
        ended.message.unwrap()
    }));
    for message in told.await {
        for part in ["not promoted", "owes events", "everfold skips drain sums"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
