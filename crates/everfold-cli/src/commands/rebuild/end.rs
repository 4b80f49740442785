//! How a rebuild ended, and what to do next.

use std::fmt;

use everfold::{RebuildKind, RebuildPhase, RebuildProgress};
use indicatif::HumanCount;
use serde::Serialize;

use crate::age;
use crate::commands::differences;
use crate::output::shown;

/// The result of the command.
#[derive(Serialize)]
pub(super) struct Ended {
    joined: bool,
    #[serde(flatten)]
    progress: RebuildProgress,
}

impl Ended {
    pub(super) fn new(progress: RebuildProgress, joined: bool) -> Ended {
        Ended { joined, progress }
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
            let (compared, differ) =
                (HumanCount(comparison.compared), HumanCount(comparison.differences));
            write!(f, "\n  compared  {compared} rows with the version before, {differ} differ")?;
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
        match next(progress) {
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
    let events = HumanCount(progress.events_done);
    let Some(ended) = progress.switched_at.or(progress.finished_at) else {
        return format!("{events} events");
    };
    let seconds = ended.duration_since(progress.requested_at).as_secs_f64().max(0.001);
    let rate = HumanCount((progress.events_done as f64 / seconds) as u64);
    format!("{events} events in {} ({rate}/s)", age::shown(seconds))
}

fn next(progress: &RebuildProgress) -> Option<String> {
    let name = &progress.name;
    match (progress.phase, progress.kind) {
        (RebuildPhase::Built, RebuildKind::AsOf) => {
            Some(format!("`everfold retire {name}` drops it when you have seen enough"))
        }
        (RebuildPhase::Built, _) => Some(format!(
            "`everfold promote {name}` switches readers over, `everfold retire {name}` drops it"
        )),
        (RebuildPhase::Done, RebuildKind::InPlace) => None,
        (RebuildPhase::Done, _) => Some(format!(
            "`everfold rollback {name}` goes back, `everfold retire {name}` drops what readers saw before"
        )),
        _ => None,
    }
}
