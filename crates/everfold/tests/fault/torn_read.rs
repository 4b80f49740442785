//! The failure: PostgreSQL writes a sequence's value in place, for a moment 32 ahead of the true
//! one, and `SELECT last_value` reads it without the lock that hides that moment: a torn read.
//!
//! At risk: an append that announces a bound at or above its own position, so that the mark passes
//! it in flight.
//!
//! Guaranteed: everfold reads sequences with `pg_sequence_last_value`, which takes the lock: what
//! it announces is always below what it draws next. A unit test keeps `last_value` out of our SQL.

use std::time::Instant;

use everfold_testkit::TestDatabase;
use futures::future::join_all;

use crate::session::{LIMIT, Session, empty_store};

const SESSIONS: usize = 12;
const DRAWS: i64 = 10_000;

/// What an append announces, against the position it draws next.
async fn unsafe_announcements(database: &TestDatabase, read: &str) -> i64 {
    let block = format!(
        "CREATE FUNCTION pg_temp.unsafe_announcements() RETURNS bigint LANGUAGE plpgsql AS $$
         DECLARE announced bigint; found bigint := 0;
         BEGIN
             FOR n IN 1 .. {DRAWS} LOOP
                 announced := {read};
                 IF announced >= nextval('everfold.events_position_seq') THEN
                     found := found + 1;
                 END IF;
             END LOOP;
             RETURN found;
         END $$"
    );
    let counts = join_all((0..SESSIONS).map(|_| async {
        let session = Session::open(&database.url()).await;
        session.run(&block).await;
        session.number("SELECT pg_temp.unsafe_announcements()").await
    }));
    counts.await.iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_are_always_below_the_position_drawn_next() {
    let database = empty_store().await;
    let ours = "coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0)";
    let found = unsafe_announcements(&database, ours).await;
    println!(
        "{} draws by {SESSIONS} sessions: {found} unsafe announcements",
        SESSIONS as i64 * DRAWS
    );
    assert_eq!(found, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_read_as_last_value_are_torn() {
    let database = empty_store().await;
    let torn = "(SELECT s.last_value FROM everfold.events_position_seq s)";
    let (start, mut draws) = (Instant::now(), 0);
    let found = loop {
        draws += SESSIONS as i64 * DRAWS;
        let found = unsafe_announcements(&database, torn).await;
        // The first announcement of an untouched sequence is wrong as well, but not torn.
        let untouched = i64::from(draws == SESSIONS as i64 * DRAWS);
        if found > untouched || start.elapsed() > LIMIT {
            break found - untouched;
        }
    };
    println!("{draws} draws with last_value: {found} unsafe announcements");
    assert!(found > 0, "the load proves nothing: last_value was not torn once");
}
