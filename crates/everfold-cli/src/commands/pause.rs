//! `everfold pause`.

use std::fmt;

use clap::Args;
use serde::Serialize;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output;

/// Stop feeding projections until `everfold resume`
#[derive(Debug, Args)]
#[command(after_help = "\
Appends go on. An inline projection owes what comes in meanwhile; a catch-up one
stands where it is. Runners on all machines keep to it.

Examples:
  everfold pause cart_totals
  everfold pause cart_totals daily_totals --json")]
pub(crate) struct Pause {
    /// The projections
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Paused {
    paused: Vec<String>,
}

impl Pause {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        for name in &self.names {
            store.pause(name).await?;
        }
        store.close().await;
        output::print(&Paused { paused: self.names }, self.json)?;
        Ok(Outcome::Done)
    }
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paused {}", self.paused.join(", "))
    }
}
