//! The failure: a transaction rolls back to a savepoint, or an exception block undoes part of it.
//! PostgreSQL then releases the locks taken since, the announcement of an append among them.
//!
//! At risk: the announcement is gone while an event that it covered is still to come.
//!
//! Guaranteed: each append announces in the subtransaction that inserts, so that announcement and
//! events live and die together. The mark is watched from a second session at each step. (The
//! negative control stands with the others: `announcement_remembered_across_…`.)

use crate::checker::compare;
use crate::readers::Reader;
use crate::session::{Session, append_sql, empty_store};

/// A transaction step by step; after each, another session commits an append, and a reader reads.
/// The number is the mark it must find: just below the lowest position that can still come.
async fn assert_marks(steps: &[(&str, i64)]) {
    let database = empty_store().await;
    let (session, other) =
        (Session::open(&database.url()).await, Session::open(&database.url()).await);
    let mut reader = Reader::default();
    for (step, expected) in steps {
        session.run(&step.replace("APPEND", &append_sql("everfold", "stream"))).await;
        other.append("other").await;
        assert_eq!(reader.poll(&other).await, *expected, "after: {step}");
    }
    let comparison = compare(&other.positions().await, &reader.seen);
    assert!(comparison.is_exact(), "{comparison:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_to_a_savepoint_frees_only_what_it_undoes() {
    assert_marks(&[
        ("BEGIN", 1),
        ("SAVEPOINT here", 2),
        ("APPEND", 2),           // draws 3, the other 4
        ("ROLLBACK TO here", 5), // 3 will never exist
        ("APPEND", 5),           // draws 6
        ("COMMIT", 8),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_to_a_savepoint_keeps_what_was_appended_before_it() {
    assert_marks(&[
        ("BEGIN", 1),
        ("APPEND", 1), // draws 2, the other 3
        ("SAVEPOINT here", 1),
        ("APPEND", 1), // draws 5
        ("ROLLBACK TO here", 1),
        ("APPEND", 1), // draws 8
        ("RELEASE here", 1),
        ("COMMIT", 11),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_savepoint_leaves_its_announcement_to_the_transaction() {
    assert_marks(&[
        ("BEGIN", 1),
        ("SAVEPOINT here", 2),
        ("APPEND", 2), // draws 3
        ("RELEASE here", 2),
        ("SELECT 1", 2),
        ("COMMIT", 7),
    ])
    .await;
    assert_marks(&[
        ("BEGIN", 1),
        ("SAVEPOINT one", 2),
        ("SAVEPOINT two", 3),
        ("APPEND", 3), // draws 4
        ("RELEASE two", 3),
        ("ROLLBACK TO one", 7),
        ("APPEND", 7), // draws 8
        ("ROLLBACK", 10),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exception_block_frees_only_what_it_undoes() {
    let undone = "DO $$ BEGIN
            PERFORM everfold.append_event('undone', NULL, 'Undone', '{}');
            RAISE EXCEPTION 'undo';
        EXCEPTION WHEN raise_exception THEN NULL; END $$";
    let kept = "DO $$ BEGIN
            BEGIN
                PERFORM everfold.append_event('stream', NULL, 'Kept', '{}');
            EXCEPTION WHEN raise_exception THEN NULL; END;
            BEGIN
                PERFORM everfold.append_event('undone', NULL, 'Undone', '{}');
                RAISE EXCEPTION 'undo';
            EXCEPTION WHEN raise_exception THEN NULL; END;
        END $$";
    assert_marks(&[
        ("BEGIN", 1),
        (undone, 3),   // draws 2, which will never exist
        ("APPEND", 3), // draws 4
        ("COMMIT", 6),
        ("BEGIN", 7),
        (kept, 7), // draws 8, kept, and 9, which will never exist
        ("SELECT 1", 7),
        ("COMMIT", 12),
    ])
    .await;
}
