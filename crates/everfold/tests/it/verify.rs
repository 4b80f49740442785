//! Verifying read models: what was changed by hand is found, and nothing else is, whatever goes on
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use everfold::{
    Difference, ExpectedVersion, NewEvent, OnError, Projection, ProjectionError, Store,
    Verification, VerifyOptions, VerifyScope,
};
use everfold_testkit::{Seed, eventually};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::chain::{Chain, LIMIT, moved, poisoned, run};
use crate::fixture::{Fixture, append, caught_up, counted, event, on_every_store};

on_every_store! {
    row_changed_deleted_or_added_by_hand_is_found,
    document_changed_deleted_or_added_by_hand_is_found,
    row_of_a_table_without_a_key_is_found,
    what_is_owed_or_put_aside_is_no_difference,
    what_was_given_up_is_no_difference,
    keys_and_samples_are_verified_alone,
    rows_without_their_key_are_verified_as_a_whole_only,
    verifications_are_recorded,
    code_that_is_not_here_and_versions_that_nobody_reads_are_refused,
    nothing_differs_while_many_append,
}

/// The numbers of each stream in the order in which they were applied, as text.
fn numbers(name: &str) -> everfold::ProjectionBuilder<everfold::SqlBody> {
    let create = format!("CREATE TABLE read_model.{name} (key TEXT PRIMARY KEY, n TEXT NOT NULL)");
    let apply = format!(
        "INSERT INTO read_model.{name} AS t (key, n)
         SELECT stream_id, string_agg(CAST(data->>'n' AS TEXT), ',' ORDER BY position) FROM batch
          WHERE true GROUP BY 1
         ON CONFLICT (key) DO UPDATE SET n = t.n || ',' || excluded.n"
    );
    Projection::sql(name, 1).create(create).apply(apply).events(["Counted"])
}

/// How often each number came, over all streams: rows belong to no key, and the table has none.
fn lines() -> Projection {
    let create = "CREATE TABLE read_model.lines (line TEXT NOT NULL)";
    let apply = "INSERT INTO read_model.lines (line) SELECT 'number ' || (data->>'n') FROM batch";
    let sql = Projection::sql("lines", 1).create(create).apply(apply);
    sql.events(["Counted"]).build().unwrap()
}

async fn verify(store: &Store, name: &str) -> Verification {
    store.verify(name, VerifyOptions::default()).await.unwrap()
}

async fn verify_some(store: &Store, name: &str, scope: VerifyScope) -> Verification {
    let mut options = VerifyOptions::default();
    options.scope = scope;
    store.verify(name, options).await.unwrap()
}

fn keys(names: &[&str]) -> VerifyScope {
    VerifyScope::Keys(names.iter().map(|name| (*name).to_owned()).collect())
}

/// Key, expected and found of each difference, by key.
fn told(verification: &Verification) -> Vec<(Value, Option<Value>, Option<Value>)> {
    let told = |example: &Difference| {
        (example.key["key"].clone(), example.expected.clone(), example.found.clone())
    };
    let mut all: Vec<_> = verification.examples.iter().map(told).collect();
    all.sort_by_key(|(key, ..)| key.to_string());
    all
}

async fn row_changed_deleted_or_added_by_hand_is_found(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    for stream in ["a", "b", "c"] {
        append(&store, stream, counted([1, 2])).await;
    }
    append(&store, "b", counted([3])).await;
    let before = verify(&store, "numbers").await;
    assert_eq!((before.compared, before.differences), (3, 0));

    let by_hand = "UPDATE {}numbers SET n = '1,3' WHERE key = 'a'; \
        DELETE FROM {}numbers WHERE key = 'b'; INSERT INTO {}numbers VALUES ('z', '9')";
    fixture.execute_in("numbers", by_hand).await;
    let found = verify(&store, "numbers").await;
    assert_eq!((found.compared, found.differences), (4, 3));
    assert_eq!(found.examples.iter().map(|d| d.table.as_str()).collect::<Vec<_>>(), ["numbers"; 3]);
    let row = |key: &str, n: &str| Some(json!({ "key": key, "n": n }));
    let expected = [
        (json!("a"), row("a", "1,2"), row("a", "1,3")),
        (json!("b"), row("b", "1,2,3"), None),
        (json!("z"), None, row("z", "9")),
    ];
    assert_eq!(told(&found), expected);
    let mut few = VerifyOptions::default();
    few.examples = 1;
    let few = store.verify("numbers", few).await.unwrap();
    assert_eq!((few.differences, few.examples.len()), (3, 1));
}

async fn document_changed_deleted_or_added_by_hand_is_found(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default().builder("chain").shards(3).build().unwrap();
    for number in 0..40 {
        append(&store, "s", [moved(&format!("a-{number}"), number), moved("all", number)]).await;
    }
    caught_up(&store, &chain).await;
    assert_eq!((verify(&store, "chain").await).differences, 0);
    // So little memory that the log is read several times.
    let mut small = VerifyOptions::default();
    small.memory_max = 1_000;
    let several = store.verify("chain", small.clone()).await.unwrap();
    assert_eq!((several.compared, several.differences), (41, 0));

    let document = json!({ "count": 1, "hash": 5 });
    let by_hand = format!(
        "UPDATE {{}}chain SET document = '{document}' WHERE key = 'a-1'; \
         DELETE FROM {{}}chain WHERE key = 'a-2'; \
         INSERT INTO {{}}chain (key, document, position, stream_version) VALUES ('z', '{document}', 1, 1)"
    );
    fixture.execute_in("chain", &by_hand).await;
    for options in [VerifyOptions::default(), small] {
        let found = store.verify("chain", options).await.unwrap();
        assert_eq!((found.compared, found.differences), (42, 3));
        let told = told(&found);
        assert_eq!(told.iter().map(|d| d.0.clone()).collect::<Vec<_>>(), ["a-1", "a-2", "z"]);
        assert_eq!(told[0].2.as_ref(), Some(&document));
        assert!(told[1].1.is_some() && told[1].2.is_none());
        assert_eq!((&told[2].1, told[2].2.as_ref()), (&None, Some(&document)));
    }
}

async fn row_of_a_table_without_a_key_is_found(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1, 1, 2])).await;
    caught_up(&store, &lines()).await;
    let before = verify(&store, "lines").await;
    assert_eq!((before.compared, before.differences), (3, 0));
    let by_hand = "INSERT INTO {}lines VALUES ('number 1'); UPDATE {}lines SET line = 'x' WHERE line = 'number 2'";
    fixture.execute_in("lines", by_hand).await;
    let found = verify(&store, "lines").await;
    // One too many, one missing, one that should not be there.
    assert_eq!(found.differences, 3);
    let missing = found.examples.iter().filter(|d| d.expected.is_some()).count();
    assert_eq!(missing, 1);
}

async fn what_is_owed_or_put_aside_is_no_difference(fixture: Fixture) {
    let store = fixture.store().await;
    // Owed: paused while events come in.
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    append(&store, "a", counted([1])).await;
    store.pause("numbers").await.unwrap();
    append(&store, "a", counted([2])).await;
    append(&store, "b", counted([3])).await;
    assert_eq!(store.skips("numbers").await.unwrap().len(), 2);
    let owed = verify(&store, "numbers").await;
    assert_eq!((owed.compared, owed.differences), (1, 0));

    // Put aside, with others held behind.
    let chain = Chain::default().projection("chain", OnError::DeadLetter);
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("a", 3), moved("b", 4)]).await;
    let runner = run(&store, chain).await;
    eventually("the event is put aside", LIMIT, async || {
        store.dead_letters("chain").await.unwrap().len() == 2
    })
    .await;
    let aside = verify(&store, "chain").await;
    assert_eq!((aside.compared, aside.differences), (2, 0));
    runner.stop().await;

    // The same for rows: what is behind the event that fails is not there.
    let create =
        "CREATE TABLE read_model.sums (key TEXT PRIMARY KEY, n BIGINT NOT NULL CHECK (n < 10))";
    let apply = "INSERT INTO read_model.sums AS t (key, n)
        SELECT stream_id, sum(CAST(data->>'n' AS BIGINT)) FROM batch WHERE true GROUP BY 1
        ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n";
    let sums = Projection::sql("sums", 1).create(create).apply(apply).events(["Counted"]);
    append(&store, "b", counted([50, 1])).await;
    let runner = run(&store, sums.on_error(OnError::DeadLetter).build().unwrap()).await;
    eventually("the event is put aside", LIMIT, async || {
        store.dead_letters("sums").await.unwrap().len() == 2
    })
    .await;
    let aside = verify(&store, "sums").await;
    assert_eq!((aside.compared, aside.differences), (2, 0));
    runner.stop().await;
}

async fn what_was_given_up_is_no_difference(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    let projection = chain.projection("chain", OnError::Skip);
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("a", 3)]).await;
    let runner = run(&store, projection).await;
    let mark = store.high_water_mark().await.unwrap();
    store.wait_for("chain", mark, LIMIT).await.unwrap();
    assert_eq!((verify(&store, "chain").await).differences, 0);
    // Also if it would work by now.
    chain.0.mended.store(true, Ordering::SeqCst);
    assert_eq!((verify(&store, "chain").await).differences, 0);
    runner.stop().await;
}

async fn keys_and_samples_are_verified_alone(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    let chain = Chain::default().builder("chain").build().unwrap();
    for number in 0..20 {
        append(&store, &format!("s-{number}"), counted([number, 7])).await;
        append(&store, "moves", [moved(&format!("a-{number}"), number)]).await;
    }
    caught_up(&store, &chain).await;
    fixture.execute_in("numbers", "UPDATE {}numbers SET n = '0' WHERE key = 's-3'").await;
    fixture.execute_in("numbers", "DELETE FROM {}numbers WHERE key = 's-4'").await;
    fixture.execute_in("chain", "DELETE FROM {}chain WHERE key = 'a-4'").await;

    let right = verify_some(&store, "numbers", keys(&["s-1", "s-2", "nobody"])).await;
    assert_eq!((right.compared, right.differences, right.scope.as_str()), (2, 0, "keys"));
    let wrong = verify_some(&store, "numbers", keys(&["s-2", "s-3", "s-4"])).await;
    assert_eq!((wrong.compared, wrong.differences), (3, 2));
    let right = verify_some(&store, "chain", keys(&["a-1", "nobody"])).await;
    assert_eq!((right.compared, right.differences), (1, 0));
    let wrong = verify_some(&store, "chain", keys(&["a-1", "a-4"])).await;
    assert_eq!((wrong.compared, wrong.differences), (2, 1));

    // As many as there are: the sample finds what all of them would.
    let sample = verify_some(&store, "numbers", VerifyScope::Sample(1_000)).await;
    assert_eq!((sample.differences, sample.scope.as_str()), (2, "sample"));
    let few = verify_some(&store, "chain", VerifyScope::Sample(3)).await;
    assert_eq!(few.compared, 3);
}

async fn rows_without_their_key_are_verified_as_a_whole_only(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    caught_up(&store, &lines()).await;
    let mut options = VerifyOptions::default();
    options.scope = keys(&["a"]);
    let refused = store.verify("lines", options).await.unwrap_err().to_string();
    assert!(refused.contains("table lines") && refused.contains("verify all of it"), "{refused}");
}

async fn verifications_are_recorded(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    let last = append(&store, "a", counted([1])).await;
    assert_eq!(store.verifications("numbers").await.unwrap(), []);
    assert_eq!(store.projection("numbers").await.unwrap().verified, None);
    let first = verify(&store, "numbers").await;
    fixture.execute_in("numbers", "DELETE FROM {}numbers").await;
    let second = verify(&store, "numbers").await;
    assert_eq!(second.position, last.last_position);

    let listed = store.verifications("numbers").await.unwrap();
    assert_eq!(listed.iter().map(|v| v.id).collect::<Vec<_>>(), [second.id, first.id]);
    assert_eq!(listed[0].examples, second.examples);
    assert_eq!((listed[0].differences, listed[1].differences), (1, 0));
    let status = store.projection("numbers").await.unwrap().verified.unwrap();
    assert_eq!((status.differences, status.scope.as_str()), (1, "all"));
    assert_eq!(status.at, second.verified_at);
    let messages = store.messages(&everfold::MessageQuery::of("numbers")).await.unwrap();
    let told: Vec<_> = messages.iter().filter(|message| message.kind == "verified").collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].message.contains("1 of 1 rows"), "{}", told[0].message);
    let unknown = store.verify("number", VerifyOptions::default()).await.unwrap_err();
    assert!(matches!(unknown, ProjectionError::Unknown { .. }), "{unknown}");
}

async fn code_that_is_not_here_and_versions_that_nobody_reads_are_refused(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1)]).await;
    caught_up(&store, &Chain::default().builder("chain").build().unwrap()).await;
    let other = fixture.store().await;
    let refused = other.verify("chain", VerifyOptions::default()).await.unwrap_err().to_string();
    assert!(refused.contains("does not have its code"), "{refused}");
    append(&store, "a", counted([1])).await;
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    let refused = store.verify("numbers", VerifyOptions::default()).await.unwrap_err().to_string();
    assert!(refused.contains("readers see"), "{refused}");
}

/// Sixteen writers with a few appends for each verification, an inline SQL projection that is paused and
/// resumed, so that it owes skips, and catch-up ones in SQL and of documents, the latter with dead letters.
async fn nothing_differs_while_many_append(fixture: Fixture) {
    const WRITERS: usize = 16;
    let store = fixture.store().await;
    let numbers_late = numbers("numbers_late").shards(4).build().unwrap();
    store.register(numbers("numbers").inline().build().unwrap()).await.unwrap();
    let chain = Chain::default();
    let chains = chain.builder("chain").shards(2).on_error(OnError::DeadLetter).build().unwrap();
    let runners = [run(&store, numbers_late).await, run(&store, chains).await];
    // So many appends go with each verification, so that the log stays short.
    let appends = Arc::new(Semaphore::new(0));
    let mut seed = Seed::from_env_or_random();
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (store, appends, mut seed) = (store.clone(), Arc::clone(&appends), seed.fork());
        writers.push(tokio::spawn(async move {
            while let Ok(permit) = appends.acquire().await {
                permit.forget();
                let stream = format!("s-{}", seed.within(0..30));
                let events = (0..seed.within(1..4)).map(|_| some_event(&mut seed));
                let events: Vec<NewEvent> = events.collect();
                store.append(&stream, ExpectedVersion::Any, events).await.unwrap();
            }
        }));
    }
    let mut compared = 0;
    for round in 0..6 {
        // Skips come and go.
        match round % 2 {
            0 => store.pause("numbers").await.unwrap(),
            _ => store.resume("numbers").await.unwrap(),
        }
        for name in ["numbers", "numbers_late", "chain"] {
            appends.add_permits(100);
            let found = verify(&store, name).await;
            assert_eq!(found.differences, 0, "{name}: {:?}", found.examples);
            appends.add_permits(50);
            let sample = verify_some(&store, name, VerifyScope::Sample(5)).await;
            assert_eq!(sample.differences, 0, "{name}: {:?}", sample.examples);
            compared += found.compared;
        }
    }
    appends.close();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(compared > 0);
    eventually("an event is put aside", LIMIT, async || {
        !store.dead_letters("chain").await.unwrap().is_empty()
    })
    .await;
    for runner in runners {
        runner.stop().await;
    }
}

fn some_event(seed: &mut Seed) -> NewEvent {
    let (n, account) = (seed.within(0..1_000), format!("a-{}", seed.within(0..10)));
    match seed.within(0..100) {
        0 => poisoned(&account, n),
        1..50 => moved(&account, n),
        50..55 => event("Other", json!({ "n": n })),
        _ => event("Counted", json!({ "n": n })),
    }
}
