//! Verifying all of a read model, against rebuilding it.

use std::time::Instant;

use everfold::{Projection, VerifyOptions};

use super::{CHANGES, Log};
use crate::Bench;
use crate::carts;
use crate::measure::{compare, grouped, interleave, start_comparing_with};
use crate::workload::{Layout, Workload};

const TARGET: f64 = 1.0;

pub(super) async fn run(bench: &Bench, events: u64) -> anyhow::Result<()> {
    let title = format!("verify: PostgreSQL, {} events", grouped(events as f64));
    start_comparing_with(&title, "rebuild", "verify");
    let log = Log::load(bench, Workload { events, layout: Layout::ComeAndGo }).await?;
    let (documents, rows) = (carts::documents("documents"), carts::rows("rows"));
    log.measure_verify(bench, "documents", documents.build()?, CHANGES).await?;
    log.measure_verify(bench, "SQL", rows.build()?, "changes").await?;
    log.store.close().await;
    Ok(())
}

impl Log {
    async fn measure_verify(
        &self,
        bench: &Bench,
        what: &str,
        projection: Projection,
        changes: &str,
    ) -> anyhow::Result<()> {
        let comparison = interleave(
            bench.arguments.repeats,
            async || self.rebuild(projection.clone(), changes).await,
            async || {
                let start = Instant::now();
                let found = self.store.verify(projection.name(), VerifyOptions::default()).await?;
                anyhow::ensure!(found.differences == 0, "{} rows differ", found.differences);
                Ok(self.events as f64 / start.elapsed().as_secs_f64())
            },
        )
        .await?;
        compare(what, &comparison, Some(TARGET));
        Ok(())
    }
}
