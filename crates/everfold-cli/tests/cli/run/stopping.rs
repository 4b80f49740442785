//! Stopping `everfold run` while a batch hangs: it ends within a bound, and at once when told twice;
//! nothing of the batch is left, and whoever comes next does all of it.

use std::time::{Duration, Instant};

use everfold_testkit::eventually;

use super::CATCH_UP;
use crate::shop::{Running, Shop, on_both_stores};
use crate::support::LIMIT;

on_both_stores! {
    batch_that_hangs_does_not_keep_it_from_ending,
    second_signal_ends_it_at_once,
}

/// For so long batches in hand may finish after the first signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// Somebody who holds what the batch needs. Lets go when it is dropped.
enum Holder {
    Table { _transaction: everfold::postgres::tokio_postgres::Client },
    File { _transaction: everfold::sqlite::rusqlite::Connection },
}

impl Holder {
    async fn of(shop: &Shop) -> Holder {
        if shop.is_sqlite() {
            let connection = shop.folder.connect();
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            return Holder::File { _transaction: connection };
        }
        let client = shop.database().connect().await;
        let home = "SELECT home FROM everfold.generations WHERE status <> 'spare'";
        let home: String = client.query_one(home, &[]).await.unwrap().get(0);
        let lock = format!("BEGIN; LOCK TABLE {home}.sums IN ACCESS EXCLUSIVE MODE");
        client.batch_execute(&lock).await.unwrap();
        Holder::Table { _transaction: client }
    }
}

/// One that runs, with a batch that hangs.
async fn hanging(shop: &Shop) -> (Running, Holder) {
    shop.sums("sums", CATCH_UP);
    let running = shop.start(&[]);
    shop.numbers("first", &[("a", Some(1))]);
    shop.run(&["wait", "sums", "--timeout", "50"]).done();
    if shop.is_sqlite() {
        // Without events: whatever it does next needs the file.
        return (running, Holder::of(shop).await);
    }
    let holder = Holder::of(shop).await;
    shop.numbers("second", &[("a", Some(2)), ("b", Some(3))]);
    let observer = shop.database().connect().await;
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("a batch hangs", LIMIT, async || {
        observer.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    (running, holder)
}

/// Another one finds all that is left to do.
async fn goes_on(shop: &Shop) {
    if shop.is_sqlite() {
        shop.numbers("second", &[("a", Some(2)), ("b", Some(3))]);
    }
    assert_eq!(shop.status("sums")["status"], "active");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1"], "nothing of the batch is left");
    let running = shop.start(&[]);
    shop.run(&["wait", "sums", "--timeout", "50"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|3", "b|3"]);
    running.stop();
}

async fn batch_that_hangs_does_not_keep_it_from_ending(shop: Shop) {
    let (running, holder) = hanging(&shop).await;
    running.signal("TERM");
    let (code, said) = running.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\nstopping: "), "{said}");
    drop(holder);
    goes_on(&shop).await;
}

async fn second_signal_ends_it_at_once(shop: Shop) {
    let (running, holder) = hanging(&shop).await;
    running.signal("INT");
    let running = running.until("stopping: ");
    running.signal("TERM");
    let told = Instant::now();
    let (code, said) = running.ended();
    assert!(told.elapsed() < PATIENCE, "{:?}: {said}", told.elapsed());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\nerror: ended at once"), "{said}");
    assert!(!said.contains("\nstopped"), "{said}");
    drop(holder);
    goes_on(&shop).await;
}
