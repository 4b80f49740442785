//! Appending in a transaction of the application's own.

use everfold::sqlite::append_in;
use everfold::sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use everfold::{AppendError, ExpectedVersion, StoreErrorKind, StreamAppend, Version};

use crate::fixture::{Place, append, event};

fn immediate(connection: &mut Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn read_something(transaction: &Transaction<'_>) {
    let sql = "SELECT count(*) FROM everfold_events";
    transaction.query_row(sql, [], |_| Ok(())).unwrap();
}

fn assert_busy(error: AppendError) {
    assert!(error.is_transient(), "{error}");
    let AppendError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), StoreErrorKind::Busy);
    assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
}

#[tokio::test]
async fn append_is_stored_or_undone_with_the_rest_of_the_transaction() {
    let place = Place::new();
    let store = place.open().await;
    let mut connection = place.connect();
    connection.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY)").unwrap();

    let transaction = immediate(&mut connection);
    transaction.execute("INSERT INTO orders VALUES ('1')", []).unwrap();
    append_in(&transaction, &append("order-1", ExpectedVersion::NoStream)).unwrap();
    transaction.rollback().unwrap();
    assert_eq!(store.stream_version("order-1").await.unwrap(), Version::NONE);

    let transaction = immediate(&mut connection);
    transaction.execute("INSERT INTO orders VALUES ('1')", []).unwrap();
    let appended = append_in(&transaction, &append("order-1", ExpectedVersion::NoStream)).unwrap();
    transaction.commit().unwrap();
    assert_eq!(store.stream_version("order-1").await.unwrap(), appended.version);
    assert_eq!(store.high_water_mark().await.unwrap(), appended.last_position);
}

#[tokio::test]
async fn refused_append_changes_nothing_and_the_transaction_goes_on() {
    let place = Place::new();
    let store = place.open().await;
    let known = event();
    store.append("old", ExpectedVersion::NoStream, [known.clone()]).await.unwrap();
    let mut connection = place.connect();
    let transaction = immediate(&mut connection);

    let half_known = StreamAppend::new("s", ExpectedVersion::Any, [event(), known.clone()]);
    let error = append_in(&transaction, &half_known).unwrap_err();
    assert!(matches!(error, AppendError::IdConflict { .. }), "{error}");
    let error = append_in(&transaction, &append("old", Version(7))).unwrap_err();
    assert!(matches!(error, AppendError::VersionConflict { .. }), "{error}");
    let nothing = StreamAppend::new("s", ExpectedVersion::Any, []);
    let error = append_in(&transaction, &nothing).unwrap_err();
    assert!(matches!(error, AppendError::Invalid(_)), "{error}");
    let repeat = StreamAppend::new("old", ExpectedVersion::NoStream, [known]);
    assert_eq!(append_in(&transaction, &repeat).unwrap().version, Version(1));
    append_in(&transaction, &append("s", ExpectedVersion::NoStream)).unwrap();
    transaction.commit().unwrap();
    assert_eq!(store.stream_version("s").await.unwrap(), Version(1));
    assert_eq!(store.stream_version("old").await.unwrap(), Version(1));
}

#[tokio::test]
async fn deferred_transaction_that_read_before_others_wrote_must_begin_anew() {
    let place = Place::new();
    let store = place.open().await;
    let mut connection = place.connect();
    let transaction = connection.transaction().unwrap();
    read_something(&transaction);
    store.append("s", ExpectedVersion::NoStream, [event()]).await.unwrap();

    let mine = append("s", ExpectedVersion::Any);
    assert_busy(append_in(&transaction, &mine).unwrap_err());
    transaction.rollback().unwrap();

    let transaction = immediate(&mut connection);
    assert_eq!(append_in(&transaction, &mine).unwrap().version, Version(2));
    transaction.commit().unwrap();
}

#[tokio::test]
async fn deferred_transaction_that_read_while_another_writes_must_begin_anew() {
    let place = Place::new();
    let _store = place.open().await;
    let mut connection = place.connect();
    let transaction = connection.transaction().unwrap();
    read_something(&transaction);
    let _lock = place.lock();
    assert_busy(append_in(&transaction, &append("s", ExpectedVersion::Any)).unwrap_err());
}

#[tokio::test]
async fn deferred_transaction_that_has_not_read_appends() {
    let place = Place::new();
    let store = place.open().await;
    let mut connection = place.connect();
    let transaction = connection.transaction().unwrap();
    store.append("s", ExpectedVersion::NoStream, [event()]).await.unwrap();
    append_in(&transaction, &append("s", Version(1))).unwrap();
    transaction.commit().unwrap();
    assert_eq!(store.stream_version("s").await.unwrap(), Version(2));
}

#[test]
fn database_without_the_schema_says_how_to_get_it() {
    let mut connection = Connection::open_in_memory().unwrap();
    let transaction = immediate(&mut connection);
    let error = append_in(&transaction, &append("s", ExpectedVersion::Any)).unwrap_err();
    let AppendError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), StoreErrorKind::Missing);
    assert!(error.to_string().contains("everfold schema apply"), "{error}");
}

#[tokio::test]
async fn followers_get_events_of_other_peoples_transactions() {
    let place = Place::new();
    let store = place.open().await;
    let mut events = store.follow().events();
    let mut connection = place.connect();
    for number in 1..=3 {
        let transaction = immediate(&mut connection);
        append_in(&transaction, &append("s", ExpectedVersion::Any)).unwrap();
        transaction.commit().unwrap();
        assert_eq!(events.next().await.unwrap().unwrap().version, Version(number));
    }
}
