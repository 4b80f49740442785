//! How long after an append has returned its event is visible in a catch-up read model that another
//! process keeps.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use everfold::{ExpectedVersion, NewEvent, Runner, Store};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;

use crate::Bench;
use crate::carts;
use crate::child::{Child, wait_for_end};
use crate::measure::latency;
use crate::workload::{APPENDED_TYPE, new_data, new_stream};

const APPENDS_PER_SECOND: u32 = 50;
/// Appends before the first one that counts.
const WARM_UP: usize = 50;
/// How often it is looked whether an event is visible.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The work of the process that keeps the read model.
pub(crate) struct Job {
    url: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Rows,
    Documents,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Rows => "rows",
            Kind::Documents => "documents",
        }
    }

    fn look(self) -> &'static str {
        match self {
            Kind::Rows => "SELECT FROM read_model.rows WHERE cart_id = $1",
            Kind::Documents => "SELECT FROM read_model.documents WHERE key = $1",
        }
    }
}

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    println!(
        "## latency: PostgreSQL, {APPENDS_PER_SECOND} appends/s, read model of another process\n"
    );
    println!("| from the append's return to visible | p50 | p99 |\n|---|--:|--:|");
    for (kind, name) in [(Kind::Rows, "SQL projection"), (Kind::Documents, "document projection")] {
        let mut latencies = Vec::new();
        for _ in 0..bench.arguments.repeats {
            latencies.extend(measure(bench, kind).await?);
        }
        latency(name, latencies);
    }
    println!("| aim, on a quiet machine | 10 ms | 50 ms |");
    Ok(())
}

async fn measure(bench: &Bench, kind: Kind) -> anyhow::Result<Vec<Duration>> {
    let database = bench.server().database().await?;
    let mut child = Child::start(&["follow", kind.name(), &database.url()])?;
    anyhow::ensure!(child.line()? == "ready", "the follower did not get ready");
    let store = database.store(|_| ()).await?;
    let (appended, watched) = mpsc::unbounded_channel();
    let watching = tokio::spawn(watch(database.connect().await?, kind, watched));
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / APPENDS_PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let seconds = if bench.arguments.quick { 2 } else { 10 };
    for _ in 0..WARM_UP + seconds * APPENDS_PER_SECOND as usize {
        ticks.tick().await;
        let (stream, event) = (new_stream(), NewEvent::from_json(APPENDED_TYPE, new_data())?);
        store.append(stream.as_str(), ExpectedVersion::NoStream, [event]).await?;
        appended.send((stream, Instant::now()))?;
    }
    drop(appended);
    let mut latencies = watching.await??;
    child.end()?;
    store.close().await;
    Ok(latencies.split_off(WARM_UP))
}

/// Sees when events become visible, in their order.
async fn watch(
    client: Client,
    kind: Kind,
    mut appended: mpsc::UnboundedReceiver<(String, Instant)>,
) -> anyhow::Result<Vec<Duration>> {
    let look = client.prepare(kind.look()).await?;
    let mut latencies = Vec::new();
    while let Some((stream, returned)) = appended.recv().await {
        while client.query_opt(&look, &[&stream]).await?.is_none() {
            anyhow::ensure!(returned.elapsed().as_secs() < 30, "{stream} does not become visible");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        latencies.push(returned.elapsed());
    }
    Ok(latencies)
}

impl Job {
    pub(crate) fn from_words(mut words: impl Iterator<Item = String>) -> anyhow::Result<Job> {
        let mut next = || words.next().context("follow takes a kind and a URL");
        let kind = match next()?.as_str() {
            "rows" => Kind::Rows,
            "documents" => Kind::Documents,
            other => bail!("\"{other}\" is no kind of projection"),
        };
        Ok(Job { url: next()?, kind })
    }

    /// The child: keeps the read model until it is not listened to any more.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = Store::open(&self.url).await?;
            let projection = match self.kind {
                Kind::Rows => carts::rows("rows").build()?,
                Kind::Documents => carts::documents("documents").build()?,
            };
            let runner = Runner::new(&store).projection(projection).start().await?;
            runner.catch_up().await?;
            println!("ready");
            tokio::spawn(async { wait_for_end() }).await?;
            runner.stop().await;
            store.close().await;
            Ok(())
        })
    }
}
