//! `everfold promote`.

use clap::Args;
use everfold::RebuildOptions;

use super::rebuild::{Following, Switching, follow};
use crate::cli::Global;
use crate::failure::Outcome;

/// Switch readers over to a version that is built
#[derive(Debug, Args)]
#[command(after_help = "\
What readers saw before is kept, and fed, so that `everfold rollback` goes back.

Examples:
  everfold rebuild cart_totals --no-promote && everfold promote cart_totals
  everfold promote cart_totals --allow-dead-letters")]
pub(crate) struct Promote {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    switching: Switching,
    #[command(flatten)]
    following: Following,
}

impl Promote {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let mut options = RebuildOptions::default();
        self.switching.set(&mut options);
        let switched = store.promote(&self.name, options);
        let outcome = follow(&self.name, self.following, switched).await;
        store.close().await;
        outcome
    }
}
