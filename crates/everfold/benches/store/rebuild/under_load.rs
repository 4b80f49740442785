//! Writers that append at full speed, without and beside a rebuild of an inline projection of theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everfold::{Projection, RebuildOptions};

use super::{CHANGES, Log};
use crate::Bench;
use crate::carts;
use crate::drive::{Places, Run, StoreWriters, drive, drive_while};
use crate::measure::{Comparison, compare, counted, grouped, median, start_comparing_with};
use crate::workload::{Layout, Workload};

const WRITERS: usize = 16;
const TARGET: f64 = 0.7;

/// What one kind of projection came to.
#[derive(Default)]
struct Found {
    rates: Comparison,
    /// Seconds from the request to the switch, and events that were applied in them.
    rebuilds: Vec<(f64, u64)>,
    longest_without: Duration,
    longest_beside: Duration,
}

pub(super) async fn run(bench: &Bench, events: u64) -> anyhow::Result<()> {
    let title = format!(
        "rebuild under load: PostgreSQL, {} events, {}",
        grouped(events as f64),
        counted(WRITERS, "writer")
    );
    start_comparing_with(&title, "appends without it", "appends beside it");
    let documents = carts::documents("documents").inline().build()?;
    let documents = measure(bench, events, documents, CHANGES).await?;
    compare("documents", &documents.rates, Some(TARGET));
    let rows = carts::rows("rows").inline().build()?;
    let rows = measure(bench, events, rows, "changes").await?;
    compare("SQL", &rows.rates, Some(TARGET));
    println!("\n| | rebuild took | events/s | longest append without | beside |");
    println!("|---|--:|--:|--:|--:|");
    documents.describe("documents");
    rows.describe("SQL");
    Ok(())
}

impl Found {
    fn describe(&self, what: &str) {
        let seconds: Vec<f64> = self.rebuilds.iter().map(|(seconds, _)| *seconds).collect();
        let rates: Vec<f64> =
            self.rebuilds.iter().map(|(seconds, events)| *events as f64 / seconds).collect();
        println!(
            "| {what} | {:.1} s | {} | {} ms | {} ms |",
            median(&seconds),
            grouped(median(&rates)),
            self.longest_without.as_millis(),
            self.longest_beside.as_millis()
        );
    }

    fn push(&mut self, without: &Run, beside: &Run) {
        let longest = |run: &Run| run.latencies.iter().max().copied().unwrap_or_default();
        self.longest_without = self.longest_without.max(longest(without));
        self.longest_beside = self.longest_beside.max(longest(beside));
        self.rates.push(without.events_per_second(), beside.events_per_second());
    }
}

async fn measure(
    bench: &Bench,
    events: u64,
    projection: Projection,
    changes: &str,
) -> anyhow::Result<Found> {
    let log = Log::load(bench, Workload { events, layout: Layout::ComeAndGo }).await?;
    let store = log.database.store(|options| options.pool_size = WRITERS).await?;
    store.register(projection.clone()).await?;
    let name = projection.name();
    store.rebuild(name, RebuildOptions::default()).await?.finish().await?;
    let writers = StoreWriters { store: store.clone(), places: Places::new(WRITERS) };
    let writers = Arc::new(writers);
    let mut stored = drive(&writers, WRITERS, bench.arguments.warm_up()).await?.events;
    // Another process in real life: a handle of its own.
    log.store.register(projection.clone()).await?;
    let mut found = Found::default();
    for _ in 0..bench.arguments.repeats {
        let without = drive(&writers, WRITERS, bench.arguments.run_time()).await?;
        let rebuilt = Arc::new(AtomicBool::new(false));
        let goes_on = {
            let rebuilt = Arc::clone(&rebuilt);
            move || !rebuilt.load(Ordering::Relaxed)
        };
        let rebuild = async {
            let start = Instant::now();
            let rebuild = log.store.rebuild(name, RebuildOptions::default()).await;
            let ended = match rebuild {
                Ok(rebuild) => rebuild.finish().await,
                Err(error) => Err(error),
            };
            rebuilt.store(true, Ordering::Relaxed);
            ended.map(|_| start.elapsed().as_secs_f64())
        };
        let (beside, seconds) = tokio::join!(drive_while(&writers, WRITERS, goes_on), rebuild);
        let beside = beside?;
        stored += without.events + beside.events;
        found.rebuilds.push((seconds?, events + stored));
        found.push(&without, &beside);
    }
    let table = format!("read_model.{name}");
    log.database.check_sum(changes, &table, events + stored).await?;
    store.close().await;
    log.store.close().await;
    Ok(found)
}
