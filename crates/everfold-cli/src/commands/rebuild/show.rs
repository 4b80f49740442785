//! How a rebuild gets on, on standard error: a bar on a terminal, plain lines elsewhere.

use std::time::{Duration, Instant};

use everfold::{RebuildPhase, RebuildProgress};
use indicatif::HumanCount;

use crate::age;
use crate::output::{count, shown};
use crate::progress::{Bar, tell};

/// How often a plain line is worth it while only the figures change.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// After this long without anybody who works on it, that is said.
const NOBODY_AFTER: Duration = Duration::from_secs(5);

/// What was shown last, so that only news is told.
pub(super) struct Shown {
    name: String,
    /// None where standard error is no terminal.
    bar: Option<Bar>,
    line: Option<(String, Instant)>,
    phase: Option<(RebuildPhase, bool)>,
    message: Option<String>,
    nobody: Option<(Instant, bool)>,
}

impl Shown {
    pub(super) fn new(name: &str) -> Shown {
        let (line, phase, message, nobody) = (None, None, None, None);
        Shown { name: name.to_owned(), bar: Bar::on_terminal(), line, phase, message, nobody }
    }

    pub(super) fn set(&mut self, progress: &RebuildProgress, works_here: bool) {
        self.message(progress);
        self.nobody(progress, works_here);
        if progress.phase.is_end() {
            return;
        }
        let (name, version) = (&self.name, progress.version);
        if let Some(bar) = &self.bar {
            bar.set(&format!("{name} v{version}"), percent(progress), &line(progress));
            return;
        }
        let text = format!("{name} version {version}: {}", line(progress));
        let phase = Some((progress.phase, progress.paused));
        let (last, at) = match &self.line {
            Some((last, at)) => (last.as_str(), at.elapsed()),
            None => ("", LINE_EVERY),
        };
        if phase != self.phase || (text != last && at >= LINE_EVERY) {
            tell(&text);
            self.phase = phase;
            self.line = Some((text, Instant::now()));
        }
    }

    /// What it waits for, or what went wrong and is tried again, has a line of its own.
    fn message(&mut self, progress: &RebuildProgress) {
        if progress.phase.is_end() || progress.message == self.message {
            return;
        }
        self.message.clone_from(&progress.message);
        if let Some(message) = &self.message {
            tell(&format!("{}: {}", self.name, shown(message)));
        }
    }

    fn nobody(&mut self, progress: &RebuildProgress, works_here: bool) {
        if progress.worker.is_some() || progress.paused || progress.phase.is_end() {
            self.nobody = None;
            return;
        }
        let (since, told) = self.nobody.get_or_insert((Instant::now(), false));
        if !*told && since.elapsed() >= NOBODY_AFTER {
            *told = true;
            let advice = match works_here {
                true => "its last worker's lease has to run out first (15 s)",
                false => "start a process that carries it",
            };
            tell(&format!("{}: nobody works on it yet; {advice}", self.name));
        }
    }
}

/// How much of it is done, as far as that is known.
pub(crate) fn percent(progress: &RebuildProgress) -> u64 {
    match progress.events_total {
        0 => 0,
        total => (progress.events_done.min(total)) * 100 / total,
    }
}

/// Phase, events, rates, and whether it will end.
pub(crate) fn line(progress: &RebuildProgress) -> String {
    let mut parts = Vec::new();
    if progress.paused {
        parts.push(format!("paused (`everfold rebuilds resume {}`)", progress.name));
    }
    parts.push(progress.phase.to_string().replace('-', " "));
    match progress.phase {
        _ if progress.events_total == 0 => {}
        RebuildPhase::Copying | RebuildPhase::CatchingUp => {
            let total = count(progress.events_total, "event");
            parts.push(format!("{}% of {total}", percent(progress)));
            parts.extend(rates(progress));
        }
        _ => parts.push(count(progress.events_done, "event")),
    }
    parts.join(", ")
}

fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{}/s", HumanCount(rate as u64)),
    }
}

fn rates(progress: &RebuildProgress) -> Vec<String> {
    let mut parts = Vec::new();
    let Some(applied) = progress.events_per_second else { return parts };
    parts.push(rate(applied));
    let appended = progress.appended_per_second.unwrap_or(0.0);
    match progress.converges() {
        Some(false) => {
            parts.push(format!("does not converge: {} come in", rate(appended)));
        }
        _ if appended >= 1.0 => parts.push(format!("{} come in", rate(appended))),
        _ => {}
    }
    if let Some(left) = progress.time_left().filter(|_| progress.behind() > 0) {
        parts.push(format!("{} left", age::shown(left.as_secs_f64())));
    }
    parts
}
