//! Opening: what can be wrong with a URL, a server, a file or an option, and what the error says.

use everfold::{
    AppendError, ExpectedVersion, MigrateError, OpenError, Schema, Store, StoreErrorKind,
    StoreOptions,
};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase, free_port};

use crate::fixture::{Fixture, append, counted, on_every_store, read_all};

on_every_store! { option_out_of_range_is_refused, store_tells_where_it_is }

#[track_caller]
fn store_kind(error: &OpenError) -> StoreErrorKind {
    match error {
        OpenError::Store(error) => error.kind(),
        OpenError::Schema(MigrateError::Store(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

async fn option_out_of_range_is_refused(fixture: Fixture) {
    let changes: [fn(&mut StoreOptions); 4] = [
        |options| options.pool_size = 0,
        |options| options.page_events_max = 0,
        |options| options.limits.stream_id_bytes_max = 513,
        |options| options.limits.append_events_max = 0,
    ];
    for change in changes {
        let mut options = StoreOptions::default();
        change(&mut options);
        let error = Store::open_with(&fixture.url, options).await.unwrap_err();
        assert!(matches!(error, OpenError::Option { .. }), "{error:?}");
        assert!(error.to_string().contains("allowed are"), "{error}");
    }
}

async fn store_tells_where_it_is(fixture: Fixture) {
    let store = fixture.store().await;
    let shown = format!("{store:?} {}", store.location());
    let name = fixture.url.rsplit('/').next().unwrap();
    assert!(shown.contains(name), "{shown}");
}

#[tokio::test]
async fn unknown_scheme_is_refused_with_what_to_use() {
    for url in ["mysql://localhost/shop", "shop.db", "sqlite:", "http://x"] {
        let error = Store::open(url).await.unwrap_err();
        assert!(matches!(error, OpenError::Url { .. }), "{error:?}");
        assert!(error.to_string().contains("use postgres://"), "{error}");
    }
    let error = Store::open("postgres://u:secret@h:port/db").await.unwrap_err().to_string();
    assert!(error.contains("invalid") && !error.contains("secret"), "{error}");
    let error = Store::open("postgres://h/db?pooler=maybe").await.unwrap_err().to_string();
    assert!(error.contains("\"transaction\""), "{error}");
}

#[tokio::test]
async fn server_that_is_down_is_named() {
    let port = free_port().unwrap();
    let error = Store::open(&format!("postgres://u@127.0.0.1:{port}/db")).await.unwrap_err();
    assert_eq!(store_kind(&error), StoreErrorKind::Unreachable);
    let message = error.to_string();
    assert!(message.contains(&format!("127.0.0.1:{port}/db")), "{message}");
    assert!(message.contains("is the server running"), "{message}");
}

#[tokio::test]
async fn wrong_password_is_told_without_showing_it() {
    let cluster = Cluster::start(ClusterOptions::default().require_password()).unwrap();
    let url = cluster.url_as("postgres", Some("wrong-guess"), "postgres");
    let error = Store::open(&url).await.unwrap_err();
    assert_eq!(store_kind(&error), StoreErrorKind::Authentication);
    let message = error.to_string();
    assert!(message.contains("password") && !message.contains("wrong-guess"), "{message}");
    let applied = Schema::of(&url).unwrap().apply().await.unwrap_err();
    assert!(applied.to_string().contains("check user and password"), "{applied}");
}

#[tokio::test]
async fn database_that_does_not_exist_is_told() {
    let database = TestDatabase::create().await;
    let url = database.url().replace(database.name(), "nobody_made_this");
    let error = Store::open(&url).await.unwrap_err();
    assert_eq!(store_kind(&error), StoreErrorKind::Missing);
    assert!(error.to_string().contains("nobody_made_this"), "{error}");
}

#[tokio::test]
async fn database_without_the_schema_says_how_to_make_it() {
    let database = TestDatabase::create().await;
    let error = Store::open(&database.url()).await.unwrap_err();
    assert!(matches!(error, OpenError::Schema(MigrateError::Missing)), "{error:?}");
    assert!(error.to_string().contains("everfold schema apply"), "{error}");
}

#[tokio::test]
async fn schema_of_another_revision_is_refused() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let client = fixture.database().connect().await;
    let insert = "INSERT INTO everfold.migrations (revision, name) VALUES (999, 'later')";
    client.batch_execute(insert).await.unwrap();
    let error = Store::open(&fixture.url).await.unwrap_err();
    assert!(
        matches!(error, OpenError::Schema(MigrateError::Newer { found: 999, .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains("upgrade everfold"), "{error}");
    let error = Schema::of(&fixture.url).unwrap().apply().await.unwrap_err();
    assert!(matches!(error, MigrateError::Newer { found: 999, .. }), "{error:?}");
    let error = Schema::of(&fixture.url).unwrap().drift().await.unwrap_err();
    assert!(matches!(error, MigrateError::Newer { found: 999, .. }), "{error:?}");
}

#[tokio::test]
async fn read_only_session_refuses_appends_and_says_why() {
    let fixture = Fixture::postgres().await;
    append(&fixture.store().await, "a", counted([1])).await;
    let name = fixture.database().name();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    fixture.database().connect().await.batch_execute(&read_only).await.unwrap();
    let store = Store::open(&fixture.url).await.unwrap();
    let error = store.append("a", ExpectedVersion::Any, counted([2])).await.unwrap_err();
    let AppendError::Store(error) = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly);
    assert!(error.to_string().contains("connect to the primary"), "{error}");
    assert_eq!(read_all(&store).await.len(), 1);
}

#[tokio::test]
async fn pooler_in_transaction_mode_is_found() {
    let pooled = Fixture::pgbouncer().await.store().await.diagnose().await.unwrap();
    let direct = Fixture::postgres().await.store().await.diagnose().await.unwrap();
    let pooler = |diagnosis: everfold::Diagnosis| {
        let finding = diagnosis.findings.into_iter().find(|finding| finding.check == "pooler");
        finding.unwrap().message
    };
    assert!(pooler(pooled).contains("transaction mode"));
    assert!(pooler(direct).contains("directly"));
}
