//! `everfold snapshots`.

use clap::{Args, Subcommand};
use everfold::Store;
use indicatif::{HumanBytes, HumanCount};

use super::listing::{self, Listing};
use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{Output, shown};

/// List snapshots of read models; drop one
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  everfold snapshots
  everfold snapshots cart_totals --json
  everfold snapshots drop cart_totals 3"
)]
pub(crate) struct Snapshots {
    #[command(subcommand)]
    command: Option<Treat>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, Subcommand)]
enum Treat {
    List(List),
    Drop(Drop),
}

/// List snapshots, the newest first
#[derive(Debug, Args)]
#[command(after_help = "\
With --json there is one line for each.

Examples:
  everfold snapshots list
  everfold snapshots list cart_totals --json")]
struct List {
    #[command(flatten)]
    of: Listing,
}

/// Drop a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  everfold snapshots drop cart_totals 3")]
struct Drop {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// The snapshot's number
    #[arg(value_name = "ID")]
    id: i32,
}

impl Snapshots {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = match self.command.unwrap_or(Treat::List(self.list)) {
            Treat::List(command) => command.run(&store).await,
            Treat::Drop(command) => command.run(&store).await,
        };
        store.close().await;
        outcome
    }
}

impl Drop {
    async fn run(self, store: &Store) -> anyhow::Result<Outcome> {
        let Drop { name, id } = self;
        store.drop_read_model_snapshot(&name, id).await?;
        let mut output = Output::new();
        output.line(format!("dropped snapshot {id} of {name}"))?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}

impl List {
    async fn run(self, store: &Store) -> anyhow::Result<Outcome> {
        let columns = ["ID", "PROJECTION", "VERSION", "POSITION", "ROWS", "SIZE", "TAKEN", "BY"];
        let mut list = listing::List::new(self.of.json, &columns);
        for name in super::names_or_all(store, self.of.name).await? {
            for snapshot in &store.read_model_snapshots(&name).await? {
                let cells = vec![
                    snapshot.id.to_string(),
                    snapshot.name.clone(),
                    snapshot.version.to_string(),
                    snapshot.position.to_string(),
                    HumanCount(snapshot.rows).to_string(),
                    HumanBytes(snapshot.bytes).to_string(),
                    snapshot.taken_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    shown(&snapshot.taken_by),
                ];
                list.add(snapshot, cells, Vec::new())?;
            }
        }
        list.end("no snapshots")
    }
}
