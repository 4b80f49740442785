//! What is wrong with projections, by thresholds.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::definition::Lifecycle;
use super::generation::GenerationStatus;
use super::status::{ProjectionStatus, Trend, counted};
use crate::diagnosis::{Finding, MarkHolder, Severity};
use crate::error::ProjectionError;
use crate::rebuild::{RebuildPhase, RebuildProgress};
use crate::store::Store;

/// When something counts as a problem. What a projection's own settings say comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthOptions {
    /// A dead letter older than this: 1 h.
    pub dead_letter_age: Duration,
    /// An open skip older than this: 1 h.
    pub skip_age: Duration,
    /// Work to do, and no worker or no movement for this long: 60 s.
    pub stalled_after: Duration,
    /// An append that has held the mark for this long: 60 s.
    pub mark_held_for: Duration,
}

impl Default for HealthOptions {
    fn default() -> Self {
        HealthOptions {
            dead_letter_age: Duration::from_secs(60 * 60),
            skip_age: Duration::from_secs(60 * 60),
            stalled_after: Duration::from_secs(60),
            mark_held_for: Duration::from_secs(60),
        }
    }
}

/// Something that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HealthProblem {
    /// The projection; `None` if it is the store.
    pub projection: Option<String>,
    /// What, in one word: `failed`, `paused`, `building`, `lag`, `stalled`, `dead-letters`, `skips`,
    /// `drift`, `rebuild`, `mark`.
    pub check: &'static str,
    /// Whether it fails or only warns.
    pub severity: Severity,
    /// In words, with what to do.
    pub message: String,
}

impl Store {
    /// What is wrong with the projections of this handle's namespace, each with what to do; empty if
    /// nothing is. That is for alerts, as `everfold health` is: [`Store::diagnose`] looks at more.
    ///
    /// ```
    /// use everfold::{HealthOptions, Severity};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// assert!(store.health(&HealthOptions::default()).await?.is_empty());
    ///
    /// store.pause("carts").await?;
    /// let problems = store.health(&HealthOptions::default()).await?;
    /// assert_eq!((problems[0].check, problems[0].severity), ("paused", Severity::Warning));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Store`] if the database refuses or cannot be reached.
    pub async fn health(
        &self,
        options: &HealthOptions,
    ) -> Result<Vec<HealthProblem>, ProjectionError> {
        let mut problems = Vec::new();
        let projections = self.projections().await?;
        let rebuilds = self.rebuilds().await?;
        check_projections(&projections, &rebuilds, options, &mut problems);
        problems.extend(rebuilds.iter().filter_map(check_rebuild));
        // Whoever reads events waits for the mark, also where there are no projections.
        let heads = self.backend().heads().await?;
        if heads.mark < heads.highest {
            let diagnosis = self.backend().diagnose().await?;
            if let Some(holder) = diagnosis.holders.first() {
                problems.extend(check_mark(holder, options));
            }
        }
        Ok(problems)
    }
}

impl Store {
    /// What `doctor` says about projections.
    pub(crate) async fn projection_findings(&self) -> Vec<Finding> {
        let check = "projections";
        let projections = match self.projections().await {
            Ok(projections) => projections,
            Err(error) => {
                let message = format!("they cannot be read: {error}");
                let hint = "look again as a member of everfold_admin";
                return vec![Finding::warning(check, message, hint)];
            }
        };
        let mut problems = Vec::new();
        let rebuilds = self.rebuilds().await.unwrap_or_default();
        check_projections(&projections, &rebuilds, &HealthOptions::default(), &mut problems);
        problems.extend(rebuilds.iter().filter_map(check_rebuild));
        if problems.is_empty() {
            let names: BTreeSet<&str> = projections.iter().map(|status| &*status.name).collect();
            let message = match names.len() {
                0 => "none are registered".to_owned(),
                count => format!("{count} registered, nothing is wrong with them"),
            };
            return vec![Finding::ok(check, message)];
        }
        problems.iter().map(|problem| problem.finding(check)).collect()
    }
}

impl HealthProblem {
    fn finding(&self, check: &'static str) -> Finding {
        let name = self.projection.as_deref().unwrap_or_default();
        let message = format!("{name}, {}: {}", self.check, self.message);
        let hint = match self.check {
            "dead-letters" => format!("`everfold dead-letters list {name}`"),
            "skips" => format!("`everfold skips list {name}`"),
            "rebuild" => format!("`everfold rebuilds {name}`"),
            "drift" => format!("`everfold verify {name}`"),
            _ => format!("`everfold status {name}`"),
        };
        match self.severity {
            Severity::Problem => Finding::problem(check, message, hint),
            _ => Finding::warning(check, message, hint),
        }
    }
}

fn check_projections(
    all: &[ProjectionStatus],
    rebuilds: &[RebuildProgress],
    options: &HealthOptions,
    problems: &mut Vec<HealthProblem>,
) {
    for status in all {
        let ProjectionStatus { name, version, .. } = status;
        let is_read = all.iter().any(|other| other.name == *name && other.active);
        if status.status != GenerationStatus::Building
            || (is_read && status.lifecycle == Lifecycle::CatchUp)
        {
            check_projection(status, options, problems);
            continue;
        }
        // The newest is first.
        let fill = rebuilds.iter().find(|row| row.name == *name && row.version == *version);
        let failed = fill.is_some_and(|fill| !is_read && fill.phase == RebuildPhase::Failed);
        let severity = if failed { Severity::Problem } else { Severity::Warning };
        let reason = status.reason.as_deref().unwrap_or("it waits for its backfill");
        let message = format!("it cannot be read yet: {reason}");
        let (projection, check) = (Some(name.clone()), "building");
        problems.push(HealthProblem { projection, check, severity, message });
    }
}

fn check_projection(
    status: &ProjectionStatus,
    options: &HealthOptions,
    problems: &mut Vec<HealthProblem>,
) {
    let mut add = |check, severity, message| {
        let projection = Some(status.name.clone());
        problems.push(HealthProblem { projection, check, severity, message });
    };
    if status.status == GenerationStatus::Failed {
        let reason = status.reason.as_deref().unwrap_or("no reason was given");
        add("failed", Severity::Problem, reason.to_owned());
    }
    let ahead = status.shards.iter().any(|shard| shard.position > status.highest);
    if ahead && status.lifecycle == Lifecycle::CatchUp && status.status != GenerationStatus::Failed
    {
        let reason =
            status.reason.as_deref().unwrap_or("its checkpoint is past the end of the log");
        add("checkpoint", Severity::Problem, reason.to_owned());
    }
    if status.status == GenerationStatus::Paused {
        let reason = status.reason.as_deref().unwrap_or("it is paused");
        let message = format!("{reason}; `everfold resume {}` goes on with it", status.name);
        add("paused", Severity::Warning, message);
    }
    let lag = counted(status.lag_events, "event");
    let lag = format!("{:.0} s and {lag} behind", status.lag_seconds);
    if status.lag_fail_seconds.is_some_and(|max| status.lag_seconds > max) {
        add("lag", Severity::Problem, format!("{lag}, more than lag_fail allows"));
    } else if status.lag_warn_seconds.is_some_and(|max| status.lag_seconds > max) {
        add("lag", Severity::Warning, format!("{lag}, more than lag_warn allows"));
    }
    if let Some(message) = stalled(status, options) {
        add("stalled", Severity::Problem, format!("{lag}, {message}"));
    }
    let old = |age: Option<f64>, max: Duration| age.filter(|age| *age > max.as_secs_f64());
    if let Some(age) = old(status.oldest_dead_letter_seconds, options.dead_letter_age) {
        let message = format!(
            "{}, the oldest for {age:.0} s, and {} behind; look at `everfold dead-letters list {name}`, \
             then retry or discard",
            counted(status.dead_letters, "dead letter"),
            counted(status.held_events, "event"),
            name = status.name
        );
        add("dead-letters", Severity::Problem, message);
    }
    if let Some(age) = old(status.oldest_skip_seconds, options.skip_age) {
        let verb = if status.open_skips == 1 { "is" } else { "are" };
        let advice = match status.status {
            GenerationStatus::Paused | GenerationStatus::Failed => {
                format!("it is {}: `everfold resume {}`", status.status, status.name)
            }
            _ => "start a runner that carries this projection (`everfold run`)".to_owned(),
        };
        let message = format!(
            "{} {verb} owed, the oldest for {age:.0} s; {advice}",
            counted(status.open_skips, "event")
        );
        add("skips", Severity::Problem, message);
    }
    // What readers do not see any more is nobody's trouble.
    let verified = status.verified.as_ref().filter(|_| status.active);
    if let Some(verified) = verified.filter(|verified| verified.differences > 0) {
        let message = format!(
            "{} not as the log says, by the verification of {}; `everfold rebuild {name}` builds it \
             again, `everfold verify {name}` looks again",
            counted(verified.differences, "row"),
            verified.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            name = status.name
        );
        add("drift", Severity::Problem, message);
    }
}

/// A rebuild that stands still because nobody works on it, or because an operator wants it to.
fn check_rebuild(rebuild: &RebuildProgress) -> Option<HealthProblem> {
    let RebuildProgress { name, version, phase, .. } = rebuild;
    let (severity, message) = match (rebuild.finished_at, &rebuild.worker) {
        (Some(_), _) => return None,
        (None, _) if rebuild.paused => (
            Severity::Warning,
            format!("its rebuild is paused; `everfold rebuilds resume {name}` goes on with it"),
        ),
        (None, Some(_)) => return None,
        (None, None) => (
            Severity::Problem,
            format!(
                "its rebuild to version {version} is {phase}, and nobody works on it; `everfold rebuild \
                 {name}` goes on with it, and so does a runner that carries it (`everfold run`)"
            ),
        ),
    };
    Some(HealthProblem { projection: Some(name.clone()), check: "rebuild", severity, message })
}

/// Why a projection with work to do does not do it, if that is so.
fn stalled(status: &ProjectionStatus, options: &HealthOptions) -> Option<&'static str> {
    use GenerationStatus::{Active, Building};
    let runs = matches!(status.status, Active | Building);
    let waits = status.lag_events > 0;
    if !runs || !waits || status.lag_seconds < options.stalled_after.as_secs_f64() {
        return None;
    }
    if status.shards.iter().any(|shard| shard.owner.is_none()) {
        return Some("and nobody runs it; start a runner that carries it (`everfold run`)");
    }
    (status.trend == Trend::Standing).then_some(
        "and it does not move; `everfold status` shows the last failure, `everfold doctor` who holds \
         the mark",
    )
}

fn check_mark(holder: &MarkHolder, options: &HealthOptions) -> Option<HealthProblem> {
    let seconds = holder.seconds.filter(|held| *held > options.mark_held_for.as_secs_f64())?;
    let who = match (&holder.prepared, holder.pid) {
        (Some(name), _) => format!("the prepared transaction \"{name}\""),
        (None, Some(pid)) => format!("the session with pid {pid}"),
        (None, None) => "a transaction".to_owned(),
    };
    let message = format!(
        "the high-water mark stands still: {who} has held it for {seconds:.0} s; `everfold doctor` \
         says more"
    );
    Some(HealthProblem { projection: None, check: "mark", severity: Severity::Problem, message })
}
