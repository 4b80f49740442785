//! `everfold pause`.

use std::fmt;

use clap::Args;
use everfold::GenerationStatus;
use serde::Serialize;

use crate::cli::Global;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output;

/// Stop feeding projections until `everfold resume`
#[derive(Debug, Args)]
#[command(after_help = "\
Appends go on. An inline projection owes what comes in meanwhile; a catch-up one
stands where it is. Runners on all machines keep to it.

Examples:
  everfold pause cart_totals
  everfold pause cart_totals --dry-run
  everfold pause cart_totals daily_totals --json")]
pub(crate) struct Pause {
    /// The projections
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What can be paused.
const RUNNING: [GenerationStatus; 2] = [GenerationStatus::Active, GenerationStatus::Building];

#[derive(Serialize)]
struct Paused {
    paused: Vec<String>,
}

impl Pause {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        if self.dry.dry_run {
            let would = super::would_change(&store, "pause", &self.names, &RUNNING).await;
            store.close().await;
            return dry_run::tell(would?, self.json);
        }
        let (mut paused, mut refused) = (Vec::new(), None);
        for name in self.names {
            match store.pause(&name).await {
                Ok(()) => paused.push(name),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        store.close().await;
        // What was done is done, also where the next name was refused.
        if refused.is_none() || !paused.is_empty() {
            output::print(&Paused { paused }, self.json)?;
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(Outcome::Done),
        }
    }
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paused {}", self.paused.join(", "))
    }
}
