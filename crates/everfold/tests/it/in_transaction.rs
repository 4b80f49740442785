//! Appending inside the caller's own transaction, beside the caller's own tables.

use everfold::postgres::append_in;
use everfold::postgres::tokio_postgres::IsolationLevel;
use everfold::{AppendError, ExpectedVersion, StreamAppend, Version};

use crate::fixture::{Fixture, conflict, counted, numbers, read_all};

fn order(n: u64) -> StreamAppend {
    StreamAppend::new(format!("order-{n}"), ExpectedVersion::NoStream, counted([n]))
}

async fn shop() -> (Fixture, everfold::Store, tokio_postgres::Client) {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let client = fixture.database().connect().await;
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)").await.unwrap();
    (fixture, store, client)
}

async fn orders(client: &tokio_postgres::Client) -> i64 {
    client.query_one("SELECT count(*) FROM orders", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn events_are_committed_with_the_callers_rows() {
    let (_fixture, store, mut client) = shop().await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)", &[]).await.unwrap();
    let appended = append_in(&transaction, &order(1)).await.unwrap();
    assert_eq!(appended.version, Version(1));
    assert!(read_all(&store).await.is_empty(), "nothing is visible before the commit");
    transaction.commit().await.unwrap();
    assert_eq!(numbers(&read_all(&store).await), [1]);
    assert_eq!(orders(&client).await, 1);
}

#[tokio::test]
async fn events_vanish_with_the_callers_rollback() {
    let (_fixture, store, mut client) = shop().await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)", &[]).await.unwrap();
    append_in(&transaction, &order(1)).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(read_all(&store).await.is_empty());
    assert_eq!(orders(&client).await, 0);
    assert_eq!(store.high_water_mark().await.unwrap().0, 0);
}

#[tokio::test]
async fn conflict_can_be_undone_to_a_savepoint() {
    let (_fixture, store, mut client) = shop().await;
    let mut transaction = client.transaction().await.unwrap();
    append_in(&transaction, &order(1)).await.unwrap();
    let savepoint = transaction.savepoint("before").await.unwrap();
    let outcome = append_in(&savepoint, &order(1)).await;
    assert_eq!(conflict(outcome), ("order-1".into(), "no stream".into(), 1));
    savepoint.rollback().await.unwrap();
    append_in(&transaction, &order(2)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(numbers(&read_all(&store).await), [1, 2]);
}

#[tokio::test]
async fn isolation_above_read_committed_is_refused() {
    let (_fixture, store, mut client) = shop().await;
    for isolation in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        for size in [1, 2] {
            let transaction =
                client.build_transaction().isolation_level(isolation).start().await.unwrap();
            let append = StreamAppend::new("a", ExpectedVersion::Any, counted(0..size));
            let error = append_in(&transaction, &append).await.unwrap_err();
            assert!(matches!(error, AppendError::IsolationTooHigh), "{error:?}");
            assert!(error.to_string().contains("ISOLATION LEVEL READ COMMITTED"));
            transaction.rollback().await.unwrap();
        }
    }
    let uncommitted = IsolationLevel::ReadUncommitted;
    let transaction =
        client.build_transaction().isolation_level(uncommitted).start().await.unwrap();
    append_in(&transaction, &order(1)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(read_all(&store).await.len(), 1);
}

#[tokio::test]
async fn append_that_breaks_a_rule_leaves_the_transaction_usable() {
    let (_fixture, store, mut client) = shop().await;
    let transaction = client.transaction().await.unwrap();
    let empty = StreamAppend::new("a", ExpectedVersion::Any, []);
    assert!(matches!(append_in(&transaction, &empty).await, Err(AppendError::Invalid(_))));
    append_in(&transaction, &order(1)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(read_all(&store).await.len(), 1);
}

/// SQLite: `everfold::sqlite::append_in`.
mod sqlite {
    use everfold::sqlite::{append_in, rusqlite};

    use super::{Fixture, conflict, numbers, order, read_all};

    #[tokio::test]
    async fn events_are_committed_and_undone_with_the_callers_rows() {
        let fixture = Fixture::sqlite();
        let store = fixture.store().await;
        let path = fixture.url.strip_prefix("sqlite:").unwrap();
        let mut file = rusqlite::Connection::open(path).unwrap();
        file.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
        let immediate = rusqlite::TransactionBehavior::Immediate;

        let transaction = file.transaction_with_behavior(immediate).unwrap();
        transaction.execute("INSERT INTO orders VALUES (1)", []).unwrap();
        append_in(&transaction, &order(1)).unwrap();
        transaction.rollback().unwrap();
        assert!(read_all(&store).await.is_empty());

        let transaction = file.transaction_with_behavior(immediate).unwrap();
        transaction.execute("INSERT INTO orders VALUES (2)", []).unwrap();
        append_in(&transaction, &order(2)).unwrap();
        assert_eq!(conflict(append_in(&transaction, &order(2))).2, 1);
        transaction.commit().unwrap();
        assert_eq!(numbers(&read_all(&store).await), [2]);
        let orders: i64 = file.query_row("SELECT id FROM orders", [], |row| row.get(0)).unwrap();
        assert_eq!(orders, 2);
    }
}
