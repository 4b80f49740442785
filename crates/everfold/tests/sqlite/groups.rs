//! Appends that share a commit have outcomes of their own.

use everfold::{AppendError, Appended, ExpectedVersion, NewEvent, Store, Version};

use crate::fixture::{Place, event};

type Member = (&'static str, ExpectedVersion, Vec<NewEvent>);
type Outcomes = Vec<Result<Appended, AppendError>>;

/// Appends so that all wait together: somebody else holds the file until every one is queued.
async fn together(place: &Place, store: &Store, members: Vec<Member>) -> Outcomes {
    let lock = place.lock();
    let appends = members
        .into_iter()
        .map(|(stream, expected, events)| store.append(stream, expected, events));
    let (outcomes, ()) = tokio::join!(futures::future::join_all(appends), async { drop(lock) });
    outcomes
}

/// Members of every kind of outcome; `stored` is an event of the stream `old`.
fn members(stored: &NewEvent) -> Vec<Member> {
    let (one, two) = (event(), event());
    let deep = format!("{}1{}", "[".repeat(2_000), "]".repeat(2_000));
    vec![
        ("first", ExpectedVersion::NoStream, vec![event()]),
        ("a", ExpectedVersion::NoStream, vec![event(), event()]),
        // Conflicts with the member before it.
        ("a", ExpectedVersion::NoStream, vec![event()]),
        ("a", ExpectedVersion::Exact(Version(2)), vec![event()]),
        // A repeat of what is stored, although the version does not hold.
        ("old", ExpectedVersion::NoStream, vec![stored.clone()]),
        // Half known: nothing of it is stored.
        ("b", ExpectedVersion::Any, vec![event(), stored.clone()]),
        // The same ids twice in one group.
        ("c", ExpectedVersion::NoStream, vec![one.clone(), two.clone()]),
        ("c", ExpectedVersion::NoStream, vec![one, two]),
        // JSON that SQLite does not take, behind an event that it does.
        ("d", ExpectedVersion::Any, vec![event(), NewEvent::from_json("Deep", deep).unwrap()]),
        ("e", ExpectedVersion::Exists, vec![event()]),
        ("last", ExpectedVersion::Any, vec![event()]),
    ]
}

async fn check(store: &Store, outcomes: Outcomes) {
    let versions: Vec<u64> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map_or(0, |appended| appended.version.0))
        .collect();
    assert_eq!(versions, [1, 2, 0, 3, 1, 0, 2, 2, 0, 0, 1], "{outcomes:#?}");
    assert_eq!(outcomes[6].as_ref().unwrap(), outcomes[7].as_ref().unwrap());
    for (index, found) in [(2, Version(2)), (9, Version(0))] {
        assert!(matches!(outcomes[index],
            Err(AppendError::VersionConflict { actual, .. }) if actual == found));
    }
    assert!(matches!(&outcomes[5], Err(AppendError::IdConflict { message })
        if message.contains("of stream \"old\"") && message.contains("1 of 2 ids known")));
    assert!(matches!(&outcomes[8], Err(AppendError::Invalid(_))));
    let lengths = [("first", 1), ("a", 3), ("old", 1), ("b", 0), ("c", 2), ("d", 0), ("last", 1)];
    for (stream, length) in lengths {
        assert_eq!(store.stream_version(stream).await.unwrap(), Version(length), "{stream}");
    }
}

#[tokio::test]
async fn members_of_a_group_do_not_harm_each_other() {
    let place = Place::new();
    let store = place.open().await;
    let stored = event();
    store.append("old", ExpectedVersion::NoStream, [stored.clone()]).await.unwrap();
    let outcomes = together(&place, &store, members(&stored)).await;
    check(&store, outcomes).await;
}

#[tokio::test]
async fn of_many_racing_appends_one_succeeds_and_the_others_report_the_version() {
    let place = Place::new();
    let store = place.open().await;
    let members = (0..100).map(|_| ("s", ExpectedVersion::NoStream, vec![event()])).collect();
    let outcomes = together(&place, &store, members).await;
    let stored = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let conflicts = outcomes.iter().filter(|outcome| {
        matches!(outcome, Err(AppendError::VersionConflict { actual: Version(1), .. }))
    });
    assert_eq!((stored, conflicts.count()), (1, 99));
}

#[tokio::test]
async fn appends_are_stored_in_the_order_in_which_they_were_queued() {
    let place = Place::new();
    // More than fits into one group, and groups that no two members fit into.
    for (appends_max, events_max) in [(7, 5_000), (256, 4)] {
        let store = place
            .open_with(|options| {
                options.group_appends_max = appends_max;
                options.group_events_max = events_max;
            })
            .await;
        let before = store.high_water_mark().await.unwrap();
        let members =
            (0..20).map(|_| ("s", ExpectedVersion::Any, vec![event(), event(), event()])).collect();
        let outcomes = together(&place, &store, members).await;
        let positions: Vec<u64> =
            outcomes.iter().map(|outcome| outcome.as_ref().unwrap().last_position.0).collect();
        let wanted: Vec<u64> = (1..=20).map(|number| before.0 + number * 3).collect();
        assert_eq!(positions, wanted);
    }
}
