//! The schema: applied from nothing, compared with what is expected, printed for running by hand.

use everfold::{MigrateError, Schema, StoreErrorKind};

use crate::fixture::{Fixture, append, counted, on_every_store, read_all};

on_every_store! {
    applied_schema_has_no_drift_and_applying_again_does_nothing,
    schema_that_is_missing_is_told,
}

async fn applied_schema_has_no_drift_and_applying_again_does_nothing(fixture: Fixture) {
    let schema = Schema::of(&fixture.url).unwrap();
    let first = schema.apply().await.unwrap();
    assert_eq!(first.migrations, ["0001_events", "0002_projections", "0003_rebuilds"]);
    let drift = schema.drift().await.unwrap();
    let is_postgres = !fixture.is_sqlite() && fixture.url == fixture.database().url();
    if is_postgres && std::env::var_os("EVERFOLD_UPDATE").is_some() {
        return update_description(&drift);
    }
    assert!(
        drift.is_empty(),
        "the schema is not as sql/*/schema.* say; if that is meant, run this test once with \
         EVERFOLD_UPDATE=1 and the filter schema::applied, and look at what changes: {drift:#?}"
    );
    let second = schema.apply().await.unwrap();
    assert!(second.migrations.is_empty() && !second.functions_replaced, "{second:?}");
}

/// Writes the description of a fresh install anew.
fn update_description(drift: &[String]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/postgres/schema.txt");
    let old = std::fs::read_to_string(path).unwrap();
    let mut lines: std::collections::BTreeSet<&str> = old.lines().collect();
    for line in drift {
        match line.split_at(2) {
            ("- ", line) => drop(lines.remove(line)),
            (_, line) => drop(lines.insert(line)),
        }
    }
    let new: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path, new).unwrap();
}

async fn schema_that_is_missing_is_told(fixture: Fixture) {
    let schema = Schema::of(&fixture.url).unwrap();
    match schema.drift().await.unwrap_err() {
        MigrateError::Missing => {}
        // On SQLite not even the file is there.
        MigrateError::Store(error) if error.kind() == StoreErrorKind::Missing => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn changes_by_hand_are_found() {
    let fixture = Fixture::postgres().await;
    let schema = Schema::of(&fixture.url).unwrap();
    schema.apply().await.unwrap();
    let client = fixture.database().connect().await;
    let cases = [
        (
            "CREATE OR REPLACE FUNCTION everfold.uuid_v7() RETURNS uuid LANGUAGE sql AS \
             $$ SELECT gen_random_uuid() $$",
            "everfold.uuid_v7()",
        ),
        ("ALTER TABLE everfold.events ADD COLUMN mine text", "events.mine"),
        ("DROP INDEX everfold.events_type_position_idx", "events_type_position_idx"),
        ("ALTER SEQUENCE everfold.events_position_seq CACHE 20", "cache 20"),
        ("ALTER TABLE everfold.events DISABLE TRIGGER events_refuse_change", "enabled D"),
        ("GRANT EXECUTE ON FUNCTION everfold.append(text, bigint, jsonb) TO PUBLIC", "public may"),
    ];
    let mut before = 0;
    for (sql, wanted) in cases {
        client.batch_execute(sql).await.unwrap();
        let drift = schema.drift().await.unwrap();
        assert!(drift.iter().any(|line| line.contains(wanted)), "{wanted}: {drift:#?}");
        assert!(drift.len() > before, "{drift:#?}");
        before = drift.len();
    }
    // Functions and their grants can be restored; what users may have put into tables is theirs.
    assert!(schema.apply().await.unwrap().functions_replaced);
    let drift = schema.drift().await.unwrap();
    assert!(!drift.iter().any(|line| line.contains("function ")), "{drift:#?}");
    assert!(!drift.iter().any(|line| line.contains("public may")), "{drift:#?}");
    assert!(!schema.apply().await.unwrap().functions_replaced);
}

/// `schema print` is for whoever wants to run the SQL by hand: it must make the same schema.
#[tokio::test]
async fn printed_sql_makes_the_same_schema() {
    let fixture = Fixture::postgres().await;
    let schema = Schema::of(&fixture.url).unwrap();
    let client = fixture.database().connect().await;
    client.batch_execute(&schema.sql()).await.unwrap();
    assert_eq!(schema.drift().await.unwrap(), Vec::<String>::new());
    let applied = schema.apply().await.unwrap();
    assert!(applied.migrations.is_empty() && !applied.functions_replaced, "{applied:?}");
    let store = everfold::Store::open(&fixture.url).await.unwrap();
    append(&store, "a", counted([1])).await;
    assert_eq!(read_all(&store).await.len(), 1);
}

/// A process of an older version that is started late must not put its functions back.
#[tokio::test]
async fn newer_functions_are_left_alone_and_search_path_does_not_matter() {
    let fixture = Fixture::postgres().await;
    let schema = Schema::of(&fixture.url).unwrap();
    schema.apply().await.unwrap();
    let client = fixture.database().connect().await;
    let path =
        format!("ALTER DATABASE {} SET search_path = everfold, public", fixture.database().name());
    client.batch_execute(&path).await.unwrap();
    assert_eq!(schema.drift().await.unwrap(), Vec::<String>::new());
    assert!(!schema.apply().await.unwrap().functions_replaced);
    let newer = "UPDATE everfold.store SET functions_revision = 999, functions_hash = 'newer'";
    client.batch_execute(newer).await.unwrap();
    assert!(!schema.apply().await.unwrap().functions_replaced);
    let older = "UPDATE everfold.store SET functions_revision = 0";
    client.batch_execute(older).await.unwrap();
    assert!(schema.apply().await.unwrap().functions_replaced);
}
