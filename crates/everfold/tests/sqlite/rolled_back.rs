//! A projection at which SQLite gives up the whole transaction takes nobody else along: what was not
//! stored with it is not stored without it either.

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    AppendError, ExpectedVersion, HandlerBatch, HandlerError, NewEvent, OnError, Projection, Store,
    StreamAppend, Version,
};

use crate::fixture::{Place, event};

/// Each number once. Instead of the statement, SQLite undoes the transaction at the second one.
async fn register(store: &Store, on_error: OnError) {
    let numbers = Projection::sql("numbers", 1)
        .create("CREATE TABLE read_model.numbers (n BIGINT UNIQUE ON CONFLICT ROLLBACK)")
        .apply("INSERT INTO read_model.numbers (n) SELECT data->>'n' FROM batch")
        .events(["Numbered"])
        .on_error(on_error)
        .inline();
    store.register(numbers.build().unwrap()).await.unwrap();
}

fn numbered(n: u32) -> NewEvent {
    NewEvent::from_json("Numbered", format!(r#"{{"n":{n}}}"#)).unwrap()
}

fn members() -> Vec<(&'static str, NewEvent)> {
    vec![("before", event()), ("bad", numbered(1)), ("after", event()), ("last", numbered(2))]
}

async fn versions(store: &Store) -> Vec<u64> {
    let mut versions = Vec::new();
    for stream in ["before", "bad", "after", "last"] {
        versions.push(store.stream_version(stream).await.unwrap().0);
    }
    versions
}

fn numbers(place: &Place) -> Vec<i64> {
    let connection = place.connect();
    let mut statement = connection.prepare("SELECT n FROM read_model_numbers ORDER BY n").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn many_appends_store_nothing_if_the_transaction_was_rolled_back() {
    for on_error in [OnError::Stop, OnError::DeadLetter] {
        let place = Place::new();
        let store = place.open().await;
        register(&store, on_error).await;
        store.append("first", ExpectedVersion::Any, [numbered(1)]).await.unwrap();
        let appends = members()
            .into_iter()
            .map(|(stream, event)| StreamAppend::new(stream, ExpectedVersion::NoStream, [event]));
        let error = store.append_many(appends).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, AppendError::Store(_)), "{error:?}");
        for part in ["\"numbers\"", "rolled the whole transaction back"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(versions(&store).await, [0, 0, 0, 0], "{on_error:?}");
        assert_eq!(numbers(&place), [1]);
    }
}

#[tokio::test]
async fn group_of_appends_goes_on_without_the_one_that_rolled_it_back() {
    let place = Place::new();
    let store = place.open().await;
    register(&store, OnError::Stop).await;
    store.append("first", ExpectedVersion::Any, [numbered(1)]).await.unwrap();
    let lock = place.lock();
    let appends = members()
        .into_iter()
        .map(|(stream, event)| store.append(stream, ExpectedVersion::NoStream, [event]));
    let (outcomes, ()) = tokio::join!(futures::future::join_all(appends), async { drop(lock) });
    let stored: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(stored, [true, false, true, true], "{outcomes:?}");
    assert_eq!(versions(&store).await, [1, 0, 1, 1]);
    assert_eq!(numbers(&place), [1, 2]);
    assert_eq!(store.stream_version("first").await.unwrap(), Version(1));
}

/// Ends the transaction that it is given, and hides that behind another one.
struct Meddler;

impl SqliteHandler for Meddler {
    fn set_up(&self, _: &str, _: &rusqlite::Connection) -> Result<(), HandlerError> {
        Ok(())
    }

    fn apply(
        &self,
        _: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        Ok(connection.execute_batch("ROLLBACK; BEGIN IMMEDIATE")?)
    }
}

#[tokio::test]
async fn append_before_a_transaction_that_was_changed_for_another_is_not_called_stored() {
    let place = Place::new();
    let store = place.open().await;
    let meddler = Projection::sqlite_handler("meddler", 1, Meddler).events(["Numbered"]).inline();
    store.register(meddler.build().unwrap()).await.unwrap();
    let appends = members()
        .into_iter()
        .map(|(stream, event)| StreamAppend::new(stream, ExpectedVersion::NoStream, [event]));
    let error = store.append_many(appends).await.unwrap_err();
    assert!(matches!(error, AppendError::Store(_)), "{error:?}");
    assert!(error.to_string().contains("ended the transaction"), "{error}");
    assert_eq!(versions(&store).await, [0, 0, 0, 0]);
    store.append("next", ExpectedVersion::Any, [event()]).await.unwrap();
}
