//! Pages of some types: scanned where they are a good part of the log, otherwise merged from one
//! index range per type.

use everfold::{ExpectedVersion, NewEvent, Position};

use crate::fixture::Place;

const TYPES: [&str; 5] = ["A", "B", "C", "D", "E"];

#[tokio::test]
async fn filter_by_types_gives_what_reading_everything_and_choosing_gives() {
    let place = Place::new();
    let store = place.open_with(|options| options.page_events_max = 3).await;
    // Runs of one type, types that come seldom, and a long stretch where all are rare.
    let events = (0..600_usize).map(|number| {
        let event_type = match number {
            200..500 if number % 23 != 0 => "Other",
            _ => TYPES[(number / 7 + number * number % 3) % TYPES.len()],
        };
        NewEvent::new(event_type, &number).unwrap()
    });
    store.append("s", ExpectedVersion::NoStream, events).await.unwrap();
    let all = store.read_all().collect().await.unwrap();
    for chosen in 0..(1 << TYPES.len()) {
        let mut types: Vec<&str> =
            (0..TYPES.len()).filter(|bit| chosen & (1 << bit) != 0).map(|bit| TYPES[bit]).collect();
        types.push("Nobody");
        types.extend(types.clone());
        for after in [0, 50, 300, 600, 1_000] {
            let read = store.read_all().types(types.clone()).after(Position(after));
            let found = read.collect().await.unwrap();
            let wanted: Vec<_> = all
                .iter()
                .filter(|event| event.position.0 > after)
                .filter(|event| types.contains(&event.event_type.as_str()))
                .cloned()
                .collect();
            assert_eq!(found, wanted, "{types:?} after {after}");
        }
    }
}

#[tokio::test]
async fn page_full_by_bytes_still_moves_on() {
    let place = Place::new();
    let store = place.open_with(|options| options.page_bytes_max = 100).await;
    let events = (0..30).map(|number| NewEvent::new("A", &"x".repeat(number * 10)).unwrap());
    store.append("s", ExpectedVersion::NoStream, events).await.unwrap();
    let all = store.read_all().collect().await.unwrap();
    assert_eq!(all.len(), 30);
    assert_eq!(store.read_all().types(["A"]).collect().await.unwrap(), all);
    assert_eq!(store.read_stream("s").collect().await.unwrap(), all);
    let mut backward = store.read_stream("s").backward().collect().await.unwrap();
    backward.reverse();
    assert_eq!(backward, all);
}
