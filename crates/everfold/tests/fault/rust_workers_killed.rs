//! The failure: processes that feed a document and a handler projection, both in shards, are killed
//! (SIGKILL) at any moment, join and leave, while appends go on.
//!
//! At risk: as for projections in SQL, and beyond: documents that were loaded, folded and not yet
//! written when their shard went to somebody else.
//!
//! Guaranteed: for each key, the document and the rows of the handler are what a fold of the log by
//! position gives: nothing lost, doubled or reordered.

use std::time::Duration;

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::{HandlerBatch, HandlerError, Projection, Runner, RunnerHandle, Store};
use everfold_testkit::Seed;
use futures::future::BoxFuture;

use crate::checker::compare_keys;
use crate::session::{LIMIT, Session, empty_store, open};
use crate::workers::{
    Seen, Worker, by_key, child_url, few_connections, orders, quick, small_batches, start_appends,
    stop_appends, stored, until_moved,
};

const TEST: &str = "rust_workers_killed::child_runs_both";
const SHARDS: u32 = 4;
const PROCESSES: usize = 3;
const ROUNDS: usize = 14;

/// For each account, the positions of its events, row by row.
struct Rows;

impl PostgresHandler for Rows {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let create = format!(
                "CREATE TABLE {home}.rows (n bigint GENERATED ALWAYS AS IDENTITY, account text, position bigint)"
            );
            Ok(transaction.batch_execute(&create).await?)
        })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            for event in batch.events {
                let data: serde_json::Value = event.data_as()?;
                let insert = format!(
                    "INSERT INTO {}.rows (account, position) VALUES ('{}', {})",
                    batch.home,
                    data["account"].as_str().ok_or("an event without its account")?,
                    event.position
                );
                transaction.batch_execute(&insert).await?;
            }
            Ok(())
        })
    }
}

fn documents() -> Projection {
    Projection::document("documents", 1, Seen)
        .key_fields(["data.account"])
        .shards(SHARDS)
        .settings(small_batches())
        .build()
        .unwrap()
}

fn rows() -> Projection {
    Projection::postgres_handler("rows", 1, Rows)
        .events(["Moved"])
        .key_fields(["data.account"])
        .shards(SHARDS)
        .settings(small_batches())
        .build()
        .unwrap()
}

async fn start_runner(url: &str) -> Result<RunnerHandle, everfold::Error> {
    let store = Store::open_with(url, few_connections()).await?;
    let runner = Runner::new(&store).projection(documents()).projection(rows());
    Ok(runner.options(quick()).start().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is killed by another test"]
async fn child_runs_both() {
    let Some(url) = child_url() else { return };
    let runner = start_runner(&url).await.unwrap();
    let mut orders = orders();
    while orders.recv().await.is_some() {}
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_and_handlers_of_killed_processes_are_a_fold_of_the_log() {
    let database = empty_store().await;
    let (url, truth) = (database.url(), Session::open(&database.url()).await);
    let store = open(&url).await;
    store.register(documents()).await.unwrap();
    store.register(rows()).await.unwrap();
    let appends = start_appends(&store);
    let start = || Worker::start_test(TEST, &url, &[]);
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start()).collect();
    let (mut seed, mut killed, mut left) = (Seed::from_env_or_random(), 0, 0);
    for _ in 0..ROUNDS {
        until_moved(&truth).await;
        // Anywhere in the work.
        tokio::time::sleep(Duration::from_millis(seed.below(100))).await;
        let place = usize::try_from(seed.below(PROCESSES as u64)).unwrap();
        if seed.below(4) > 0 {
            workers[place].kill();
            workers[place] = start();
            killed += 1;
        } else {
            workers.swap_remove(place).leave().await;
            workers.push(start());
            left += 1;
        }
    }
    let head = stop_appends(appends).await;
    for name in ["documents", "rows"] {
        store.wait_for(name, head, LIMIT).await.unwrap();
    }
    let log = stored(&truth).await;
    let events: usize = log.values().map(Vec::len).sum();
    let shown = "SELECT key, p.position FROM read_model.documents, \
        jsonb_array_elements_text(document) WITH ORDINALITY AS p(position, n) ORDER BY key, n";
    let comparison = compare_keys(&log, &by_key(&truth, shown).await);
    println!("{events} events, {killed} killed, {left} left: documents {comparison}");
    assert!(comparison.is_exact(), "{comparison:?}");
    let home = "SELECT home FROM everfold.generations WHERE kind = 'handler'";
    let home = truth.rows(home).await.unwrap().remove(0).remove(0).unwrap();
    let shown = format!("SELECT account, position FROM {home}.rows ORDER BY n");
    let comparison = compare_keys(&log, &by_key(&truth, &shown).await);
    println!("{events} events, {killed} killed, {left} left: rows {comparison}");
    assert!(comparison.is_exact(), "{comparison:?}");
    for worker in workers {
        worker.leave().await;
    }
}
