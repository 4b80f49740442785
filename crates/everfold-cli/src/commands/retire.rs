//! `everfold retire`.

use std::fmt;

use clap::Args;
use everfold::{Retired, Store};
use indicatif::HumanBytes;
use serde::Serialize;

use crate::cli::Global;
use crate::confirm::confirm;
use crate::dry_run::{self, DryRun};
use crate::failure::Outcome;
use crate::output::{self, count, shown};

/// Drop the versions of a projection that readers do not see
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing that readers see is touched, and nothing that is being built. There is no way
back to what was dropped, but to build it again. Tables that a transaction may still
see are dropped later, by a runner.

Examples:
  everfold retire cart_totals --dry-run
  everfold --yes retire cart_totals")]
pub(crate) struct Retire {
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
struct Dropped {
    projection: String,
    /// The version that readers go on seeing.
    #[serde(skip)]
    seen: Option<u32>,
    versions: Vec<u32>,
    waits_for: Vec<String>,
}

impl Retire {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let outcome = self.retire(global, &store).await;
        store.close().await;
        outcome
    }

    async fn retire(self, global: &Global, store: &Store) -> anyhow::Result<Outcome> {
        let status = store.projection(&self.name).await?;
        let versions = self.versions(store).await?;
        if self.dry.dry_run {
            let name = &self.name;
            let would = versions.iter().map(|version| format!("drop {version} of {name} for good"));
            return dry_run::tell(would.collect(), self.json);
        }
        if !versions.is_empty() && !confirm(global, &self.question(&versions))? {
            eprintln!("nothing was done");
            return Ok(Outcome::Done);
        }
        let Retired { versions, waits_for, .. } = store.retire(&self.name).await?;
        let seen = status.active.then_some(status.version);
        let dropped = Dropped { projection: self.name, seen, versions, waits_for };
        output::print(&dropped, self.json)?;
        Ok(Outcome::Done)
    }

    /// What would be dropped, in words.
    async fn versions(&self, store: &Store) -> anyhow::Result<Vec<String>> {
        let plan = store.plan(Vec::new()).await?;
        let change = plan.changes.into_iter().find(|change| change.name == self.name);
        let retire = change.map(|change| change.retire).unwrap_or_default();
        let lines = retire.iter().map(|retirable| {
            let rows = retirable.rows.map(|rows| format!(", {}", count(rows, "row")));
            let bytes = retirable.bytes.map(|bytes| format!(", {}", HumanBytes(bytes)));
            let (version, status) = (retirable.version, retirable.status);
            let (rows, bytes) = (rows.unwrap_or_default(), bytes.unwrap_or_default());
            format!("version {version} ({status}){rows}{bytes}")
        });
        Ok(lines.collect())
    }

    fn question(&self, versions: &[String]) -> String {
        let (versions, name) = (versions.join("\n  "), &self.name);
        format!("  {versions}\nDrop what readers do not see of {name} for good?")
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dropped { projection, seen, versions, waits_for } = self;
        let others: Vec<u32> = versions.iter().copied().filter(|v| Some(*v) != *seen).collect();
        match others.as_slice() {
            [] if versions.is_empty() => {
                write!(f, "retired what readers do not see of {projection}")?;
            }
            [] => write!(f, "dropped what readers do not see of {projection}")?,
            [version] => write!(f, "dropped version {version} of {projection}")?,
            others => {
                let others: Vec<String> = others.iter().map(u32::to_string).collect();
                write!(f, "dropped versions {} of {projection}", others.join(", "))?;
            }
        }
        if let Some(seen) = seen.filter(|seen| versions.contains(seen)) {
            write!(f, "\n  builds of version {seen} too, other than the one that readers see")?;
        }
        waits_for.iter().try_for_each(|who| {
            write!(f, "\n  some tables are dropped later: {} may still see them", shown(who))
        })
    }
}
