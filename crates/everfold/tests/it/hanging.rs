//! Handlers that do not come back, and handlers that do not say what went wrong: both count as
//! failures of the projection, of the event they happened at.

use std::time::Duration;

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    AppendError, ExpectedVersion, GenerationStatus, HandlerBatch, HandlerError, NewEvent, OnError,
    Position, Projection, ProjectionError, ProjectionSettings, RecordedEvent, Retried, Runner,
    RunnerOptions, Store,
};
use everfold_testkit::eventually;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::chain::LIMIT;
use crate::fixture::{Fixture, append, event, on_every_store};

on_every_store! {
    event_that_a_handler_hangs_on_is_found_and_stops_it,
    event_that_a_handler_hangs_on_is_put_aside_and_others_go_on,
    retry_of_an_event_that_a_handler_hangs_on_ends,
    hook_that_hangs_stops_the_projection,
    handler_that_swallows_an_error_is_the_one_that_failed,
}

fn number(event: &RecordedEvent) -> i64 {
    let data: Value = event.data_as().expect("data is JSON");
    data["n"].as_i64().expect("data has a number")
}

fn added(n: i64) -> NewEvent {
    event("Added", json!({ "n": n }))
}

/// Writes down each number. It never comes back from 13; 15 makes a statement fail, of which it says
/// nothing.
#[derive(Clone, Default)]
struct Hanging {
    hook_too: bool,
}

impl Hanging {
    const NOTE: &str = "INTO {}seen (n) VALUES ({n})";
    /// As good as for ever: it is to be stopped from outside.
    const FOR_EVER: &str = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) \
         INSERT INTO {}seen (n) SELECT count(*) FROM t";

    fn sql(home: &str, n: i64) -> String {
        let note = format!("INSERT {}", Self::NOTE).replace("{n}", &n.to_string());
        match n {
            13 => format!("{note}; {}", Self::FOR_EVER),
            15 => format!("{note}; {note}"),
            _ => note,
        }
        .replace("{}", home)
    }
}

impl PostgresHandler for Hanging {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let create = format!("CREATE TABLE {home}.seen (n BIGINT PRIMARY KEY)");
        Box::pin(async move { Ok(transaction.batch_execute(&create).await?) })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            for event in batch.events {
                match number(event) {
                    13 => std::future::pending().await,
                    n => {
                        let sql = Self::sql(&format!("{}.", batch.home), n);
                        let outcome = transaction.batch_execute(&sql).await;
                        assert_eq!(outcome.is_err(), n == 15, "{outcome:?}");
                    }
                }
            }
            Ok(())
        })
    }

    fn skipped<'a>(
        &'a self,
        _: &'a RecordedEvent,
        _: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            match self.hook_too {
                true => std::future::pending().await,
                false => Ok(()),
            }
        })
    }
}

impl SqliteHandler for Hanging {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        Ok(connection.execute_batch(&format!("CREATE TABLE {home}seen (n BIGINT PRIMARY KEY)"))?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        for event in batch.events {
            connection.execute_batch(&Self::sql(batch.home, number(event)))?;
        }
        Ok(())
    }

    fn skipped(
        &self,
        _: &RecordedEvent,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let home: String =
            connection.query_row("SELECT home FROM everfold_generations", [], |row| row.get(0))?;
        match self.hook_too {
            true => Ok(connection.execute_batch(&Self::FOR_EVER.replace("{}", &home))?),
            false => Ok(()),
        }
    }
}

fn hanging(fixture: &Fixture, hanging: Hanging, on_error: OnError) -> Projection {
    let mut settings = ProjectionSettings::default();
    settings.retries = 1;
    settings.retry_delay = Duration::from_millis(5);
    let builder = match fixture.is_sqlite() {
        true => Projection::sqlite_handler("seen", 1, hanging),
        false => Projection::postgres_handler("seen", 1, hanging),
    };
    builder.events(["Added"]).settings(settings).on_error(on_error).build().unwrap()
}

/// Runs it with little patience until it has caught up or failed.
async fn run_hanging(store: &Store, projection: Projection) -> Result<(), ProjectionError> {
    let mut options = RunnerOptions::default();
    options.handler_timeout = Some(Duration::from_millis(200));
    Runner::new(store).projection(projection).options(options).run_once().await
}

async fn seen(fixture: &Fixture) -> Vec<i64> {
    let rows = fixture.rows("SELECT n FROM read_model.seen ORDER BY n").await;
    rows.iter().map(|row| row[0].as_i64().unwrap()).collect()
}

/// Numbers from 1 on, of which the eighth is the bad one.
async fn append_around(store: &Store, bad: i64) {
    append(store, "a", (1..=7).map(added)).await;
    append(store, "bad", [added(bad), added(bad + 100)]).await;
    append(store, "b", (20..=22).map(added)).await;
}

async fn event_that_a_handler_hangs_on_is_found_and_stops_it(fixture: Fixture) {
    let store = fixture.store().await;
    append_around(&store, 13).await;
    let projection = hanging(&fixture, Hanging::default(), OnError::Stop);
    let error = run_hanging(&store, projection).await.unwrap_err();
    let ProjectionError::Failed { reason, .. } = &error else { panic!("{error}") };
    for part in ["projection \"seen\" version 1", "position 8", "200ms", "everfold resume seen"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(seen(&fixture).await, (1..=7).collect::<Vec<i64>>());
    let status = store.projection("seen").await.unwrap();
    assert_eq!((status.status, status.position), (GenerationStatus::Failed, Position(7)));
    append(&store, "a", [added(30)]).await;
}

async fn event_that_a_handler_hangs_on_is_put_aside_and_others_go_on(fixture: Fixture) {
    let store = fixture.store().await;
    append_around(&store, 13).await;
    let projection = hanging(&fixture, Hanging::default(), OnError::DeadLetter);
    run_hanging(&store, projection).await.unwrap();
    assert_eq!(seen(&fixture).await, [1, 2, 3, 4, 5, 6, 7, 20, 21, 22]);
    let letters = store.dead_letters("seen").await.unwrap();
    assert_eq!(letters.iter().map(|letter| letter.position.0).collect::<Vec<_>>(), [8, 9]);
    assert!(letters[0].error.as_ref().unwrap().contains("200ms"), "{letters:?}");
    assert_eq!(letters[0].attempts, 2);
}

async fn retry_of_an_event_that_a_handler_hangs_on_ends(fixture: Fixture) {
    let store = fixture.store().await;
    append_around(&store, 13).await;
    let projection = hanging(&fixture, Hanging::default(), OnError::DeadLetter);
    run_hanging(&store, projection.clone()).await.unwrap();
    // A handle without the code leaves it to a runner.
    let other = fixture.store().await;
    let asked = other.retry_dead_letter("seen", Position(8)).await.unwrap();
    assert_eq!(asked, Retried::Requested);
    let mut options = RunnerOptions::default();
    options.handler_timeout = Some(Duration::from_millis(200));
    let runner = Runner::new(&store).projection(projection).options(options).start().await.unwrap();
    eventually("it was tried again", LIMIT, async || {
        let letters = store.dead_letters("seen").await.unwrap();
        letters[0].attempts == 3 && !letters[0].retry_wanted
    })
    .await;
    runner.stop().await;
    assert_eq!(store.dead_letters("seen").await.unwrap().len(), 2);
}

async fn hook_that_hangs_stops_the_projection(fixture: Fixture) {
    let store = fixture.store().await;
    append_around(&store, 13).await;
    let projection = hanging(&fixture, Hanging { hook_too: true }, OnError::Skip);
    let error = run_hanging(&store, projection).await.unwrap_err().to_string();
    assert!(error.contains("position 8"), "{error}");
    assert_eq!(seen(&fixture).await, (1..=7).collect::<Vec<i64>>());
}

/// Only a server can have a transaction that takes no more and yet goes on.
async fn handler_that_swallows_an_error_is_the_one_that_failed(fixture: Fixture) {
    let store = fixture.store().await;
    append_around(&store, 15).await;
    let projection = hanging(&fixture, Hanging::default(), OnError::DeadLetter);
    run_hanging(&store, projection).await.unwrap();
    assert_eq!(seen(&fixture).await, [1, 2, 3, 4, 5, 6, 7, 20, 21, 22]);
    let letters = store.dead_letters("seen").await.unwrap();
    assert_eq!(letters.iter().map(|letter| letter.position.0).collect::<Vec<_>>(), [8, 9]);
    let error = letters[0].error.as_ref().unwrap();
    let part = if fixture.is_sqlite() { "UNIQUE" } else { "a statement of the handler failed" };
    assert!(error.contains(part), "{error}");
}

/// It is not the server that gives no answer, so trying again would only hang again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_handler_that_hangs_fails_the_append_by_name() {
    let fixture = Fixture::postgres().await;
    let store =
        fixture.store_with(|options| options.request_timeout = Duration::from_secs(1)).await;
    let builder = Projection::postgres_handler("seen", 1, Hanging::default()).events(["Added"]);
    store.register(builder.inline().build().unwrap()).await.unwrap();
    append(&store, "a", [added(1)]).await;
    match store.append("a", ExpectedVersion::Any, [added(13)]).await {
        Err(AppendError::Projection { projection, message }) => {
            assert_eq!(projection, "seen");
            assert!(message.contains("not done within 1s"), "{message}");
        }
        other => panic!("wanted a failed projection, got {other:?}"),
    }
    append(&store, "a", [added(2)]).await;
    assert_eq!(seen(&fixture).await, [1, 2]);
}
