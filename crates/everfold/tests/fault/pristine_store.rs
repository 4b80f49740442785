//! The failure: the very first append of a store is still in flight while others commit. A sequence
//! that was never used says 1 as its last value, as it does after 1 was drawn.
//!
//! At risk: position 1, and with it the event that a store begins with.
//!
//! Guaranteed: the mark stays at 0 until the append at position 1 has ended, either way. (The
//! negative control stands with the others: `last_value_of_an_untouched_sequence_…`.)

use everfold::Position;

use crate::session::{Session, empty_store, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_append_at_position_1_holds_the_mark_at_0() {
    let database = empty_store().await;
    let store = open(&database.url()).await;
    assert_eq!(store.high_water_mark().await.unwrap(), Position(0), "nothing was ever drawn");

    let (first, second) = (database.url(), database.url());
    let (first, second) = (Session::open(&first).await, Session::open(&second).await);
    first.run("BEGIN").await;
    assert_eq!(first.append("first").await, 1);
    assert_eq!(store.high_water_mark().await.unwrap(), Position(0));
    assert_eq!(second.append("second").await, 2);
    assert_eq!(store.high_water_mark().await.unwrap(), Position(0), "1 can still come");
    assert!(store.read_all().collect().await.unwrap().is_empty());

    first.run("COMMIT").await;
    assert_eq!(store.high_water_mark().await.unwrap(), Position(2));
    let positions: Vec<u64> =
        store.read_all().collect().await.unwrap().iter().map(|event| event.position.0).collect();
    assert_eq!(positions, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_position_1_lets_the_mark_pass() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    session.run("BEGIN").await;
    assert_eq!(session.append("first").await, 1);
    session.run("ROLLBACK").await;
    assert_eq!(session.mark().await, 0, "no event is visible, so nothing is decided yet");
    assert_eq!(session.append("second").await, 2);
    assert_eq!(session.mark().await, 2);
}
