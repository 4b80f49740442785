//! Where a failing statement of a SQL projection stands: the file, as the project's folder has it, the
//! line, and the event; wherever an operator meets the failure.

use everfold::{AppendError, ExpectedVersion, Projection, ProjectionError, Store};
use serde_json::json;

use crate::fixture::{Fixture, append, event, failed, on_every_store};

on_every_store! {
    failed_projection_names_file_line_and_event,
    dead_letter_names_file_line_and_event,
    refused_append_names_file_line_and_event,
    inline_dead_letter_names_file_line_and_event,
    dropped_table_is_told_with_its_place,
}

const PLACE: &str = "projections/totals/apply.sql:4: ";
const APPLY: &str = "-- one\nDELETE FROM read_model.totals WHERE n = 0;\n\n\
    INSERT INTO read_model.totals\nSELECT stream_id,\n CAST(data->>'n' AS BIGINT) FROM batch";

/// The projection as it is read from a project somewhere on this machine.
fn totals(settings: &str) -> Projection {
    let project = tempfile::tempdir().unwrap();
    let folder = project.path().join("projections/totals");
    std::fs::create_dir_all(&folder).unwrap();
    let create = "CREATE TABLE read_model.totals (stream TEXT NOT NULL, n BIGINT NOT NULL)";
    std::fs::write(folder.join("create.sql"), create).unwrap();
    std::fs::write(folder.join("apply.sql"), APPLY).unwrap();
    std::fs::write(folder.join("projection.toml"), format!("version = 1\n{settings}")).unwrap();
    Projection::load_all(project.path()).unwrap().remove(0)
}

#[track_caller]
fn names_the_place(said: &str) {
    let at = said.find(PLACE).unwrap_or_else(|| panic!("{PLACE} is not in: {said}"));
    let before = said[..at].chars().last();
    assert!(before.is_none_or(|before| before == ' '), "not from the project's folder: {said}");
    assert!(said.to_lowercase().contains("null"), "{said}");
}

async fn message(store: &Store, kind: &str) -> String {
    let messages = store.messages(&everfold::MessageQuery::of("totals")).await.unwrap();
    messages.into_iter().find(|message| message.kind == kind).expect("there is one").message
}

const EVENT: &str = "event at position 2 (\"Counted\", stream \"a\"): ";

async fn failed_projection_names_file_line_and_event(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", [event("Counted", json!({ "n": 1 })), event("Counted", json!({}))]).await;
    let reason = failed(&store, &totals("lifecycle = 'catch-up'\nretries = 0")).await;
    names_the_place(&reason);
    assert!(reason.contains(EVENT), "{reason}");
    let status = store.projection("totals").await.unwrap();
    assert_eq!(status.reason, Some(reason));
}

async fn dead_letter_names_file_line_and_event(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", [event("Counted", json!({ "n": 1 })), event("Counted", json!({}))]).await;
    let projection = totals("lifecycle = 'catch-up'\nretries = 0\non_error = 'dead-letter'");
    crate::fixture::caught_up(&store, &projection).await;
    let letters = store.dead_letters("totals").await.unwrap();
    assert_eq!((letters[0].position.0, letters[0].event_type.as_str()), (2, "Counted"));
    names_the_place(letters[0].error.as_deref().unwrap());
    let message = message(&store, "dead-letter").await;
    names_the_place(&message);
    assert!(message.contains(EVENT), "{message}");
}

async fn refused_append_names_file_line_and_event(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(totals("lifecycle = 'inline'")).await.unwrap();
    let bad = store.append("a", ExpectedVersion::Any, [event("Counted", json!({}))]).await;
    let Err(AppendError::Projection { projection, message }) = bad else { panic!("{bad:?}") };
    assert_eq!(projection, "totals");
    names_the_place(&message);
    assert!(message.contains("appending event \"Counted\" to stream \"a\""), "{message}");

    let events = ["Counted", "Counted", "Other"].map(|name| event(name, json!({})));
    let bad = store.append("b", ExpectedVersion::Any, events).await.unwrap_err().to_string();
    assert!(bad.contains("appending 3 events \"Counted\", \"Other\" to stream \"b\""), "{bad}");
}

async fn inline_dead_letter_names_file_line_and_event(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(totals("lifecycle = 'inline'\non_error = 'dead-letter'")).await.unwrap();
    append(&store, "b", [event("Counted", json!({ "n": 1 }))]).await;
    append(&store, "a", [event("Counted", json!({}))]).await;
    let letters = store.dead_letters("totals").await.unwrap();
    assert_eq!((letters[0].position.0, letters[0].event_type.as_str()), (2, "Counted"));
    names_the_place(letters[0].error.as_deref().unwrap());
    let message = message(&store, "dead-letter").await;
    names_the_place(&message);
    assert!(message.contains(EVENT), "{message}");

    // Tried again, it fails at the same place.
    match store.retry_dead_letter("totals", letters[0].position).await {
        Ok(everfold::Retried::FailedAgain { error, .. }) => names_the_place(&error),
        other => panic!("wanted a dead letter that fails again, got {other:?}"),
    }
}

async fn dropped_table_is_told_with_its_place(fixture: Fixture) {
    let store = fixture.store().await;
    let projection = totals("lifecycle = 'catch-up'\nretries = 0");
    crate::fixture::caught_up(&store, &projection).await;
    fixture.execute("DROP VIEW read_model.totals", "DROP VIEW read_model_totals").await;
    fixture.execute_in("totals", "DROP TABLE {}totals").await;
    append(&store, "a", [event("Counted", json!({ "n": 1 }))]).await;
    let reason = match everfold::Runner::new(&store).projection(projection).run_once().await {
        Err(ProjectionError::Failed { reason, .. }) => reason,
        other => panic!("wanted a projection that fails, got {other:?}"),
    };
    for part in ["read model is broken", "projections/totals/apply.sql:2: ", "totals"] {
        assert!(reason.contains(part), "{part} is not in: {reason}");
    }
}
