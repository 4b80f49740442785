//! Event ids are the idempotency key: a repeat returns the first result and stores nothing.

use everfold::{AppendError, ExpectedVersion, NewEvent, StreamAppend, Version};
use serde_json::json;

use crate::fixture::{Fixture, append, counted, event, on_every_store, read_all};

on_every_store! {
    repeat_returns_the_first_result,
    repeat_is_found_before_a_version_conflict,
    repeat_with_other_white_space_is_a_repeat,
    append_of_known_and_new_ids_is_refused,
    known_id_with_other_content_is_refused,
    known_id_in_another_stream_is_refused,
    racing_repeats_store_one_copy,
    repeats_in_one_call_are_told_apart,
}

async fn repeat_returns_the_first_result(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([0])).await;
    for size in [1, 3] {
        let events = counted(0..size);
        let first = append(&store, "a", events.clone()).await;
        append(&store, "a", counted([9])).await;
        assert_eq!(append(&store, "a", events).await, first);
    }
    assert_eq!(read_all(&store).await.len(), 1 + 2 + 4);
}

async fn repeat_is_found_before_a_version_conflict(fixture: Fixture) {
    let store = fixture.store().await;
    for (stream, size) in [("one", 1), ("two", 2)] {
        let events = counted(0..size);
        let first = store.append(stream, ExpectedVersion::NoStream, events.clone()).await.unwrap();
        append(&store, stream, counted([9])).await;
        let again = store.append(stream, ExpectedVersion::NoStream, events).await.unwrap();
        assert_eq!(again, first);
    }
}

async fn repeat_with_other_white_space_is_a_repeat(fixture: Fixture) {
    let store = fixture.store().await;
    let sent = NewEvent::from_json("T", r#"{"a": 1, "b": [true]}"#).unwrap();
    let again = NewEvent::from_json("T", r#"{"b":[true],"a":1}"#).unwrap().with_id(sent.id());
    assert_eq!(append(&store, "a", [sent]).await, append(&store, "a", [again]).await);
}

#[track_caller]
fn id_conflict<T: std::fmt::Debug>(outcome: Result<T, AppendError>) -> String {
    match outcome {
        Err(AppendError::IdConflict { message, .. }) => message,
        other => panic!("wanted an id conflict, got {other:?}"),
    }
}

async fn append_of_known_and_new_ids_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let known = counted([1]);
    append(&store, "a", known.clone()).await;
    let mixed = [known, counted([2])].concat();
    for expected in [ExpectedVersion::Any, ExpectedVersion::NoStream, Version(1).into()] {
        id_conflict(store.append("a", expected, mixed.clone()).await);
    }
    assert_eq!(read_all(&store).await.len(), 1);
}

async fn known_id_with_other_content_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let sent = event("T", json!({"n": 1}));
    append(&store, "a", [sent.clone()]).await;
    for other in [event("T", json!({"n": 2})), event("U", json!({"n": 1}))] {
        let outcome = store.append("a", ExpectedVersion::Any, [other.with_id(sent.id())]).await;
        let message = id_conflict(outcome);
        assert!(message.contains(&sent.id().to_string()), "{message}");
    }
    assert_eq!(read_all(&store).await.len(), 1);
}

async fn known_id_in_another_stream_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let events = counted([1, 2]);
    append(&store, "a", events.clone()).await;
    let message = id_conflict(store.append("b", ExpectedVersion::Any, events.clone()).await);
    assert!(message.contains("\"a\""), "it names the stream that has it: {message}");
    id_conflict(store.append("b", ExpectedVersion::Any, [events[0].clone()]).await);
    assert_eq!(read_all(&store).await.len(), 2);
}

async fn racing_repeats_store_one_copy(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    for round in 0..5u64 {
        let events = counted(0..=round % 2);
        let racers = (0..8).map(|n| {
            let (store, events) = (stores[n % 2].clone(), events.clone());
            let expected = if n < 4 { ExpectedVersion::NoStream } else { ExpectedVersion::Any };
            tokio::spawn(async move { store.append(format!("s-{round}"), expected, events).await })
        });
        let outcomes = futures::future::join_all(racers).await;
        let results: Vec<_> =
            outcomes.into_iter().map(|outcome| outcome.unwrap().unwrap()).collect();
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        assert_eq!(results[0].version, Version(round % 2 + 1));
    }
    assert_eq!(read_all(&stores[0]).await.len(), 3 + 2 * 2);
}

async fn repeats_in_one_call_are_told_apart(fixture: Fixture) {
    let store = fixture.store().await;
    let known = counted([1]);
    let first = append(&store, "a", known.clone()).await;
    let other = counted([4]);
    append(&store, "d", other.clone()).await;
    let foreign = [other, counted([5])].concat();
    let outcomes = store
        .append_many([
            StreamAppend::new("a", ExpectedVersion::NoStream, known),
            StreamAppend::new("b", ExpectedVersion::NoStream, counted([2])),
            StreamAppend::new("c", ExpectedVersion::Any, foreign),
        ])
        .await
        .unwrap();
    assert_eq!(*outcomes[0].as_ref().unwrap(), first);
    assert_eq!(outcomes[1].as_ref().unwrap().version, Version(1));
    assert!(matches!(outcomes[2], Err(AppendError::IdConflict { .. })), "{outcomes:?}");
    assert_eq!(read_all(&store).await.len(), 3);
}
