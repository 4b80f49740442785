//! Files that cannot be opened or written, and what the errors say.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use everfold::sqlite::rusqlite::Connection;
use everfold::{
    AppendError, ExpectedVersion, MigrateError, OpenError, Schema, Severity, Store, StoreError,
    StoreErrorKind, StoreOptions,
};

use crate::fixture::{Place, child_file, child_of, event, url};

async fn refused(url: &str, options: StoreOptions) -> StoreError {
    match Store::open_with(url, options).await {
        Err(OpenError::Store(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[tokio::test]
async fn file_that_is_not_sqlite_is_refused_and_left_alone() {
    let place = Place::new();
    let text = "This is a letter, and not a database. ".repeat(100);
    std::fs::write(place.file(), &text).unwrap();
    let error = refused(&place.url(), StoreOptions::default()).await;
    assert_eq!(error.kind(), StoreErrorKind::NotAStore);
    assert!(error.to_string().contains("store.db"), "{error}");
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
    assert_eq!(std::fs::read_to_string(place.file()).unwrap(), text);
}

#[tokio::test]
async fn folder_that_does_not_exist_is_named() {
    let place = Place::new();
    let path = place.folder().join("nowhere").join("store.db");
    let error = refused(&url(&path), StoreOptions::default()).await;
    assert_eq!(error.kind(), StoreErrorKind::Missing);
    assert!(error.to_string().contains("nowhere does not exist"), "{error}");
    let error = refused(&url(place.folder()), StoreOptions::default()).await;
    assert_eq!(error.kind(), StoreErrorKind::NotAStore, "{error}");
}

#[tokio::test]
async fn file_is_made_only_if_that_is_wanted() {
    let place = Place::new();
    let mut options = StoreOptions::default();
    options.create = false;
    let error = refused(&place.url(), options).await;
    assert_eq!(error.kind(), StoreErrorKind::Missing);
    assert!(!place.file().exists());

    let mut options = StoreOptions::default();
    options.migrate = Some(false);
    let error = refused(&place.url(), options).await;
    assert_eq!(error.kind(), StoreErrorKind::Missing);
    assert!(!place.file().exists());
}

#[tokio::test]
async fn store_lives_beside_an_applications_own_tables() {
    let place = Place::new();
    let own = "CREATE TABLE orders (id TEXT PRIMARY KEY); INSERT INTO orders VALUES ('7');";
    place.connect().execute_batch(own).unwrap();

    let mut options = StoreOptions::default();
    options.migrate = Some(false);
    let error = Store::open_with(&place.url(), options).await.unwrap_err();
    assert!(matches!(error, OpenError::Schema(MigrateError::Missing)), "{error}");
    let mode = |connection: Connection| -> String {
        connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(mode(place.connect()), "delete", "a refused file is not changed");

    let store = place.open().await;
    store.append("s", ExpectedVersion::NoStream, [event()]).await.unwrap();
    assert_eq!(mode(place.connect()), "wal");
    let orders = "SELECT count(*) FROM orders";
    let orders: i64 = place.connect().query_row(orders, [], |row| row.get(0)).unwrap();
    assert_eq!(orders, 1);
    assert_eq!(Schema::of(&place.url()).unwrap().drift().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn file_locked_for_longer_than_the_timeout_is_busy_and_works_again_afterwards() {
    let place = Place::new();
    let store = place
        .open_with(|options| {
            options.request_timeout = Duration::from_millis(50);
            options.append_retries_max = 0;
        })
        .await;
    let lock = place.lock();
    let error = store.append("s", ExpectedVersion::Any, [event()]).await.unwrap_err();
    assert!(error.is_transient());
    let AppendError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    assert!(store.read_stream("s").collect().await.unwrap().is_empty(), "readers do not wait");
    let diagnosis = store.diagnose().await.unwrap();
    assert_eq!(diagnosis.severity(), Severity::Problem, "{:#?}", diagnosis.findings);

    drop(lock);
    store.append("s", ExpectedVersion::NoStream, [event()]).await.unwrap();
    let diagnosis = store.diagnose().await.unwrap();
    assert_eq!(diagnosis.severity(), Severity::Ok, "{:#?}", diagnosis.findings);
}

/// As another user, because root may write everything.
#[tokio::test]
async fn file_that_may_not_be_written_is_read_only() {
    let place = Place::new();
    place.open().await.close().await;
    let permit = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let binary = place.folder().join("child");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    permit(&binary, 0o755);

    permit(&place.file(), 0o444);
    permit(place.folder(), 0o555);
    let said = open_as_nobody(&binary, &place.file());
    assert!(said.contains("outcome ReadOnly: cannot write "), "{said}");

    permit(&place.file(), 0o666);
    let said = open_as_nobody(&binary, &place.file());
    assert!(said.contains("outcome ReadOnly: cannot open "), "{said}");
    assert!(said.contains("the file and its folder"), "{said}");

    permit(place.folder(), 0o777);
    let said = open_as_nobody(&binary, &place.file());
    assert!(said.contains("outcome opened"), "{said}");
}

fn open_as_nobody(binary: &Path, file: &Path) -> String {
    let mut command = child_of(binary, "files::child_opens", file);
    if std::fs::metadata(binary).unwrap().uid() == 0 {
        command.uid(65_534).gid(65_534);
    }
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said
}

#[tokio::test]
#[ignore = "the process of another user in another test"]
async fn child_opens() {
    let Some(file) = child_file() else { return };
    match Store::open(&url(&file)).await {
        Ok(_) => println!("\noutcome opened"),
        Err(OpenError::Store(error)) => println!("\noutcome {:?}: {error}", error.kind()),
        Err(error) => println!("\noutcome other: {error}"),
    }
}
