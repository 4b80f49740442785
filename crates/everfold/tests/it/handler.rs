//! Handler projections: code with the open transaction of the store it is for. What it writes is
//! committed with the checkpoint, or not at all.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::testing::ProjectionTest;
use everfold::{
    ExpectedVersion, HandlerBatch, HandlerBody, HandlerError, NewEvent, OnError, Projection,
    ProjectionBuilder, ProjectionSettings, RecordedEvent,
};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, caught_up, event, failed, on_every_store};

on_every_store! {
    handler_gets_every_event_once_in_order,
    handler_that_fails_leaves_nothing_of_its_batch,
    handler_that_fails_for_a_while_is_tried_again,
    handler_that_panics_is_stopped_and_others_go_on,
    handler_is_told_of_events_that_are_left_out,
    events_behind_a_dead_letter_wait_and_other_keys_go_on,
    inline_handler_writes_with_the_append_or_not_at_all,
    handler_of_a_version_that_is_built_beside_knows_it_is_replayed,
    handler_of_a_new_projection_is_no_replay_however_many_events_there_are,
    handler_for_the_other_store_is_refused,
    set_up_that_fails_registers_nothing,
}

/// Adds numbers up by stream. 13 is refused after it was written, 14 makes it panic, and the first
/// `stumbles` calls fail.
#[derive(Clone, Default)]
struct Totals {
    stumbles: Arc<AtomicU32>,
    broken_set_up: bool,
    /// Of each event that was seen, whether it was a replay.
    replays: Arc<Mutex<Vec<bool>>>,
}

fn number(event: &RecordedEvent) -> i64 {
    let data: Value = event.data_as().expect("data is JSON");
    data["n"].as_i64().expect("data has a number")
}

impl Totals {
    fn after(&self, n: i64) -> Result<(), HandlerError> {
        assert_ne!(n, 14, "fourteen is too much");
        match n {
            13 => Err("thirteen is refused".into()),
            _ => Ok(()),
        }
    }

    fn note(&self, batch: &HandlerBatch<'_>) {
        let seen = std::iter::repeat_n(batch.replayed, batch.events.len());
        self.replays.lock().unwrap().extend(seen);
    }

    fn stumble(&self) -> Result<(), HandlerError> {
        let left = self
            .stumbles
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_or(Ok(()), |_| Err("stumbled".into()))
    }

    fn tables(&self, home: &str) -> String {
        let broken = if self.broken_set_up { "nonsense" } else { "" };
        format!(
            "CREATE TABLE {home}totals (stream TEXT PRIMARY KEY, n BIGINT NOT NULL, last BIGINT NOT NULL); \
             CREATE TABLE {home}left_out (stream TEXT NOT NULL, n BIGINT NOT NULL); {broken}"
        )
    }
}

const ADD: &str = "(stream, n, last) VALUES ($1, $2, $3) \
     ON CONFLICT (stream) DO UPDATE SET n = t.n + excluded.n, last = excluded.last";

impl PostgresHandler for Totals {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let tables = self.tables(&format!("{home}."));
        Box::pin(async move { Ok(transaction.batch_execute(&tables).await?) })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            self.note(&batch);
            let add = format!("INSERT INTO {}.totals AS t {ADD}", batch.home);
            for event in batch.events {
                let (n, version) = (number(event), event.version.0.cast_signed());
                transaction.execute(&add, &[&event.stream_id.as_str(), &n, &version]).await?;
                self.after(n)?;
            }
            self.stumble()
        })
    }

    fn skipped<'a>(
        &'a self,
        event: &'a RecordedEvent,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let home = transaction
                .query_one("SELECT home FROM everfold.generations ORDER BY id LIMIT 1", &[])
                .await?
                .get::<_, String>(0);
            let note = format!("INSERT INTO {home}.left_out VALUES ($1, $2)");
            transaction.execute(&note, &[&event.stream_id.as_str(), &number(event)]).await?;
            Ok(())
        })
    }
}

impl SqliteHandler for Totals {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        Ok(connection.execute_batch(&self.tables(home))?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        self.note(&batch);
        let mut add =
            connection.prepare_cached(&format!("INSERT INTO {}totals AS t {ADD}", batch.home))?;
        for event in batch.events {
            let (n, version) = (number(event), event.version.0.cast_signed());
            add.execute((event.stream_id.as_str(), n, version))?;
            self.after(n)?;
        }
        self.stumble()
    }

    fn skipped(
        &self,
        event: &RecordedEvent,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let home: String = connection.query_row(
            "SELECT home FROM everfold_generations ORDER BY id LIMIT 1",
            [],
            |row| row.get(0),
        )?;
        let note = format!("INSERT INTO {home}left_out VALUES (?1, ?2)");
        connection.execute(&note, (event.stream_id.as_str(), number(event)))?;
        Ok(())
    }
}

fn on(fixture: &Fixture, name: &str, totals: Totals) -> ProjectionBuilder<HandlerBody> {
    version_on(fixture, name, 1, totals)
}

fn version_on(
    fixture: &Fixture,
    name: &str,
    version: u32,
    totals: Totals,
) -> ProjectionBuilder<HandlerBody> {
    let mut settings = ProjectionSettings::default();
    settings.retries = 0;
    let builder = match fixture.is_sqlite() {
        true => Projection::sqlite_handler(name, version, totals),
        false => Projection::postgres_handler(name, version, totals),
    };
    builder.events(["Added"]).settings(settings)
}

fn added(n: i64) -> NewEvent {
    event("Added", json!({ "n": n }))
}

async fn totals(fixture: &Fixture) -> Vec<Vec<Value>> {
    fixture.rows("SELECT stream, n, last FROM read_model.totals ORDER BY stream").await
}

async fn handler_gets_every_event_once_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", [added(1), added(2)]).await;
    let projection = on(&fixture, "totals", Totals::default()).build().unwrap();
    append(&store, "b", [added(4), event("Other", json!({})), added(8)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(
        totals(&fixture).await,
        [[json!("a"), json!(3), json!(2)], [json!("b"), json!(12), json!(3)]]
    );
    append(&store, "a", [added(16)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(totals(&fixture).await[0], [json!("a"), json!(19), json!(3)]);
}

async fn handler_that_fails_leaves_nothing_of_its_batch(fixture: Fixture) {
    let store = fixture.store().await;
    let projection = on(&fixture, "totals", Totals::default()).build().unwrap();
    append(&store, "a", [added(1), added(2)]).await;
    append(&store, "b", [added(13), added(4)]).await;
    let reason = failed(&store, &projection).await;
    assert!(reason.contains("thirteen is refused"), "{reason}");
    assert!(reason.contains("stream \"b\""), "{reason}");
    // What stands before the event is kept with its checkpoint; of the event itself nothing.
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(3), json!(2)]]);
}

async fn handler_that_fails_for_a_while_is_tried_again(fixture: Fixture) {
    let store = fixture.store().await;
    let stumbling = Totals { stumbles: Arc::new(AtomicU32::new(2)), ..Totals::default() };
    let mut settings = ProjectionSettings::default();
    settings.retry_delay = std::time::Duration::from_millis(5);
    let projection = on(&fixture, "totals", stumbling).settings(settings).build().unwrap();
    append(&store, "a", [added(1), added(2)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(3), json!(2)]]);
}

async fn handler_that_panics_is_stopped_and_others_go_on(fixture: Fixture) {
    let store = fixture.store().await;
    let projection = on(&fixture, "totals", Totals::default()).build().unwrap();
    append(&store, "a", [added(1), added(14)]).await;
    let reason = failed(&store, &projection).await;
    assert!(reason.contains("fourteen is too much"), "{reason}");
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(1), json!(1)]]);
    append(&store, "a", [added(2)]).await;
    assert_eq!(store.stream_version("a").await.unwrap().0, 3, "the store goes on");
}

async fn handler_is_told_of_events_that_are_left_out(fixture: Fixture) {
    let store = fixture.store().await;
    let projection =
        on(&fixture, "totals", Totals::default()).on_error(OnError::Skip).build().unwrap();
    append(&store, "a", [added(1), added(13), added(2)]).await;
    append(&store, "b", [added(14), added(4)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(
        totals(&fixture).await,
        [[json!("a"), json!(3), json!(3)], [json!("b"), json!(4), json!(2)]]
    );
    let left_out = fixture.rows("SELECT stream, n FROM read_model.left_out ORDER BY n").await;
    assert_eq!(left_out, [[json!("a"), json!(13)], [json!("b"), json!(14)]]);
}

async fn events_behind_a_dead_letter_wait_and_other_keys_go_on(fixture: Fixture) {
    let store = fixture.store().await;
    let projection =
        on(&fixture, "totals", Totals::default()).on_error(OnError::DeadLetter).build().unwrap();
    append(&store, "a", [added(1), added(13), added(2)]).await;
    let last = append(&store, "b", [added(4)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(
        totals(&fixture).await,
        [[json!("a"), json!(1), json!(1)], [json!("b"), json!(4), json!(1)]]
    );
    let wait = std::time::Duration::ZERO;
    assert!(!store.wait_for_or_stale("totals", last.last_position, wait).await.unwrap());
}

async fn inline_handler_writes_with_the_append_or_not_at_all(fixture: Fixture) {
    let store = fixture.store().await;
    let inline = on(&fixture, "totals", Totals::default()).inline().build().unwrap();
    store.register(inline).await.unwrap();
    append(&store, "a", [added(1), added(2)]).await;
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(3), json!(2)]]);
    for (n, part) in [(13, "thirteen is refused"), (14, "fourteen is too much")] {
        let append = store.append("a", ExpectedVersion::Any, [added(4), added(n)]);
        let said = append.await.unwrap_err().to_string();
        assert!(said.contains("totals") && said.contains(part), "{said}");
    }
    assert_eq!(store.stream_version("a").await.unwrap().0, 2, "nothing was stored");
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(3), json!(2)]]);
    append(&store, "a", [added(8)]).await;
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(11), json!(3)]]);
}

async fn handler_of_a_version_that_is_built_beside_knows_it_is_replayed(fixture: Fixture) {
    let store = fixture.store().await;
    let (first, second) = (Totals::default(), Totals::default());
    append(&store, "a", [added(1), added(2)]).await;
    caught_up(&store, &on(&fixture, "totals", first.clone()).build().unwrap()).await;
    caught_up(&store, &version_on(&fixture, "totals", 2, second.clone()).build().unwrap()).await;
    assert_eq!(*first.replays.lock().unwrap(), [false, false]);
    assert_eq!(*second.replays.lock().unwrap(), [true, true]);
    // Readers see the first one.
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(3), json!(2)]]);
}

async fn handler_of_a_new_projection_is_no_replay_however_many_events_there_are(fixture: Fixture) {
    let store = fixture.store_with(|options| options.backfill_events = 1).await;
    append(&store, "a", [added(1), added(2), added(3)]).await;
    let handler = Totals::default();
    caught_up(&store, &on(&fixture, "totals", handler.clone()).build().unwrap()).await;
    assert_eq!(*handler.replays.lock().unwrap(), [false, false, false]);
    assert!(store.rebuilds().await.unwrap().is_empty());
}

async fn handler_for_the_other_store_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let other = match fixture.is_sqlite() {
        true => Projection::postgres_handler("totals", 1, Totals::default()),
        false => Projection::sqlite_handler("totals", 1, Totals::default()),
    };
    let error = store.register(other.build().unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("totals") && error.contains("handler"), "{error}");
    // And nothing of it was kept.
    caught_up(&store, &on(&fixture, "totals", Totals::default()).build().unwrap()).await;
}

async fn set_up_that_fails_registers_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    let broken = Totals { broken_set_up: true, ..Totals::default() };
    let broken = on(&fixture, "totals", broken).build().unwrap();
    let error = store.register(broken).await.unwrap_err().to_string();
    assert!(error.contains("totals") && error.contains("nonsense"), "{error}");
    let projection = on(&fixture, "totals", Totals::default()).build().unwrap();
    append(&store, "a", [added(1)]).await;
    caught_up(&store, &projection).await;
    assert_eq!(totals(&fixture).await, [[json!("a"), json!(1), json!(1)]]);
}

#[tokio::test]
async fn handler_that_is_right_passes_the_test_kit_on_either_store() {
    let stores = [Fixture::sqlite(), Fixture::postgres().await];
    for fixture in stores {
        let projection = on(&fixture, "totals", Totals::default()).build().unwrap();
        let test = ProjectionTest::new(projection)
            .on(&fixture.url)
            .given_events("a", [added(1), added(2)])
            .given_events("b", [added(4), event("Other", json!({}))])
            .given_events("a", [added(8)])
            .then_rows(
                "SELECT stream, n, last FROM read_model.totals ORDER BY stream",
                [("a", 11, 3), ("b", 4, 1)],
            );
        test.run().await.unwrap();
    }
}
