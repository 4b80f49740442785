//! Snapshots of read models, and replays that begin with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use everfold::{
    ExpectedVersion, GenerationStatus, OnError, Position, Projection, ProjectionSettings,
    ReplayOptions, Store, VerifyOptions,
};
use everfold_testkit::{Seed, eventually};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::chain::{Chain, LIMIT, assert_chains, chains, moved, poisoned, run};
use crate::fixture::{Fixture, append, caught_up, counted, on_every_store};

on_every_store! {
    replay_from_a_snapshot_equals_a_full_rebuild,
    inline_snapshot_under_load_loses_nothing,
    snapshot_keeps_what_is_put_aside,
    snapshot_of_one_that_owes_is_replayed_in_order,
    replay_without_a_snapshot_begins_with_the_log,
    read_model_is_shown_as_of_a_position,
    newest_snapshots_are_kept,
    runner_copies_and_verifies_when_it_is_due,
}

const CREATE: &str = "CREATE TABLE read_model.numbers (key TEXT PRIMARY KEY, n TEXT NOT NULL,
    long INTEGER GENERATED ALWAYS AS (length(n)) STORED)";

/// The numbers of each stream in the order in which they were applied.
fn numbers(inline: bool) -> Projection {
    let apply = "INSERT INTO read_model.numbers AS t (key, n)
         SELECT stream_id, string_agg(CAST(data->>'n' AS TEXT), ',' ORDER BY position)
           FROM batch WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n || ',' || excluded.n";
    let sql = Projection::sql("numbers", 1).create(CREATE).apply(apply).events(["Counted"]);
    let sql = if inline { sql.inline() } else { sql };
    sql.build().unwrap()
}

async fn found(fixture: &Fixture, table: &str) -> BTreeMap<String, String> {
    let rows = fixture.rows(&format!("SELECT key, n FROM read_model.{table}")).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

fn from(position: Position) -> ReplayOptions {
    let mut options = ReplayOptions::default();
    options.from = Some(position);
    options
}

async fn replayed(store: &Store, name: &str, options: ReplayOptions) {
    store.replay(name, options).await.unwrap().finish().await.unwrap();
}

async fn begins_with(store: &Store, name: &str) -> String {
    let messages = store.messages(&everfold::MessageQuery::of(name)).await.unwrap();
    let begun = messages.into_iter().find(|message| message.message.contains("replay begins"));
    begun.unwrap().message
}

async fn replay_from_a_snapshot_equals_a_full_rebuild(fixture: Fixture) {
    let store = fixture.store().await;
    for n in 0..30 {
        append(&store, &format!("s-{}", n % 4), counted([n])).await;
    }
    let projection = numbers(false);
    caught_up(&store, &projection).await;
    let snapshot = store.snapshot_read_model("numbers").await.unwrap();
    assert_eq!((snapshot.rows, snapshot.version), (4, 1));
    assert_eq!(
        store.read_model_snapshots("numbers").await.unwrap(),
        std::slice::from_ref(&snapshot)
    );
    for n in 30..50 {
        append(&store, &format!("s-{}", n % 5), counted([n])).await;
    }
    caught_up(&store, &projection).await;
    let before = found(&fixture, "numbers").await;
    // What was changed since the snapshot is put right.
    let generation = store.projection("numbers").await.unwrap();
    fixture.execute_in("numbers", "UPDATE {}numbers SET n = 'x' WHERE key = 's-1'").await;
    replayed(&store, "numbers", from(snapshot.position)).await;
    caught_up(&store, &projection).await;
    assert_eq!(found(&fixture, "numbers").await, before);
    let begun = begins_with(&store, "numbers").await;
    assert!(begun.contains(&format!("snapshot {}", snapshot.id)), "{begun}");
    let verified = store.verify("numbers", VerifyOptions::default()).await.unwrap();
    assert_eq!((verified.compared, verified.differences), (5, 0));
    assert_eq!(store.projection("numbers").await.unwrap().version, generation.version);
}

/// Writers append while snapshots are taken; a replay from each holds what the log says.
async fn inline_snapshot_under_load_loses_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(true)).await.unwrap();
    let appends = Arc::new(Semaphore::new(0));
    let mut seed = Seed::from_env_or_random();
    let writers = (0..8).map(|_| {
        let (store, appends, mut seed) = (store.clone(), Arc::clone(&appends), seed.fork());
        tokio::spawn(async move {
            while let Ok(permit) = appends.acquire().await {
                permit.forget();
                let stream = format!("s-{}", seed.within(0..10));
                let events = counted([seed.within(0..100)]);
                store.append(&stream, ExpectedVersion::Any, events).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..3 {
        appends.add_permits(150);
        let snapshot = store.snapshot_read_model("numbers").await.unwrap();
        appends.add_permits(50);
        replayed(&store, "numbers", from(snapshot.position)).await;
        let verified = store.verify("numbers", VerifyOptions::default()).await.unwrap();
        assert_eq!(verified.differences, 0, "{:?}", verified.examples);
    }
    appends.close();
    for writer in writers {
        writer.await.unwrap();
    }
    let verified = store.verify("numbers", VerifyOptions::default()).await.unwrap();
    assert_eq!(verified.differences, 0, "{:?}", verified.examples);
}

async fn snapshot_keeps_what_is_put_aside(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("a", 3), moved("b", 4)]).await;
    let runner = run(&store, chain.projection("chain", OnError::DeadLetter)).await;
    eventually("the event is put aside", LIMIT, async || {
        store.dead_letters("chain").await.unwrap().len() == 2
    })
    .await;
    let snapshot = store.snapshot_read_model("chain").await.unwrap();
    append(&store, "s", [moved("a", 5), moved("c", 6)]).await;
    replayed(&store, "chain", from(snapshot.position)).await;
    // Still put aside, with what came later behind it.
    eventually("what came later is held", LIMIT, async || {
        store.dead_letters("chain").await.unwrap().len() == 3
    })
    .await;
    let letters = store.dead_letters("chain").await.unwrap();
    chain.0.mended.store(true, std::sync::atomic::Ordering::SeqCst);
    store.retry_dead_letter("chain", letters[0].position).await.unwrap();
    assert_chains(&store, "chain").await;
    assert_eq!(chains(&store, "chain").await.len(), 3);
    runner.stop().await;
}

/// What an inline projection owes is in the snapshot, and is applied first.
async fn snapshot_of_one_that_owes_is_replayed_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(true)).await.unwrap();
    append(&store, "s", counted([1])).await;
    store.pause("numbers").await.unwrap();
    append(&store, "s", counted([2])).await;
    append(&store, "t", counted([3])).await;
    let snapshot = store.snapshot_read_model("numbers").await.unwrap();
    assert_eq!(snapshot.rows, 1);
    store.resume("numbers").await.unwrap();
    append(&store, "s", counted([4])).await;
    append(&store, "u", counted([5])).await;
    replayed(&store, "numbers", from(snapshot.position)).await;
    let expected = [("s", "1,2,4"), ("t", "3"), ("u", "5")];
    let expected = expected.map(|(key, n)| (key.to_owned(), n.to_owned()));
    eventually("what is owed is applied", LIMIT, async || {
        found(&fixture, "numbers").await == BTreeMap::from(expected.clone())
    })
    .await;
}

async fn replay_without_a_snapshot_begins_with_the_log(fixture: Fixture) {
    let store = fixture.store().await;
    let early = append(&store, "s", counted([1])).await;
    append(&store, "s", counted([2])).await;
    caught_up(&store, &numbers(false)).await;
    store.snapshot_read_model("numbers").await.unwrap();
    // The snapshot is later than that.
    replayed(&store, "numbers", from(early.last_position)).await;
    let begun = begins_with(&store, "numbers").await;
    assert!(begun.contains("the beginning of the log"), "{begun}");
    assert_eq!(found(&fixture, "numbers").await["s"], "1,2");
    let mut late = ReplayOptions::default();
    late.to = Some(Position(1_000_000));
    let refused = store.replay("numbers", late).await.unwrap_err().to_string();
    assert!(refused.contains("the log ends at"), "{refused}");
}

async fn read_model_is_shown_as_of_a_position(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(true)).await.unwrap();
    let then = append(&store, "s", counted([1, 2])).await.last_position;
    append(&store, "s", counted([3])).await;
    append(&store, "t", counted([4])).await;
    let mut options = ReplayOptions::default();
    options.to = Some(then);
    replayed(&store, "numbers", options).await;
    let as_of = format!("numbers_at_{then}");
    let expected = BTreeMap::from([("s".to_owned(), "1,2".to_owned())]);
    assert_eq!(found(&fixture, &as_of).await, expected);
    append(&store, "s", counted([5])).await;
    assert_eq!(found(&fixture, "numbers").await["s"], "1,2,3,5");
    assert_eq!(found(&fixture, &as_of).await, expected);
    assert!(store.skips("numbers").await.unwrap().is_empty());
    let paused = store.projections().await.unwrap();
    let paused = paused.iter().find(|status| status.status == GenerationStatus::Paused).unwrap();
    assert!(paused.reason.as_deref().unwrap().contains("for a look"), "{paused:?}");
    store.resume("numbers").await.unwrap_err();
    store.retire("numbers").await.unwrap();
    assert_eq!(store.projections().await.unwrap().len(), 1);
    assert_eq!(found(&fixture, "numbers").await["t"], "4");
}

async fn newest_snapshots_are_kept(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    settings.snapshots_kept = 2;
    let projection = Chain::default().builder("chain").settings(settings).build().unwrap();
    append(&store, "s", [moved("a", 1)]).await;
    caught_up(&store, &projection).await;
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(store.snapshot_read_model("chain").await.unwrap().id);
    }
    let ids = async || -> Vec<i32> {
        store.read_model_snapshots("chain").await.unwrap().iter().map(|s| s.id).collect()
    };
    assert_eq!(ids().await, [taken[2], taken[1]]);
    store.drop_read_model_snapshot("chain", taken[1]).await.unwrap();
    assert_eq!(ids().await, [taken[2]]);
    let refused = store.drop_read_model_snapshot("chain", taken[0]).await.unwrap_err();
    assert!(refused.to_string().contains("has no snapshot"), "{refused}");
}

async fn runner_copies_and_verifies_when_it_is_due(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    settings.snapshot_every = Some(Duration::from_secs(3600));
    settings.verify_every = Some(Duration::from_millis(1));
    let projection = Chain::default().builder("chain").settings(settings).build().unwrap();
    append(&store, "s", [moved("a", 1)]).await;
    let runner = run(&store, projection).await;
    eventually("it is verified again and again", LIMIT, async || {
        store.verifications("chain").await.unwrap().len() >= 3
    })
    .await;
    // Not again within the hour.
    assert_eq!(store.read_model_snapshots("chain").await.unwrap().len(), 1);
    fixture.execute_in("chain", "DELETE FROM {}chain").await;
    eventually("what was changed by hand shows in the status", LIMIT, async || {
        let verified = store.projection("chain").await.unwrap().verified;
        verified.is_some_and(|verified| verified.differences == 1)
    })
    .await;
    runner.stop().await;
}
