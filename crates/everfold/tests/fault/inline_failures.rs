//! The failure: an inline projection refuses an event, or an event has no key.
//!
//! At risk: an append that fails without saying why; a read model that goes on over the hole; one
//! poisoned stream that stops all others.
//!
//! Guaranteed (G7): with `stop` the append is not stored and names the projection; with
//! `dead-letter` the event is put aside and later events of its key wait behind it, whoever appends
//! them; with `skip` it is left out for good, with a record. What is the database's trouble fails
//! the append under every policy.

use everfold::{
    AppendError, DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Store,
};

use crate::chain::{Chain, Made};
use crate::session::{Session, append_sql, empty_store, open};

const POISON: &str = r#"{"poison": true}"#;

fn append(stream: &str, data: &str) -> String {
    format!("SELECT first_position FROM everfold.append_event('{stream}', NULL, 'T', '{data}')")
}

/// Several events to one stream, poison where there is a `!`.
fn append_all(stream: &str, events: &str) -> String {
    let data: Vec<String> = events
        .chars()
        .map(|event| if event == '!' { format!("'{POISON}'") } else { "'{}'".to_owned() })
        .collect();
    let types = vec!["'T'"; data.len()].join(",");
    let data = data.join(",");
    format!("SELECT everfold.append('{stream}', NULL, ARRAY[{types}], ARRAY[{data}]::jsonb[])")
}

async fn messages(session: &Session, kind: &str) -> Vec<i64> {
    let sql = format!(
        "SELECT position FROM everfold.system_messages WHERE kind = '{kind}' AND actor = 'append'
          ORDER BY position"
    );
    session.numbers(&sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_event_fails_the_append_and_the_error_names_the_projection() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { name: "daily_totals", ..Made::default() }).await;
    let error = session.try_run(&append("a", POISON)).await.unwrap_err();
    let said = error.as_db_error().unwrap();
    assert_eq!(said.message(), "no thanks, not 1");
    assert!(said.where_().unwrap().contains("everfold_1_daily_totals.apply("), "{said:?}");

    let store = open(&database.url()).await;
    let poison = || NewEvent::from_json("T", POISON).unwrap();
    let healthy = || NewEvent::from_json("T", "{}").unwrap();
    let error = store.append("a", ExpectedVersion::Any, [poison()]).await.unwrap_err();
    let AppendError::Projection { projection, message } = &error else { panic!("{error:?}") };
    assert_eq!(projection, "daily_totals");
    assert!(message.contains(": no thanks, not "), "{message}");
    assert!(!error.is_transient());
    let said = error.to_string();
    assert!(said.starts_with("inline projection \"daily_totals\" refused the event: "), "{said}");
    assert!(said.ends_with("the append was not stored"), "{said}");

    // Appends that come at the same time share a transaction; only the one is refused.
    let appends = (0..20).map(|n| {
        let event = if n == 7 { poison() } else { healthy() };
        store.append(format!("s{n}"), ExpectedVersion::Any, [event])
    });
    let outcomes = futures::future::join_all(appends).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.is_ok(), n != 7, "{n}: {outcome:?}");
    }
    assert!(matches!(outcomes[7], Err(AppendError::Projection { .. })));
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, 19);
    assert_eq!(chain.differences(&session).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_holds_its_key_and_no_other() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { on_error: "dead-letter", ..Made::default() }).await;
    session.run(&append_all("a", "..!.")).await;
    session.run(&append("a", "{}")).await;
    session.run(&append("b", "{}")).await;
    session.run(&append_all("c", "...")).await;
    assert_eq!(chain.dead_letters(&session).await, ["3", "4<3", "5<3"]);
    assert_eq!(messages(&session, "dead-letter").await, [3]);
    let error = "SELECT error FROM everfold.dead_letters WHERE behind IS NULL";
    let error = session.rows(error).await.unwrap();
    let error = error[0][0].as_deref().unwrap();
    assert!(error.starts_with("apply.sql:") && error.ends_with(": no thanks, not 3"), "{error}");
    // Once it is settled, the held events in their order and then the next append.
    session.run("DELETE FROM everfold.dead_letters").await;
    session.run(&format!("SELECT {}.apply(ARRAY[4, 5])", chain.home)).await;
    session.run(&append("a", "{}")).await;
    assert_eq!(chain.differences(&session).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poisoned_member_of_many_does_not_take_its_neighbours_with_it() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { on_error: "dead-letter", ..Made::default() }).await;
    let member = |stream: &str, data: &str| {
        format!(r#"{{"stream_id":"{stream}","events":[{{"type":"T","data":{data}}}]}}"#)
    };
    let many = [member("a", "{}"), member("b", POISON), member("b", "{}"), member("c", "{}")];
    session.run(&format!("SELECT everfold.append_many('[{}]')", many.join(","))).await;
    assert_eq!(chain.dead_letters(&session).await, ["2", "3<2"]);
    assert_eq!(chain.differences(&session).await, ["b"], "its second event waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_event_is_left_out_for_good_and_its_key_goes_on() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { on_error: "skip", ..Made::default() }).await;
    session.run(&append_all("a", ".!.")).await;
    session.run(&append("a", "{}")).await;
    assert_eq!(chain.dead_letters(&session).await, [""; 0]);
    assert_eq!(messages(&session, "skipped").await, [2]);
    assert_eq!(chain.differences(&session).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_among_open_skips_is_put_aside_when_an_append_settles_them() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let made = Made { on_error: "dead-letter", status: "paused", ..Made::default() };
    let chain = Chain::make(&session, made).await;
    session.run(&append_all("a", ".!.")).await;
    chain.set(&session, "status = 'active'").await;
    session.run(&append("a", "{}")).await;
    assert_eq!(chain.skips(&session).await, [0; 0]);
    assert_eq!(chain.dead_letters(&session).await, ["2", "3<2", "4<2"]);
}

/// Held events come before skips of their key, so that whoever settles both keeps the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_with_a_dead_letter_and_open_skips_goes_on_behind_the_skips() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { on_error: "dead-letter", ..Made::default() }).await;
    session.run(&append_all("a", "!.")).await;
    chain.set(&session, "status = 'paused'").await;
    session.run(&append("a", "{}")).await;
    chain.set(&session, "status = 'active'").await;
    session.run(&append("a", "{}")).await;
    assert_eq!(chain.dead_letters(&session).await, ["1", "2<1"]);
    assert_eq!(chain.skips(&session).await, [3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_without_a_key_is_refused_by_the_policy() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let made = Made { key: Some("data.k"), ..Made::default() };
    let chain = Chain::make(&session, made).await;
    let error = session.try_run(&append("a", r#"{"k": null}"#)).await.unwrap_err();
    let said = error.as_db_error().unwrap();
    assert_eq!(said.code().code(), "EF010");
    assert!(said.message().contains("\"chain\" refused the event"), "{said:?}");
    assert!(said.message().contains("data.k"), "{said:?}");
    let store = open(&database.url()).await;
    let event = NewEvent::from_json("T", "{}").unwrap();
    let error = store.append("a", ExpectedVersion::Any, [event]).await.unwrap_err();
    assert!(matches!(&error, AppendError::Projection { projection, .. } if projection == "chain"));
    assert!(error.to_string().contains("data.k"), "{error}");

    chain.set(&session, "on_error = 'dead-letter'").await;
    session.run(&append("a", "{}")).await;
    session.run(&append("a", r#"{"k": "x"}"#)).await;
    assert_eq!(chain.dead_letters(&session).await.len(), 1);
    chain.set(&session, "on_error = 'skip'").await;
    session.run("DELETE FROM everfold.dead_letters").await;
    session.run(&append("a", "{}")).await;
    assert_eq!(chain.dead_letters(&session).await, [""; 0]);
    assert_eq!(messages(&session, "skipped").await.len(), 1);
    assert_eq!(session.number(&format!("SELECT count(*) FROM {}.chain", chain.home)).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_of_the_database_is_no_dead_letter() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made { on_error: "dead-letter", ..Made::default() }).await;
    session.run(&append("a", "{}")).await;
    let other = Session::open(&database.url()).await;
    other.run(&format!("BEGIN; SELECT * FROM {}.chain FOR UPDATE", chain.home)).await;
    session.run("SET lock_timeout = '10ms'").await;
    assert_eq!(session.code_of(&append_sql("everfold", "a")).await, "55P03");
    other.run("COMMIT").await;
    assert_eq!(chain.dead_letters(&session).await, [""; 0]);
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_applies_inline_projections_and_says_which_refused() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let chain = Chain::make(&session, Made::default()).await;
    let store = open(&database.url()).await;
    let lines = |data: &str| {
        let line = |n: usize, data: &str| {
            format!(r#"{{"stream_id":"s{}","type":"T","data":{data}}}"#, n % 3)
        };
        let lines: Vec<String> = (0..9).map(|n| line(n, "{}")).chain([line(9, data)]).collect();
        std::io::Cursor::new(lines.join("\n"))
    };
    store.import("good", lines("{}"), Default::default(), |_| {}).await.unwrap();
    assert_eq!(chain.differences(&session).await, [""; 0]);
    let refused = store.import("bad", lines(POISON), Default::default(), |_| {}).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("inline projection \"chain\" refused an event: apply.sql:"), "{said}");
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, 10);
}

/// Documents that count the events of a stream.
struct Counter;

#[derive(serde::Deserialize)]
enum Event {
    T {},
}

impl DocumentProjection for Counter {
    type Event = Event;
    type Document = u64;

    fn evolve(&self, n: Option<u64>, Event::T {}: &Event, _: &RecordedEvent) -> Option<u64> {
        Some(n.unwrap_or_default() + 1)
    }
}

async fn store_with_a_counter(url: &str) -> Store {
    let store = open(url).await;
    let counter = Projection::document("counter", 1, Counter).inline().build().unwrap();
    store.register(counter).await.unwrap();
    let event = NewEvent::from_json("T", "{}").unwrap();
    store.append("a", ExpectedVersion::NoStream, [event]).await.unwrap();
    store
}

async fn append_some(store: &Store) -> Vec<Result<everfold::Appended, AppendError>> {
    let append = |n: u32| {
        let event = NewEvent::from_json("T", "{}").unwrap();
        store.append(format!("s{n}"), ExpectedVersion::Any, [event])
    };
    futures::future::join_all((0..20).map(append)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handle_that_has_not_heard_of_a_removal_refuses_no_append() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let store = store_with_a_counter(&database.url()).await;
    session
        .run(
            "BEGIN; UPDATE everfold.projections SET active_generation = NULL;
             UPDATE everfold.generations SET status = 'retired';
             DROP SCHEMA everfold_1_counter CASCADE; COMMIT",
        )
        .await;
    for outcome in append_some(&store).await {
        outcome.unwrap();
    }
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_somebody_has_dropped_refuse_every_append() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let store = store_with_a_counter(&database.url()).await;
    session.run("DROP TABLE everfold_1_counter.counter CASCADE").await;
    for outcome in append_some(&store).await {
        assert!(outcome.unwrap_err().to_string().contains("does not exist"));
    }
    assert_eq!(session.number("SELECT count(*) FROM everfold.events").await, 1);
}
