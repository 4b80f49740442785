//! `everfold rebuilds`.

use std::fmt;

use anyhow::Context;
use clap::{Args, Subcommand};
use everfold::{ProjectionError, RebuildProgress, Store};
use serde::Serialize;

use super::listing::{self, Listing};
use super::rebuild::{line, percent};
use crate::cli::Global;
use crate::commands::differences;
use crate::confirm::confirm;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{self, shown};

/// List rebuilds; pause, resume or cancel one
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Those under way come first, then the last that have ended, the newest first.

Examples:
  everfold rebuilds
  everfold rebuilds cart_totals           with the rows in which versions differed
  everfold rebuilds pause cart_totals
  everfold rebuilds --json | jq 'select(.finished_at == null)'"
)]
pub(crate) struct Rebuilds {
    #[command(subcommand)]
    command: Option<Steer>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, Subcommand)]
enum Steer {
    List(List),
    Pause(Pause),
    Resume(Resume),
    Cancel(Cancel),
}

/// List rebuilds, those under way first
#[derive(Debug, Args)]
#[command(after_help = "\
With --json there is one line for each.

Examples:
  everfold rebuilds list
  everfold rebuilds list cart_totals --json")]
struct List {
    #[command(flatten)]
    of: Listing,
}

/// Let a rebuild stand still until it is resumed
#[derive(Debug, Args)]
#[command(after_help = "\
Whoever works on it waits. Readers and appends notice nothing; an in-place rebuild shows
what is filled so far.

Examples:
  everfold rebuilds pause cart_totals")]
struct Pause {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: How,
}

/// Go on with a rebuild that was paused
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  everfold rebuilds resume cart_totals")]
struct Resume {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: How,
}

/// Give a rebuild up; readers keep what they see
#[derive(Debug, Args)]
#[command(after_help = "\
What was built so far is dropped. Once readers were switched over it is too late:
`everfold rollback NAME` goes back.

Examples:
  everfold rebuilds cancel cart_totals --dry-run
  everfold --yes rebuilds cancel cart_totals")]
struct Cancel {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: How,
}

/// What steering a rebuild has in common.
#[derive(Debug, Args)]
struct How {
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What was done to the rebuild of a projection.
#[derive(Serialize)]
struct Steered {
    projection: String,
    /// `paused`, `resumed` or `cancelled`.
    done: &'static str,
}

impl fmt::Display for Steered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} the rebuild of {}", self.done, self.projection)
    }
}

impl Rebuilds {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = match self.command.unwrap_or(Steer::List(self.list)) {
            Steer::List(command) => command.run(&store).await,
            Steer::Pause(Pause { name, how }) => {
                let pause = async |name: &str| store.pause_rebuild(name).await;
                how.steer(&store, name, ("pause", "paused"), pause).await
            }
            Steer::Resume(Resume { name, how }) => {
                let resume = async |name: &str| store.resume_rebuild(name).await;
                how.steer(&store, name, ("resume", "resumed"), resume).await
            }
            Steer::Cancel(Cancel { name, how }) => {
                match how.may_cancel(global, &store, &name).await {
                    Ok(true) => {
                        let cancel = async |name: &str| store.cancel_rebuild(name).await;
                        how.steer(&store, name, ("cancel", "cancelled"), cancel).await
                    }
                    Ok(false) => Ok(Outcome::Done),
                    Err(error) => Err(error),
                }
            }
        };
        store.close().await;
        outcome
    }
}

impl How {
    /// Does it, or says how the rebuild stands to which it would be done.
    async fn steer(
        &self,
        store: &Store,
        name: String,
        (verb, done): (&str, &'static str),
        steer: impl AsyncFnOnce(&str) -> Result<(), ProjectionError>,
    ) -> anyhow::Result<Outcome> {
        if self.dry.dry_run {
            let rebuild = open(store, &name).await?;
            let would = format!("{verb} the rebuild of {name}: {}", line(&rebuild));
            return dry_run::tell(vec![would], self.json);
        }
        steer(&name).await?;
        output::print(&Steered { projection: name, done }, self.json)?;
        Ok(Outcome::Done)
    }

    /// Asks before what was built so far is thrown away.
    async fn may_cancel(&self, global: &Global, store: &Store, name: &str) -> anyhow::Result<bool> {
        if self.dry.dry_run {
            return Ok(true);
        }
        let rebuild = open(store, name).await?;
        let question = format!("  {}\nDrop what was built of {name} so far?", line(&rebuild));
        let confirmed = confirm(global, &question)?;
        if !confirmed {
            eprintln!("nothing was done");
        }
        Ok(confirmed)
    }
}

/// The rebuild of a projection that is under way.
async fn open(store: &Store, name: &str) -> anyhow::Result<RebuildProgress> {
    // For its error, which suggests a name.
    store.projection(name).await?;
    let rebuilds = store.rebuilds().await?.into_iter();
    let mut open = rebuilds.filter(|rebuild| rebuild.finished_at.is_none());
    open.find(|rebuild| rebuild.name == name)
        .with_context(|| format!("projection \"{name}\" is not being rebuilt"))
}

impl List {
    async fn run(self, store: &Store) -> anyhow::Result<Outcome> {
        if let Some(name) = &self.of.name {
            // For its error, which suggests a name.
            store.projection(name).await?;
        }
        let columns = ["NAME", "VERSION", "KIND", "PHASE", "DONE", "ASKED FOR", "BY", "RUN BY"];
        let mut list = listing::List::new(self.of.json, &columns);
        for rebuild in &store.rebuilds().await? {
            if self.of.name.as_ref().is_none_or(|name| rebuild.name == *name) {
                list.add(rebuild, cells(rebuild), self.below(rebuild))?;
            }
        }
        list.end("no rebuilds")
    }

    fn below(&self, rebuild: &RebuildProgress) -> Vec<String> {
        let mut lines = Vec::new();
        if rebuild.finished_at.is_none() {
            lines.push(line(rebuild));
            if rebuild.worker.is_none() && !rebuild.paused {
                lines.push(format!(
                    "nobody works on it: `everfold rebuild {}` goes on",
                    rebuild.name
                ));
            }
        }
        if let Some(message) = &rebuild.message {
            lines.push(shown(message));
        }
        if let Some(comparison) = &rebuild.comparison
            && self.of.name.is_some()
            && !comparison.examples.is_empty()
        {
            let table = differences::table(&comparison.examples, "BEFORE", "NOW").to_string();
            lines.extend(table.lines().map(str::to_owned));
        }
        lines
    }
}

fn cells(rebuild: &RebuildProgress) -> Vec<String> {
    vec![
        rebuild.name.clone(),
        rebuild.version.to_string(),
        rebuild.kind.to_string(),
        rebuild.phase.to_string(),
        done(rebuild),
        rebuild.requested_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        shown(&rebuild.requested_by),
        shown(rebuild.worker.as_deref().unwrap_or("-")),
    ]
}

fn done(rebuild: &RebuildProgress) -> String {
    match rebuild.phase.is_end() {
        true => format!("{}", indicatif::HumanCount(rebuild.events_done)),
        false => format!("{}%", percent(rebuild)),
    }
}
