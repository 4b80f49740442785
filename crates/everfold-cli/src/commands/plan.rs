//! `everfold plan`.

use std::fmt;

use clap::Args;
use everfold::{
    GenerationStatus, Plan, PlannedAction, PlannedChange, Projection, Retirable, Store,
};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::rebuild::line;
use crate::age;
use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{self, count, shown};
use crate::table::Table;

/// Show what would happen to the project's projections, and what it would take
///
/// Nothing is changed: what is new is created by `everfold run` or `everfold rebuild`, what has a new
/// version is built beside the old one by `everfold rebuild`.
#[derive(Debug, Args)]
#[command(
    name = "plan",
    after_help = "\
Figures with ~ are estimates: events from the planner's statistics where there are many,
times from the last rebuild of the projection, or from a rate that is named. Exits with 3
if a projection would be refused: it was changed without raising its version, or a newer
one is registered.

Examples:
  everfold plan
  everfold plan --json | jq '.changes[] | select(.action == \"rebuild-beside\")'"
)]
pub(crate) struct PlanCommand {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    store: String,
    #[serde(flatten)]
    plan: Plan,
}

impl PlanCommand {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let projections = Projection::load_all(global.folder())?;
        let store = global.target()?.open_existing().await?;
        let plan = store.plan(projections).await;
        let outcome = plan.map_err(Into::into).and_then(|plan| tell(&store, plan, self.json));
        store.close().await;
        outcome
    }
}

/// Prints a plan. It is unhealthy if something would be refused.
pub(super) fn tell(store: &Store, plan: Plan, json: bool) -> anyhow::Result<Outcome> {
    let refused = plan.changes.iter().any(|change| change.action.is_refused());
    output::print(&Report { store: store.location(), plan }, json)?;
    Ok(if refused { Outcome::Unhealthy } else { Outcome::Done })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.store)?;
        if self.plan.changes.is_empty() {
            return write!(f, "no projections, neither in the project nor in the store");
        }
        let mut table =
            Table::new(&["NAME", "VERSION", "ACTION", "EVENTS", "TIME", "ROWS NOW", "DISK NOW"]);
        for change in &self.plan.changes {
            table.row(cells(change), below(change));
        }
        write!(f, "{table}")
    }
}

fn cells(change: &PlannedChange) -> Vec<String> {
    let version = match (change.from, change.to) {
        (Some(from), Some(to)) if from != to => format!("{from} -> {to}"),
        (from, to) => to.or(from).map_or_else(|| "-".to_owned(), |version| version.to_string()),
    };
    let about = if change.events_exact { "" } else { "~" };
    let events = change.events.map(|events| format!("{about}{}", HumanCount(events)));
    let time = change.seconds.map(|seconds| format!("~{}", age::shown(seconds)));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        change.name.clone(),
        version,
        change.action.to_string(),
        or_dash(events),
        or_dash(time),
        or_dash(change.rows.map(|rows| HumanCount(rows).to_string())),
        or_dash(change.bytes.map(|bytes| HumanBytes(bytes).to_string())),
    ]
}

fn below(change: &PlannedChange) -> Vec<String> {
    let mut lines = Vec::new();
    if change.action != PlannedAction::Nothing || change.command.is_some() {
        lines.push(shown(&change.message));
    }
    if let Some(rate) = change.events_per_second.filter(|_| change.events > Some(0)) {
        let rate = HumanCount(rate as u64);
        lines.push(match change.rate_measured {
            true => format!("time: at {rate} events/s, as its last rebuild"),
            false => format!("time: at an assumed {rate} events/s"),
        });
    }
    if let (PlannedAction::RebuildBeside, Some(bytes)) = (change.action, change.bytes) {
        lines.push(format!("disk: about {} more while there are two", HumanBytes(bytes)));
    }
    lines.extend(change.no_way_back.iter().map(|told| format!("no way back: {}", shown(told))));
    if let Some(rebuild) = &change.rebuild {
        lines.push(format!("under way: {}", line(rebuild)));
    }
    if let Some(command) = &change.command {
        lines.push(format!("run: {command}"));
    }
    // The version that is to come is not worth dropping.
    let is_next = |retirable: &&Retirable| {
        retirable.status == GenerationStatus::Building && Some(retirable.version) == change.to
    };
    let retirable = change.retire.iter().filter(|retirable| !is_next(retirable));
    lines.extend(retirable.map(|retirable| retire(&change.name, retirable)));
    lines
}

fn retire(name: &str, retirable: &Retirable) -> String {
    let Retirable { version, status, .. } = retirable;
    let rows = retirable.rows.map(|rows| count(rows, "row"));
    let bytes = retirable.bytes.map(|bytes| HumanBytes(bytes).to_string());
    let size: Vec<String> = rows.into_iter().chain(bytes).collect();
    format!("`everfold retire {name}` would drop version {version} ({status}): {}", size.join(", "))
}
