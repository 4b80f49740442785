//! `everfold resume`.

use std::fmt;

use clap::Args;
use everfold::GenerationStatus;
use serde::Serialize;

use crate::cli::Global;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output;

/// Go on with projections that were paused, or that a failure stopped
#[derive(Debug, Args)]
#[command(after_help = "\
What is owed is made up for in order, by the next runner. An event that failed is
tried again: mend what was wrong first.

Examples:
  everfold resume cart_totals
  everfold resume cart_totals daily_totals --json")]
pub(crate) struct Resume {
    /// The projections
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What can be gone on with.
const STOPPED: [GenerationStatus; 2] = [GenerationStatus::Paused, GenerationStatus::Failed];

#[derive(Serialize)]
struct Resumed {
    resumed: Vec<String>,
}

impl Resume {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        if self.dry.dry_run {
            let would = super::would_change(&store, "resume", &self.names, &STOPPED).await;
            store.close().await;
            return dry_run::tell(would?, self.json);
        }
        let (mut resumed, mut refused) = (Vec::new(), None);
        for name in self.names {
            match store.resume(&name).await {
                Ok(()) => resumed.push(name),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        store.close().await;
        // What was done is done, also where the next name was refused.
        if refused.is_none() || !resumed.is_empty() {
            output::print(&Resumed { resumed }, self.json)?;
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(Outcome::Done),
        }
    }
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resumed {}", self.resumed.join(", "))
    }
}
