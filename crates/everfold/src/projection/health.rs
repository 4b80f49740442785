//! What is wrong with projections, by thresholds.

use std::time::Duration;

use serde::Serialize;

use super::definition::Lifecycle;
use super::generation::GenerationStatus;
use super::status::{ProjectionStatus, Trend, counted};
use crate::diagnosis::{MarkHolder, Severity};
use crate::error::ProjectionError;
use crate::rebuild::replay::is_as_of;
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
    /// An append that has held the mark for this long; in a diagnosis, any transaction that others wait
    /// for: 60 s.
    pub mark_held_for: Duration,
    /// A projection that is behind by more than this, whatever its own settings say: none.
    pub stale: Option<Duration>,
    /// A transaction that has been open for longer than this; only a diagnosis looks at it, and warns:
    /// 5 min.
    pub transaction_age: Duration,
}

impl Default for HealthOptions {
    fn default() -> Self {
        HealthOptions {
            dead_letter_age: Duration::from_secs(60 * 60),
            skip_age: Duration::from_secs(60 * 60),
            stalled_after: Duration::from_secs(60),
            mark_held_for: Duration::from_secs(60),
            stale: None,
            transaction_age: Duration::from_secs(5 * 60),
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
    /// The command to run next.
    pub next: String,
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
            let holders = self.backend().mark_holders().await?;
            problems.extend(holders.first().and_then(|holder| check_mark(holder, options)));
        }
        Ok(problems)
    }
}

pub(super) fn check_projections(
    all: &[ProjectionStatus],
    rebuilds: &[RebuildProgress],
    options: &HealthOptions,
    problems: &mut Vec<HealthProblem>,
) {
    for status in all {
        let ProjectionStatus { name, version, .. } = status;
        if is_as_of(status.reason.as_deref()) {
            // Somebody had a look at what was; nothing is wrong with that.
            continue;
        }
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
        let next = match fill {
            Some(_) => format!("everfold rebuilds {name}"),
            None => format!("everfold rebuild {name}"),
        };
        let (projection, check) = (Some(name.clone()), "building");
        problems.push(HealthProblem { projection, check, severity, message, next });
    }
}

fn check_projection(
    status: &ProjectionStatus,
    options: &HealthOptions,
    problems: &mut Vec<HealthProblem>,
) {
    let name = &status.name;
    let mut add = |check, severity, message, next| {
        let projection = Some(name.clone());
        problems.push(HealthProblem { projection, check, severity, message, next });
    };
    if status.status == GenerationStatus::Failed {
        let reason = status.reason.as_deref().unwrap_or("no reason was given");
        add("failed", Severity::Problem, reason.to_owned(), after_failure(status));
    }
    let ahead = status.shards.iter().any(|shard| shard.position > status.highest);
    if ahead && status.lifecycle == Lifecycle::CatchUp && status.status != GenerationStatus::Failed
    {
        let reason =
            status.reason.as_deref().unwrap_or("its checkpoint is past the end of the log");
        add("checkpoint", Severity::Problem, reason.to_owned(), format!("everfold rebuild {name}"));
    }
    if status.status == GenerationStatus::Paused {
        let reason = status.reason.as_deref().unwrap_or("it is paused");
        let message = format!("{reason}; `everfold resume {name}` goes on with it");
        add("paused", Severity::Warning, message, format!("everfold resume {name}"));
    }
    let lag = lag(status);
    if let Some((severity, limit)) = beyond(status, options) {
        add("lag", severity, format!("{lag}, more than {limit} allows"), to_catch_up(status));
    }
    if let Some(message) = stalled(status, options) {
        add("stalled", Severity::Problem, format!("{lag}, {message}"), to_catch_up(status));
    }
    let old = |age: Option<f64>, max: Duration| age.filter(|age| *age > max.as_secs_f64());
    if let Some(age) = old(status.oldest_dead_letter_seconds, options.dead_letter_age) {
        let message = format!(
            "{}, the oldest for {age:.0} s, and {} behind; look at `everfold dead-letters list {name}`, \
             then retry or discard",
            counted(status.dead_letters, "dead letter"),
            counted(status.held_events, "event"),
        );
        add(
            "dead-letters",
            Severity::Problem,
            message,
            format!("everfold dead-letters list {name}"),
        );
    }
    if let Some(age) = old(status.oldest_skip_seconds, options.skip_age) {
        let verb = if status.open_skips == 1 { "is" } else { "are" };
        let advice = match status.status {
            GenerationStatus::Paused | GenerationStatus::Failed => {
                format!("it is {}: `everfold resume {name}`", status.status)
            }
            _ => "start a runner that carries this projection (`everfold run`)".to_owned(),
        };
        let message = format!(
            "{} {verb} owed, the oldest for {age:.0} s; {advice}",
            counted(status.open_skips, "event")
        );
        add("skips", Severity::Problem, message, to_settle(status));
    }
    // What readers do not see any more is nobody's trouble.
    let verified = status.verified.as_ref().filter(|_| status.active);
    if let Some(verified) = verified.filter(|verified| verified.differences > 0) {
        let message = format!(
            "{} not as the log says, by the verification of {}; `everfold rebuild {name}` builds it \
             again, `everfold verify {name}` looks again",
            counted(verified.differences, "row"),
            verified.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        );
        add("drift", Severity::Problem, message, format!("everfold rebuild {name}"));
    }
}

/// Events behind are counted up to here.
const COUNTED_MAX: u64 = 10_000;

/// `12 s and 3 events behind`.
pub(super) fn lag(status: &ProjectionStatus) -> String {
    let events = match status.lag_events {
        COUNTED_MAX.. => format!("{COUNTED_MAX} or more events"),
        events => counted(events, "event"),
    };
    format!("{:.0} s and {events} behind", status.lag_seconds)
}

/// The limit that its lag is beyond.
fn beyond(status: &ProjectionStatus, options: &HealthOptions) -> Option<(Severity, &'static str)> {
    let over = |max: Option<f64>| max.is_some_and(|max| status.lag_seconds > max);
    if over(status.lag_fail_seconds) {
        Some((Severity::Problem, "lag_fail"))
    } else if over(options.stale.map(|stale| stale.as_secs_f64())) {
        Some((Severity::Problem, "--stale"))
    } else {
        over(status.lag_warn_seconds).then_some((Severity::Warning, "lag_warn"))
    }
}

/// The next command where a projection has failed. Its reason has the event, the file and the line.
fn after_failure(status: &ProjectionStatus) -> String {
    let name = &status.name;
    match status.reason.as_deref() {
        Some(reason) if reason.contains(&format!("`everfold rebuild {name}`")) => {
            format!("everfold rebuild {name}")
        }
        _ => format!("everfold resume {name}"),
    }
}

/// The next command where events are missing.
pub(super) fn to_catch_up(status: &ProjectionStatus) -> String {
    use GenerationStatus::{Failed, Paused};
    let name = &status.name;
    match status.status {
        Paused | Failed => format!("everfold resume {name}"),
        _ if status.lifecycle == Lifecycle::Inline => to_settle(status),
        _ if is_run(status) => format!("everfold status {name}"),
        _ => "everfold run".to_owned(),
    }
}

/// The next command where an inline projection owes events.
pub(super) fn to_settle(status: &ProjectionStatus) -> String {
    use GenerationStatus::{Failed, Paused};
    let name = &status.name;
    match status.status {
        Paused | Failed => format!("everfold resume {name}"),
        _ if status.dead_letters > 0 => format!("everfold dead-letters list {name}"),
        _ => format!("everfold skips drain {name}"),
    }
}

/// Whether a live worker has every shard.
pub(super) fn is_run(status: &ProjectionStatus) -> bool {
    status.shards.iter().all(|shard| shard.owner.is_some())
}

/// A rebuild that stands still because nobody works on it, or because an operator wants it to.
pub(super) fn check_rebuild(rebuild: &RebuildProgress) -> Option<HealthProblem> {
    let RebuildProgress { name, version, phase, .. } = rebuild;
    let (severity, message, next) = match (rebuild.finished_at, &rebuild.worker) {
        (Some(_), _) => return None,
        (None, _) if rebuild.paused => (
            Severity::Warning,
            format!("its rebuild is paused; `everfold rebuilds resume {name}` goes on with it"),
            format!("everfold rebuilds resume {name}"),
        ),
        (None, Some(_)) => return None,
        (None, None) => (
            Severity::Problem,
            format!(
                "its rebuild to version {version} is {phase}, and nobody works on it; `everfold rebuild \
                 {name}` goes on with it, and so does a runner that carries it (`everfold run`)"
            ),
            format!("everfold rebuild {name}"),
        ),
    };
    Some(HealthProblem {
        projection: Some(name.clone()),
        check: "rebuild",
        severity,
        message,
        next,
    })
}

/// Why a projection with work to do does not do it, if that is so.
fn stalled(status: &ProjectionStatus, options: &HealthOptions) -> Option<&'static str> {
    use GenerationStatus::{Active, Building};
    let runs = matches!(status.status, Active | Building);
    let waits = status.lag_events > 0;
    if !runs || !waits || status.lag_seconds < options.stalled_after.as_secs_f64() {
        return None;
    }
    if !is_run(status) {
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
    let (severity, next) = (Severity::Problem, "everfold doctor".to_owned());
    Some(HealthProblem { projection: None, check: "mark", severity, message, next })
}
