//! Closing and dropping: what was queued is stored before the file is let go.

use std::task::Poll;

use everfold::{AppendError, ExpectedVersion, ReadError, StoreErrorKind};

use crate::fixture::{Place, event};

/// Queues appends while somebody else holds the file, and gives their futures up.
async fn queue_and_forget(store: &everfold::Store, count: usize) {
    for number in 0..count {
        let mut append =
            Box::pin(store.append(format!("s-{number}"), ExpectedVersion::NoStream, [event()]));
        let polled = futures::future::poll_fn(|context| {
            Poll::Ready(append.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "the file is locked");
    }
}

fn streams(place: &Place) -> i64 {
    let sql = "SELECT count(DISTINCT stream_id) FROM everfold_events";
    place.connect().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn dropping_the_last_handle_finishes_queued_appends() {
    let place = Place::new();
    let store = place.open().await;
    let lock = place.lock();
    queue_and_forget(&store, 50).await;
    let dropping = tokio::task::spawn_blocking(move || drop(store));
    assert_eq!(streams(&place), 0);
    drop(lock);
    dropping.await.unwrap();
    assert_eq!(streams(&place), 50);
}

#[tokio::test]
async fn close_finishes_queued_appends_and_clones_get_errors_afterwards() {
    let place = Place::new();
    let store = place.open().await;
    let clone = store.clone();
    let lock = place.lock();
    queue_and_forget(&store, 50).await;
    let ((), ()) = tokio::join!(store.close(), async { drop(lock) });
    assert_eq!(streams(&place), 50);
    assert!(!place.folder().join("store.db-wal").exists(), "the last connection cleans up");

    let append = clone.append("s", ExpectedVersion::Any, [event()]).await.unwrap_err();
    let AppendError::Store(error) = append else { panic!("{append}") };
    assert_eq!(error.kind(), StoreErrorKind::HandleClosed);
    let read = clone.read_stream("s-1").collect().await.unwrap_err();
    let ReadError::Store(error) = read else { panic!("{read}") };
    assert_eq!(error.kind(), StoreErrorKind::HandleClosed);
    clone.close().await;
}

#[tokio::test]
async fn store_can_be_opened_again_after_close() {
    let place = Place::new();
    let store = place.open().await;
    store.append("s", ExpectedVersion::NoStream, [event()]).await.unwrap();
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.read_stream("s").collect().await.unwrap().len(), 1);
}
