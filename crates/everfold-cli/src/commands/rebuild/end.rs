//! How a rebuild ended, and what to do next.

use std::fmt;

use everfold::{RebuildKind, RebuildPhase, RebuildProgress};
use indicatif::HumanCount;
use serde::Serialize;

use crate::age;
use crate::commands::differences;
use crate::output::{count, differ, shown};

/// The result of the command.
#[derive(Serialize)]
pub(super) struct Ended {
    joined: bool,
    /// The version of what readers saw before, if that is kept.
    #[serde(skip)]
    kept: Option<u32>,
    #[serde(flatten)]
    progress: RebuildProgress,
}

impl Ended {
    pub(super) fn new(progress: RebuildProgress, joined: bool, kept: Option<u32>) -> Ended {
        Ended { joined, kept, progress }
    }
}

/// A rebuild that was asked for and is left to others.
#[derive(Serialize)]
pub(super) struct Detached {
    pub(super) joined: bool,
    /// Live workers that have the code for it.
    pub(super) carried_by: Vec<String>,
    #[serde(flatten)]
    pub(super) progress: RebuildProgress,
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RebuildProgress { name, version, worker, .. } = &self.progress;
        let look = format!("`everfold rebuilds {name}` shows how it gets on");
        match (worker.as_deref().filter(|_| self.joined), self.carried_by.first()) {
            (Some(worker), _) => {
                write!(f, "asked for before: {} works on it; {look}", shown(worker))
            }
            (None, Some(runner)) => {
                write!(f, "asked for: {} carries {name} and takes it up; {look}", shown(runner))
            }
            (None, None) => write!(
                f,
                "asked for, and nobody works on it: no live runner carries version {version} of {name}; \
                 start `everfold run`, or `everfold rebuild {name}` without --detach"
            ),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = &self.progress;
        write!(f, "{}", headline(progress))?;
        write!(f, "\n  applied   {}", applied(progress))?;
        if let Some(held) = progress.appends_held {
            write!(f, "\n  appends   held up for {}", age::shown(held.as_secs_f64()))?;
        }
        if let Some(comparison) = &progress.comparison {
            let rows = count(comparison.compared, "row");
            let differ = differ(comparison.differences);
            write!(f, "\n  compared  {rows} with the version before, {differ}")?;
            for told in &comparison.not_compared {
                write!(f, "\n            not compared: {}", shown(told))?;
            }
            if !comparison.examples.is_empty() {
                let table = differences::table(&comparison.examples, "BEFORE", "NOW");
                let table = table.to_string().replace('\n', "\n    ");
                write!(f, "\n    {table}")?;
            }
        }
        if let Some(message) = progress.message.as_deref().filter(|message| !message.is_empty()) {
            write!(f, "\n  note      {}", shown(message))?;
        }
        match next(progress, self.kept) {
            Some(next) => write!(f, "\n  next      {next}"),
            None => Ok(()),
        }
    }
}

/// What readers see now.
fn headline(progress: &RebuildProgress) -> String {
    let RebuildProgress { name, version, .. } = progress;
    match (progress.phase, progress.kind) {
        (RebuildPhase::Done, _) => format!("readers see version {version} of {name} now"),
        (RebuildPhase::Built, RebuildKind::AsOf) => {
            format!("{name} is built as it was; readers see what they saw before")
        }
        (RebuildPhase::Built, _) => {
            format!("version {version} of {name} is built; readers see what they saw before")
        }
        (phase, _) => format!("version {version} of {name} is {phase}"),
    }
}

fn applied(progress: &RebuildProgress) -> String {
    let events = count(progress.events_done, "event");
    let Some(ended) = progress.switched_at.or(progress.finished_at) else {
        return events;
    };
    let seconds = ended.duration_since(progress.requested_at).as_secs_f64().max(0.001);
    let rate = HumanCount((progress.events_done as f64 / seconds) as u64);
    format!("{events} in {} ({rate}/s)", age::shown(seconds))
}

fn next(progress: &RebuildProgress, kept: Option<u32>) -> Option<String> {
    let name = &progress.name;
    match (progress.phase, progress.kind, kept) {
        (RebuildPhase::Built, RebuildKind::AsOf, _) => Some(format!(
            "look at the tables whose names end in _at_<position>; `everfold retire {name}` drops them when \
             you have seen enough, and with them what is kept to go back to"
        )),
        // A check kept it from being promoted, and would do so again: the note says what to do.
        (RebuildPhase::Built, ..) if progress.message.is_some() => None,
        (RebuildPhase::Built, ..) => Some(format!(
            "`everfold promote {name}` switches readers over, `everfold retire {name}` drops it"
        )),
        (RebuildPhase::Done, _, Some(newer)) if newer > progress.version => Some(format!(
            "`everfold promote {name}` goes forward to version {newer} again, `everfold retire {name}` \
             drops it"
        )),
        (RebuildPhase::Done, _, Some(_)) => Some(format!(
            "`everfold rollback {name}` goes back, `everfold retire {name}` drops what readers saw before"
        )),
        _ => None,
    }
}
