//! Read models that somebody broke by hand: no event is to blame, so none is given up for it.

use everfold::{
    AppendError, ExpectedVersion, GenerationStatus, OnError, Position, Projection,
    ProjectionBuilder, Store,
};
use serde_json::json;

use crate::chain::{Chain, assert_chains, moved};
use crate::fixture::{Fixture, append, caught_up, counted, failed, on_every_store, read_all};

on_every_store! {
    catch_up_projection_stops_under_every_policy,
    inline_projection_refuses_appends_under_every_policy,
    catch_up_documents_stop_under_every_policy,
    inline_documents_refuse_appends_under_every_policy,
}

const POLICIES: [(&str, OnError); 3] =
    [("stops", OnError::Stop), ("skips", OnError::Skip), ("puts_aside", OnError::DeadLetter)];

fn totals(name: &str, on_error: OnError) -> ProjectionBuilder<everfold::SqlBody> {
    Projection::sql(name, 1)
        .create(format!(
            "CREATE TABLE read_model.{name} (stream_id TEXT PRIMARY KEY, n BIGINT NOT NULL)"
        ))
        .apply(format!(
            "INSERT INTO read_model.{name} AS t (stream_id, n)
             SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT)) FROM batch WHERE true GROUP BY 1
             ON CONFLICT (stream_id) DO UPDATE SET n = t.n + excluded.n"
        ))
        .on_error(on_error)
}

/// Renames the table: for the statements of the projection it is gone, and it can be put back whole.
async fn rename(fixture: &Fixture, name: &str, from: &str, to: &str) {
    let prefix = if fixture.is_sqlite() { "{}" } else { "" };
    let sql = format!("ALTER TABLE {{}}{from} RENAME TO {prefix}{to}");
    fixture.execute_in(name, &sql).await;
}

async fn total(fixture: &Fixture, name: &str) -> serde_json::Value {
    fixture.rows(&format!("SELECT n FROM read_model.{name}")).await[0][0].clone()
}

async fn assert_nothing_given_up(store: &Store, name: &str) {
    assert_eq!(store.dead_letters(name).await.unwrap().len(), 0, "{name}");
    assert_eq!(store.skips(name).await.unwrap().len(), 0, "{name}");
    for message in store.messages(&everfold::MessageQuery::of(name)).await.unwrap() {
        assert!(!["skipped", "dead-letter"].contains(&message.kind.as_str()), "{message:?}");
    }
}

async fn catch_up_projection_stops_under_every_policy(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted([1, 2])).await;
    for (name, on_error) in POLICIES {
        caught_up(&store, &totals(name, on_error).build().unwrap()).await;
        rename(&fixture, name, name, "gone").await;
    }
    append(&store, "a", counted([3, 4])).await;
    for (name, on_error) in POLICIES {
        let projection = totals(name, on_error).build().unwrap();
        let reason = failed(&store, &projection).await;
        for part in ["read model is broken", name, &format!("everfold resume {name}")] {
            assert!(reason.contains(part), "{reason}");
        }
        let status = store.projection(name).await.unwrap();
        assert_eq!((status.status, status.position), (GenerationStatus::Failed, Position(2)));
        assert_nothing_given_up(&store, name).await;

        rename(&fixture, name, "gone", name).await;
        store.resume(name).await.unwrap();
        caught_up(&store, &projection).await;
        assert_eq!(store.projection(name).await.unwrap().position, Position(4));
        assert_eq!(total(&fixture, name).await, json!(10));
    }
}

async fn inline_projection_refuses_appends_under_every_policy(fixture: Fixture) {
    let store = fixture.store().await;
    for (name, on_error) in POLICIES {
        let builder = totals(name, on_error).events([name]).inline();
        store.register(builder.build().unwrap()).await.unwrap();
    }
    for (name, _) in POLICIES {
        let event = |n: u64| crate::fixture::event(name, json!({ "n": n }));
        append(&store, name, [event(1)]).await;
        rename(&fixture, name, name, "gone").await;
        let before = read_all(&store).await.len();
        for events in [vec![event(2)], vec![event(2), event(3)]] {
            match store.append(name, ExpectedVersion::Any, events).await {
                Err(AppendError::Projection { projection, .. }) => assert_eq!(projection, name),
                other => panic!("wanted a refused append, got {other:?}"),
            }
        }
        assert_eq!(read_all(&store).await.len(), before);
        assert_nothing_given_up(&store, name).await;
        rename(&fixture, name, "gone", name).await;
        append(&store, name, [event(4)]).await;
        assert_eq!(total(&fixture, name).await, json!(5));
    }
}

#[tokio::test]
async fn append_names_the_projection_whose_function_or_schema_is_gone() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let drops = ["DROP FUNCTION {}apply_event", "DROP SCHEMA everfold_3_skips CASCADE"];
    for (name, on_error) in &POLICIES[..2] {
        let builder = totals(name, *on_error).events([*name]).inline();
        store.register(builder.build().unwrap()).await.unwrap();
    }
    for ((name, _), drop) in POLICIES.iter().zip(drops) {
        fixture.execute_in(name, drop).await;
        let event = crate::fixture::event(name, json!({ "n": 1 }));
        match store.append("a", ExpectedVersion::Any, [event]).await {
            Err(AppendError::Projection { projection, .. }) => assert_eq!(projection, *name),
            other => panic!("wanted a refused append, got {other:?}"),
        }
        assert_nothing_given_up(&store, name).await;
    }
}

fn chain(name: &str, on_error: OnError) -> ProjectionBuilder<everfold::DocumentBody<Chain>> {
    Projection::document(name, 1, Chain::default()).on_error(on_error)
}

async fn catch_up_documents_stop_under_every_policy(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", [moved("a", 1), moved("a", 2)]).await;
    for (name, on_error) in POLICIES {
        caught_up(&store, &chain(name, on_error).build().unwrap()).await;
        rename(&fixture, name, name, "gone").await;
    }
    append(&store, "a", [moved("a", 3)]).await;
    for (name, on_error) in POLICIES {
        let projection = chain(name, on_error).build().unwrap();
        let reason = failed(&store, &projection).await;
        for part in ["read model is broken", name, &format!("everfold resume {name}")] {
            assert!(reason.contains(part), "{reason}");
        }
        assert_eq!(store.projection(name).await.unwrap().position, Position(2));
        assert_nothing_given_up(&store, name).await;

        rename(&fixture, name, "gone", name).await;
        store.resume(name).await.unwrap();
        caught_up(&store, &projection).await;
        assert_chains(&store, name).await;
    }
}

async fn inline_documents_refuse_appends_under_every_policy(fixture: Fixture) {
    let store = fixture.store().await;
    for (name, on_error) in POLICIES {
        store.register(chain(name, on_error).inline().build().unwrap()).await.unwrap();
    }
    append(&store, "a", [moved("a", 1)]).await;
    for (name, _) in POLICIES {
        rename(&fixture, name, name, "gone").await;
        for events in [vec![moved("a", 2)], vec![moved("a", 2), moved("a", 3)]] {
            match store.append("a", ExpectedVersion::Any, events).await {
                Err(AppendError::Projection { projection, .. }) => assert_eq!(projection, name),
                other => panic!("wanted a refused append, got {other:?}"),
            }
        }
        assert_nothing_given_up(&store, name).await;
        rename(&fixture, name, "gone", name).await;
    }
    append(&store, "a", [moved("a", 4)]).await;
    for (name, _) in POLICIES {
        assert_chains(&store, name).await;
    }
}

#[tokio::test]
async fn append_names_the_projection_whose_documents_cannot_be_written() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    store.register(chain("stops", OnError::Stop).inline().build().unwrap()).await.unwrap();
    append(&store, "a", [moved("a", 1)]).await;
    fixture.execute_in("stops", "ALTER TABLE {}stops ADD CHECK (position < 2)").await;
    for events in [vec![moved("a", 2)], vec![moved("a", 2), moved("a", 3)]] {
        match store.append("a", ExpectedVersion::Any, events).await {
            Err(AppendError::Projection { projection, message }) => {
                assert_eq!(projection, "stops");
                assert!(message.contains("check constraint"), "{message}");
            }
            other => panic!("wanted a refused append, got {other:?}"),
        }
    }
    assert_eq!(read_all(&store).await.len(), 1);
}

#[tokio::test]
async fn what_a_pooler_causes_is_no_broken_read_model() {
    let fixture = Fixture::postgres().await;
    fixture.store().await;
    let sql = "SELECT code, everfold.is_broken(code) FROM unnest(ARRAY['42P01', '42501', '3F000', \
               '42883', '42P05', '42P03', '26000', '22P02']) AS codes(code)";
    let broken: Vec<bool> =
        fixture.rows(sql).await.iter().map(|row| row[1].as_bool().unwrap()).collect();
    assert_eq!(broken, [true, true, true, true, false, false, false, false]);
}
