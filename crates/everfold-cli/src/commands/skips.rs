//! `everfold skips`.

use clap::{Args, Subcommand};
use everfold::Skip;
use serde::Serialize;

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{Output, shown};
use crate::table::Table;

/// Look at what inline projections owe
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  everfold skips list
  everfold skips list cart_totals --json")]
pub(crate) enum Skips {
    List(List),
}

/// List events that an append passed over, and that a runner will apply
#[derive(Debug, Args)]
#[command(after_help = "\
They are applied by `everfold run`, in order, as soon as the projection is not paused
or failed any more. With --json there is one line for each.

Examples:
  everfold skips list
  everfold skips list cart_totals
  everfold skips list --json | jq -r .reason | sort | uniq -c")]
pub(crate) struct List {
    /// Only of this projection
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print them as JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Owed<'a> {
    projection: &'a str,
    #[serde(flatten)]
    skip: &'a Skip,
}

impl Skips {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        match self {
            Skips::List(command) => command.run(global).await,
        }
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let names = super::names_or_all(&store, self.name).await?;
        let mut output = Output::new();
        let mut table = Table::new(&["PROJECTION", "POSITION", "KEY", "SINCE", "REASON"]);
        let mut found = false;
        for projection in &names {
            for skip in &store.skips(projection).await? {
                found = true;
                if self.json {
                    output.json(&Owed { projection, skip })?;
                    continue;
                }
                let since = skip.skipped_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let (position, reason) = (skip.position.to_string(), shown(&skip.reason));
                let cells = vec![projection.clone(), position, shown(&skip.key), since, reason];
                table.row(cells, Vec::new());
            }
        }
        store.close().await;
        match (self.json, found) {
            (true, _) => {}
            (false, true) => output.line(table)?,
            (false, false) => output.line("nothing is owed")?,
        }
        output.flush()?;
        Ok(Outcome::Done)
    }
}
