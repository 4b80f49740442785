//! Comparing a new version with the one that readers see before they are switched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everfold::{Projection, RebuildOptions, RebuildPhase, RebuildProgress, Store};
use serde_json::json;

use crate::chain::run;
use crate::fixture::{Fixture, append, caught_up, counted, on_every_store};

on_every_store! {
    versions_that_differ_are_told_apart_row_by_row,
    versions_that_are_the_same_do_not_differ_while_events_come_in,
}

/// The sum of each stream's numbers, each number plus `more` if it is odd.
fn sums(version: u32, more: u64) -> Projection {
    let create = "CREATE TABLE read_model.sums (key TEXT PRIMARY KEY, n BIGINT NOT NULL)";
    let apply = format!(
        "INSERT INTO read_model.sums AS t (key, n)
         SELECT stream_id, sum(CAST(data->>'n' AS BIGINT) + CAST(data->>'n' AS BIGINT) % 2 * {more} + {version} * 0)
           FROM batch WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n"
    );
    let sql = Projection::sql("sums", version).create(create).apply(apply);
    sql.events(["Counted"]).build().unwrap()
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
