//! `everfold demo`: a shop whose read model is changed while it is open.
//!
//! ```text
//!   8 writers ──append──> store ──inline──> cart_totals 1 ─┐ switched while they write
//!                           │   ──rebuild─> cart_totals 2 ─┴─> readers
//!                           │        └── a process that is killed once, and another
//!                           └──runner──> bestsellers
//!   at the end: what was acknowledged, the log, and every row are compared
//! ```

mod board;
mod check;
mod open;
mod project;
mod random;
mod read_models;
mod rebuilder;
mod report;
mod shop;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use console::style;
use everfold::{Projection, Runner, RunnerOptions, Store, StreamId, Version};
use indicatif::HumanCount;
use tokio::task::JoinSet;

use crate::age;
use crate::cli::Global;
use crate::failure::{Outcome, Usage};
use crate::output;
use crate::progress::{per_second, tell};
use crate::signals::Signals;
use board::Board;
use open::Open;
use project::Project;
use read_models::ReadModels;
use report::{Rebuilt, Report, milliseconds, percentile};
use shop::Till;
use writer::Writer;

const FOLDER: &str = "everfold-demo";
/// The read model that is changed.
const CART_TOTALS: &str = "cart_totals";
const BESTSELLERS: &str = "bestsellers";
const WRITERS: usize = 8;
/// Events in an append of a writer, on the average.
const EVENTS_PER_APPEND: f64 = 1.4;
/// The most that all writers append in a second, so that one can watch on a small machine.
const WRITERS_RATE_MAX: u64 = 1_500;
/// The slowest that a rebuild goes.
const REBUILD_RATE_MIN: u64 = 400;
/// A rebuild of what was filled in takes about so many seconds.
const REBUILD_SECONDS: u64 = 4;

/// Watch a shop whose read model is changed while it is open, and see that nothing is lost
///
/// Makes a project folder with a store and two read models, fills it with carts, and opens it: eight
/// writers append while you watch the read models change. Then one of them is changed, and rebuilt
/// by another process, which is killed half-way; a second one goes on where it stood, and readers are
/// switched over. In the end every event that was acknowledged, the log and every row are compared.
#[derive(Debug, Args)]
#[command(after_help = "\
Takes about a quarter of a minute. The folder stays, to go on with. Without --url its store is a
SQLite file in it; EVERFOLD_URL and everfold.toml are not looked at. A store that --url
names must be empty. Ctrl-C ends it at any time, and leaves a folder that works.

Exits with 3 if an event was lost, doubled or reordered, or a row differs from the log.

Examples:
  everfold demo
  everfold demo my-shop --events 200000
  everfold demo --url postgres://postgres@localhost/everfold_demo")]
pub(crate) struct Demo {
    /// The folder to make [default: --project, or everfold-demo]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// How many events to fill the shop with before it opens
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..))]
    events: u64,
    /// How long the shop is open before the rebuild begins, and after it
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    seconds: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        if self.folder.is_some() && global.project.is_some() {
            let message = "name the folder once: as DIR or with --project";
            return Err(Usage(message.to_owned()).into());
        }
        // First, so that a signal during the start is not lost.
        let mut signals = Signals::listen()?;
        let folder = self.folder.clone().or_else(|| global.project.clone());
        let folder = folder.unwrap_or_else(|| PathBuf::from(FOLDER));
        let project = Project::make(folder, global.url.as_deref()).await?;
        let store = Store::open(&project.url).await?;
        let resume = project.command(&format!("rebuild {CART_TOTALS}"));
        let folder = project.folder.display().to_string();
        let ended = tokio::select! {
            biased;
            () = signals.next() => None,
            shown = self.show(project, store.clone()) => Some(shown),
        };
        let Some(shown) = ended else {
            let under_way = rebuilder::progress(&store, CART_TOTALS).await.ok().flatten();
            tokio::select! {
                biased;
                () = signals.next() => {}
                () = store.close() => {}
            }
            eprintln!("stopped; what there is of the shop is in {folder}");
            if under_way.is_some_and(|rebuild| !rebuild.phase.is_end()) {
                eprintln!("its rebuild is not finished; this goes on with it: {resume}");
            }
            return Ok(Outcome::Failed);
        };
        store.close().await;
        let report =
            shown.with_context(|| format!("the demo has stopped, and left its folder {folder}"))?;
        eprintln!();
        output::print(&report, self.json)?;
        Ok(if report.is_right() { Outcome::Done } else { Outcome::Unhealthy })
    }

    async fn show(&self, project: Project, store: Store) -> anyhow::Result<Report> {
        let begun = Instant::now();
        let (mut open, opened) = self.open(project, store).await?;
        let some_time = Duration::from_secs(self.seconds);
        open.watch(some_time).await?;
        let rebuilt = self.rebuild(&mut open).await?;
        step("verify", "compute cart_totals again from the log, while the shop is open");
        let verification = open.verify(CART_TOTALS).await?;
        let rows = HumanCount(verification.compared);
        step("", &format!("{rows} rows, of which {} differ", verification.differences));
        open.watch(some_time / 2).await?;

        let open_for = opened.elapsed();
        let (faults, rows_checked, events) = open.close(verification.differences).await?;
        let (till, project) = (&open.till, &open.project);
        let waits = till.waits();
        let longest = waits.last().copied().unwrap_or_default();
        Ok(Report {
            store: open.store.location(),
            folder: project.folder.display().to_string(),
            seconds: begun.elapsed().as_secs_f64(),
            events,
            filled: self.events,
            writers: WRITERS,
            events_per_second: per_second(till.stored() - self.events, open_for),
            appends: waits.len() as u64 - till.conflicts(),
            conflicts_refused: till.conflicts(),
            longest_wait_ms: milliseconds(longest),
            wait_p99_ms: milliseconds(percentile(&waits, 99)),
            rebuild: rebuilt,
            rows_checked,
            faults,
            next: ["status", "show cart_totals", "rollback cart_totals"]
                .map(|command| project.command(command))
                .to_vec(),
            note: note(project),
        })
    }

    /// Fills the shop and opens it.
    async fn open(&self, project: Project, store: Store) -> anyhow::Result<(Open, Instant)> {
        step("shop", &format!("{} in {}", store.location(), project.folder.display()));
        let mut options = RunnerOptions::default();
        // They are left to processes of their own.
        options.rebuilds = 0;
        let projections = Projection::load_all(&project.folder)?;
        let runner = Runner::new(&store).options(options).projections(projections).start().await?;
        let till = Arc::new(Till::default());
        let carts: Arc<[StreamId]> = shop::carts(self.events).into();
        let begun = Instant::now();
        let versions = writer::fill(&store, &carts, self.events, &till).await?;
        let [count, events] = [carts.len() as u64, till.stored()].map(HumanCount);
        let took = begun.elapsed().as_secs_f64();
        step("filled", &format!("{count} carts with {events} events in {took:.1} s"));

        let writers = self.writers(&store, &carts, &versions, &till);
        step("open", &format!("{WRITERS} writers; {CART_TOTALS} changes with each append,"));
        step("", &format!("{BESTSELLERS} is fed just behind them"));
        let read_models = ReadModels::connect(&project.url).await?;
        let board = Board::new(&store, read_models, &till);
        let runner = Some(runner);
        Ok((Open { project, store, till, board, writers, runner }, Instant::now()))
    }

    fn writers(
        &self,
        store: &Store,
        carts: &Arc<[StreamId]>,
        versions: &[Version],
        till: &Arc<Till>,
    ) -> JoinSet<anyhow::Result<()>> {
        let rate = (self.rebuild_rate() / 5).min(WRITERS_RATE_MAX) as f64;
        let every = Duration::from_secs_f64(WRITERS as f64 * EVENTS_PER_APPEND / rate);
        let count = WRITERS.min(carts.len());
        let each = carts.len() / count;
        let mut writers = JoinSet::new();
        for number in 0..count {
            let writer = Writer {
                store: store.clone(),
                carts: Arc::clone(carts),
                own: number * each..(number + 1) * each,
                known: versions.to_vec(),
                every,
                till: Arc::clone(till),
            };
            writers.spawn(writer.write());
        }
        writers
    }

    /// Events that a rebuild may apply in a second: one can watch it, and it comes nearer.
    fn rebuild_rate(&self) -> u64 {
        (self.events / REBUILD_SECONDS).max(REBUILD_RATE_MIN)
    }

    /// Changes a read model, kills the process that rebuilds it, and lets another go on.
    async fn rebuild(&self, open: &mut Open) -> anyhow::Result<Rebuilt> {
        open.project.change()?;
        step("change", "version 2 of cart_totals shall also tell each cart's history");
        let first = open.rebuilder(self.rebuild_rate())?;
        step("rebuild", &format!("process {} builds it beside version 1", first.id));
        let Some(killed_at) = open.kill_half_way(first).await? else {
            // It was too fast to be killed, and that is what the report says.
            return Ok(Rebuilt::new(&open.rebuilt().await?, None, None));
        };
        let second = open.rebuilder(self.rebuild_rate())?;
        let went_on_at = open.go_on(second).await?;
        let rebuilt = open.rebuilt().await?;
        let held = rebuilt.appends_held.unwrap_or_default().as_secs_f64();
        let held = age::shown(held);
        step("switch", &format!("readers see version 2; appends were held up for {held}"));
        Ok(Rebuilt::new(&rebuilt, Some(killed_at), went_on_at))
    }
}

/// Says what happens now, above what is shown.
fn step(what: &str, text: &str) {
    let what = style(format!("{what:<8}")).for_stderr().bold();
    tell(&format!("{what} {text}"));
}

/// Why the commands to try next could look elsewhere.
fn note(project: &Project) -> Option<String> {
    if !project.url_is_kept {
        return Some(
            "set EVERFOLD_URL for them: a password is not kept in everfold.toml".to_owned(),
        );
    }
    let set = std::env::var_os("EVERFOLD_URL").is_some_and(|url| !url.is_empty());
    set.then(|| "unset EVERFOLD_URL first, which names another store".to_owned())
}
