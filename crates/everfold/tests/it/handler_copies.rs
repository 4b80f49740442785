//! Handlers: their read models are verified, copied and replayed like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    ExpectedVersion, HandlerBatch, HandlerBody, HandlerError, OnError, Position, Projection,
    ProjectionBuilder, ProjectionSettings, RebuildOptions, RebuildPhase, RecordedEvent,
    ReplayOptions, Store, Verification, VerifyOptions, VerifyScope,
};
use everfold_testkit::Seed;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::chain::run;
use crate::fixture::{Fixture, append, caught_up, counted, on_every_store, read_all};

on_every_store! {
    row_of_a_handler_changed_deleted_or_added_by_hand_is_found,
    nothing_of_a_handler_differs_while_many_append,
    handler_replayed_from_a_snapshot_equals_a_full_rebuild,
    inline_handler_that_owes_is_replayed_in_order,
}

/// The numbers of each stream in the order in which they came. 13 is refused until it is mended.
#[derive(Clone, Default)]
struct Noted {
    mended: Arc<AtomicBool>,
}

const TABLE: &str = "noted (stream TEXT PRIMARY KEY, n TEXT NOT NULL)";
const ADD: &str = "(stream, n) VALUES ($1, $2) \
    ON CONFLICT (stream) DO UPDATE SET n = t.n || ',' || excluded.n";

impl Noted {
    /// Stream and number of each event, up to the first that is refused.
    fn of(&self, event: &RecordedEvent) -> Result<String, HandlerError> {
        let data: Value = event.data_as()?;
        match data["n"].as_u64() {
            Some(13) if !self.mended.load(Ordering::SeqCst) => Err("thirteen is refused".into()),
            Some(n) => Ok(n.to_string()),
            None => Err("no number".into()),
        }
    }
}

impl PostgresHandler for Noted {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let create = format!("CREATE TABLE {home}.{TABLE}");
        Box::pin(async move { Ok(transaction.batch_execute(&create).await?) })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let add = format!("INSERT INTO {}.noted AS t {ADD}", batch.home);
            for event in batch.events {
                let n = self.of(event)?;
                transaction.execute(&add, &[&event.stream_id.as_str(), &n]).await?;
            }
            Ok(())
        })
    }
}

impl SqliteHandler for Noted {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        Ok(connection.execute_batch(&format!("CREATE TABLE {home}{TABLE}"))?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let add = format!("INSERT INTO {}noted AS t {ADD}", batch.home);
        let mut add = connection.prepare_cached(&add)?;
        for event in batch.events {
            add.execute((event.stream_id.as_str(), self.of(event)?))?;
        }
        Ok(())
    }
}

fn on(fixture: &Fixture, noted: &Noted) -> ProjectionBuilder<HandlerBody> {
    let mut settings = ProjectionSettings::default();
    settings.retries = 0;
    let builder = match fixture.is_sqlite() {
        true => Projection::sqlite_handler("noted", 1, noted.clone()),
        false => Projection::postgres_handler("noted", 1, noted.clone()),
    };
    builder.events(["Counted"]).settings(settings)
}

async fn rows(fixture: &Fixture) -> BTreeMap<String, String> {
    let rows = fixture.rows("SELECT stream, n FROM read_model.noted").await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

async fn folded(store: &Store) -> BTreeMap<String, String> {
    let mut folded: BTreeMap<String, String> = BTreeMap::new();
    for event in read_all(store).await {
        let data: Value = event.data_as().unwrap();
        let all = folded.entry(event.stream_id.to_string()).or_default();
        all.push_str(if all.is_empty() { "" } else { "," });
        all.push_str(&data["n"].to_string());
    }
    folded
}

async fn verify(store: &Store, scope: VerifyScope) -> Verification {
    let mut options = VerifyOptions::default();
    options.scope = scope;
    store.verify("noted", options).await.unwrap()
}

async fn row_of_a_handler_changed_deleted_or_added_by_hand_is_found(fixture: Fixture) {
    let store = fixture.store().await;
    let inline = on(&fixture, &Noted::default()).inline().build().unwrap();
    store.register(inline).await.unwrap();
    for stream in ["a", "b", "c"] {
        append(&store, stream, counted([1, 2])).await;
    }
    assert_eq!(rows(&fixture).await, folded(&store).await);
    let right = verify(&store, VerifyScope::All).await;
    assert_eq!((right.compared, right.differences), (3, 0));

    let by_hand = "UPDATE {}noted SET n = '1,3' WHERE stream = 'a'; \
        DELETE FROM {}noted WHERE stream = 'b'; INSERT INTO {}noted VALUES ('z', '9')";
    fixture.execute_in("noted", by_hand).await;
    let found = verify(&store, VerifyScope::All).await;
    assert_eq!((found.compared, found.differences), (4, 3));
    let row = |stream: &str, n: &str| Some(json!({ "stream": stream, "n": n }));
    let mut told: Vec<_> = found
        .examples
        .iter()
        .map(|d| (d.key["stream"].clone(), d.expected.clone(), d.found.clone()))
        .collect();
    told.sort_by_key(|(key, ..)| key.to_string());
    let expected = [
        (json!("a"), row("a", "1,2"), row("a", "1,3")),
        (json!("b"), row("b", "1,2"), None),
        (json!("z"), None, row("z", "9")),
    ];
    assert_eq!(told, expected);
    let keys = |keys: &[&str]| VerifyScope::Keys(keys.iter().map(|k| (*k).to_owned()).collect());
    assert_eq!(verify(&store, keys(&["c"])).await.differences, 0);
    assert_eq!(verify(&store, keys(&["b", "c"])).await.differences, 1);
    assert_eq!(verify(&store, VerifyScope::Sample(100)).await.differences, 2, "a and b");
    assert_eq!(rows(&fixture).await["a"], "1,3", "nothing was mended on the way");

    let rebuild = store.rebuild("noted", RebuildOptions::default()).await.unwrap();
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_eq!(verify(&store, VerifyScope::All).await.differences, 0);
    assert_eq!(rows(&fixture).await, folded(&store).await);
}

/// Sixteen writers with a few appends for each verification; one number in thirty is refused, and what
/// comes behind it waits.
async fn nothing_of_a_handler_differs_while_many_append(fixture: Fixture) {
    let store = fixture.store().await;
    let noted = on(&fixture, &Noted::default()).on_error(OnError::DeadLetter).shards(2);
    let runner = run(&store, noted.build().unwrap()).await;
    let appends = Arc::new(Semaphore::new(0));
    let mut seed = Seed::from_env_or_random();
    let writers = (0..16).map(|_| {
        let (store, appends, mut seed) = (store.clone(), Arc::clone(&appends), seed.fork());
        tokio::spawn(async move {
            while let Ok(permit) = appends.acquire().await {
                permit.forget();
                let stream = format!("s-{}", seed.within(0..30));
                let events = counted([seed.within(0..30), seed.within(0..30)]);
                store.append(&stream, ExpectedVersion::Any, events).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut compared = 0;
    for _ in 0..4 {
        appends.add_permits(100);
        let all = verify(&store, VerifyScope::All).await;
        assert_eq!(all.differences, 0, "{:?}", all.examples);
        appends.add_permits(50);
        let some = verify(&store, VerifyScope::Sample(5)).await;
        assert_eq!(some.differences, 0, "{:?}", some.examples);
        compared += all.compared;
    }
    appends.close();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(compared > 0);
    runner.catch_up().await.unwrap();
    let all = verify(&store, VerifyScope::All).await;
    assert_eq!(all.differences, 0, "{:?}", all.examples);
    assert!(!store.dead_letters("noted").await.unwrap().is_empty(), "some were refused");
    runner.stop().await;
}

/// Rows, and what is put aside with what waits behind it.
async fn state(
    fixture: &Fixture,
    store: &Store,
) -> (BTreeMap<String, String>, Vec<(Position, Option<Position>)>) {
    let letters = store.dead_letters("noted").await.unwrap();
    let letters = letters.iter().map(|letter| (letter.position, letter.behind)).collect();
    (rows(fixture).await, letters)
}

async fn handler_replayed_from_a_snapshot_equals_a_full_rebuild(fixture: Fixture) {
    let store = fixture.store().await;
    let noted = Noted::default();
    let projection = on(&fixture, &noted).on_error(OnError::DeadLetter).shards(2).build().unwrap();
    store.register(projection.clone()).await.unwrap();
    append(&store, "a", counted([1, 13, 2])).await;
    append(&store, "b", counted([4])).await;
    caught_up(&store, &projection).await;
    let snapshot = store.snapshot_read_model("noted").await.unwrap();
    assert_eq!(snapshot.rows, 2);
    assert!(snapshot.bytes > 0);
    append(&store, "a", counted([5])).await;
    append(&store, "c", counted([6, 13, 7])).await;
    caught_up(&store, &projection).await;
    let live = state(&fixture, &store).await;
    assert_eq!(live.1.len(), 5, "two refused, three behind them: {live:?}");

    let mut from = ReplayOptions::default();
    from.from = Some(snapshot.position);
    let replay = store.replay("noted", from).await.unwrap().finish().await.unwrap();
    assert_eq!(replay.phase, RebuildPhase::Done);
    assert_eq!(replay.events_done, 1, "of what came after the snapshot one is applied");
    caught_up(&store, &projection).await;
    assert_eq!(state(&fixture, &store).await, live);
    assert_eq!(verify(&store, VerifyScope::All).await.differences, 0);
    let full = store.rebuild("noted", RebuildOptions::default()).await.unwrap();
    assert_eq!(full.finish().await.unwrap().phase, RebuildPhase::Done);
    caught_up(&store, &projection).await;
    assert_eq!(state(&fixture, &store).await, live);

    noted.mended.store(true, Ordering::SeqCst);
    for (position, behind) in live.1 {
        if behind.is_none() {
            store.retry_dead_letter("noted", position).await.unwrap();
        }
    }
    caught_up(&store, &projection).await;
    assert_eq!(rows(&fixture).await, folded(&store).await);
}

/// What it owed at that moment is in the snapshot, and is applied first.
async fn inline_handler_that_owes_is_replayed_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    let inline = on(&fixture, &Noted::default()).inline().build().unwrap();
    store.register(inline.clone()).await.unwrap();
    append(&store, "a", counted([1])).await;
    store.pause("noted").await.unwrap();
    append(&store, "a", counted([2])).await;
    append(&store, "b", counted([3])).await;
    let snapshot = store.snapshot_read_model("noted").await.unwrap();
    store.resume("noted").await.unwrap();
    append(&store, "a", counted([4])).await;
    fixture.execute_in("noted", "DELETE FROM {}noted").await;
    let mut from = ReplayOptions::default();
    from.from = Some(snapshot.position);
    let replay = store.replay("noted", from).await.unwrap().finish().await.unwrap();
    assert_eq!(replay.phase, RebuildPhase::Done);
    append(&store, "a", counted([5])).await;
    assert_eq!(rows(&fixture).await, folded(&store).await);
    assert!(store.skips("noted").await.unwrap().is_empty());
    assert_eq!(verify(&store, VerifyScope::All).await.differences, 0);
}
