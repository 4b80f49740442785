//! Appending to many streams in one call, each member with its own outcome.

use everfold::{ExpectedVersion, StreamAppend, Version};

use crate::fixture::{
    Fixture, append, conflict, counted, numbers, on_every_store, read_all, read_stream,
};

on_every_store! {
    each_member_has_its_own_outcome,
    members_of_one_stream_are_appended_in_their_order,
    no_members_are_no_work,
    member_that_breaks_a_rule_refuses_the_whole,
    id_in_two_members_refuses_the_whole,
    calls_with_overlapping_streams_do_not_deadlock,
}

async fn each_member_has_its_own_outcome(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "there", counted([0])).await;
    let outcomes = store
        .append_many([
            StreamAppend::new("new", ExpectedVersion::NoStream, counted([1, 2])),
            StreamAppend::new("there", ExpectedVersion::NoStream, counted([3])),
            StreamAppend::new("there", Version(1), counted([4])),
            StreamAppend::new("absent", ExpectedVersion::Exists, counted([5])),
            StreamAppend::new("any", ExpectedVersion::Any, counted([6])),
        ])
        .await
        .unwrap();
    let mut outcomes = outcomes.into_iter();
    let new = outcomes.next().unwrap().unwrap();
    assert_eq!((new.version, new.last_position.0 - new.first_position.0), (Version(2), 1));
    assert_eq!(conflict(outcomes.next().unwrap()), ("there".into(), "no stream".into(), 1));
    assert_eq!(outcomes.next().unwrap().unwrap().version, Version(2));
    assert_eq!(conflict(outcomes.next().unwrap()).2, 0);
    let any = outcomes.next().unwrap().unwrap();
    assert_eq!(any.version, Version(1));
    let all = read_all(&store).await;
    assert_eq!(numbers(&all), [0, 1, 2, 4, 6]);
    assert_eq!(all.last().unwrap().position, any.last_position);
}

async fn members_of_one_stream_are_appended_in_their_order(fixture: Fixture) {
    let store = fixture.store().await;
    let outcomes = store
        .append_many([
            StreamAppend::new("a", ExpectedVersion::NoStream, counted([1, 2])),
            StreamAppend::new("b", ExpectedVersion::NoStream, counted([3])),
            StreamAppend::new("a", Version(2), counted([4])),
            StreamAppend::new("a", Version(2), counted([5])),
            StreamAppend::new("a", Version(3), counted([6])),
        ])
        .await
        .unwrap();
    let versions: Vec<Option<u64>> =
        outcomes.iter().map(|outcome| outcome.as_ref().ok().map(|one| one.version.0)).collect();
    assert_eq!(versions, [Some(2), Some(1), Some(3), None, Some(4)]);
    assert_eq!(numbers(&read_stream(&store, "a").await), [1, 2, 4, 6]);
}

async fn no_members_are_no_work(fixture: Fixture) {
    let store = fixture.store().await;
    assert!(store.append_many([]).await.unwrap().is_empty());
}

async fn member_that_breaks_a_rule_refuses_the_whole(fixture: Fixture) {
    let store = fixture.store().await;
    let outcome = store
        .append_many([
            StreamAppend::new("a", ExpectedVersion::Any, counted([1])),
            StreamAppend::new("b", ExpectedVersion::Any, []),
        ])
        .await;
    assert!(outcome.unwrap_err().to_string().contains("has no events"));
    assert!(read_all(&store).await.is_empty());
}

async fn id_in_two_members_refuses_the_whole(fixture: Fixture) {
    let store = fixture.store().await;
    let event = counted([1]);
    let outcome = store
        .append_many([
            StreamAppend::new("a", ExpectedVersion::Any, event.clone()),
            StreamAppend::new("b", ExpectedVersion::Any, event),
        ])
        .await;
    assert!(outcome.unwrap_err().to_string().contains("stands twice"));
    assert!(read_all(&store).await.is_empty());
}

async fn calls_with_overlapping_streams_do_not_deadlock(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let calls = (0..24u64).map(|n| {
        let store = stores[(n % 2) as usize].clone();
        tokio::spawn(async move {
            let mut streams: Vec<u64> = (0..6).map(|k| (n + k) % 8).collect();
            if n % 3 == 0 {
                streams.reverse();
            }
            let appends = streams
                .into_iter()
                .map(|s| StreamAppend::new(format!("s-{s}"), ExpectedVersion::Any, counted([n])));
            store.append_many(appends).await
        })
    });
    for outcome in futures::future::join_all(calls).await {
        assert!(outcome.unwrap().unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(read_all(&stores[0]).await.len(), 24 * 6);
}
