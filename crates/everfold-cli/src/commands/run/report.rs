//! What `run` says while it runs: plain lines on standard error, none while nothing changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use everfold::{
    GenerationStatus, Position, ProjectionError, ProjectionStatus, RunnerFailure, Store,
};

use crate::age;
use crate::failure::Outcome;
use crate::output::{count, shown};

/// How often projections are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a projection that moves is worth a line.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What was told already, so that only news is.
pub(super) struct Reporter {
    names: Vec<String>,
    /// How many projections the store refused to register.
    refused: usize,
    /// What the database refuses the runner.
    refusal: Option<String>,
    looked: Option<Instant>,
    /// Why projections could not be looked at the last time.
    unseen: Option<String>,
    told: HashMap<(String, u32), Told>,
}

struct Told {
    position: Position,
    at: Option<Instant>,
    status: GenerationStatus,
    dead_letters: u64,
}

impl Reporter {
    pub(super) fn new(names: Vec<String>, refused: usize) -> Reporter {
        let (refusal, looked, unseen) = (None, None, None);
        Reporter { names, refused, refusal, looked, unseen, told: HashMap::new() }
    }

    /// What was told when a projection was registered.
    pub(super) fn know(&mut self, name: &str, version: u32, status: GenerationStatus) {
        self.told(name, version).status = status;
    }

    /// Whether it is time to look at the projections again.
    pub(super) fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY)
    }

    /// Failures of this process's runner, which are known before anybody asks the store.
    pub(super) fn failures(&mut self, failures: &[RunnerFailure]) {
        for failure in failures {
            let RunnerFailure { projection, version, reason, .. } = failure;
            let told = self.told(projection, *version);
            if told.status != GenerationStatus::Failed {
                told.status = GenerationStatus::Failed;
                eprintln!("{}", failed(projection, *version, reason));
            }
        }
    }

    /// What the database refuses this process's runner, if that is news.
    pub(super) fn refusal(&mut self, refusal: Option<String>) {
        match &refusal {
            Some(error) if refusal != self.refusal => {
                eprintln!("nothing is run, trying again: {}", shown(error));
            }
            None if self.refusal.is_some() => eprintln!("running again"),
            _ => {}
        }
        self.refusal = refusal;
    }

    /// Tells what has changed since the last time.
    pub(super) fn look(&mut self, projections: &[ProjectionStatus]) {
        self.looked = Some(Instant::now());
        self.unseen = None;
        for status in projections {
            if self.names.contains(&status.name) {
                let told = self.told(&status.name, status.version);
                if let Some(line) = told.news(status) {
                    eprintln!("{line}");
                }
            }
        }
    }

    /// A database that is away is told once, not at every look.
    pub(super) fn could_not_look(&mut self, error: &str) {
        if self.is_news(error) {
            tracing::warn!(%error, "where projections stand could not be read");
        }
    }

    fn is_news(&mut self, error: &str) -> bool {
        self.looked = Some(Instant::now());
        let before = self.unseen.replace(error.to_owned());
        before.as_deref() != Some(error)
    }

    fn told(&mut self, name: &str, version: u32) -> &mut Told {
        self.told.entry((name.to_owned(), version)).or_insert_with(|| Told {
            position: Position::START,
            at: None,
            status: GenerationStatus::Active,
            dead_letters: 0,
        })
    }

    /// Where everything stands at the end of `run --once`.
    pub(super) async fn summary(
        &self,
        store: &Store,
        caught_up: Result<(), ProjectionError>,
    ) -> anyhow::Result<Outcome> {
        let mut failures = 0;
        for status in store.projections().await? {
            if !self.names.contains(&status.name) {
                continue;
            }
            let ProjectionStatus { name, version, .. } = &status;
            if status.status == GenerationStatus::Failed {
                failures += 1;
                let reason = status.reason.as_deref().unwrap_or("no reason was given");
                eprintln!("error: {}", failed(name, *version, reason));
                continue;
            }
            eprintln!("{}", stands(&status));
            if status.dead_letters > 0 {
                eprintln!("{}", dead_letters(&status));
            }
        }
        match caught_up {
            Err(error) if failures == 0 => Err(error.into()),
            Ok(()) if failures + self.refused == 0 => Ok(Outcome::Done),
            _ => Ok(Outcome::Failed),
        }
    }
}

impl Told {
    /// One line, if there is something to say.
    fn news(&mut self, status: &ProjectionStatus) -> Option<String> {
        let ProjectionStatus { name, version, .. } = status;
        if status.status != self.status {
            self.status = status.status;
            let reason = status.reason.as_deref();
            return Some(match (status.status, reason) {
                (GenerationStatus::Failed, reason) => failed(name, *version, reason.unwrap_or("")),
                (now, Some(reason)) => {
                    format!("{name} version {version} is {now}: {}", shown(reason))
                }
                (now, None) => format!("{name} version {version} is {now}"),
            });
        }
        if status.dead_letters > self.dead_letters {
            self.dead_letters = status.dead_letters;
            return Some(dead_letters(status));
        }
        self.dead_letters = status.dead_letters;
        let waited = self.at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if status.position == self.position || !waited {
            return None;
        }
        (self.position, self.at) = (status.position, Some(Instant::now()));
        Some(moved(status))
    }
}

/// Where a projection stands at the end. One that is behind is told so: events that came meanwhile,
/// or a version that this process was not given.
fn stands(status: &ProjectionStatus) -> String {
    let ProjectionStatus { name, version, position, .. } = status;
    let mut line = format!("{name} version {version} is {} at position {position}", status.status);
    if status.lag_events > 0 {
        line.push_str(&format!(", {} behind", count(status.lag_events, "event")));
    }
    line
}

fn moved(status: &ProjectionStatus) -> String {
    let ProjectionStatus { name, version, position, .. } = status;
    let mut line = format!("{name} version {version} is at position {position}");
    if status.lag_events > 0 {
        let (events, age) = (count(status.lag_events, "event"), age::shown(status.lag_seconds));
        line.push_str(&format!(", {events} ({age}) behind, {:.0}/s", status.rate));
    }
    line
}

fn failed(name: &str, version: u32, reason: &str) -> String {
    format!("{name} version {version} has failed: {}", shown(reason))
}

fn dead_letters(status: &ProjectionStatus) -> String {
    let (letters, name) = (count(status.dead_letters, "dead letter"), &status.name);
    let held = count(status.held_events, "event");
    format!("{name} has {letters}, {held} behind; see `everfold dead-letters list {name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_news_once_until_it_is_over() {
        let mut reporter = Reporter::new(Vec::new(), 0);
        assert!(reporter.is_due() && reporter.is_news("refused"));
        assert!(!reporter.is_due(), "a look that failed is a look");
        assert!(!reporter.is_news("refused"));
        assert!(reporter.is_news("starting up"));
        reporter.look(&[]);
        assert!(reporter.is_news("starting up"));
    }
}
