//! `everfold remove`.

use std::fmt;

use anyhow::bail;
use clap::Args;
use everfold::{PlannedChange, RebuildProgress, Retired, Store};
use indicatif::HumanBytes;
use serde::Serialize;

use super::rebuild::in_project;
use crate::cli::Global;
use crate::confirm::confirm;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{self, count, shown};

/// Remove a projection: its read model, all versions of it, and what it owes
///
/// The events stay. Take it out of the project first: `everfold run` registers what it finds there.
#[derive(Debug, Args)]
#[command(after_help = "\
Appends go on without it from then on, and readers find no table. There is no way back,
but to register it anew, which builds it from the first event. `everfold retire` drops only
what readers do not see.

Examples:
  everfold remove cart_totals --dry-run
  everfold --yes remove cart_totals")]
pub(crate) struct Remove {
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
struct Removed {
    projection: String,
    versions: Vec<u32>,
    waits_for: Vec<String>,
}

impl Remove {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = self.remove(global, &store).await;
        store.close().await;
        outcome
    }

    async fn remove(self, global: &Global, store: &Store) -> anyhow::Result<Outcome> {
        let parts = self.parts(store).await?;
        if in_project(global, &self.name)?.is_some() && !self.dry.dry_run {
            bail!(
                "projections/{name} is in this project, so that the next `everfold run` would register it \
                 again; take that folder away first, then remove {name}",
                name = self.name
            );
        }
        if self.dry.dry_run {
            let would = parts.iter().map(|part| format!("drop {part} for good"));
            return dry_run::tell(would.collect(), self.json);
        }
        let (listed, name) = (parts.join("\n  "), &self.name);
        let question =
            format!("  {listed}\nRemove {name}, which readers and appends use, for good?");
        if !confirm(global, &question)? {
            eprintln!("nothing was done");
            return Ok(Outcome::Done);
        }
        let Retired { versions, waits_for, .. } = store.remove_projection(name).await?;
        output::print(&Removed { projection: self.name, versions, waits_for }, self.json)?;
        Ok(Outcome::Done)
    }

    /// What there is of it, in words.
    async fn parts(&self, store: &Store) -> anyhow::Result<Vec<String>> {
        if store.is_being_removed(&self.name).await? {
            return Ok(vec![format!("what is left of {}", self.name)]);
        }
        // For its error, which suggests a name.
        store.projection(&self.name).await?;
        let rebuilds = store.rebuilds().await?;
        let is_open = |row: &RebuildProgress| row.finished_at.is_none() && row.name == self.name;
        if rebuilds.iter().any(is_open) {
            let name = &self.name;
            bail!("{name} is being rebuilt; let that end, or `everfold rebuilds cancel {name}`");
        }
        let plan = store.plan(Vec::new()).await?;
        let change = plan.changes.into_iter().find(|change| change.name == self.name);
        let Some(PlannedChange { name, from, rows, bytes, retire, .. }) = change else {
            return Ok(Vec::new());
        };
        let part = |version: u32, what: &str, rows: Option<u64>, bytes: Option<u64>| {
            let rows = rows.map(|rows| format!(", {}", count(rows, "row"))).unwrap_or_default();
            let bytes = bytes.map(|bytes| format!(", {}", HumanBytes(bytes))).unwrap_or_default();
            format!("version {version} of {name} ({what}){rows}{bytes}")
        };
        let read = from.map(|version| part(version, "which readers see", rows, bytes));
        let others = retire
            .iter()
            .map(|other| part(other.version, other.status.as_str(), other.rows, other.bytes));
        Ok(read.into_iter().chain(others).collect())
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {}", self.projection)?;
        self.waits_for.iter().try_for_each(|who| {
            write!(f, "\n  some tables are dropped later: {} may still see them", shown(who))
        })
    }
}
