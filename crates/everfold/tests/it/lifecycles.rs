//! Versions with different lifecycles: one that appends feed and one that runners feed, promoted and
//! rolled back with appends in between, on every store. And readers who are in the middle of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everfold::{RebuildOptions, RebuildPhase, Runner, RunnerHandle, Store};
use everfold_testkit::eventually;

use crate::chain::{LIMIT, quick};
use crate::fixture::{Fixture, append, counted, on_every_store};
use crate::rebuild::{count, expected, found, numbers};

on_every_store! {
    inline_version_gives_way_to_a_catch_up_one_and_comes_back,
    catch_up_version_gives_way_to_an_inline_one_and_comes_back,
    lifecycles_are_switched_while_appends_come_in,
    generation_is_retired_while_readers_read,
}

fn options() -> RebuildOptions {
    RebuildOptions::default()
}

/// Both versions are registered; a runner feeds what appends do not.
async fn given(fixture: &Fixture, first_is_inline: bool) -> (Store, RunnerHandle) {
    let store = fixture.store().await;
    store.register(numbers(1, first_is_inline)).await.unwrap();
    count(&store, 0..10).await;
    let runner = Runner::new(&store)
        .projection(numbers(1, first_is_inline))
        .projection(numbers(2, !first_is_inline))
        .options(quick("one"));
    let runner = runner.start().await.unwrap();
    (store, runner)
}

/// Waits until readers see all there is, if a runner has to bring it.
async fn seen(fixture: &Fixture, store: &Store, mark: &str) {
    let last = store.high_water_mark().await.unwrap();
    store.wait_for("numbers", last, LIMIT).await.unwrap();
    assert_eq!(found(fixture).await, expected(store, mark).await);
    assert!(store.skips("numbers").await.unwrap().is_empty());
}

async fn there_and_back(fixture: Fixture, first_is_inline: bool) {
    let (store, runner) = given(&fixture, first_is_inline).await;
    seen(&fixture, &store, "").await;
    let rebuilt = store.rebuild("numbers", options()).await.unwrap().finish().await.unwrap();
    assert_eq!(rebuilt.phase, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "!").await, "nobody has to wait for it");
    for round in 0..2 {
        let numbers = 10 + round * 10..20 + round * 10;
        count(&store, numbers.clone()).await;
        if first_is_inline {
            seen(&fixture, &store, "!").await;
        } else {
            assert_eq!(found(&fixture).await, expected(&store, "!").await, "fed by appends");
        }
        let back = store.rollback("numbers", options()).await.unwrap().finish().await.unwrap();
        assert_eq!(back.phase, RebuildPhase::Done);
        assert_eq!(
            found(&fixture).await,
            expected(&store, "").await,
            "nothing readers saw is gone"
        );
        count(&store, numbers.clone()).await;
        if first_is_inline {
            assert_eq!(found(&fixture).await, expected(&store, "").await, "fed by appends");
        } else {
            seen(&fixture, &store, "").await;
        }
        let again = store.promote("numbers", options()).await.unwrap().finish().await.unwrap();
        assert_eq!(again.phase, RebuildPhase::Done);
        assert_eq!(found(&fixture).await, expected(&store, "!").await);
    }
    runner.stop().await;
}

async fn inline_version_gives_way_to_a_catch_up_one_and_comes_back(fixture: Fixture) {
    there_and_back(fixture, true).await;
}

async fn catch_up_version_gives_way_to_an_inline_one_and_comes_back(fixture: Fixture) {
    there_and_back(fixture, false).await;
}

/// Somebody appends all the time, so that the version that is fed by runners is never there yet.
async fn lifecycles_are_switched_while_appends_come_in(fixture: Fixture) {
    let (store, runner) = given(&fixture, true).await;
    let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers = (0..4).map(|writer| {
        let (store, stop, stored) = (store.clone(), Arc::clone(&stop), Arc::clone(&stored));
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                append(&store, &format!("w-{writer}"), counted([1])).await;
                stored.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let go_on = async || {
        let goal = stored.load(Ordering::SeqCst) + 8;
        eventually("appends go on", LIMIT, async || stored.load(Ordering::SeqCst) >= goal).await;
    };
    let ended = async |rebuild: everfold::Rebuild| {
        let ended = tokio::time::timeout(LIMIT, rebuild.finish()).await;
        let ended = ended.expect("it comes to an end beside the appends").unwrap();
        assert_eq!(ended.phase, RebuildPhase::Done);
    };
    go_on().await;
    ended(store.rebuild("numbers", options()).await.unwrap()).await;
    go_on().await;
    ended(store.rollback("numbers", options()).await.unwrap()).await;
    go_on().await;
    ended(store.promote("numbers", options()).await.unwrap()).await;
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    seen(&fixture, &store, "!").await;
    ended(store.rollback("numbers", options()).await.unwrap()).await;
    seen(&fixture, &store, "").await;
    runner.stop().await;
}

/// A transaction with an old snapshot goes on to see what it saw.
async fn generation_is_retired_while_readers_read(fixture: Fixture) {
    let store = fixture.store().await;
    store.register(numbers(1, true)).await.unwrap();
    count(&store, 0..10).await;
    let reader = Reader::begin(&fixture).await;
    let before = reader.rows().await;
    assert_eq!(before.len(), 3);
    store.rebuild("numbers", options()).await.unwrap().finish().await.unwrap();
    count(&store, 10..20).await;
    let first = store.retire("numbers").await.unwrap();
    if !fixture.is_sqlite() {
        assert_eq!(first.versions, [] as [u32; 0], "somebody may see it");
        assert!(first.waits_for[0].contains("report"), "{first:?}");
    }
    assert_eq!(reader.rows().await, before, "as it was when he began");
    reader.end().await;
    if !fixture.is_sqlite() {
        let second = store.retire("numbers").await.unwrap();
        assert_eq!((second.versions, second.waits_for), (vec![1], vec![]));
    }
    assert_eq!(store.projections().await.unwrap().len(), 1);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

/// Reads in one transaction, as of its beginning.
enum Reader {
    Postgres(tokio_postgres::Client),
    Sqlite(std::sync::Mutex<everfold::sqlite::rusqlite::Connection>),
}

impl Reader {
    async fn begin(fixture: &Fixture) -> Reader {
        match fixture.url.strip_prefix("sqlite:") {
            Some(file) => {
                let connection = everfold::sqlite::rusqlite::Connection::open(file).unwrap();
                connection.execute_batch("BEGIN").unwrap();
                Reader::Sqlite(std::sync::Mutex::new(connection))
            }
            None => {
                let client = fixture.database().connect().await;
                let begin =
                    "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ";
                client.batch_execute(begin).await.unwrap();
                Reader::Postgres(client)
            }
        }
    }

    async fn rows(&self) -> Vec<(String, String)> {
        match self {
            Reader::Postgres(client) => {
                let sql = "SELECT key, n FROM read_model.numbers ORDER BY key";
                let rows = client.query(sql, &[]).await.unwrap();
                rows.iter().map(|row| (row.get(0), row.get(1))).collect()
            }
            Reader::Sqlite(connection) => {
                let connection = connection.lock().unwrap();
                let sql = "SELECT key, n FROM read_model_numbers ORDER BY key";
                let mut statement = connection.prepare(sql).unwrap();
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
                rows.map(Result::unwrap).collect()
            }
        }
    }

    async fn end(self) {
        match self {
            Reader::Postgres(client) => client.batch_execute("COMMIT").await.unwrap(),
            Reader::Sqlite(connection) => {
                connection.into_inner().unwrap().execute_batch("COMMIT").unwrap();
            }
        }
    }
}
