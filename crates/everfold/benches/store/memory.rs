//! How much memory importing and reading a long history takes, each in a process of its own.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use everfold::{ImportOptions, RebuildOptions, Schema, Store};

use crate::Bench;
use crate::carts;
use crate::measure::grouped;
use crate::read;
use crate::workload::{Layout, Lines, Workload};

const LIMIT_MB: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
enum Work {
    Import,
    Read,
    /// Documents, on a store that holds the history.
    Rebuild,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Import => "import",
            Work::Read => "read",
            Work::Rebuild => "rebuild",
        }
    }
}

/// What a child process does.
#[derive(Debug)]
pub(crate) struct Job {
    work: Work,
    url: String,
    events: u64,
}

impl Job {
    pub(crate) fn from_words(mut words: impl Iterator<Item = String>) -> anyhow::Result<Job> {
        let mut next = || words.next().context("--child takes a work, a URL and a number");
        let work = match next()?.as_str() {
            "import" => Work::Import,
            "read" => Work::Read,
            "rebuild" => Work::Rebuild,
            other => bail!("\"{other}\" is no work for a child"),
        };
        Ok(Job { work, url: next()?, events: next()?.parse()? })
    }
}

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let events = bench.arguments.events(10_000_000, 1_000_000);
    let database = bench.server().database().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.db");
    let sqlite = format!("sqlite:{}", file.display());
    Schema::of(&sqlite)?.apply().await?;

    println!("## memory: {} events, each line a process of its own\n", grouped(events as f64));
    println!("| | events/s | peak resident | target |\n|---|--:|--:|--:|");
    for (store, url) in [("PostgreSQL", database.url()), ("SQLite", sqlite)] {
        for work in [Work::Import, Work::Read] {
            let job = Job { work, url: url.clone(), events };
            let report = tokio::task::block_in_place(|| run_apart(&job))?;
            println!(
                "| {} {store} | {} | {:.1} MB | < {LIMIT_MB:.0} MB |",
                work.name(),
                grouped(report.events_per_second),
                report.peak_mb,
            );
        }
    }
    Ok(())
}

/// The most memory that a process of its own has for rebuilding documents, in MB.
pub(crate) fn of_a_rebuild(url: String, events: u64) -> anyhow::Result<f64> {
    let job = Job { work: Work::Rebuild, url, events };
    Ok(tokio::task::block_in_place(|| run_apart(&job))?.peak_mb)
}

struct Report {
    events_per_second: f64,
    peak_mb: f64,
}

/// Starts this program again for one job, and reads what it reports.
fn run_apart(job: &Job) -> anyhow::Result<Report> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--child", job.work.name(), &job.url, &job.events.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "{job:?} ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let mut figures = text.split_whitespace().map(str::parse::<f64>);
    let mut next = || figures.next().with_context(|| format!("{job:?} reported {text:?}"));
    Ok(Report { events_per_second: next()??, peak_mb: next()?? })
}

/// The child: does the job and reports events per second and its peak memory in MB.
pub(crate) fn run_child(job: &Job) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let start = Instant::now();
    runtime.block_on(async {
        let store = Store::open(&job.url).await?;
        match job.work {
            Work::Import => import(&store, job.events).await,
            Work::Read => read::typed(&store, job.events).await,
            Work::Rebuild => rebuild(&store).await,
        }
    })?;
    println!("{} {}", job.events as f64 / start.elapsed().as_secs_f64(), peak_mb()?);
    Ok(())
}

async fn import(store: &Store, events: u64) -> anyhow::Result<()> {
    let source = Lines::new(Workload { events, layout: Layout::ComeAndGo });
    let imported = store.import("bench", source, ImportOptions::default(), |_| ()).await?;
    anyhow::ensure!(imported.stored == events, "{} of {events} were stored", imported.stored);
    Ok(())
}

async fn rebuild(store: &Store) -> anyhow::Result<()> {
    store.register(carts::documents("documents_apart").build()?).await?;
    let rebuild = store.rebuild("documents_apart", RebuildOptions::default()).await?;
    rebuild.finish().await?;
    Ok(())
}

/// The most memory this process has had resident, in MB of a million bytes.
fn peak_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmHWM")?;
    Ok(kib.trim().parse::<f64>()? * 1024.0 / 1e6)
}
