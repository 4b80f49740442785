//! `everfold rollback`.

use clap::Args;
use everfold::RebuildOptions;

use super::rebuild::{Following, Switching, follow};
use crate::cli::Global;
use crate::failure::Outcome;

/// Switch readers back to the version they saw before
#[derive(Debug, Args)]
#[command(after_help = "\
It was kept, and fed, so there is nothing to build. `everfold promote` goes forward again.

Examples:
  everfold rollback cart_totals
  everfold rollback cart_totals --json")]
pub(crate) struct Rollback {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    switching: Switching,
    #[command(flatten)]
    following: Following,
}

impl Rollback {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let mut options = RebuildOptions::default();
        self.switching.set(&mut options);
        let switched = store.rollback(&self.name, options);
        let outcome = follow(&self.name, self.following, switched).await;
        store.close().await;
        outcome
    }
}
