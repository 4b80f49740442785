//! `everfold rollback`.

use clap::Args;
use everfold::Store;

use super::rebuild::Switch;
use crate::cli::Global;
use crate::failure::Outcome;

/// Switch readers back to the version they saw before
#[derive(Debug, Args)]
#[command(after_help = "\
It was kept, and fed, so there is nothing to build. `everfold promote` goes forward again.

Examples:
  everfold rollback cart_totals --dry-run
  everfold rollback cart_totals
  everfold rollback cart_totals --json")]
pub(crate) struct Rollback {
    #[command(flatten)]
    switch: Switch,
}

impl Rollback {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let rollback =
            async |store: &Store, name: &str, options| store.rollback(name, options).await;
        let preview = async |store: &Store, name: &str| store.preview_rollback(name).await;
        self.switch.run(global, preview, rollback).await
    }
}
