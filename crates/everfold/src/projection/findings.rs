//! What `doctor` says about projections: what `health` says, and what is not a problem yet but is the
//! cause of what somebody sees.

use std::collections::BTreeSet;

use super::definition::Lifecycle;
use super::generation::GenerationStatus;
use super::health::{
    HealthOptions, HealthProblem, check_projections, check_rebuild, is_run, lag, to_settle,
};
use super::status::{ProjectionStatus, ShardStatus, counted};
use crate::diagnosis::{Finding, Severity, since};
use crate::rebuild::RebuildProgress;
use crate::rebuild::replay::is_as_of;
use crate::store::Store;

const CHECK: &str = "projections";

impl Store {
    pub(crate) async fn projection_findings(&self, options: &HealthOptions) -> Vec<Finding> {
        let projections = match self.projections().await {
            Ok(projections) => projections,
            Err(error) => {
                let message = format!("they cannot be read: {error}");
                let hint = "look again as a member of everfold_admin";
                return vec![Finding::warning(CHECK, message, hint)];
            }
        };
        let mut problems = Vec::new();
        let rebuilds = self.rebuilds().await.unwrap_or_default();
        check_projections(&projections, &rebuilds, options, &mut problems);
        let fed = |status: &&ProjectionStatus| !is_as_of(status.reason.as_deref());
        for status in projections.iter().filter(fed) {
            self.look_closer(status, &mut problems).await;
        }
        problems.extend(rebuilds.iter().filter_map(|row| check_rebuild(row).or(waiting(row))));
        if problems.is_empty() {
            let names: BTreeSet<&str> = projections.iter().map(|status| &*status.name).collect();
            let message = match names.len() {
                0 => "none are registered".to_owned(),
                count => format!("{count} registered, nothing is wrong with them"),
            };
            return vec![Finding::ok(CHECK, message)];
        }
        problems.iter().map(HealthProblem::finding).collect()
    }

    /// Why an event may not be in a read model, where `health` has nothing to say yet.
    async fn look_closer(&self, status: &ProjectionStatus, problems: &mut Vec<HealthProblem>) {
        let name = &status.name;
        let told: Vec<&'static str> = problems
            .iter()
            .filter(|problem| problem.projection.as_ref() == Some(name))
            .map(|problem| problem.check)
            .collect();
        let says = |check| told.contains(&check);
        let mut add = |check, message, next| {
            let (projection, severity) = (Some(name.clone()), Severity::Warning);
            problems.push(HealthProblem { projection, check, severity, message, next });
        };
        if nobody_feeds(status) && (!says("stalled") || silent(status).is_some()) {
            let message = format!("{}, and {}", lag(status), nobody(status));
            add("behind", message, "everfold run".to_owned());
        }
        for shard in standing(status, says("stalled")) {
            let check = if shard.failure.is_some() { "failing" } else { "standing" };
            add(check, stands(shard), format!("everfold status {name}"));
        }
        if status.active && status.dead_letters > 0 {
            let first = self.first_dead_letter(name).await;
            let message = match says("dead-letters") {
                true => format!("the first is the {first}"),
                false => format!("{}; the first is the {first}", aside(status)),
            };
            add("put aside", message, format!("everfold dead-letters list {name}"));
        }
        if status.active && status.open_skips > 0 && !says("skips") {
            let message = format!("{}{}", owed(status), self.first_skip(name).await);
            add("owed", message, to_settle(status));
        }
    }

    /// Which event, and why.
    async fn first_dead_letter(&self, name: &str) -> String {
        let Ok(generation) = self.generation_of(name).await else { return String::new() };
        let rows = self.backend().list_dead_letters(generation.id, 1).await.unwrap_or_default();
        rows.first().map_or_else(String::new, |first| {
            format!(
                "event at position {} (\"{}\", stream \"{}\"): {}",
                first.row.position,
                first.event_type,
                first.stream_id,
                first.row.error.as_deref().unwrap_or("it waits behind another")
            )
        })
    }

    /// Which event, and why the append left it out.
    async fn first_skip(&self, name: &str) -> String {
        let Ok(generation) = self.generation_of(name).await else { return String::new() };
        let rows = self.backend().list_skips(generation.id, 1).await.unwrap_or_default();
        rows.first().map_or_else(String::new, |first| {
            format!("; the first at position {}: {}", first.position, first.reason)
        })
    }
}

impl HealthProblem {
    fn finding(&self) -> Finding {
        let name = self.projection.as_deref().unwrap_or_default();
        let message = format!("{name}, {}: {}", self.check, self.message);
        Finding::of(self.severity, CHECK, message, format!("`{}`", self.next))
    }
}

/// A catch-up projection with work to do, and a shard that no live worker has.
fn nobody_feeds(status: &ProjectionStatus) -> bool {
    use GenerationStatus::{Active, Building};
    status.lifecycle == Lifecycle::CatchUp
        && matches!(status.status, Active | Building)
        && status.lag_events > 0
        && !is_run(status)
}

/// The worker of a shard that has not been heard of for too long, and when its lease ran out.
fn silent(status: &ProjectionStatus) -> Option<(&String, jiff::Timestamp)> {
    let mut shards = status.shards.iter().filter(|shard| shard.owner.is_none());
    shards.find_map(|shard| shard.last_owner.as_ref().zip(shard.lease_expires_at))
}

/// Nobody runs it; who did, if he did not say good-bye.
fn nobody(status: &ProjectionStatus) -> String {
    match silent(status) {
        Some((owner, expired)) => format!(
            "nobody runs it: worker {owner} has gone silent, its lease ran out at {}",
            expired.strftime("%Y-%m-%dT%H:%M:%SZ")
        ),
        None => "nobody runs it".to_owned(),
    }
}

/// Shards whose next batch fails and is tried again; where the projection is stalled, also those that a
/// worker has and that do not move.
fn standing(status: &ProjectionStatus, stalled: bool) -> impl Iterator<Item = &ShardStatus> {
    let running = matches!(status.status, GenerationStatus::Active | GenerationStatus::Building);
    status.shards.iter().filter(move |shard| {
        let stands = stalled && shard.owner.is_some() && shard.position < status.highest;
        running && (shard.failure.is_some() || stands)
    })
}

/// Where a shard stands since when, who has its lease, and what went wrong.
fn stands(shard: &ShardStatus) -> String {
    let shown = |time: jiff::Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let who = match (&shard.owner, shard.owner_since, shard.lease_expires_at) {
        (Some(owner), Some(since), Some(until)) => {
            format!("run by {owner} since {}, lease until {}", shown(since), shown(until))
        }
        _ => "run by nobody".to_owned(),
    };
    let failure = match (&shard.failure, shard.attempts) {
        (None, _) => String::new(),
        (Some(failure), 1) => format!("; what comes next has failed once: {failure}"),
        (Some(failure), tries) => format!("; what comes next has failed {tries} times: {failure}"),
    };
    let ShardStatus { shard: number, position, moved_at, .. } = shard;
    format!(
        "shard {number} stands at position {position} since {}, {who}{failure}",
        shown(*moved_at)
    )
}

fn aside(status: &ProjectionStatus) -> String {
    let held = match status.held_events {
        0 => String::new(),
        count => format!(", {} behind", counted(count, "event")),
    };
    let oldest = status.oldest_dead_letter.zip(status.oldest_dead_letter_seconds);
    let oldest = oldest.map(|(time, age)| format!(", since {}", since(time, age)));
    let letters = counted(status.dead_letters, "dead letter");
    format!("{letters}{held}{}", oldest.unwrap_or_default())
}

fn owed(status: &ProjectionStatus) -> String {
    let verb = if status.open_skips == 1 { "is" } else { "are" };
    let oldest = status.oldest_skip.zip(status.oldest_skip_seconds);
    let oldest = oldest.map(|(time, age)| format!(" since {}", since(time, age)));
    format!("{} {verb} owed{}", counted(status.open_skips, "event"), oldest.unwrap_or_default())
}

/// A rebuild that somebody works on, and that says what it waits for.
fn waiting(rebuild: &RebuildProgress) -> Option<HealthProblem> {
    if rebuild.finished_at.is_some() {
        return None;
    }
    let (worker, message) = rebuild.worker.as_ref().zip(rebuild.message.as_ref())?;
    let RebuildProgress { name, version, phase, .. } = rebuild;
    Some(HealthProblem {
        projection: Some(name.clone()),
        check: "rebuild",
        severity: Severity::Warning,
        message: format!("its rebuild to version {version} by {worker} is {phase}: {message}"),
        next: format!("everfold rebuilds {name}"),
    })
}
