//! Pausing and resuming: a projection stands still, whatever it was doing, and goes on as what it was;
//! what was appended meanwhile is not lost. And how long what happened is remembered.

use std::sync::atomic::Ordering;

use everfold::{
    DocumentProjection, GenerationStatus, OnError, Projection, ProjectionError, RecordedEvent,
    Runner, Store,
};
use everfold_testkit::eventually;

use crate::chain::{
    AccountEvent, Chain, LIMIT, Link, assert_chains, chains, folded, moved, quick, run,
};
use crate::fixture::{Fixture, append, on_every_store, read_all};

on_every_store! {
    projection_that_is_built_beside_is_built_again_after_a_pause,
    inline_projection_that_waits_for_its_backfill_cannot_be_paused_into_life,
    projection_that_is_paused_in_a_batch_stands_still_behind_it,
    inline_projection_owes_while_it_is_paused_and_is_drained_in_order,
    pauses_and_resumes_under_load_lose_and_double_nothing,
    old_rows_of_the_logs_are_deleted,
}

/// The chain of each stream, which an append can apply.
#[derive(Clone)]
struct Inline;

impl DocumentProjection for Inline {
    type Event = AccountEvent;
    type Document = Link;

    fn evolve(&self, link: Option<Link>, event: &AccountEvent, _: &RecordedEvent) -> Option<Link> {
        let (AccountEvent::Moved { n, .. } | AccountEvent::Poisoned { n, .. }) = event;
        Some(Link::then(link, *n))
    }
}

fn inline() -> Projection {
    Projection::document("chain", 1, Inline).inline().build().unwrap()
}

/// Status and version of each generation, the oldest first.
async fn statuses(store: &Store) -> Vec<(u32, GenerationStatus)> {
    let all = store.projections().await.unwrap();
    let mut found: Vec<_> = all.iter().map(|status| (status.version, status.status)).collect();
    found.sort_by_key(|(version, _)| *version);
    found
}

async fn projection_that_is_built_beside_is_built_again_after_a_pause(fixture: Fixture) {
    use GenerationStatus::{Active, Building, Paused};
    let store = fixture.store().await;
    let second = || Projection::document("chain", 2, Inline).key_fields(["data.account"]);
    let runner = || {
        Runner::new(&store)
            .projection(Chain::default().projection("chain", OnError::Stop))
            .projection(second().build().unwrap())
            .options(quick("both"))
    };
    append(&store, "s", (0..30).map(|n| moved("a", n))).await;
    let running = runner().start().await.unwrap();
    assert_chains(&store, "chain").await;
    assert_eq!(statuses(&store).await, [(1, Active), (2, Building)]);

    store.pause("chain").await.unwrap();
    assert_eq!(statuses(&store).await, [(1, Paused), (2, Paused)]);
    append(&store, "s", (30..60).map(|n| moved("a", n))).await;
    store.resume("chain").await.unwrap();
    assert_eq!(statuses(&store).await, [(1, Active), (2, Building)], "each is what it was");
    assert_chains(&store, "chain").await;
    let built = async || {
        let all = store.projections().await.unwrap();
        all.iter().all(|status| status.position == status.mark)
    };
    eventually("the second catches up too", LIMIT, built).await;
    assert_eq!(statuses(&store).await, [(1, Active), (2, Building)], "nobody promoted it");
    running.stop().await;
    assert_eq!(statuses(&store).await, [(1, Active), (2, Building)]);
}

async fn inline_projection_that_waits_for_its_backfill_cannot_be_paused_into_life(
    fixture: Fixture,
) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1)]).await;
    let registered = store.register(inline()).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Building);
    for _ in 0..2 {
        let error = store.pause("chain").await.unwrap_err();
        assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
        let error = store.resume("chain").await.unwrap_err();
        assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
    }
    append(&store, "s", [moved("a", 2)]).await;
    let runner = run(&store, inline()).await;
    runner.stop().await;
    let status = store.projection("chain").await.unwrap();
    assert_eq!((status.status, status.open_skips), (GenerationStatus::Building, 0));
    assert!(status.reason.unwrap().contains("the store has events already"));
}

async fn projection_that_is_paused_in_a_batch_stands_still_behind_it(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    append(&store, "s", (0..20).map(|n| moved("a", n))).await;
    chain.0.wait.store(true, Ordering::SeqCst);
    let runner = run(&store, chain.projection("chain", OnError::Stop)).await;
    eventually("a batch is in hand", LIMIT, async || chain.0.waiting.load(Ordering::SeqCst)).await;
    let other = fixture.store().await;
    let pausing = tokio::spawn(async move { other.pause("chain").await });
    if !fixture.is_sqlite() {
        // There the batch holds the file, and the pause comes behind it.
        eventually("it is paused", LIMIT, async || pausing.is_finished()).await;
    }
    chain.0.wait.store(false, Ordering::SeqCst);
    pausing.await.unwrap().unwrap();
    // The batch in hand was finished or undone, no half of it.
    let after = append(&store, "s", [moved("a", 20)]).await.last_position;
    let owner = async || store.projection("chain").await.unwrap().shards[0].owner.clone();
    eventually("its worker lets go", LIMIT, async || owner().await.is_none()).await;
    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.status, GenerationStatus::Paused);
    assert!(status.position < after, "it applies nothing while it is paused");
    let upto = status.position;
    assert_eq!(
        chains(&store, "chain").await,
        folded(&store, |event| event.position <= upto).await,
        "read model and checkpoint belong together"
    );
    store.resume("chain").await.unwrap();
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

/// The chain of each stream, from the log.
async fn folded_by_stream(store: &Store) -> std::collections::BTreeMap<String, Link> {
    let mut found = std::collections::BTreeMap::new();
    for event in read_all(store).await {
        let data: serde_json::Value = event.data_as().unwrap();
        let link = found.remove(event.stream_id.as_str());
        let n = data["n"].as_u64().unwrap();
        found.insert(event.stream_id.to_string(), Link::then(link, n));
    }
    found
}

async fn inline_projection_owes_while_it_is_paused_and_is_drained_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(inline()).await.unwrap();
    let runner = run(&store, inline()).await;
    append(&store, "s", [moved("a", 1)]).await;
    store.pause("chain").await.unwrap();
    for n in 2..40 {
        append(&store, ["s", "t", "u"][n as usize % 3], [moved("a", n)]).await;
    }
    let status = store.projection("chain").await.unwrap();
    assert_eq!((status.status, status.open_skips), (GenerationStatus::Paused, 38));
    assert_eq!(chains(&store, "chain").await["s"].count, 1, "it stands still");
    let skips = store.skips("chain").await.unwrap();
    assert!(skips.iter().all(|skip| skip.reason == "paused"), "{skips:?}");

    store.resume("chain").await.unwrap();
    let position = store.last_position().await.unwrap();
    store.wait_for("chain", position, LIMIT).await.unwrap();
    assert_eq!(chains(&store, "chain").await, folded_by_stream(&store).await);
    assert_eq!(store.projection("chain").await.unwrap().open_skips, 0);
    runner.stop().await;
}

async fn pauses_and_resumes_under_load_lose_and_double_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(inline()).await.unwrap();
    let behind = Chain::default().projection("behind", OnError::Stop);
    let runner = Runner::new(&store).projection(inline()).projection(behind).options(quick("load"));
    let runner = runner.start().await.unwrap();
    let writers = (0..3).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..60 {
                append(&store, &format!("s-{}", (writer + n) % 4), [moved("a", n)]).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut pauses = 0;
    while pauses < 4 || writers.iter().any(|writer| !writer.is_finished()) {
        for name in ["chain", "behind"] {
            store.pause(name).await.unwrap();
            store.resume(name).await.unwrap();
        }
        pauses += 1;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let position = store.last_position().await.unwrap();
    store.wait_for("chain", position, LIMIT).await.unwrap();
    assert_eq!(chains(&store, "chain").await, folded_by_stream(&store).await);
    assert_chains(&store, "behind").await;
    runner.stop().await;
}

async fn count(fixture: &Fixture, table: &str, wanted: &str) -> i64 {
    let name = if fixture.is_sqlite() { "everfold_" } else { "everfold." };
    let rows = fixture.rows(&format!("SELECT count(*) FROM {name}{table} WHERE {wanted}")).await;
    rows[0][0].as_i64().unwrap()
}

async fn old_rows_of_the_logs_are_deleted(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1)]).await;
    let chain = || Chain::default().projection("chain", OnError::Stop);
    Runner::new(&store).projection(chain()).run_once().await.unwrap();
    assert_eq!(count(&fixture, "run_log", "true").await, 1);
    // More of them than are deleted at a time, and one that is too young.
    let ages = "SELECT n, CASE n WHEN 12001 THEN 13 ELSE 15 END AS days";
    fixture
        .execute(
            &format!(
                "DELETE FROM everfold.run_log; DELETE FROM everfold.system_messages;
                 INSERT INTO everfold.run_log (generation, shard, from_position, to_position, events, duration_ms, recorded_at)
                 SELECT 1, 0, 0, 1, 1, 1, clock_timestamp() - make_interval(days => days)
                   FROM ({ages} FROM generate_series(1, 12001) n) a;
                 INSERT INTO everfold.system_messages (generation, kind, actor, message, recorded_at)
                 SELECT 1, 'status', 'test', n::text, clock_timestamp() - make_interval(days => days)
                   FROM ({ages} FROM generate_series(1, 12001) n) a"
            ),
            &format!(
                "DELETE FROM everfold_run_log; DELETE FROM everfold_system_messages;
                 CREATE TEMPORARY TABLE ages AS WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 12001) {ages} FROM s;
                 INSERT INTO everfold_run_log (generation, shard, from_position, to_position, events, duration_ms, recorded_at)
                 SELECT 1, 0, 0, 1, 1, 1, strftime('%Y-%m-%dT%H:%M:%f', 'now', '-' || days || ' days') || '000Z' FROM ages;
                 INSERT INTO everfold_system_messages (generation, kind, actor, message, recorded_at)
                 SELECT 1, 'status', 'test', CAST(n AS TEXT), strftime('%Y-%m-%dT%H:%M:%f', 'now', '-' || days || ' days') || '000Z' FROM ages"
            ),
        )
        .await;
    append(&store, "s", [moved("a", 2)]).await;
    let runner = run(&store, chain()).await;
    assert_chains(&store, "chain").await;
    eventually("what is older than 14 days is deleted", LIMIT, async || {
        count(&fixture, "run_log", "true").await == 2
            && count(&fixture, "system_messages", "kind = 'status'").await == 1
    })
    .await;
    assert_eq!(count(&fixture, "system_messages", "message = '12001'").await, 1);
    runner.stop().await;
}
