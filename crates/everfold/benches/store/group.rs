//! Group append on PostgreSQL: many tasks on one handle, against as many raw writers.

use std::sync::Arc;
use std::time::Duration;

use crate::Bench;
use crate::drive::{Append, Run, StoreAppend, drive};
use crate::measure::{Comparison, compare, latency, start_comparing, start_latencies};
use crate::raw::RawAppend;

const TARGET: f64 = 2.5;

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    start_comparing("group: PostgreSQL, tasks on one handle against raw writers, one event each");
    let (comparison, many) = measure(bench, 32).await?;
    compare("32 tasks, group append", &comparison, Some(TARGET));
    let (comparison, lone) = measure(bench, 1).await?;
    compare("1 task, group append", &comparison, None);
    start_latencies();
    many.print("32 tasks");
    lone.print("1 task");
    Ok(())
}

/// One way to append, and what it has done so far.
struct Side<A> {
    appender: Arc<A>,
    writers: usize,
    stored: u64,
    latencies: Vec<Duration>,
}

impl<A: Append> Side<A> {
    async fn warm_up(appender: A, writers: usize, time: Duration) -> anyhow::Result<Side<A>> {
        let appender = Arc::new(appender);
        let Run { events: stored, .. } = drive(&appender, writers, time).await?;
        Ok(Side { appender, writers, stored, latencies: Vec::new() })
    }

    async fn run(&mut self, time: Duration) -> anyhow::Result<f64> {
        let run = drive(&self.appender, self.writers, time).await?;
        self.stored += run.events;
        let rate = run.events_per_second();
        self.latencies.extend(run.latencies);
        Ok(rate)
    }
}

struct Latencies {
    raw: Vec<Duration>,
    alone: Vec<Duration>,
    grouped: Vec<Duration>,
}

impl Latencies {
    fn print(self, tasks: &str) {
        latency(&format!("{tasks}, raw"), self.raw);
        latency(&format!("{tasks}, without group append"), self.alone);
        latency(&format!("{tasks}, with group append"), self.grouped);
    }
}

async fn measure(bench: &Bench, tasks: usize) -> anyhow::Result<(Comparison, Latencies)> {
    let database = bench.server().database().await?;
    let (warm_up, time) = (bench.arguments.warm_up(), bench.arguments.run_time());
    let raw = RawAppend::connect(&database, tasks, 1).await?;
    let alone = database
        .store(|options| {
            options.group_append = false;
            options.pool_size = tasks.max(2);
        })
        .await?;
    let grouped = database.store(|_| ()).await?;
    let mut raw = Side::warm_up(raw, tasks, warm_up).await?;
    let alone = StoreAppend { store: alone, events: 1 };
    let mut alone = Side::warm_up(alone, tasks, warm_up).await?;
    let grouped = StoreAppend { store: grouped, events: 1 };
    let mut grouped = Side::warm_up(grouped, tasks, warm_up).await?;

    let mut comparison = Comparison::default();
    for _ in 0..bench.arguments.repeats {
        alone.run(time).await?;
        let raw = raw.run(time).await?;
        comparison.push(raw, grouped.run(time).await?);
    }
    alone.appender.store.close().await;
    grouped.appender.store.close().await;
    database.check_count("raw.events", raw.stored).await?;
    database.check_count("everfold.events", alone.stored + grouped.stored).await?;
    let latencies =
        Latencies { raw: raw.latencies, alone: alone.latencies, grouped: grouped.latencies };
    Ok((comparison, latencies))
}
