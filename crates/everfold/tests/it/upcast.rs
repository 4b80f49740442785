//! Old shapes of events are brought to today's when they are read; the log stays as it is.

use std::sync::Arc;

use everfold::{ReadError, Upcasters};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, event, on_every_store, read_stream};

on_every_store! {
    old_versions_are_brought_up_step_by_step,
    renamed_type_is_found_under_its_new_name,
    upcaster_that_fails_names_the_event,
    type_that_was_renamed_twice_is_found_under_its_last_name,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Customer {
    Named { first: String, last: String, vip: bool },
}

fn upcasters() -> Upcasters {
    Upcasters::new()
        .add("Named", 1, |data: Value| {
            let name = data["name"].as_str().ok_or("there is no name")?;
            let (first, last) = name.split_once(' ').unwrap_or((name, ""));
            Ok::<_, &str>(json!({ "first": first, "last": last }))
        })
        .add("Named", 2, |mut data: Value| {
            data["vip"] = json!(false);
            Ok::<_, String>(data)
        })
        .rename("ClientNamed", "Named")
}

fn ada(vip: bool) -> Customer {
    Customer::Named { first: "Ada".into(), last: "Lovelace".into(), vip }
}

async fn old_versions_are_brought_up_step_by_step(fixture: Fixture) {
    let plain = fixture.store().await;
    let new = everfold::NewEvent::from_event(&ada(true)).unwrap().with_schema_version(3);
    let old = event("Named", json!({ "name": "Ada Lovelace" }));
    let middle =
        event("Named", json!({ "first": "Ada", "last": "Lovelace" })).with_schema_version(2);
    append(&plain, "c", [old, middle, new]).await;

    let store = fixture.store_with(|options| options.upcasters = Arc::new(upcasters())).await;
    let mut events = store.read_stream("c").typed::<Customer>();
    for vip in [false, false, true] {
        let typed = events.next().await.unwrap().unwrap();
        assert_eq!(typed.event, ada(vip));
        assert_eq!(typed.recorded.schema_version, 3);
    }
    let raw = read_stream(&plain, "c").await;
    assert_eq!(raw[0].data_as::<Value>().unwrap(), json!({ "name": "Ada Lovelace" }));
}

async fn renamed_type_is_found_under_its_new_name(fixture: Fixture) {
    let store = fixture.store_with(|options| options.upcasters = Arc::new(upcasters())).await;
    append(&store, "c", [event("ClientNamed", json!({ "name": "Ada Lovelace" }))]).await;
    append(&store, "c", [event("Unrelated", json!(1))]).await;
    let mut events = store.read_all().typed::<Customer>();
    let typed = events.next().await.unwrap().unwrap();
    assert_eq!((typed.event, typed.recorded.event_type.as_str()), (ada(false), "Named"));
    assert!(events.next().await.unwrap().is_none());
}

async fn upcaster_that_fails_names_the_event(fixture: Fixture) {
    let store = fixture.store_with(|options| options.upcasters = Arc::new(upcasters())).await;
    append(&store, "c", [event("Unrelated", json!(1)), event("Named", json!({}))]).await;
    // What stands before it is handed out, whatever page they share.
    let mut events = store.read_stream("c").events();
    assert_eq!(events.next().await.unwrap().unwrap().event_type, "Unrelated");
    let error = events.next().await.unwrap_err();
    assert!(events.next().await.unwrap().is_none(), "the read ends with it");
    let ReadError::Upcast { position, event_type, schema_version, message, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((position.0, event_type.as_str(), schema_version), (2, "Named", 1));
    assert_eq!(message, "there is no name");
    // A reader that does not ask for that type is not disturbed.
    let others = store.read_all().types(["Unrelated"]).collect().await.unwrap();
    assert_eq!(others.len(), 1);
}

async fn type_that_was_renamed_twice_is_found_under_its_last_name(fixture: Fixture) {
    let renames = || Upcasters::new().rename("A", "B").rename("B", "C");
    let store = fixture.store_with(|options| options.upcasters = Arc::new(renames())).await;
    append(&store, "s", ["A", "B", "C", "D"].map(|kind| event(kind, json!(1)))).await;
    let found = store.read_all().types(["C"]).collect().await.unwrap();
    let types: Vec<&str> = found.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(types, ["C", "C", "C"]);
}
