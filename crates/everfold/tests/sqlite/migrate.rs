//! Making the schema from many places at once.

use everfold::{MigrateError, OpenError, Schema, Store, StoreOptions};

use crate::fixture::Place;

const AT_ONCE: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn many_that_open_a_new_file_at_once_all_get_the_one_store() {
    let place = Place::new();
    let opening: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let url = place.url();
            tokio::spawn(async move { Store::open(&url).await })
        })
        .collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        place.connect().query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("everfold_store"), count("everfold_migrations")), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_apply_the_schema_one_does_it() {
    let place = Place::new();
    let applying: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let schema = Schema::of(&place.url()).unwrap();
            tokio::spawn(async move { schema.apply().await })
        })
        .collect();
    let mut done = Vec::new();
    for applied in applying {
        done.extend(applied.await.unwrap().unwrap().migrations);
    }
    done.sort();
    assert_eq!(done, ["0001_events", "0002_projections", "0003_rebuilds"]);
    assert_eq!(Schema::of(&place.url()).unwrap().drift().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn newer_schema_is_refused() {
    let place = Place::new();
    place.open().await.close().await;
    let future = "INSERT INTO everfold_migrations (revision, name) VALUES (99, 'later')";
    place.connect().execute_batch(future).unwrap();
    let error = Store::open(&place.url()).await.unwrap_err();
    assert!(matches!(error, OpenError::Schema(MigrateError::Newer { found: 99, .. })), "{error}");
    let error = Schema::of(&place.url()).unwrap().apply().await.unwrap_err();
    assert!(matches!(error, MigrateError::Newer { found: 99, .. }), "{error}");
}

#[tokio::test]
async fn failed_migration_is_undone_and_named() {
    let place = Place::new();
    place.connect().execute_batch("CREATE TABLE everfold_imports (x INTEGER)").unwrap();
    let error = Store::open(&place.url()).await.unwrap_err();
    assert!(
        matches!(error, OpenError::Schema(MigrateError::Failed { revision: 1, .. })),
        "{error}"
    );
    let tables = "SELECT group_concat(name) FROM sqlite_schema WHERE type = 'table'";
    let tables: String = place.connect().query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, "everfold_imports");
}

#[tokio::test]
async fn store_that_lost_its_guards_is_not_opened() {
    let place = Place::new();
    place.open().await.close().await;
    place.connect().execute_batch("DROP TRIGGER everfold_events_refuse_delete").unwrap();
    let mut options = StoreOptions::default();
    options.migrate = Some(false);
    let error = Store::open_with(&place.url(), options).await.unwrap_err();
    assert!(matches!(error, OpenError::Unsafe { .. }), "{error}");
    let drift = Schema::of(&place.url()).unwrap().drift().await.unwrap();
    assert!(drift.iter().all(|line| line.starts_with("- everfold_events_refuse_delete")));
    assert!(!drift.is_empty());
}
