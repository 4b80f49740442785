//! `everfold snapshot`.

use std::fmt;

use clap::Args;
use everfold::{ProjectionStatus, ReadModelSnapshot, Store};
use indicatif::HumanBytes;
use serde::Serialize;

use crate::cli::Global;
use crate::dry_run::{self, DryRun};
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
    #[command(flatten)]
    dry: DryRun,
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
        if self.dry.dry_run {
            let would = self.would(&store).await;
            store.close().await;
            return dry_run::tell(would?, self.json);
        }
        let taken = store.snapshot_read_model(&self.name).await;
        store.close().await;
        output::print(&Taken(taken?), self.json)?;
        Ok(Outcome::Done)
    }

    async fn would(&self, store: &Store) -> anyhow::Result<Vec<String>> {
        let status = store.projection(&self.name).await?;
        let plan = store.plan(Vec::new()).await?;
        let change = plan.changes.into_iter().find(|change| change.name == self.name);
        let rows = change.as_ref().and_then(|change| change.rows);
        let bytes = change.as_ref().and_then(|change| change.bytes);
        let size =
            [rows.map(|rows| output::count(rows, "row")), bytes.map(|b| HumanBytes(b).to_string())];
        let size: Vec<String> = size.into_iter().flatten().collect();
        let size = if size.is_empty() { String::new() } else { format!(", {}", size.join(", ")) };
        let ProjectionStatus { name, version, position, .. } = status;
        let known = store.read_model_snapshots(&self.name).await?.len();
        let mut would = vec![format!("copy {name} version {version} at position {position}{size}")];
        if known > 0 {
            let known = output::count(known as u64, "snapshot");
            would
                .push(format!("keep it beside {known}, and drop the oldest if these are too many"));
        }
        Ok(would)
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
