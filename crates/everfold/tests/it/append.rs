//! Appending to one stream: versions, conflicts, concurrency.

use std::collections::BTreeSet;

use everfold::{ExpectedVersion, Metadata, Position, Version};
use serde_json::{Value, json};

use crate::fixture::{
    Fixture, append, conflict, counted, event, numbers, on_every_store, read_all, read_stream,
};

on_every_store! {
    append_returns_positions_and_version,
    stored_event_has_everything_that_was_appended,
    expected_version_that_holds_is_stored,
    expected_version_that_does_not_hold_is_refused_with_the_numbers,
    version_past_the_end_is_refused,
    refused_append_stores_nothing,
    of_racing_appends_with_one_expectation_one_wins,
    appends_without_expectation_never_conflict,
    many_tasks_on_one_handle_each_get_their_own_result,
    append_without_group_gives_the_same,
    data_keeps_its_numbers_exactly,
    names_in_any_script_are_kept,
    payload_at_the_limit_is_stored,
    store_is_the_same_after_it_was_closed_and_opened,
    closed_handle_refuses_appends,
}

async fn append_returns_positions_and_version(fixture: Fixture) {
    let store = fixture.store().await;
    let first = store.append("a", ExpectedVersion::NoStream, counted(1..=3)).await.unwrap();
    assert_eq!((first.first_position, first.last_position), (Position(1), Position(3)));
    assert_eq!(first.version, Version(3));
    let second = store.append("a", first.version, counted(4..=4)).await.unwrap();
    assert_eq!(second.first_position, second.last_position);
    assert!(second.first_position > first.last_position);
    assert_eq!(second.version, Version(4));
    assert_eq!(store.stream_version("a").await.unwrap(), Version(4));
    assert_eq!(store.stream_version("b").await.unwrap(), Version::NONE);
}

async fn stored_event_has_everything_that_was_appended(fixture: Fixture) {
    let store = fixture.store().await;
    let before = jiff::Timestamp::now();
    let metadata = Metadata::new()
        .with_correlation_id("request-1")
        .with_causation_id("command-2")
        .with_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .with("tenant", 7);
    let sent = event("ItemAdded", json!({"sku": "A1", "tags": ["x", null]}))
        .with_schema_version(3)
        .with_metadata(metadata.clone());
    append(&store, "cart-1", [sent.clone()]).await;

    let stored = read_stream(&store, "cart-1").await.remove(0);
    assert_eq!(stored.id, sent.id());
    assert_eq!(stored.stream_id.as_str(), "cart-1");
    assert_eq!((stored.version, stored.position), (Version(1), Position(1)));
    assert_eq!((stored.event_type.as_str(), stored.schema_version), ("ItemAdded", 3));
    assert_eq!(stored.data_as::<Value>().unwrap(), json!({"sku": "A1", "tags": ["x", null]}));
    assert_eq!(stored.metadata().unwrap(), metadata);
    assert_eq!(stored.metadata().unwrap().correlation_id(), Some("request-1"));
    let age = stored.recorded_at.duration_since(before).as_secs();
    assert!(age.abs() < 600, "recorded_at is about now, it is {age} s away");
}

async fn expected_version_that_holds_is_stored(fixture: Fixture) {
    let store = fixture.store().await;
    let steps = [
        ExpectedVersion::NoStream,
        ExpectedVersion::Exists,
        ExpectedVersion::Exact(Version(2)),
        ExpectedVersion::Any,
    ];
    for (n, expected) in steps.into_iter().enumerate() {
        let appended = store.append("a", expected, counted([n as u64])).await.unwrap();
        assert_eq!(appended.version, Version(n as u64 + 1), "{expected:?}");
    }
    let fresh = store.append("b", ExpectedVersion::Exact(Version(0)), counted([0])).await.unwrap();
    assert_eq!(fresh.version, Version(1));
}

async fn expected_version_that_does_not_hold_is_refused_with_the_numbers(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(1..=2)).await;
    let cases = [
        ("a", ExpectedVersion::NoStream, "no stream", 2),
        ("a", ExpectedVersion::Exact(Version(1)), "1", 2),
        ("a", ExpectedVersion::Exact(Version(3)), "3", 2),
        ("b", ExpectedVersion::Exists, "an existing stream", 0),
        ("b", ExpectedVersion::Exact(Version(1)), "1", 0),
    ];
    for (stream, expected, shown, actual) in cases {
        for size in [1, 2] {
            let outcome = store.append(stream, expected, counted(0..size)).await;
            assert_eq!(conflict(outcome), (stream.to_owned(), shown.to_owned(), actual));
        }
    }
}

/// The unique index on (stream, version) alone would take it and leave a hole.
async fn version_past_the_end_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    let outcome = store.append("a", Version(7), counted([2])).await;
    assert_eq!(conflict(outcome), ("a".to_owned(), "7".to_owned(), 1));
    assert_eq!(store.stream_version("a").await.unwrap(), Version(1));
}

async fn refused_append_stores_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    store.append("a", ExpectedVersion::NoStream, counted(2..=4)).await.unwrap_err();
    assert_eq!(numbers(&read_all(&store).await), [1]);
}

async fn of_racing_appends_with_one_expectation_one_wins(fixture: Fixture) {
    const RACERS: u64 = 8;
    let stores = [fixture.store().await, fixture.store().await];
    for round in 0..5 {
        let racers = (0..RACERS).map(|n| {
            let store = stores[(n % 2) as usize].clone();
            tokio::spawn(async move { store.append("a", Version(round), counted([n])).await })
        });
        let outcomes = futures::future::join_all(racers).await;
        let (won, lost): (Vec<_>, Vec<_>) =
            outcomes.into_iter().map(|outcome| outcome.unwrap()).partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, RACERS as usize - 1));
        for outcome in lost {
            let expected = if round == 0 { "no stream".to_owned() } else { round.to_string() };
            assert_eq!(conflict(outcome), ("a".to_owned(), expected, round + 1));
        }
    }
    assert_eq!(read_stream(&stores[0], "a").await.len(), 5);
}

async fn appends_without_expectation_never_conflict(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let appends = (0..60u64).map(|n| {
        let store = stores[(n % 2) as usize].clone();
        tokio::spawn(async move { append(&store, "hot", counted([n, n + 1000])).await })
    });
    let appended = futures::future::join_all(appends).await;
    let versions: BTreeSet<u64> = appended.into_iter().map(|one| one.unwrap().version.0).collect();
    assert_eq!(versions, (1..=60).map(|n| n * 2).collect());
    let events = read_stream(&stores[0], "hot").await;
    let found: Vec<u64> = events.iter().map(|event| event.version.0).collect();
    assert_eq!(found, (1..=120).collect::<Vec<_>>());
    for pair in numbers(&events).chunks(2) {
        assert_eq!(pair[1], pair[0] + 1000, "the events of one append stand together");
    }
    assert!(
        events.is_sorted_by_key(|event| event.position),
        "versions and positions rise together"
    );
}

async fn many_tasks_on_one_handle_each_get_their_own_result(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "taken", counted([0])).await;
    let appends = (0..100u64).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            match n % 4 {
                // A conflict, an append too large for nobody but itself, and two that are stored.
                0 => store.append("taken", ExpectedVersion::NoStream, counted([n])).await,
                1 => store.append("", ExpectedVersion::Any, counted([n])).await,
                _ => store.append(format!("s-{n}"), ExpectedVersion::NoStream, counted([n])).await,
            }
        })
    });
    let outcomes = futures::future::join_all(appends).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let outcome = outcome.unwrap();
        match n % 4 {
            0 => assert_eq!(conflict(outcome).2, 1),
            1 => assert!(outcome.is_err()),
            _ => {
                let appended = outcome.unwrap();
                let event = read_stream(&store, &format!("s-{n}")).await.remove(0);
                assert_eq!(event.position, appended.first_position);
                assert_eq!(numbers(&[event]), [n as u64]);
            }
        }
    }
    assert_eq!(read_all(&store).await.len(), 51);
}

async fn append_without_group_gives_the_same(fixture: Fixture) {
    let store = fixture.store_with(|options| options.group_append = false).await;
    let appends = (0..20u64).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            store.append(format!("s-{}", n % 5), ExpectedVersion::Any, counted([n])).await
        })
    });
    for outcome in futures::future::join_all(appends).await {
        outcome.unwrap().unwrap();
    }
    let conflicting = store.append("s-1", ExpectedVersion::NoStream, counted([9])).await;
    assert_eq!(conflict(conflicting).2, 4);
    let found: BTreeSet<u64> = numbers(&read_all(&store).await).into_iter().collect();
    assert_eq!(found, (0..20).collect());
}

async fn data_keeps_its_numbers_exactly(fixture: Fixture) {
    let store = fixture.store().await;
    let json = r#"{"big": 12345678901234567890123, "money": 0.10, "small": 1e-7}"#;
    append(&store, "a", [everfold::NewEvent::from_json("Paid", json).unwrap()]).await;
    let data = read_stream(&store, "a").await.remove(0).data;
    for part in ["12345678901234567890123", "0.10"] {
        assert!(data.contains(part), "{data}");
    }
}

async fn names_in_any_script_are_kept(fixture: Fixture) {
    let store = fixture.store().await;
    for name in
        ["корзина-1", "カート", "a b'c\"d;--", "emoji 🛒", "%s\\n", "x".repeat(512).as_str()]
    {
        let sent = event(&name.chars().take(60).collect::<String>(), json!(name));
        append(&store, name, [sent.clone()]).await;
        let stored = read_stream(&store, name).await.remove(0);
        assert_eq!(stored.stream_id.as_str(), name);
        assert_eq!(stored.event_type, sent.event_type());
        assert_eq!(stored.data_as::<String>().unwrap(), name);
    }
}

async fn payload_at_the_limit_is_stored(fixture: Fixture) {
    let store = fixture.store().await;
    let text = "x".repeat(1024 * 1024 - 2);
    append(&store, "large", [event("Large", json!(text))]).await;
    assert_eq!(read_stream(&store, "large").await[0].data_as::<String>().unwrap(), text);
}

async fn store_is_the_same_after_it_was_closed_and_opened(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(1..=3)).await;
    let before = read_all(&store).await;
    store.close().await;
    drop(store);
    let store = fixture.store().await;
    assert_eq!(read_all(&store).await, before);
    assert_eq!(append(&store, "a", counted([4])).await.version, Version(4));
}

async fn closed_handle_refuses_appends(fixture: Fixture) {
    let store = fixture.store().await;
    let other = store.clone();
    append(&store, "a", counted([1])).await;
    store.close().await;
    let error = other.append("a", ExpectedVersion::Any, counted([2])).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    assert!(!error.is_transient());
}
