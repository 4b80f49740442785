//! `everfold demo`: writers, a follower, and a count of everything.
//!
//! ```text
//!   8 writers ──append, expected version──> store ──follow──> follower (checks as it reads)
//!       │                                     │                  │
//!       └── what was acknowledged             └── read back ──┬──┘
//!                     └────────────── compared ───────────────┘
//! ```

mod follower;
mod random;
mod report;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use everfold::{Position, Store, StoreOptions, StreamId, Uuid};
use futures::future;
use futures::stream::TryStreamExt;
use indicatif::HumanCount;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::cli::Global;
use crate::confirm::confirm;
use crate::failure::{Outcome, Usage};
use crate::output;
use crate::progress::{Progress, per_second};
use crate::project::{self, DEFAULT_STORE};
use follower::Follower;
use report::Report;
use writer::{Shared, Writer};

const WRITERS: usize = 8;
const CARTS_PER_WRITER: usize = 16;
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// How long the follower may take to see what was stored, once the writers have ended.
const FOLLOW_WITHIN: Duration = Duration::from_secs(10);

/// Take a first look: writers, conflicts and a follower on a new store, all counted
///
/// Eight writers append to shopping carts, each append expecting a version; some expect an old one
/// on purpose. A follower reads along and checks every position and version. Then the log is read
/// back and compared.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --url the store is a SQLite file in a temporary folder. EVERFOLD_URL and
everfold.toml are not looked at: a demo writes to no store it was not told to.

Examples:
  everfold demo
  everfold demo --events 100000 --seconds 60 --keep demo-store
  everfold demo --url postgres://postgres@localhost/postgres --yes")]
pub(crate) struct Demo {
    /// How many events to append
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Stop writing after so many seconds, also with fewer events
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Keep the store, in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Where the demo runs; a temporary folder goes away with it.
struct Place {
    url: String,
    temporary: Option<TempDir>,
}

/// The streams of this run, told from all others by their names.
#[derive(Clone)]
struct Run {
    prefix: String,
    start: Position,
}

impl Run {
    fn has(&self, stream: &StreamId) -> bool {
        stream.as_str().starts_with(&self.prefix)
    }

    fn carts(&self) -> Vec<StreamId> {
        let carts = 1..=WRITERS * CARTS_PER_WRITER;
        carts.map(|number| StreamId::from(format!("{}{number}", self.prefix))).collect()
    }
}

impl Demo {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let place = self.place(global)?;
        tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                eprintln!("demo: interrupted");
                Ok(Outcome::Failed)
            }
            outcome = self.show(&place) => outcome,
        }
    }

    fn place(&self, global: &Global) -> anyhow::Result<Place> {
        match (&global.url, &self.keep) {
            (Some(_), Some(_)) => {
                let message =
                    "--keep is for a store of the demo's own, not for one that --url names";
                Err(Usage(message.to_owned()).into())
            }
            (Some(url), None) => {
                let question =
                    "the demo's events cannot be removed again; append them to this store?";
                if !confirm(global, question)? {
                    bail!("nothing was done");
                }
                Ok(Place { url: url.clone(), temporary: None })
            }
            (None, Some(folder)) => {
                let file = folder.join(DEFAULT_STORE);
                if file.exists() {
                    bail!("{} exists already; name another folder", file.display());
                }
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("cannot make the folder {}", folder.display()))?;
                Ok(Place { url: project::sqlite_url(&file)?, temporary: None })
            }
            (None, None) => {
                let folder = tempfile::Builder::new()
                    .prefix("everfold-demo-")
                    .tempdir()
                    .context("cannot make a temporary folder")?;
                let url = project::sqlite_url(&folder.path().join(DEFAULT_STORE))?;
                Ok(Place { url, temporary: Some(folder) })
            }
        }
    }

    async fn show(&self, place: &Place) -> anyhow::Result<Outcome> {
        let mut options = StoreOptions::default();
        options.migrate = Some(true);
        let store = Store::open_with(&place.url, options).await?;
        let report = self.measure(&store).await?;
        store.close().await;
        output::print(&report, self.json)?;
        self.tell_next(place);
        Ok(if report.is_right() { Outcome::Done } else { Outcome::Failed })
    }

    fn tell_next(&self, place: &Place) {
        match &self.keep {
            Some(folder) => {
                eprintln!("\nlook around: everfold --project {} events", folder.display());
            }
            None if place.temporary.is_some() => {
                eprintln!("\nthis store is removed again; `everfold init shop` makes one to keep");
            }
            None => {}
        }
    }

    async fn measure(&self, store: &Store) -> anyhow::Result<Report> {
        let run = Run {
            prefix: format!("demo-{}-cart-", Uuid::now_v7().simple()),
            start: store.high_water_mark().await?,
        };
        let (ended, end) = watch::channel(None);
        let follower = Follower::new(run.clone(), FOLLOW_WITHIN);
        let seen = follower.seen();
        let following = tokio::spawn(follower.follow(store.clone(), end));

        let deadline = Instant::now() + Duration::from_secs(self.seconds);
        let shared = Arc::new(Shared::new(self.events, deadline));
        let begun = Instant::now();
        let writers = write(store, &run, &shared);
        let progress = self.show_progress(&shared, || seen.load(Ordering::Relaxed));
        tokio::select! {
            written = writers => written?,
            never = progress => match never {},
        }
        let elapsed = begun.elapsed();
        // Nobody waits for the end any more if the follower has failed, which is reported next.
        let _ = ended.send(Some(shared.last_position()));
        let followed = following.await.context("the follower panicked")??;
        let log = read_back(store, &run).await?;
        let wrote = shared.counts(elapsed);
        Ok(Report::compare(store.location(), WRITERS, wrote, &followed, &log))
    }

    async fn show_progress(
        &self,
        shared: &Shared,
        seen: impl Fn() -> u64,
    ) -> std::convert::Infallible {
        let mut progress = Progress::new("demo", Some(self.events));
        let begun = Instant::now();
        loop {
            let stored = shared.stored();
            progress.set(stored, || {
                let rate = HumanCount(per_second(stored, begun.elapsed()));
                let [stored, seen] = [stored, seen()].map(HumanCount);
                format!("{stored} appended, {seen} followed, {rate}/s")
            });
            tokio::time::sleep(PROGRESS_EVERY).await;
        }
    }
}

async fn write(store: &Store, run: &Run, shared: &Arc<Shared>) -> anyhow::Result<()> {
    let carts: Arc<[StreamId]> = run.carts().into();
    let writers = (0..WRITERS).map(|number| {
        let own = number * CARTS_PER_WRITER..(number + 1) * CARTS_PER_WRITER;
        let writer = Writer::new(store.clone(), Arc::clone(&carts), own, Arc::clone(shared));
        tokio::spawn(writer.write())
    });
    for written in future::join_all(writers).await {
        written.context("a writer panicked")??;
    }
    Ok(())
}

/// The events of this run as they stand in the log: stream, version and position.
async fn read_back(store: &Store, run: &Run) -> anyhow::Result<Vec<report::Place>> {
    let events = store.read_all().after(run.start).events();
    let places = events.try_filter_map(|event| {
        let place = run.has(&event.stream_id).then(|| report::Place::of(&event));
        future::ready(Ok(place))
    });
    Ok(places.try_collect().await?)
}
