//! Inline projections: applied in the append's own transaction, or owed by a record of it.

use std::collections::BTreeMap;

use everfold::{
    AppendError, DocumentProjection, ExpectedVersion, OnError, Projection, RecordedEvent, Runner,
    Store, StreamAppend,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, counted, event, on_every_store, read_all};

on_every_store! {
    sql_projection_is_there_with_the_append,
    events_that_are_not_wanted_change_nothing,
    members_of_many_are_applied_each_if_it_is_stored,
    key_across_streams_is_applied_in_the_order_of_the_log,
    documents_of_many_handles_are_the_fold_of_the_log,
    refused_event_fails_its_append_and_no_other,
    dead_letter_holds_its_key_and_no_other,
    event_that_is_left_out_leaves_a_record,
    handle_that_does_not_know_a_projection_owes_it,
    paused_projection_is_owed_and_paid_by_the_next_append,
    runner_pays_what_is_owed,
}

/// The numbers of each key in the order in which they were applied, as text.
const CREATE: &str = "CREATE TABLE read_model.numbers (key TEXT PRIMARY KEY, n TEXT NOT NULL)";

fn apply(key: &str) -> String {
    format!(
        "INSERT INTO read_model.numbers AS t (key, n)
         SELECT {key}, string_agg(CAST(data->>'n' AS TEXT), ',' ORDER BY position) FROM batch
          WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n || ',' || excluded.n"
    )
}

fn by_stream() -> Projection {
    let sql = Projection::sql("numbers", 1).create(CREATE).apply(apply("stream_id"));
    sql.events(["Counted"]).inline().build().unwrap()
}

fn by_tenant() -> Projection {
    let sql = Projection::sql("numbers", 1).create(CREATE).apply(apply("data->>'tenant'"));
    sql.key_fields(["data.tenant"]).inline().build().unwrap()
}

async fn numbers(fixture: &Fixture) -> BTreeMap<String, String> {
    let rows = fixture.rows("SELECT key, n FROM read_model.numbers").await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

/// The same, from the log.
async fn folded(store: &Store, key: impl Fn(&RecordedEvent) -> String) -> BTreeMap<String, String> {
    let mut folded: BTreeMap<String, String> = BTreeMap::new();
    for event in read_all(store).await {
        let data: Value = event.data_as().unwrap();
        let numbers = folded.entry(key(&event)).or_default();
        if !numbers.is_empty() {
            numbers.push(',');
        }
        numbers.push_str(&data["n"].to_string());
    }
    folded
}

fn stream(event: &RecordedEvent) -> String {
    event.stream_id.to_string()
}

async fn sql_projection_is_there_with_the_append(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(by_stream()).await.unwrap();
    append(&store, "a", counted([1])).await;
    assert_eq!(numbers(&fixture).await["a"], "1");
    append(&store, "a", counted([2, 3])).await;
    append(&store, "b", counted([4])).await;
    assert_eq!(numbers(&fixture).await, folded(&store, stream).await);

    let conflict = store.append("a", ExpectedVersion::NoStream, counted([9])).await;
    assert!(matches!(conflict, Err(AppendError::VersionConflict { .. })), "{conflict:?}");
    let repeated = counted([5]);
    append(&store, "a", repeated.clone()).await;
    append(&store, "a", repeated).await;
    assert_eq!(numbers(&fixture).await["a"], "1,2,3,5");
}

async fn events_that_are_not_wanted_change_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(by_stream()).await.unwrap();
    append(&store, "a", [event("Other", json!({ "n": 1 }))]).await;
    assert_eq!(numbers(&fixture).await.len(), 0);
    let mut mixed = counted([2]);
    mixed.insert(0, event("Other", json!({ "n": 7 })));
    append(&store, "a", mixed).await;
    assert_eq!(numbers(&fixture).await["a"], "2");
    assert_eq!(store.skips("numbers").await.unwrap().len(), 0);
}

async fn members_of_many_are_applied_each_if_it_is_stored(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(by_stream()).await.unwrap();
    store.register(chain().build().unwrap()).await.unwrap();
    let many = vec![
        StreamAppend::new("a", ExpectedVersion::NoStream, counted([1, 2])),
        StreamAppend::new("b", ExpectedVersion::Exists, counted([3])),
        StreamAppend::new("a", ExpectedVersion::Any, counted([4])),
        StreamAppend::new("c", ExpectedVersion::Any, counted([5])),
    ];
    let stored: Vec<bool> =
        store.append_many(many).await.unwrap().iter().map(Result::is_ok).collect();
    assert_eq!(stored, [true, false, true, true]);
    let expected = [("a", "1,2,4"), ("c", "5")].map(|(k, n)| (k.to_owned(), n.to_owned()));
    assert_eq!(numbers(&fixture).await, BTreeMap::from(expected));
    assert_eq!(chains(&store).await, log_chains(&store).await);
}

async fn key_across_streams_is_applied_in_the_order_of_the_log(fixture: Fixture) {
    let first = fixture.store().await;
    first.register(by_tenant()).await.unwrap();
    let handles = [fixture.store().await, fixture.store().await, fixture.store().await];
    let mut tasks = tokio::task::JoinSet::new();
    for (handle, store) in handles.into_iter().enumerate() {
        for task in 0..4 {
            let store = store.clone();
            tasks.spawn(async move {
                for n in 0..15 {
                    let data = json!({ "n": handle * 1000 + task * 100 + n, "tenant": format!("t{}", n % 2) });
                    append(&store, &format!("s{handle}-{task}"), [event("Counted", data)]).await;
                }
            });
        }
    }
    tasks.join_all().await;
    let tenant = |event: &RecordedEvent| {
        let data: Value = event.data_as().unwrap();
        data["tenant"].as_str().unwrap().to_owned()
    };
    assert_eq!(numbers(&fixture).await, folded(&first, tenant).await);
}

/// A hash that tells a lost, doubled or reordered event. 13 is refused, 14 makes it panic.
struct Chain;

#[derive(Serialize, Deserialize)]
enum Counted {
    Counted { n: u64 },
}

impl DocumentProjection for Chain {
    type Event = Counted;
    type Document = u64;

    fn evolve(&self, chain: Option<u64>, event: &Counted, recorded: &RecordedEvent) -> Option<u64> {
        let Counted::Counted { n } = event;
        assert!(*n != 13, "thirteen is refused");
        Some(link(chain, *n, recorded))
    }
}

fn chain() -> everfold::ProjectionBuilder<everfold::DocumentBody<Chain>> {
    Projection::document("chain", 1, Chain).inline()
}

fn link(chain: Option<u64>, n: u64, recorded: &RecordedEvent) -> u64 {
    let mixed = chain.unwrap_or(7).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    // JSON numbers of this size are exact everywhere.
    (mixed ^ n.wrapping_mul(31) ^ recorded.version.0) & ((1 << 53) - 1)
}

async fn chains(store: &Store) -> BTreeMap<String, u64> {
    let found = store.documents::<u64>("chain").collect().await.unwrap();
    found.into_iter().map(|found| (found.key, found.document)).collect()
}

/// What the log says the chains must be, without what was refused.
async fn log_chains(store: &Store) -> BTreeMap<String, u64> {
    let mut chains = BTreeMap::new();
    for event in read_all(store).await {
        let Some(Counted::Counted { n }) = event.decode().unwrap() else { continue };
        if n != 13 {
            let chain = link(chains.get(&stream(&event)).copied(), n, &event);
            chains.insert(stream(&event), chain);
        }
    }
    chains
}

async fn documents_of_many_handles_are_the_fold_of_the_log(fixture: Fixture) {
    let first = fixture.store().await;
    let handles = [fixture.store().await, fixture.store().await, fixture.store().await];
    let mut tasks = tokio::task::JoinSet::new();
    for (handle, store) in (0..).zip(handles) {
        store.register(chain().build().unwrap()).await.unwrap();
        for task in 0..4 {
            let store = store.clone();
            tasks.spawn(async move {
                for n in 100..115 {
                    append(&store, &format!("s{}", (task + n) % 5), counted([n, handle])).await;
                }
            });
        }
    }
    tasks.join_all().await;
    assert_eq!(chains(&first).await, log_chains(&first).await);
    assert_eq!(first.skips("chain").await.unwrap().len(), 0);
}

async fn refused_event_fails_its_append_and_no_other(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(chain().build().unwrap()).await.unwrap();
    let appends =
        (0..20).map(|n| store.append(format!("s{}", n % 6), ExpectedVersion::Any, counted([n])));
    let outcomes = futures::future::join_all(appends).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(AppendError::Projection { projection, message }) if n == 13 => {
                assert_eq!(projection, "chain");
                assert!(message.contains("thirteen is refused"), "{message}");
            }
            outcome => assert!(outcome.is_ok() && n != 13, "{n}: {outcome:?}"),
        }
    }
    let many = [counted([13]), counted([1])]
        .map(|events| StreamAppend::new("many", ExpectedVersion::Any, events));
    let said = store.append_many(many.to_vec()).await;
    assert!(said.is_err() || said.unwrap().iter().any(Result::is_err));
    assert_eq!(chains(&store).await, log_chains(&store).await);
    assert!(read_all(&store).await.iter().all(|event| event.data != r#"{"n": 13}"#));
}

async fn dead_letter_holds_its_key_and_no_other(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(chain().on_error(OnError::DeadLetter).build().unwrap()).await.unwrap();
    let failed = append(&store, "a", counted([1, 13, 2])).await;
    let behind_it = append(&store, "a", counted([3])).await.first_position.0;
    append(&store, "b", counted([4])).await;
    let letters = store.dead_letters("chain").await.unwrap();
    let found: Vec<_> = letters.iter().map(|letter| (letter.position.0, letter.behind)).collect();
    let first = failed.first_position.0 + 1;
    let behind = Some(letters[0].position);
    assert_eq!(found, [(first, None), (first + 1, behind), (behind_it, behind)]);
    assert!(letters[0].error.as_deref().unwrap().contains("thirteen is refused"));
    let chains = chains(&store).await;
    let expected = log_chains(&store).await;
    assert_eq!(chains["b"], expected["b"]);
    assert_ne!(chains["a"], expected["a"], "2 and 3 wait");
    assert_eq!(chains["a"], link(None, 1, &read_all(&store).await[0]));
}

async fn event_that_is_left_out_leaves_a_record(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(chain().on_error(OnError::Skip).build().unwrap()).await.unwrap();
    append(&store, "a", counted([1, 13, 2])).await;
    append(&store, "a", counted([3])).await;
    assert_eq!(chains(&store).await, log_chains(&store).await);
    assert_eq!(store.dead_letters("chain").await.unwrap().len(), 0);
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    let skipped: Vec<_> = messages.iter().filter(|message| message.kind == "skipped").collect();
    assert_eq!(skipped.len(), 1);
    assert_eq!(skipped[0].position.map(|position| position.0), Some(2));
}

async fn handle_that_does_not_know_a_projection_owes_it(fixture: Fixture) {
    let (old, new) = (fixture.store().await, fixture.store().await);
    new.register(chain().build().unwrap()).await.unwrap();
    append(&old, "a", counted([1])).await;
    append(&old, "b", counted([2])).await;
    append(&old, "a", counted([3])).await;
    let owed: Vec<String> =
        new.skips("chain").await.unwrap().into_iter().map(|skip| skip.key).collect();
    assert_eq!(owed, ["a", "b", "a"]);
    assert_eq!(chains(&new).await.len(), 0);
    // The next append to the stream by somebody who can applies them first.
    append(&new, "a", counted([4])).await;
    assert_eq!(new.skips("chain").await.unwrap().len(), 1);
    assert_eq!(chains(&new).await["a"], log_chains(&new).await["a"]);
    append(&new, "b", counted([5])).await;
    assert_eq!(chains(&new).await, log_chains(&new).await);
}

async fn paused_projection_is_owed_and_paid_by_the_next_append(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(by_stream()).await.unwrap();
    append(&store, "a", counted([1])).await;
    store.pause("numbers").await.unwrap();
    append(&store, "a", counted([2])).await;
    assert_eq!(numbers(&fixture).await["a"], "1");
    assert_eq!(store.skips("numbers").await.unwrap()[0].reason, "paused");
    store.resume("numbers").await.unwrap();
    append(&store, "a", counted([3])).await;
    assert_eq!(numbers(&fixture).await["a"], "1,2,3");
    assert_eq!(store.skips("numbers").await.unwrap().len(), 0);
}

async fn runner_pays_what_is_owed(fixture: Fixture) {
    let (old, new) = (fixture.store().await, fixture.store().await);
    let chain = chain().build().unwrap();
    new.register(chain.clone()).await.unwrap();
    for n in 0..10 {
        append(&old, &format!("s{}", n % 3), counted([n])).await;
    }
    Runner::new(&new).projection(chain).run_once().await.unwrap();
    assert_eq!(new.skips("chain").await.unwrap().len(), 0);
    assert_eq!(chains(&new).await, log_chains(&new).await);
}
