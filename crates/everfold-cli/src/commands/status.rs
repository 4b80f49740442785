//! `everfold status`.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use everfold::{GenerationStatus, Position, ProjectionStatus, RebuildProgress, Store};
use serde::Serialize;

use super::rebuild;
use crate::age;
use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{Output, count, shown};
use crate::table::Table;

const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Show where projections stand: status and reason, position, lag, owners, what is owed
#[derive(Debug, Args)]
#[command(after_help = "\
BEHIND is what a projection wants and does not have yet: events, and the age of the
oldest. A version that is built beside another has a line of its own, and so has one
that is kept to go back to.

Examples:
  everfold status
  everfold status cart_totals --watch
  everfold status --json | jq '.projections[] | select(.status != \"active\")'")]
pub(crate) struct Status {
    /// Only this projection
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print it as JSON, one line each time
    #[arg(long)]
    json: bool,
}

/// All projections at one moment.
#[derive(Serialize)]
pub(crate) struct Report {
    store: String,
    namespace: String,
    high_water_mark: Position,
    projections: Vec<ProjectionStatus>,
    /// Rebuilds under way.
    rebuilds: Vec<RebuildProgress>,
}

impl Status {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let target = global.target()?;
        let store = target.open_existing().await?;
        if self.watch {
            tokio::select! {
                // First, so that it is listened for before anything is printed.
                biased;
                interrupted = tokio::signal::ctrl_c() => interrupted?,
                ended = self.watch(&store, target.namespace()) => ended?,
            }
        } else {
            let report = self.report(&store, target.namespace()).await?;
            let mut output = Output::new();
            self.print(&report, &mut output)?;
        }
        store.close().await;
        Ok(Outcome::Done)
    }

    async fn watch(&self, store: &Store, namespace: &str) -> anyhow::Result<()> {
        let mut output = Output::new();
        let terminal = std::io::stdout().is_terminal() && !self.json;
        for round in 0_u64.. {
            let report = self.report(store, namespace).await?;
            if terminal {
                console::Term::stdout().clear_screen()?;
            } else if round > 0 && !self.json {
                output.line("")?;
            }
            self.print(&report, &mut output)?;
            tokio::time::sleep(WATCH_EVERY).await;
        }
        Ok(())
    }

    async fn report(&self, store: &Store, namespace: &str) -> anyhow::Result<Report> {
        let mut projections = store.projections().await?;
        if let Some(name) = &self.name {
            if !projections.iter().any(|status| status.name == *name) {
                // For its error, which suggests a name.
                store.projection(name).await?;
            }
            projections.retain(|status| status.name == *name);
        }
        let high_water_mark = match projections.first() {
            Some(status) => status.mark,
            None => store.high_water_mark().await?,
        };
        let mut rebuilds = store.rebuilds().await?;
        rebuilds.retain(|rebuild| {
            rebuild.finished_at.is_none()
                && projections.iter().any(|status| status.name == rebuild.name)
        });
        let (store, namespace) = (store.location(), namespace.to_owned());
        Ok(Report { store, namespace, high_water_mark, projections, rebuilds })
    }

    fn print(&self, report: &Report, output: &mut Output) -> anyhow::Result<()> {
        if self.json {
            output.json(report)?;
        } else {
            output.line(report)?;
        }
        output.flush()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)?;
        if !self.namespace.is_empty() {
            write!(f, ", namespace {}", self.namespace)?;
        }
        writeln!(f, ", high-water mark {}", self.high_water_mark)?;
        if self.projections.is_empty() {
            let hint = "`everfold run` registers those of the project's folder projections";
            return write!(f, "no projections; {hint}");
        }
        let mut table = Table::new(&[
            "NAME",
            "VERSION",
            "LIFECYCLE",
            "STATUS",
            "POSITION",
            "BEHIND",
            "RATE",
            "TREND",
            "RUN BY",
        ]);
        for (index, status) in self.projections.iter().enumerate() {
            let mut lines = below(status);
            // Below the last line of its projection.
            let last = self.projections.get(index + 1).is_none_or(|next| next.name != status.name);
            let rebuild = self.rebuilds.iter().find(|rebuild| rebuild.name == status.name);
            lines.extend(rebuild.filter(|_| last).map(under_way).unwrap_or_default());
            let filled_by = rebuild.filter(|rebuild| is_filled_by(status, rebuild));
            table.row(cells(status, filled_by), lines);
        }
        write!(f, "{table}")
    }
}

/// Whether a rebuild, and no runner, feeds this.
fn is_filled_by(status: &ProjectionStatus, rebuild: &RebuildProgress) -> bool {
    status.status == GenerationStatus::Building
        && status.version == rebuild.version
        && rebuild.worker.is_some()
        && status.shards.iter().all(|shard| shard.owner.is_none())
}

fn cells(status: &ProjectionStatus, filled_by: Option<&RebuildProgress>) -> Vec<String> {
    let behind = match status.lag_events {
        0 => "-".to_owned(),
        events => format!("{} {}", count(events, "event"), age::shown(status.lag_seconds)),
    };
    let rate = match status.rate {
        rate if rate <= 0.0 => "-".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{rate:.0}/s"),
    };
    let (trend, run_by) = match filled_by {
        Some(RebuildProgress { phase, worker: Some(worker), .. }) => {
            (phase.to_string(), shown(worker))
        }
        _ => (status.trend.to_string(), owners(status)),
    };
    vec![
        status.name.clone(),
        status.version.to_string(),
        status.lifecycle.to_string(),
        status.status.to_string(),
        status.position.to_string(),
        behind,
        rate,
        trend,
        run_by,
    ]
}

/// Who runs its shards, and how many are free.
fn owners(status: &ProjectionStatus) -> String {
    let mut owners: Vec<(&str, usize)> = Vec::new();
    for shard in &status.shards {
        let name = shard.owner.as_deref().unwrap_or("nobody");
        match owners.iter_mut().find(|(known, _)| *known == name) {
            Some((_, shards)) => *shards += 1,
            None => owners.push((name, 1)),
        }
    }
    match owners.as_slice() {
        [] => "-".to_owned(),
        [("nobody", _)] => "nobody".to_owned(),
        [(name, 1)] => shown(name),
        _ => {
            let all = status.shards.len();
            let parts =
                owners.iter().map(|(name, shards)| format!("{} {shards}/{all}", shown(name)));
            parts.collect::<Vec<_>>().join(", ")
        }
    }
}

/// What needs saying about a projection: why it stands where it does, and what is owed.
fn below(status: &ProjectionStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &status.name;
    if let Some(reason) = &status.reason {
        lines.push(format!("reason: {}", shown(reason)));
    }
    if let Some(seconds) = status.seconds_left {
        lines.push(format!("caught up in about {}", age::shown(seconds)));
    }
    if status.open_skips > 0 {
        let age = status.oldest_skip_seconds.map(age::shown).unwrap_or_default();
        lines.push(format!(
            "owed: {}, the oldest for {age} (everfold skips list {name})",
            count(status.open_skips, "event")
        ));
    }
    if status.dead_letters > 0 {
        let age = status.oldest_dead_letter_seconds.map(age::shown).unwrap_or_default();
        let held = count(status.held_events, "event");
        // The list is of what readers see.
        let look = if status.active { "dead-letters list" } else { "messages" };
        lines.push(format!(
            "{} and {held} behind, the oldest for {age} (everfold {look} {name})",
            count(status.dead_letters, "dead letter")
        ));
    }
    if let Some(verified) = status.verified.as_ref().filter(|verified| verified.differences > 0) {
        let when = verified.at.strftime("%Y-%m-%dT%H:%M:%SZ");
        let rows = count(verified.differences, "row");
        lines.push(match status.active {
            true => format!(
                "drift: {rows} not as the log says, verified {when} (everfold verify {name}, everfold \
                 rebuild {name})"
            ),
            false => {
                format!("drift while readers saw it: {rows} not as the log says, verified {when}")
            }
        });
    }
    for shard in &status.shards {
        // The reason of one that has failed is the failure of a shard, with what to do.
        let told = |failure: &String| {
            status.reason.as_ref().is_some_and(|reason| reason.contains(failure.as_str()))
        };
        if let Some(failure) = shard.failure.as_ref().filter(|failure| !told(failure)) {
            let (number, tries) = (shard.shard, count(shard.attempts.into(), "try"));
            lines.push(format!("shard {number} failed, {tries}: {}", shown(failure)));
        }
    }
    lines
}

/// An open rebuild: how it gets on, and what it waits for.
fn under_way(rebuild: &RebuildProgress) -> Vec<String> {
    let RebuildProgress { name, version, kind, .. } = rebuild;
    let worker = match &rebuild.worker {
        Some(worker) => format!("run by {}", shown(worker)),
        None => format!("nobody works on it: `everfold rebuild {name}` goes on"),
    };
    let line = rebuild::line(rebuild);
    let mut lines = vec![format!("rebuild to version {version} ({kind}): {line}; {worker}")];
    lines.extend(rebuild.message.as_deref().map(|message| format!("rebuild: {}", shown(message))));
    lines
}
