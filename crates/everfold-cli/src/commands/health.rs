//! `everfold health`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use console::Style;
use everfold::{HealthOptions, HealthProblem, Severity};
use serde::Serialize;

use crate::age;
use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{self, shown};

/// Check projections: lag, failures, stalls, old dead letters and skips, a frozen mark
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 3 if there is a problem; a warning alone (lag_warn) is none. The thresholds
for lag are those of each projection.toml: lag_warn and lag_fail.

Examples:
  everfold health
  everfold health --json | jq -r '.problems[].message'
  everfold health --dead-letter-age 10m --stalled-after 30s")]
pub(crate) struct Health {
    #[command(flatten)]
    thresholds: Thresholds,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// From when on something is a problem: the same for `health` and `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Thresholds {
    /// A read model that is behind by more than this is a problem, whatever its lag_fail says
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    stale: Option<Duration>,
    /// A dead letter older than this is a problem [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    dead_letter_age: Option<Duration>,
    /// An event that is owed for longer than this is a problem [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    skip_age: Option<Duration>,
    /// Work to do and no movement for this long is a problem [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    stalled_after: Option<Duration>,
    /// An append that holds the high-water mark for this long is a problem [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    mark_held_for: Option<Duration>,
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    problems: Vec<HealthProblem>,
}

impl Health {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let store = global.target()?.open_existing().await?;
        let problems = store.health(&self.thresholds.options()).await?;
        store.close().await;
        let healthy = problems.iter().all(|problem| problem.severity < Severity::Problem);
        output::print(&Report { healthy, problems }, self.json)?;
        Ok(if healthy { Outcome::Done } else { Outcome::Unhealthy })
    }
}

impl Thresholds {
    pub(crate) fn options(&self) -> HealthOptions {
        let mut options = HealthOptions::default();
        options.stale = self.stale;
        for (given, option) in [
            (self.dead_letter_age, &mut options.dead_letter_age),
            (self.skip_age, &mut options.skip_age),
            (self.stalled_after, &mut options.stalled_after),
            (self.mark_held_for, &mut options.mark_held_for),
        ] {
            if let Some(given) = given {
                *option = given;
            }
        }
        options
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.problems.is_empty() {
            return f.write_str("healthy");
        }
        for (index, problem) in self.problems.iter().enumerate() {
            let (word, style) = match problem.severity {
                Severity::Problem => ("problem", Style::new().red().bold()),
                _ => ("warning", Style::new().yellow()),
            };
            let about = problem.projection.as_deref().unwrap_or("the store");
            let end = if index == 0 { "" } else { "\n" };
            let message = shown(&problem.message);
            write!(f, "{end}{}  {about}  {}: {message}", style.apply_to(word), problem.check)?;
        }
        Ok(())
    }
}
