//! `everfold rebuilds`.

use clap::{Args, Subcommand};
use everfold::{RebuildProgress, Store};

use super::listing::{self, Listing};
use super::rebuild::{line, percent};
use crate::cli::Global;
use crate::commands::differences;
use crate::failure::Outcome;
use crate::output::{Output, shown};

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
}

/// Give a rebuild up; readers keep what they see
#[derive(Debug, Args)]
#[command(after_help = "\
What was built so far is dropped. Once readers were switched over it is too late:
`everfold rollback NAME` goes back.

Examples:
  everfold rebuilds cancel cart_totals")]
struct Cancel {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
}

impl Rebuilds {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = match self.command.unwrap_or(Steer::List(self.list)) {
            Steer::List(command) => command.run(&store).await,
            Steer::Pause(Pause { name }) => {
                let paused = store.pause_rebuild(&name).await;
                told(paused, &format!("paused the rebuild of {name}"))
            }
            Steer::Resume(Resume { name }) => {
                let resumed = store.resume_rebuild(&name).await;
                told(resumed, &format!("resumed the rebuild of {name}"))
            }
            Steer::Cancel(Cancel { name }) => {
                let cancelled = store.cancel_rebuild(&name).await;
                told(cancelled, &format!("cancelled the rebuild of {name}"))
            }
        };
        store.close().await;
        outcome
    }
}

fn told(outcome: Result<(), everfold::ProjectionError>, text: &str) -> anyhow::Result<Outcome> {
    outcome?;
    let mut output = Output::new();
    output.line(text)?;
    output.flush()?;
    Ok(Outcome::Done)
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
