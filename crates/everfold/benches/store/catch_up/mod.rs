//! Catching up with a long log, against the same work done by hand in the same batches.

mod by_hand;

pub(crate) use by_hand::decode;

use std::time::Instant;

use everfold::{Projection, Runner, Store};

use crate::Bench;
use crate::carts;
use crate::measure::{compare, grouped, interleave, start_comparing};
use crate::raw::copy;
use crate::server::Database;
use crate::workload::{Layout, Workload};

const SQL_TARGET: f64 = 0.7;
const DOCUMENT_TARGET: f64 = 0.5;
/// Events in a batch, as the projections' settings have it.
const BATCH_EVENTS: u64 = 2_000;

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let events = bench.arguments.events(1_000_000, 100_000);
    start_comparing(&format!("catch_up: PostgreSQL, {} events", grouped(events as f64)));
    for (layout, name) in
        [(Layout::ComeAndGo, "streams come and go"), (Layout::AllAtOnce, "all streams take turns")]
    {
        let log = Log::load(bench, Workload { events, layout }).await?;
        log.measure_rows(bench.arguments.repeats, name).await?;
        log.measure_documents(bench.arguments.repeats, name).await?;
        log.store.close().await;
    }
    Ok(())
}

/// A database with the log in it.
struct Log {
    database: Database,
    store: Store,
    events: u64,
}

impl Log {
    async fn load(bench: &Bench, workload: Workload) -> anyhow::Result<Log> {
        let database = bench.server().database().await?;
        copy(&database.client, "everfold.events", workload.events()).await?;
        database.client.batch_execute("VACUUM ANALYZE everfold.events").await?;
        database.client.batch_execute("CHECKPOINT").await?;
        // What is measured is a runner, not a rebuild.
        let store = database.store(|options| options.backfill_events = u64::MAX).await?;
        Ok(Log { database, store, events: workload.events })
    }

    /// Each run has a table of its own, so that each begins with nothing.
    async fn measure_rows(&self, repeats: usize, layout: &str) -> anyhow::Result<()> {
        let client = self.database.connect().await?;
        let (mut by_hand, mut run) = (0, 0);
        let comparison = interleave(
            repeats,
            async || {
                by_hand += 1;
                let table = format!("raw.rows_{by_hand}");
                let sql = format!("CREATE TABLE {table} ({})", carts::COLUMNS);
                self.database.client.batch_execute(&sql).await?;
                let start = Instant::now();
                by_hand::rows(&client, &table, self.events, BATCH_EVENTS).await?;
                self.rate(start, "changes", &table).await
            },
            async || {
                run += 1;
                let projection = carts::rows(&format!("rows_{run}")).build()?;
                self.run_once(projection, "changes").await
            },
        )
        .await?;
        compare(&format!("SQL, {layout}"), &comparison, Some(SQL_TARGET));
        Ok(())
    }

    async fn measure_documents(&self, repeats: usize, layout: &str) -> anyhow::Result<()> {
        const CHANGES: &str = "(document->>'changes')::bigint";
        let (reader, writer) = (self.database.connect().await?, self.database.connect().await?);
        let (mut by_hand, mut run) = (0, 0);
        let comparison = interleave(
            repeats,
            async || {
                by_hand += 1;
                let table = format!("raw.documents_{by_hand}");
                self.database.client.batch_execute(&by_hand::create_documents(&table)).await?;
                let start = Instant::now();
                by_hand::documents(&reader, &writer, &table, BATCH_EVENTS as usize).await?;
                self.rate(start, CHANGES, &table).await
            },
            async || {
                run += 1;
                let projection = carts::documents(&format!("documents_{run}")).build()?;
                self.run_once(projection, CHANGES).await
            },
        )
        .await?;
        compare(&format!("documents, {layout}"), &comparison, Some(DOCUMENT_TARGET));
        Ok(())
    }

    async fn run_once(&self, projection: Projection, changes: &str) -> anyhow::Result<f64> {
        let table = format!("read_model.{}", projection.name());
        let start = Instant::now();
        Runner::new(&self.store).projection(projection).run_once().await?;
        self.rate(start, changes, &table).await
    }

    /// Events per second since the start, if all of them are in the read model.
    async fn rate(&self, start: Instant, changes: &str, table: &str) -> anyhow::Result<f64> {
        let elapsed = start.elapsed();
        self.database.check_sum(changes, table, self.events).await?;
        Ok(self.events as f64 / elapsed.as_secs_f64())
    }
}
