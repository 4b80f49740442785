//! `everfold snapshots`.

use std::fmt;

use clap::{Args, Subcommand};
use everfold::Store;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::listing::{self, Listing};
use crate::cli::Global;
use crate::confirm::confirm;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{self, count, shown};

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
  everfold snapshots drop cart_totals 3 --dry-run
  everfold --yes snapshots drop cart_totals 3")]
struct Drop {
    /// The projection
    #[arg(value_name = "NAME")]
    name: String,
    /// The snapshot's number
    #[arg(value_name = "ID")]
    id: i32,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Dropped {
    projection: String,
    snapshot: i32,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dropped snapshot {} of {}", self.snapshot, self.projection)
    }
}

impl Snapshots {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = match self.command.unwrap_or(Treat::List(self.list)) {
            Treat::List(command) => command.run(&store).await,
            Treat::Drop(command) => command.run(global, &store).await,
        };
        store.close().await;
        outcome
    }
}

impl Drop {
    async fn run(self, global: &Global, store: &Store) -> anyhow::Result<Outcome> {
        let Drop { name, id, .. } = &self;
        let known = store.read_model_snapshots(name).await?;
        let Some(snapshot) = known.iter().find(|snapshot| snapshot.id == *id) else {
            // For its error, which says what there is.
            store.drop_read_model_snapshot(name, *id).await?;
            return Ok(Outcome::Done);
        };
        let (position, rows) = (snapshot.position, count(snapshot.rows, "row"));
        let what = format!("snapshot {id} of {name} at position {position}, {rows}");
        if self.dry.dry_run {
            return dry_run::tell(vec![format!("drop {what} for good")], self.json);
        }
        if !confirm(global, &format!("Drop {what}, for good?"))? {
            eprintln!("nothing was done");
            return Ok(Outcome::Done);
        }
        store.drop_read_model_snapshot(name, *id).await?;
        output::print(&Dropped { projection: self.name, snapshot: self.id }, self.json)?;
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
