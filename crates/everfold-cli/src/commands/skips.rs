//! `everfold skips`.

use std::fmt;

use clap::{Args, Subcommand};
use everfold::{Skip, Store};
use serde::Serialize;

use super::listing::{self, Listing};
use crate::cli::Global;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{self, count, shown};

/// Look at what inline projections owe, and settle it
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  everfold skips list
  everfold skips list cart_totals --json
  everfold skips drain cart_totals")]
pub(crate) enum Skips {
    List(List),
    Drain(Drain),
}

/// Apply what a projection owes, in order, now
#[derive(Debug, Args)]
#[command(after_help = "\
Runners do this by themselves; this is for where none runs. Events that wait behind a
dead letter stay owed until that is retried or discarded. Projections written in Rust
are drained by processes that have their code.

Examples:
  everfold skips drain cart_totals
  everfold skips drain cart_totals --json")]
pub(crate) struct Drain {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Drained {
    projection: String,
    events: u64,
    still_owed: u64,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drained { projection, events, still_owed } = self;
        match (events, still_owed) {
            (0, 0) => return write!(f, "{projection} owes nothing"),
            (events, _) => write!(f, "{} of {projection} settled", count(*events, "event"))?,
        }
        match still_owed {
            0 => Ok(()),
            owed => write!(
                f,
                "\n  {} still owed, see `everfold skips list {projection}` and `everfold dead-letters \
                 list {projection}`",
                count(*owed, "event")
            ),
        }
    }
}

/// List events that an append passed over, and that a runner will apply
#[derive(Debug, Args)]
#[command(after_help = "\
They are applied by `everfold run`, in order, as soon as the projection is not paused
or failed any more. With --json there is one line for each.

Examples:
  everfold skips list
  everfold skips list cart_totals
  everfold skips list --json | jq -r .reason | sort | uniq -c")]
pub(crate) struct List {
    #[command(flatten)]
    of: Listing,
}

#[derive(Serialize)]
struct Owed<'a> {
    projection: &'a str,
    #[serde(flatten)]
    skip: &'a Skip,
}

impl Skips {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        match self {
            Skips::List(command) => command.run(global).await,
            Skips::Drain(command) => command.run(global).await,
        }
    }
}

impl Drain {
    async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        if self.dry.dry_run {
            let status = store.projection(&self.name).await;
            store.close().await;
            let owed = match status?.open_skips {
                0 => Vec::new(),
                owed => vec![format!(
                    "apply {} that {} owes, in order, as far as no dead letter holds them",
                    count(owed, "event"),
                    self.name
                )],
            };
            return dry_run::tell(owed, self.json);
        }
        let drained = self.drain(&store).await;
        store.close().await;
        output::print(&drained?, self.json)?;
        Ok(Outcome::Done)
    }

    async fn drain(&self, store: &Store) -> anyhow::Result<Drained> {
        let events = store.drain(&self.name).await?;
        let still_owed = store.projection(&self.name).await?.open_skips;
        Ok(Drained { projection: self.name.clone(), events, still_owed })
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let columns = ["PROJECTION", "POSITION", "KEY", "SINCE", "REASON"];
        let mut list = listing::List::new(self.of.json, &columns);
        for projection in &super::names_or_all(&store, self.of.name).await? {
            for skip in &store.skips(projection).await? {
                let since = skip.skipped_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let (position, reason) = (skip.position.to_string(), shown(&skip.reason));
                let cells = vec![projection.clone(), position, shown(&skip.key), since, reason];
                list.add(&Owed { projection, skip }, cells, Vec::new())?;
            }
        }
        store.close().await;
        list.end("nothing is owed")
    }
}
