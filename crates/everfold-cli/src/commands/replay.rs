//! `everfold replay`.

use clap::{ArgGroup, Args};
use everfold::{Position, RebuildOptions, ReplayOptions, Store};

use super::rebuild::{Following, Pace, Switching, follow, in_project, tell};
use crate::cli::Global;
use crate::failure::Outcome;

/// Build a read model again from a snapshot on, or as it was at a position
///
/// With --from it begins with the newest snapshot at or before that position, or else with the first
/// event, beside what readers see, and then switches them over. With --to nothing is switched: the read
/// model as it was is shown beside theirs, under names that end in `_at_<position>`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("where").args(["from", "to"]).multiple(true).required(true)), after_help = "\
`everfold rebuild` begins with the first event. `everfold retire` drops what --to has built.

Examples:
  everfold snapshot cart_totals
  everfold replay cart_totals --from 1000000 --dry-run
  everfold replay cart_totals --from 1000000
  everfold replay cart_totals --to 1000000 && psql -c 'TABLE read_model.cart_totals_at_1000000'")]
pub(crate) struct Replay {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Apply anew what comes after this position
    #[arg(long, value_name = "POSITION")]
    from: Option<u64>,
    /// The last event to apply: a look at what was
    #[arg(long, value_name = "POSITION")]
    to: Option<u64>,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    switching: Switching,
    #[command(flatten)]
    following: Following,
}

impl Replay {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let projection = in_project(global, &self.name)?;
        let store = global.target()?.open_existing().await?;
        let outcome = async {
            if self.following.dry_run {
                let options = self.options();
                let preview = store.preview_replay(&self.name, &options, projection.as_ref());
                return tell(&preview.await?, &options.rebuild, self.following.json);
            }
            if !self.switching.confirm(global, &self.name)? {
                return Ok(Outcome::Done);
            }
            let seen = store.projection(&self.name).await?;
            // The files of the version that readers see; another one is not registered by this.
            if let Some(projection) = projection.filter(|given| given.version() == seen.version) {
                store.register(projection).await?;
            }
            self.replay(&store).await
        };
        let outcome = outcome.await;
        store.close().await;
        outcome
    }

    fn options(&self) -> ReplayOptions {
        let mut rebuild = RebuildOptions::default();
        self.pace.set(&mut rebuild);
        self.switching.set(&mut rebuild);
        let mut options = ReplayOptions::default();
        options.from = self.from.map(Position);
        options.to = self.to.map(Position);
        options.rebuild = rebuild;
        options
    }

    async fn replay(self, store: &Store) -> anyhow::Result<Outcome> {
        let options = self.options();
        follow(store, &self.name, self.following, store.replay(&self.name, options)).await
    }
}
