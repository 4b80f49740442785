//! Following: history first, then whatever comes, from this handle or any other.

use std::time::Duration;

use everfold::{EventStream, Position, RecordedEvent};
use serde_json::json;

use crate::fixture::{Fixture, append, counted, event, numbers, on_every_store, read_all};

on_every_store! {
    follower_gets_history_and_then_what_comes,
    follower_sees_what_another_handle_appends,
    follower_can_start_behind_a_position,
    follower_gets_only_the_types_it_wants,
    followers_do_not_disturb_each_other,
    follower_with_a_limit_ends,
    follower_under_load_misses_nothing,
    idle_follower_wakes_up_again,
}

/// The next `count` events; a follower that stands still fails the test instead of hanging it.
async fn take(events: &mut EventStream, count: usize) -> Vec<RecordedEvent> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
        taken.push(next.expect("an event comes").unwrap().expect("following does not end"));
    }
    taken
}

async fn follower_gets_history_and_then_what_comes(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(0..5)).await;
    let mut events = store.follow().events();
    assert_eq!(numbers(&take(&mut events, 5).await), (0..5).collect::<Vec<_>>());
    for n in 5..10 {
        append(&store, "b", counted([n])).await;
        assert_eq!(numbers(&take(&mut events, 1).await), [n]);
    }
}

async fn follower_sees_what_another_handle_appends(fixture: Fixture) {
    let (reader, writer) = (fixture.store().await, fixture.store().await);
    let mut events = reader.follow().events();
    for n in 0..10 {
        append(&writer, "a", counted([n])).await;
        assert_eq!(numbers(&take(&mut events, 1).await), [n]);
    }
}

async fn follower_can_start_behind_a_position(fixture: Fixture) {
    let store = fixture.store().await;
    let appended = append(&store, "a", counted(0..5)).await;
    let mut events = store.follow().after(appended.last_position).events();
    append(&store, "a", counted([5])).await;
    assert_eq!(numbers(&take(&mut events, 1).await), [5]);
}

async fn follower_gets_only_the_types_it_wants(fixture: Fixture) {
    let store = fixture.store().await;
    let mut events = store.follow().types(["Wanted"]).events();
    for n in 0..5 {
        append(&store, "a", counted(0..7)).await;
        append(&store, "a", [event("Wanted", json!({ "n": n }))]).await;
    }
    assert_eq!(numbers(&take(&mut events, 5).await), (0..5).collect::<Vec<_>>());
}

async fn followers_do_not_disturb_each_other(fixture: Fixture) {
    let store = fixture.store().await;
    let mut first = store.follow().events();
    let mut second = store.follow().events();
    append(&store, "a", counted([1])).await;
    assert_eq!(numbers(&take(&mut first, 1).await), [1]);
    drop(first);
    append(&store, "a", counted([2])).await;
    assert_eq!(numbers(&take(&mut second, 2).await), [1, 2]);
}

async fn follower_with_a_limit_ends(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(0..3)).await;
    let events = store.follow().limit(2).collect().await.unwrap();
    assert_eq!(numbers(&events), [0, 1]);
}

async fn follower_under_load_misses_nothing(fixture: Fixture) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 25;
    let (reader, writer) = (fixture.store().await, fixture.store().await);
    let writers = (0..WRITERS).map(|w| {
        let store = writer.clone();
        tokio::spawn(async move {
            for n in 0..EACH {
                append(&store, &format!("s-{w}"), counted([w * EACH + n])).await;
            }
        })
    });
    let writing = futures::future::join_all(writers);
    let mut events = reader.follow().events();
    let (followed, _) = tokio::join!(take(&mut events, (WRITERS * EACH) as usize), writing);
    assert_eq!(followed, read_all(&reader).await);
}

/// The shared poll ends some time after the last follower; the next one starts it anew.
async fn idle_follower_wakes_up_again(fixture: Fixture) {
    let store = fixture
        .store_with(|options| {
            options.poll_max = Duration::from_millis(20);
            options.notify = false;
        })
        .await;
    let mut after = Position::START;
    for n in 0..5 {
        let mut events = store.follow().after(after).events();
        append(&store, "a", counted([n])).await;
        let taken = take(&mut events, 1).await;
        assert_eq!(numbers(&taken), [n]);
        after = taken[0].position;
        drop(events);
        // Longer than the poll outlives its last follower: the pause is the thing under test.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
}

/// Wake-ups between processes: told after the commit, and not once for every append.
#[tokio::test]
async fn appends_are_told_to_other_processes_in_few_notifications() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let (client, mut connection) =
        tokio_postgres::connect(&fixture.url, tokio_postgres::NoTls).await.unwrap();
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let next = |context: &mut std::task::Context<'_>| connection.poll_message(context);
        let mut messages = futures::stream::poll_fn(next);
        while let Some(Ok(message)) = futures::StreamExt::next(&mut messages).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.channel().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN everfold_events").await.unwrap();
    let mut notifications = 0;
    for n in 0..300 {
        append(&store, "a", counted([n])).await;
        while told.try_recv().is_ok() {
            notifications += 1;
        }
    }
    if notifications == 0 {
        let first = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        assert_eq!(first.expect("a notification comes").unwrap(), "everfold_events");
    }
    assert!(notifications < 300, "{notifications} notifications for 300 appends");
}
