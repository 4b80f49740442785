//! `everfold snapshot`.

use std::fmt;

use clap::Args;
use everfold::ReadModelSnapshot;
use indicatif::HumanBytes;
use serde::Serialize;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output;

/// Keep a copy of a read model as it is now, for `everfold replay`
#[derive(Debug, Args)]
#[command(after_help = "\
It holds the tables with the checkpoints, dead letters and skips of one moment. Appends
and runners go on; those of an inline projection wait for a moment, 100 ms at most. Of each
projection the newest few are kept.

Examples:
  everfold snapshot cart_totals
  everfold snapshots cart_totals        those there are")]
pub(crate) struct Snapshot {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Taken(ReadModelSnapshot);

impl Snapshot {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let taken = store.snapshot_read_model(&self.name).await;
        store.close().await;
        output::print(&Taken(taken?), self.json)?;
        Ok(Outcome::Done)
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadModelSnapshot { id, name, version, position, rows, bytes, .. } = &self.0;
        let (rows, bytes) = (output::count(*rows, "row"), HumanBytes(*bytes));
        writeln!(
            f,
            "snapshot {id} of {name} version {version} at position {position}, {rows}, {bytes}"
        )?;
        write!(f, "  next  `everfold replay {name} --from {position}` builds from it")
    }
}
