//! What a process costs whose projections have nothing to do.

use std::time::Duration;

use anyhow::Context;
use everfold::{ExpectedVersion, NewEvent, Projection, Runner, Schema, Store};

use crate::Bench;
use crate::carts;
use crate::child::{Child, wait_for_end};
use crate::measure::median;
use crate::workload::{APPENDED_TYPE, new_data, new_stream};

const PROJECTIONS: usize = 20;
const EVENTS: usize = 100;
/// After the last event, until all pauses have grown to their longest.
const SETTLE: Duration = Duration::from_secs(5);
/// Of `/proc/self/stat`, in a second.
const TICKS: f64 = 100.0;

/// The work of the process with the projections.
pub(crate) struct Job {
    url: String,
    seconds: u64,
}

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let seconds = if bench.arguments.quick { 5 } else { 20 };
    println!("## idle: one process with {PROJECTIONS} idle projections, for {seconds} s\n");
    println!("| | CPU, of one core | statements/s |\n|---|--:|--:|");
    let (mut cpu, mut statements) = (Vec::new(), Vec::new());
    for _ in 0..bench.arguments.repeats {
        let database = bench.server().database().await?;
        database.log_statements().await?;
        let (share, executed) = measure(bench, &database.url(), seconds)?;
        cpu.push(share);
        statements.push(executed);
    }
    println!("| PostgreSQL | {:.2} % | {:.1} |", median(&cpu) * 100.0, median(&statements));
    let mut cpu = Vec::new();
    for _ in 0..bench.arguments.repeats {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("events.db").display());
        Schema::of(&url)?.apply().await?;
        cpu.push(measure(bench, &url, seconds)?.0);
    }
    println!("| SQLite | {:.2} % | |", median(&cpu) * 100.0);
    println!("| aim | < 1 % | < 20 |");
    Ok(())
}

/// The share of a core, and the statements a second that the server was given.
fn measure(bench: &Bench, url: &str, seconds: u64) -> anyhow::Result<(f64, f64)> {
    let mut child = Child::start(&["idle", url, &seconds.to_string()])?;
    anyhow::ensure!(child.line()? == "idle", "the projections did not become idle");
    let before = bench.server().logged_statements();
    let cpu: f64 = child.line()?.parse().context("the child reports its CPU time")?;
    let statements = bench.server().logged_statements() - before;
    child.end()?;
    Ok((cpu / seconds as f64, statements as f64 / seconds as f64))
}

impl Job {
    pub(crate) fn from_words(mut words: impl Iterator<Item = String>) -> anyhow::Result<Job> {
        let mut next = || words.next().context("idle takes a URL and a number of seconds");
        Ok(Job { url: next()?, seconds: next()?.parse()? })
    }

    /// The child: applies a few events, says so, and then what CPU time its idleness took.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = Store::open(&self.url).await?;
            let runner = Runner::new(&store).projections(projections()?).start().await?;
            for _ in 0..EVENTS {
                let event = NewEvent::from_json(APPENDED_TYPE, new_data())?;
                store.append(new_stream(), ExpectedVersion::NoStream, [event]).await?;
            }
            runner.catch_up().await?;
            tokio::time::sleep(SETTLE).await;
            let before = cpu_seconds()?;
            println!("idle");
            tokio::time::sleep(Duration::from_secs(self.seconds)).await;
            println!("{}", cpu_seconds()? - before);
            tokio::spawn(async { wait_for_end() }).await?;
            runner.stop().await;
            store.close().await;
            Ok(())
        })
    }
}

/// Half of them rows, half of them documents.
fn projections() -> anyhow::Result<Vec<Projection>> {
    let projection = |number: usize| -> anyhow::Result<Projection> {
        Ok(match number % 2 {
            0 => carts::rows(&format!("rows_{number}")).build()?,
            _ => carts::documents(&format!("documents_{number}")).build()?,
        })
    };
    (0..PROJECTIONS).map(projection).collect()
}

/// The CPU time of this process so far, its own and the system's for it.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let mut fields = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    let mut next = || fields.next().context("/proc/self/stat is short");
    Ok((next()?? + next()??) / TICKS)
}
