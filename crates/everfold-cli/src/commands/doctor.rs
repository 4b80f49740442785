//! `everfold doctor`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use console::{Style, style};
use everfold::{Diagnosis, Finding, HealthOptions, MarkHolder, OpenError, Severity};
use serde::Serialize;

use super::health::Thresholds;
use crate::age;
use crate::cli::Global;
use crate::failure::{Outcome, describe};
use crate::output::{self, count, shown};
use crate::project::{Origin, Target};

/// Say what is wrong with the store and its projections, who causes it, and what to run next
#[derive(Debug, Args)]
#[command(after_help = "\
Problems come first, then warnings, each with the command or statement that helps.
Exits with 3 if there is a problem; warnings alone are none. Nothing is changed, and
no history is read.

Examples:
  everfold doctor
  everfold doctor --stale 30s
  everfold doctor --url postgres://app@db/shop
  everfold doctor --json | jq '.findings[] | select(.severity != \"ok\")'")]
pub(crate) struct Doctor {
    #[command(flatten)]
    thresholds: Thresholds,
    /// Warn of transactions that have been open for longer than this [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = age::parse)]
    transaction_age: Option<Duration>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let target = global.target()?;
        match look(&target, &self.options()).await {
            Ok(diagnosis) => {
                let healthy = diagnosis.severity() < Severity::Problem;
                output::print(&Report { store: Place::of(&target), diagnosis }, self.json)?;
                Ok(if healthy { Outcome::Done } else { Outcome::Unhealthy })
            }
            Err(error) => {
                let text = describe(error.as_ref());
                let report = NotOpened { store: Place::of(&target), error: text.clone() };
                output::print(&report, self.json)?;
                eprintln!("error: {text}");
                let unsafe_store = matches!(error.downcast_ref(), Some(OpenError::Unsafe { .. }));
                Ok(if unsafe_store { Outcome::Unhealthy } else { Outcome::Failed })
            }
        }
    }

    fn options(&self) -> HealthOptions {
        let mut options = self.thresholds.options();
        if let Some(age) = self.transaction_age {
            options.transaction_age = age;
        }
        options
    }
}

async fn look(target: &Target, options: &HealthOptions) -> anyhow::Result<Diagnosis> {
    let store = target.open_existing().await?;
    let diagnosis = store.diagnose_with(options).await?;
    store.close().await;
    Ok(diagnosis)
}

/// Which store, and why this one.
#[derive(Serialize)]
struct Place {
    location: String,
    named_by: String,
}

impl Place {
    fn of(target: &Target) -> Place {
        let named_by = match target.origin() {
            Origin::Option => "--url".to_owned(),
            Origin::Variable => "EVERFOLD_URL".to_owned(),
            Origin::File(file) => file.display().to_string(),
            Origin::Default => "default".to_owned(),
        };
        Place { location: target.location(), named_by }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store            {} (named by {})", self.location, self.named_by)
    }
}

#[derive(Serialize)]
struct NotOpened {
    store: Place,
    error: String,
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.store)?;
        write!(f, "everfold         {}", env!("CARGO_PKG_VERSION"))
    }
}

#[derive(Serialize)]
struct Report {
    store: Place,
    #[serde(flatten)]
    diagnosis: Diagnosis,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diagnosis = &self.diagnosis;
        writeln!(f, "{}", self.store)?;
        writeln!(f, "version          {}", diagnosis.version)?;
        match diagnosis.high_water_mark {
            Some(mark) => writeln!(f, "high-water mark  {mark}")?,
            None => writeln!(f, "high-water mark  unknown")?,
        }
        writeln!(f, "last position    {}", diagnosis.last_position)?;
        let width = diagnosis.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        // What is wrong stands first; otherwise in the order in which it was looked at.
        for severity in [Severity::Problem, Severity::Warning, Severity::Ok] {
            let found = diagnosis.findings.iter().filter(|finding| finding.severity == severity);
            found.into_iter().try_for_each(|finding| write_finding(f, finding, width))?;
        }
        match diagnosis.holders.as_slice() {
            [] => write!(f, "\n\nnothing holds the high-water mark")?,
            holders => {
                write!(f, "\n\nthe high-water mark waits for")?;
                holders.iter().try_for_each(|holder| write_holder(f, holder))?;
            }
        }
        write!(f, "\n\n{}", summary(diagnosis))
    }
}

/// `1 problem, 2 warnings, 20 ok`.
fn summary(diagnosis: &Diagnosis) -> String {
    let of = |severity| diagnosis.count(severity) as u64;
    format!(
        "{}, {}, {} ok",
        count(of(Severity::Problem), "problem"),
        count(of(Severity::Warning), "warning"),
        of(Severity::Ok)
    )
}

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding, width: usize) -> fmt::Result {
    let (word, style) = match finding.severity {
        Severity::Ok => ("ok     ", Style::new().green()),
        Severity::Warning => ("warning", Style::new().yellow()),
        Severity::Problem => ("problem", Style::new().red().bold()),
    };
    write!(f, "\n{}  {:width$}  {}", style.apply_to(word), finding.check, shown(&finding.message))?;
    match &finding.hint {
        Some(hint) => write!(f, "\n         {:width$}  -> {}", "", shown(hint)),
        None => Ok(()),
    }
}

/// Who it is, what it does and since when, and what it last asked.
fn write_holder(f: &mut fmt::Formatter<'_>, holder: &MarkHolder) -> fmt::Result {
    let who = match (holder.pid, &holder.prepared) {
        (_, Some(name)) => format!("prepared transaction \"{}\"", shown(name)),
        (Some(pid), None) => format!("pid {pid}"),
        (None, None) => "an unknown session".to_owned(),
    };
    write!(f, "\n  {}", style(who).bold())?;
    let about =
        [("application", &holder.application), ("user", &holder.user), ("client", &holder.client)];
    for (name, value) in about {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            write!(f, ", {name} {}", shown(value))?;
        }
    }
    write!(f, "\n    holds it at {}", holder.holds_at)?;
    if let Some(state) = &holder.state {
        write!(f, ", {}", shown(state))?;
    }
    if let Some(since) = holder.since {
        write!(f, ", since {}", since.strftime("%Y-%m-%dT%H:%M:%SZ"))?;
    }
    if let Some(seconds) = holder.seconds {
        write!(f, " ({seconds:.1} s)")?;
    }
    match &holder.query {
        Some(query) => write!(f, "\n    query: {}", shown(query)),
        None => Ok(()),
    }
}
