//! Reading a stream and the whole log: order, direction, filters, pages.

use everfold::{Position, RecordedEvent, StoreOptions, Version};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fixture::{
    Fixture, append, counted, event, numbers, on_every_store, read_all, read_stream,
};

on_every_store! {
    stream_is_read_in_order_forward_and_backward,
    read_of_a_stream_can_start_and_stop_anywhere,
    stream_that_does_not_exist_has_no_events,
    log_is_read_in_the_order_of_positions,
    log_can_be_read_from_any_position_on,
    filter_on_types_finds_all_of_them_and_nothing_else,
    filter_finds_types_that_are_rare_here_and_common_there,
    pages_of_any_size_give_the_same_events,
    large_events_come_one_page_at_a_time,
    typed_reading_passes_over_types_it_does_not_know,
    typed_reading_names_the_event_that_does_not_fit,
    read_ends_at_the_mark_of_its_start,
    reading_survives_being_dropped_half_way,
}

fn versions(events: &[RecordedEvent]) -> Vec<u64> {
    events.iter().map(|event| event.version.0).collect()
}

/// Small pages, so that every read crosses their borders.
fn small_pages(options: &mut StoreOptions) {
    options.page_events_max = 3;
}

async fn stream_is_read_in_order_forward_and_backward(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    for n in 0..4 {
        append(&store, "a", counted([2 * n, 2 * n + 1])).await;
        append(&store, "other", counted([99])).await;
    }
    let forward = read_stream(&store, "a").await;
    assert_eq!(numbers(&forward), (0..8).collect::<Vec<_>>());
    assert_eq!(versions(&forward), (1..=8).collect::<Vec<_>>());
    let mut backward = store.read_stream("a").backward().collect().await.unwrap();
    backward.reverse();
    assert_eq!(backward, forward);
}

async fn read_of_a_stream_can_start_and_stop_anywhere(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    append(&store, "a", counted(1..=9)).await;
    let read = |from: u64, limit: u64, backward: bool| {
        let read = store.read_stream("a").from_version(Version(from)).limit(limit);
        let read = if backward { read.backward() } else { read };
        async move { versions(&read.collect().await.unwrap()) }
    };
    assert_eq!(read(4, 100, false).await, [4, 5, 6, 7, 8, 9]);
    assert_eq!(read(4, 4, false).await, [4, 5, 6, 7]);
    assert_eq!(read(4, 3, false).await, [4, 5, 6]);
    assert_eq!(read(10, 3, false).await, [0u64; 0]);
    assert_eq!(read(0, 2, false).await, [1, 2]);
    assert_eq!(read(5, 100, true).await, [5, 4, 3, 2, 1]);
    assert_eq!(read(5, 2, true).await, [5, 4]);
    assert_eq!(read(100, 2, true).await, [9, 8]);
    assert_eq!(read(0, 2, true).await, [0u64; 0]);
    assert_eq!(read(3, 0, false).await, [0u64; 0]);
}

async fn stream_that_does_not_exist_has_no_events(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    assert!(read_stream(&store, "b").await.is_empty());
    assert!(store.read_stream("").collect().await.unwrap().is_empty());
}

async fn log_is_read_in_the_order_of_positions(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    let appends = (0..40u64).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { append(&store, &format!("s-{}", n % 7), counted([n])).await })
    });
    futures::future::join_all(appends).await;
    let events = read_all(&store).await;
    assert!(events.is_sorted_by(|a, b| a.position < b.position));
    let mut found = numbers(&events);
    found.sort_unstable();
    assert_eq!(found, (0..40).collect::<Vec<_>>());
}

async fn log_can_be_read_from_any_position_on(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    append(&store, "a", counted(0..10)).await;
    let all = read_all(&store).await;
    for (n, event) in all.iter().enumerate() {
        let rest = store.read_all().after(event.position).collect().await.unwrap();
        assert_eq!(rest, all[n + 1..]);
    }
    let some = store.read_all().after(Position::START).limit(4).collect().await.unwrap();
    assert_eq!(some, all[..4]);
    let none = store.read_all().after(Position(u64::MAX)).collect().await.unwrap();
    assert!(none.is_empty());
}

async fn filter_on_types_finds_all_of_them_and_nothing_else(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    for n in 0..30u64 {
        let kind = ["Common", "Common", "Common", "Rare", "Other"][(n % 5) as usize];
        append(&store, &format!("s-{}", n % 3), [event(kind, json!({ "n": n }))]).await;
    }
    let read = async |types: &[&str]| {
        let events = store.read_all().types(types.iter().copied()).collect().await.unwrap();
        assert!(events.is_sorted_by(|a, b| a.position < b.position));
        numbers(&events)
    };
    let with = |kinds: &[u64]| (0..30).filter(|n| kinds.contains(&(n % 5))).collect::<Vec<u64>>();
    assert_eq!(read(&["Rare"]).await, with(&[3]));
    assert_eq!(read(&["Rare", "Other"]).await, with(&[3, 4]));
    assert_eq!(read(&["Rare", "Rare", "Nobody"]).await, with(&[3]));
    assert_eq!(read(&["Common", "Rare", "Other"]).await, with(&[0, 1, 2, 3, 4]));
    assert_eq!(read(&["Nobody"]).await, [0u64; 0]);
    assert_eq!(read(&[]).await, [0u64; 0]);
    let limited = store.read_all().types(["Rare"]).limit(2).collect().await.unwrap();
    assert_eq!(numbers(&limited), [3, 8]);
}

/// How types are looked for depends on how common they were a page before.
async fn filter_finds_types_that_are_rare_here_and_common_there(fixture: Fixture) {
    let kind = |n: u64| match n {
        0..300 if n % 90 == 17 => "Wanted",
        300..500 => "Wanted",
        500..800 if n % 10 == 3 => "Also",
        950..1000 => "Wanted",
        _ => "Other",
    };
    let store = fixture.store().await;
    let events: Vec<_> = (0..1000).map(|n| event(kind(n), json!({ "n": n }))).collect();
    append(&store, "a", events).await;
    let wanted: Vec<u64> = (0..1000).filter(|&n| kind(n) != "Other").collect();
    for size in [1, 7, 64, 500] {
        let store = fixture.store_with(|options| options.page_events_max = size).await;
        let found = store.read_all().types(["Wanted", "Also"]).collect().await.unwrap();
        assert_eq!(numbers(&found), wanted, "pages of {size}");
    }
}

async fn pages_of_any_size_give_the_same_events(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(0..12)).await;
    let whole = read_all(&store).await;
    for size in [1, 2, 3, 4, 6, 11, 12, 13] {
        let store = fixture.store_with(|options| options.page_events_max = size).await;
        assert_eq!(read_all(&store).await, whole, "pages of {size}");
        assert_eq!(read_stream(&store, "a").await, whole, "pages of {size}");
    }
}

async fn large_events_come_one_page_at_a_time(fixture: Fixture) {
    let store = fixture.store_with(|options| options.page_bytes_max = 10_000).await;
    let large = |n: u64| event("Large", json!({ "n": n, "text": "x".repeat(8_000) }));
    for n in 0..7 {
        append(&store, "a", [large(n)]).await;
    }
    assert_eq!(numbers(&read_all(&store).await), (0..7).collect::<Vec<_>>());
    let backward = store.read_stream("a").backward().collect().await.unwrap();
    assert_eq!(numbers(&backward), (0..7).rev().collect::<Vec<_>>());
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum CartEvent {
    ItemAdded { quantity: u32 },
    CheckedOut,
}

async fn typed_reading_passes_over_types_it_does_not_know(fixture: Fixture) {
    let store = fixture.store().await;
    let added = everfold::NewEvent::from_event(&CartEvent::ItemAdded { quantity: 2 }).unwrap();
    let checked_out = everfold::NewEvent::from_event(&CartEvent::CheckedOut).unwrap();
    let foreign = event("SomethingElse", json!([1, "not a cart"]));
    append(&store, "cart-1", [added, foreign, checked_out]).await;
    let wanted = [CartEvent::ItemAdded { quantity: 2 }, CartEvent::CheckedOut];

    let mut of_stream = store.read_stream("cart-1").typed::<CartEvent>();
    let mut of_all = store.read_all().typed::<CartEvent>();
    for event in &wanted {
        assert_eq!(of_stream.next().await.unwrap().unwrap().event, *event);
        assert_eq!(of_all.next().await.unwrap().unwrap().event, *event);
    }
    assert!(of_stream.next().await.unwrap().is_none());
    assert!(of_all.next().await.unwrap().is_none());

    // Raw, the unknown one is there like the others.
    let raw = &read_stream(&store, "cart-1").await[1];
    assert_eq!(raw.decode::<CartEvent>().unwrap(), None);
    assert_eq!(raw.data_as::<serde_json::Value>().unwrap(), json!([1, "not a cart"]));
}

async fn typed_reading_names_the_event_that_does_not_fit(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", [event("ItemAdded", json!({ "quantity": "two" }))]).await;
    append(&store, "a", [event("CheckedOut", json!(null))]).await;
    let mut events = store.read_all().typed::<CartEvent>();
    let error = events.next().await.unwrap_err().to_string();
    for part in ["position 1", "\"ItemAdded\"", "stream \"a\"", "upcaster"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(events.next().await.unwrap().unwrap().event, CartEvent::CheckedOut);
}

async fn read_ends_at_the_mark_of_its_start(fixture: Fixture) {
    let store = fixture.store_with(small_pages).await;
    append(&store, "a", counted(0..6)).await;
    let mut events = store.read_all().events();
    let first = events.next().await.unwrap().unwrap();
    append(&store, "a", counted(6..20)).await;
    let mut found = vec![first];
    while let Some(event) = events.next().await.unwrap() {
        found.push(event);
    }
    assert_eq!(numbers(&found), (0..6).collect::<Vec<_>>());
    assert_eq!(store.high_water_mark().await.unwrap(), read_all(&store).await[19].position);
}

async fn reading_survives_being_dropped_half_way(fixture: Fixture) {
    let store = fixture.store_with(|options| {
        options.page_events_max = 2;
        options.pool_size = 2;
    });
    let store = store.await;
    append(&store, "a", counted(0..50)).await;
    for _ in 0..20 {
        let mut events = store.read_all().events();
        events.next().await.unwrap().unwrap();
        drop(events);
    }
    assert_eq!(read_all(&store).await.len(), 50);
}
