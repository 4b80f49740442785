//! Appends to SQLite, against a bare loop over a file with the same schema.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everfold::{Schema, Store};
use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::Bench;
use crate::drive::{Run, StoreAppend, drive};
use crate::measure::{Comparison, compare, latency, start_comparing, start_latencies};
use crate::workload::{APPENDED_TYPE, new_data, new_stream};

const LONE_TARGET: f64 = 0.8;
const TASKS: usize = 32;
const TASKS_TARGET: f64 = 5.0;

/// The same as the store's writing connection has.
const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
    PRAGMA cache_size = -16384; PRAGMA journal_size_limit = 67108864;";
const VERSION: &str = "SELECT max(version) FROM everfold_events WHERE stream_id = ?1";
const INSERT: &str = "INSERT INTO everfold_events \
    (stream_id, version, type, schema_version, data, metadata, id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (raw_file, our_file) = (folder.path().join("raw.db"), folder.path().join("ours.db"));
    let (warm_up, time) = (bench.arguments.warm_up(), bench.arguments.run_time());
    Schema::of(&url(&raw_file))?.apply().await?;
    let mut connection = Connection::open(&raw_file)?;
    connection.execute_batch(SETTINGS)?;
    let store = Store::open(&url(&our_file)).await?;
    let ours = Arc::new(StoreAppend { store, events: 1 });

    let mut raw_latencies = Vec::new();
    let mut raw_stored = raw_loop(&mut connection, warm_up)?.events;
    let mut our_stored = drive(&ours, TASKS, warm_up).await?.events;
    start_comparing("sqlite: one event each, tasks on one handle against one bare loop");
    let mut sides = Vec::new();
    for (tasks, name, target) in
        [(1, "1 task", LONE_TARGET), (TASKS, "32 tasks, one handle", TASKS_TARGET)]
    {
        let mut comparison = Comparison::default();
        let mut latencies = Vec::new();
        for _ in 0..bench.arguments.repeats {
            let raw = tokio::task::block_in_place(|| raw_loop(&mut connection, time))?;
            raw_stored += raw.events;
            let run = drive(&ours, tasks, time).await?;
            our_stored += run.events;
            comparison.push(raw.events_per_second(), run.events_per_second());
            raw_latencies.extend(raw.latencies);
            latencies.extend(run.latencies);
        }
        compare(name, &comparison, Some(target));
        sides.push((name, latencies));
    }
    start_latencies();
    latency("bare loop", raw_latencies);
    sides.into_iter().for_each(|(name, latencies)| latency(name, latencies));

    ours.store.close().await;
    check_count(&connection, raw_stored)?;
    check_count(&Connection::open(&our_file)?, our_stored)
}

fn url(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

fn raw_loop(connection: &mut Connection, time: Duration) -> anyhow::Result<Run> {
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < time {
        let before = Instant::now();
        raw_append(connection)?;
        latencies.push(before.elapsed());
    }
    Ok(Run { events: latencies.len() as u64, elapsed: start.elapsed(), latencies })
}

fn raw_append(connection: &Connection) -> anyhow::Result<()> {
    let (stream, data) = (new_stream(), new_data());
    let id = Uuid::now_v7().to_string();
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let version: Option<i64> =
        connection.prepare_cached(VERSION)?.query_row([&stream], |row| row.get(0))?;
    anyhow::ensure!(version.is_none(), "the stream was not new");
    connection.prepare_cached(INSERT)?.execute(params![
        stream,
        1,
        APPENDED_TYPE,
        1,
        data,
        "{}",
        id
    ])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

fn check_count(connection: &Connection, expected: u64) -> anyhow::Result<()> {
    let found: i64 =
        connection.query_row("SELECT count(*) FROM everfold_events", [], |row| row.get(0))?;
    let path = connection.path().unwrap_or_default();
    anyhow::ensure!(
        u64::try_from(found) == Ok(expected),
        "{path} holds {found} events instead of {expected}"
    );
    Ok(())
}
