//! `everfold promote`.

use clap::Args;
use everfold::Store;

use super::rebuild::Switch;
use crate::cli::Global;
use crate::failure::Outcome;

/// Switch readers over to a version that is built
#[derive(Debug, Args)]
#[command(after_help = "\
What readers saw before is kept, and fed, so that `everfold rollback` goes back.

Examples:
  everfold rebuild cart_totals --no-promote && everfold promote cart_totals
  everfold promote cart_totals --dry-run
  everfold promote cart_totals --allow-dead-letters")]
pub(crate) struct Promote {
    #[command(flatten)]
    switch: Switch,
}

impl Promote {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let promote = async |store: &Store, name: &str, options| store.promote(name, options).await;
        let preview = async |store: &Store, name: &str| store.preview_promote(name).await;
        self.switch.run(global, preview, promote).await
    }
}
