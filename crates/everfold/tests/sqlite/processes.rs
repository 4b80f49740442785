//! Several handles and several processes on one file.

use std::collections::HashMap;

use everfold::{AppendError, ExpectedVersion, Store, Version};

use crate::fixture::{Place, child, child_file, event, url};

const PROCESSES: usize = 3;
const EVENTS_EACH: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn follower_gets_everything_that_other_processes_append() {
    let place = Place::new();
    let store = place.open().await;
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| child("processes::child_appends", &place.file()).spawn().unwrap())
        .collect();
    let total = PROCESSES * EVENTS_EACH;
    let mut events = store.follow().limit(total as u64).events();
    let (mut last, mut own) = (0, HashMap::new());
    let mut shared = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        assert!(event.position.0 > last, "positions rise");
        last = event.position.0;
        if event.stream_id.as_str() == "shared" {
            shared.push(event.version.0);
        } else {
            *own.entry(event.stream_id).or_insert(0) += 1;
        }
    }
    assert_eq!(shared, (1..=(total / 2) as u64).collect::<Vec<_>>(), "no holes, in order");
    assert_eq!(own.len(), PROCESSES);
    assert!(own.values().all(|&events| events == EVENTS_EACH / 2));
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of several processes of another test"]
async fn child_appends() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    let own = format!("own-{}", std::process::id());
    for _ in 0..EVENTS_EACH / 2 {
        let (shared, own) = tokio::join!(
            store.append("shared", ExpectedVersion::Any, [event()]),
            store.append(own.as_str(), ExpectedVersion::Any, [event()]),
        );
        shared.unwrap();
        own.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_that_race_for_a_version_agree_on_one_winner() {
    let place = Place::new();
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(place.open().await);
    }
    for version in 0..25 {
        let racing = handles.iter().map(|store| {
            let expected = ExpectedVersion::Exact(Version(version));
            store.append("s", expected, [event()])
        });
        let outcomes = futures::future::join_all(racing).await;
        let stored = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let conflicts = outcomes.iter().filter(|outcome| {
            matches!(outcome, Err(AppendError::VersionConflict { actual, .. })
                if *actual == Version(version + 1))
        });
        assert_eq!((stored, conflicts.count()), (1, 3));
    }
}

#[tokio::test]
async fn repeat_through_another_handle_returns_the_first_result() {
    let place = Place::new();
    let (one, other) = (place.open().await, place.open().await);
    let events = [event(), event()];
    let first = one.append("s", ExpectedVersion::NoStream, events.clone()).await.unwrap();
    let second = other.append("s", ExpectedVersion::NoStream, events).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(other.stream_version("s").await.unwrap(), Version(2));
}
