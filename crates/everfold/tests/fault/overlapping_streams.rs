//! The failure: transactions that append to several streams take them in different orders, and wait
//! for each other in a circle.
//!
//! At risk: appends that fail with a deadlock (40P01) in a load where nobody did anything wrong.
//!
//! Guaranteed: whatever the store itself puts into one transaction (group append, `append_many`)
//! locks its streams in one order, so that it cannot deadlock; everything is stored once, without
//! holes. The negative controls deadlock: transactions of callers' own in different orders, which
//! is documented as retryable, and the group function without its order.

use std::time::Instant;

use everfold::{ExpectedVersion, NewEvent, StreamAppend};
use everfold_testkit::{Seed, TestDatabase};
use tokio::task::JoinSet;

use crate::checker::{assert_versions_without_holes, copies};
use crate::session::{LIMIT, Session, append_sql, empty_store, event, open_with};

const HANDLES: usize = 6;
const STREAMS: u64 = 10;

fn stream(n: u64) -> String {
    format!("stream-{n}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_with_overlapping_streams_never_deadlock() {
    let database = empty_store().await;
    let mut seed = Seed::from_env_or_random();
    let (mut stores, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..HANDLES {
        let store = open_with(&database.url(), |options| {
            options.pool_size = 4;
            // A deadlock must not hide behind a retry.
            options.append_retries_max = 0;
        })
        .await;
        for _ in 0..12 {
            let (store, mut seed) = (store.clone(), seed.fork());
            tasks.spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..25 {
                    let events: Vec<NewEvent> =
                        (0..seed.within(1..4)).map(|_| event("a")).collect();
                    ids.extend(events.iter().map(NewEvent::id));
                    let stream = stream(seed.below(STREAMS));
                    store.append(stream, ExpectedVersion::Any, events).await.unwrap();
                }
                ids
            });
        }
        for _ in 0..2 {
            let (store, mut seed) = (store.clone(), seed.fork());
            tasks.spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..25 {
                    let mut streams: Vec<u64> = (0..STREAMS).collect();
                    seed.shuffle(&mut streams);
                    let many = streams.into_iter().take(6).map(|n| {
                        let event = event("many");
                        ids.push(event.id());
                        StreamAppend::new(stream(n), ExpectedVersion::Any, [event])
                    });
                    let many: Vec<StreamAppend> = many.collect();
                    for outcome in store.append_many(many).await.unwrap() {
                        outcome.unwrap();
                    }
                }
                ids
            });
        }
        stores.push(store);
    }
    let ids: Vec<_> = tasks.join_all().await.concat();
    for store in &stores {
        store.close().await;
    }

    let session = Session::open(&database.url()).await;
    let copies = copies(&session).await;
    assert_eq!(copies.len(), ids.len());
    assert!(ids.iter().all(|id| copies.get(&id.to_string()) == Some(&1)));
    assert_versions_without_holes(&session).await;
    println!("{} events by {HANDLES} handles to {STREAMS} streams, each stored once", ids.len());
    assert_eq!(deadlocks(&database, &session).await, 0);
}

/// Deadlocks that the server broke in this database, once all its other sessions have ended and
/// told.
async fn deadlocks(database: &TestDatabase, session: &Session) -> i64 {
    let others = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()
            AND backend_type = 'client backend'",
        database.name()
    );
    everfold_testkit::eventually("the stores' sessions end", LIMIT, async || {
        session.number(&others).await == 0
    })
    .await;
    session
        .number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_callers_in_different_orders_do_deadlock() {
    let database = empty_store().await;
    let (one, other) = (Session::open(&database.url()).await, Session::open(&database.url()).await);
    for session in [&one, &other] {
        session.run("SET deadlock_timeout = '50ms'; BEGIN").await;
    }
    one.append("a").await;
    other.append("b").await;
    let (b, a) = (append_sql("everfold", "b"), append_sql("everfold", "a"));
    let (one_ended, other_ended) = tokio::join!(
        async {
            let outcome = one.try_run(&b).await;
            one.run("ROLLBACK").await;
            outcome
        },
        async {
            let outcome = other.try_run(&a).await;
            other.run("ROLLBACK").await;
            outcome
        },
    );
    let errors: Vec<_> = [one_ended, other_ended].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "one of them is chosen: {errors:?}");
    assert_eq!(errors[0].code().unwrap().code(), "40P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_that_locks_in_the_order_given_does_deadlock() {
    let database = empty_store().await;
    let session = Session::open(&database.url()).await;
    let sorted = "FROM (SELECT DISTINCT pg_catalog.hashtext(s) AS key \
                  FROM pg_catalog.unnest($1) s ORDER BY 1) k";
    let unsorted = "FROM (SELECT hashtext(s) AS key, pg_sleep(0.005) FROM unnest($1) s) k";
    let paused = "FROM (SELECT *, pg_sleep(0.005) FROM (
        SELECT DISTINCT hashtext(s) AS key FROM unnest($1) s ORDER BY 1) s) k";
    for (schema, order, expected) in [("unsorted", unsorted, true), ("sorted", paused, false)] {
        session.alter(schema, "enter_append_many", &[(sorted, order)]).await;
        let call = format!("{schema}.enter_append_many(");
        let call = [("everfold.enter_append_many(", call.as_str())];
        session.alter(schema, "append_group", &call).await;
        assert_eq!(deadlocks_of(&database, schema).await, expected, "{schema}");
    }
}

/// Whether two sessions that append groups to the same streams, named in opposite orders, deadlock
/// within some rounds.
async fn deadlocks_of(database: &TestDatabase, schema: &str) -> bool {
    let call = |streams: &str| {
        format!(
            "SELECT * FROM {schema}.append_group(ARRAY[{streams}], ARRAY[1, 2, 3],
                ARRAY[NULL, NULL, NULL]::bigint[], ARRAY[1, 1, 1], ARRAY['A', 'A', 'A'],
                ARRAY['1', '1', '1']::jsonb[], ARRAY['{{}}', '{{}}', '{{}}']::jsonb[],
                ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()],
                ARRAY[1, 1, 1], true)"
        )
    };
    let rounds = async |streams: &str| {
        let session = Session::open(&database.url()).await;
        session.run("SET deadlock_timeout = '20ms'").await;
        let (sql, start) = (call(streams), Instant::now());
        for _ in 0..100 {
            match session.try_run(&sql).await {
                Ok(()) => {}
                Err(error) if error.code().is_some_and(|code| code.code() == "40P01") => {
                    return true;
                }
                Err(error) => panic!("{error:?}"),
            }
            assert!(start.elapsed() < LIMIT);
        }
        false
    };
    let (one, other) = tokio::join!(rounds("'x', 'y', 'z'"), rounds("'z', 'y', 'x'"));
    one || other
}
