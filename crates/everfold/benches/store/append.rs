//! Appends to PostgreSQL, one transaction each, against one prepared call of `raw.sql`.

use std::sync::Arc;

use crate::Bench;
use crate::drive::{StoreAppend, drive};
use crate::measure::{Comparison, compare, counted, interleave, start_comparing};
use crate::raw::RawAppend;

const TARGET: f64 = 0.8;

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    start_comparing("append: PostgreSQL, each append a transaction and a new stream");
    for events in [1, 10] {
        for writers in [1, 8, 32] {
            let comparison = measure(bench, writers, events).await?;
            let name = format!("{}, {}", counted(writers, "writer"), counted(events, "event"));
            compare(&name, &comparison, Some(TARGET));
        }
    }
    Ok(())
}

async fn measure(bench: &Bench, writers: usize, events: usize) -> anyhow::Result<Comparison> {
    let database = bench.server().database().await?;
    let raw = Arc::new(RawAppend::connect(&database, writers, events).await?);
    let store = database
        .store(|options| {
            options.group_append = false;
            options.pool_size = writers.max(2);
        })
        .await?;
    let ours = Arc::new(StoreAppend { store, events });

    let (warm_up, time) = (bench.arguments.warm_up(), bench.arguments.run_time());
    let mut raw_stored = drive(&raw, writers, warm_up).await?.events;
    let mut our_stored = drive(&ours, writers, warm_up).await?.events;
    let comparison = interleave(
        bench.arguments.repeats,
        async || {
            let run = drive(&raw, writers, time).await?;
            raw_stored += run.events;
            Ok(run.events_per_second())
        },
        async || {
            let run = drive(&ours, writers, time).await?;
            our_stored += run.events;
            Ok(run.events_per_second())
        },
    )
    .await?;
    ours.store.close().await;
    database.check_count("raw.events", raw_stored).await?;
    database.check_count("everfold.events", our_stored).await?;
    Ok(comparison)
}
