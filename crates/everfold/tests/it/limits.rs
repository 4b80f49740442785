//! Bad input: each is refused with its own error, and nothing is stored.

use everfold::{AppendError, ExpectedVersion, InvalidAppend, NewEvent};
use serde_json::json;

use crate::fixture::{Fixture, counted, event, on_every_store, read_all};

on_every_store! {
    append_that_breaks_a_rule_is_refused_before_anything_is_stored,
    limits_of_the_options_hold,
}

async fn append_that_breaks_a_rule_is_refused_before_anything_is_stored(fixture: Fixture) {
    let store = fixture.store().await;
    let long = "x".repeat(513);
    let same = event("T", json!(1));
    let cases: Vec<(&str, Vec<NewEvent>, &str)> = vec![
        ("", counted([1]), "stream id has 0 bytes, allowed are 1 to 512"),
        (&long, counted([1]), "stream id has 513 bytes"),
        ("a\0", counted([1]), "NUL"),
        ("a", vec![], "has no events; give at least one"),
        ("a", counted(0..1001), "1001 events, at most 1000"),
        ("a", vec![event("", json!(1))], "event type of event 1 has 0 bytes"),
        ("a", vec![event("T", json!(1)), event(&long, json!(1))], "event type of event 2"),
        ("a", vec![event("T", json!("x".repeat(1024 * 1024)))], "at most 1048576 are allowed"),
        ("a", vec![event("T", json!("a\0b"))], "NUL character"),
        ("a", vec![event("T", json!({"a\0": 1}))], "NUL character"),
        ("a", vec![NewEvent::from_json("T", r#""\ud800""#).unwrap()], "half of a surrogate pair"),
        ("a", vec![event("T", json!(1)).with_schema_version(0)], "schema version"),
        ("a", vec![same.clone(), same], "stands twice in one append"),
    ];
    for (stream, events, wanted) in cases {
        let error = store.append(stream, ExpectedVersion::Any, events).await.unwrap_err();
        assert!(matches!(error, AppendError::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(wanted), "wanted {wanted:?} in: {error}");
    }
    assert!(read_all(&store).await.is_empty());
}

async fn limits_of_the_options_hold(fixture: Fixture) {
    let store = fixture
        .store_with(|options| {
            options.limits.append_events_max = 2;
            options.limits.data_bytes_max = 10;
        })
        .await;
    let many = store.append("a", ExpectedVersion::Any, counted(0..3)).await.unwrap_err();
    assert!(
        matches!(many, AppendError::Invalid(InvalidAppend::TooManyEvents { count: 3, max: 2, .. })),
        "{many:?}"
    );
    let large = store.append("a", ExpectedVersion::Any, [event("T", json!("12345678901"))]).await;
    assert!(large.unwrap_err().to_string().contains("at most 10 are allowed"));
}
