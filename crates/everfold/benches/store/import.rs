//! Import of a file of JSON lines into PostgreSQL, against a bare binary COPY of the same rows.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use everfold::ImportOptions;

use crate::Bench;
use crate::measure::{compare, grouped, interleave, start_comparing};
use crate::raw::copy;
use crate::server::{Database, Server};
use crate::workload::{Event, Layout, Lines, Workload};

const TARGET: f64 = 0.5;

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let events = bench.arguments.events(300_000, 100_000);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.jsonl");
    let streams = Workload { events, layout: Layout::AllAtOnce }.streams();
    start_comparing(&format!(
        "import: PostgreSQL, {} events of {} streams from a file, against COPY of prepared rows",
        grouped(events as f64),
        grouped(streams as f64)
    ));
    for (name, layout) in
        [("streams come and go", Layout::ComeAndGo), ("all streams take turns", Layout::AllAtOnce)]
    {
        let workload = Workload { events, layout };
        write(workload, &file)?;
        let rows: Vec<Event> = workload.events().collect();
        let comparison = interleave(
            bench.arguments.repeats,
            async || raw(bench.server(), &rows).await,
            async || ours(bench.server(), &file, &rows).await,
        )
        .await?;
        compare(name, &comparison, Some(TARGET));
    }
    Ok(())
}

fn write(workload: Workload, file: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    io::copy(&mut Lines::new(workload), &mut out)?;
    out.flush()
}

async fn raw(server: &Server, rows: &[Event]) -> anyhow::Result<f64> {
    let database = server.database().await?;
    let client = database.connect().await?;
    let start = Instant::now();
    copy(&client, "raw.events", rows).await?;
    let rate = rows.len() as f64 / start.elapsed().as_secs_f64();
    check(&database, "raw.events", rows).await?;
    Ok(rate)
}

async fn ours(server: &Server, file: &Path, rows: &[Event]) -> anyhow::Result<f64> {
    let database = server.database().await?;
    let store = database.store(|_| ()).await?;
    let start = Instant::now();
    let source = BufReader::new(File::open(file)?);
    let imported = store.import("bench", source, ImportOptions::default(), |_| ()).await?;
    let rate = rows.len() as f64 / start.elapsed().as_secs_f64();
    anyhow::ensure!(imported.stored == rows.len() as u64, "{} were stored", imported.stored);
    store.close().await;
    check(&database, "everfold.events", rows).await?;
    Ok(rate)
}

/// Fails unless the table holds these events in this order.
async fn check(database: &Database, table: &str, rows: &[Event]) -> anyhow::Result<()> {
    database.check_count(table, rows.len() as u64).await?;
    let sql = format!("SELECT stream_id, version, id FROM {table} ORDER BY position");
    let found = database.client.query(&sql, &[]).await?;
    for (row, event) in found.iter().zip(rows) {
        let same = row.get::<_, &str>(0) == event.stream_id
            && row.get::<_, i64>(1) == event.version
            && row.get::<_, uuid::Uuid>(2) == event.id;
        anyhow::ensure!(same, "{table} holds {row:?} where {event:?} should be");
    }
    Ok(())
}
