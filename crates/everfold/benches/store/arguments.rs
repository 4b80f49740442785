//! The command line.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::child::Job;

const HELP: &str = "\
scripts/bench [SUBJECT…] [--quick] [--repeats N] [--events N]

Subjects (all, if none is named): append, group, read, import, sqlite, memory, inline, catch_up,
rebuild, latency, idle
  --quick      shorter runs, fewer repeats and events: shows that it works, not how fast it is
  --repeats N  repeats of each pair of runs, raw and ours
  --events N   how many events to read, to import, to catch up with, to rebuild from and to hold against the memory
               limit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Append,
    Group,
    Read,
    Import,
    Sqlite,
    Memory,
    Inline,
    CatchUp,
    Rebuild,
    Latency,
    Idle,
}

const SUBJECTS: [(&str, Subject); 11] = [
    ("append", Subject::Append),
    ("group", Subject::Group),
    ("read", Subject::Read),
    ("import", Subject::Import),
    ("sqlite", Subject::Sqlite),
    ("memory", Subject::Memory),
    ("inline", Subject::Inline),
    ("catch_up", Subject::CatchUp),
    ("rebuild", Subject::Rebuild),
    ("latency", Subject::Latency),
    ("idle", Subject::Idle),
];

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) quick: bool,
    pub(crate) repeats: usize,
    events: Option<u64>,
}

impl Arguments {
    /// How long appends are counted in one run.
    pub(crate) fn run_time(&self) -> Duration {
        Duration::from_millis(if self.quick { 1_000 } else { 2_500 })
    }

    /// How long each side appends uncounted first.
    pub(crate) fn warm_up(&self) -> Duration {
        self.run_time() / 2
    }

    /// How many events a subject works on, unless the command line says.
    pub(crate) fn events(&self, full: u64, quick: u64) -> u64 {
        self.events.unwrap_or(if self.quick { quick } else { full })
    }
}

/// What the command line asks for.
pub(crate) enum Request {
    Measure(Arguments),
    /// The work of another process that is measured.
    Child(Job),
    Say(String),
}

pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Request> {
    let mut arguments = Arguments { subjects: Vec::new(), quick: false, repeats: 0, events: None };
    let mut repeats = None;
    let mut from_cargo_bench = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--child" => return Ok(Request::Child(Job::from_words(words)?)),
            // `cargo bench` always adds it; `cargo test --all-targets` does not.
            "--bench" => from_cargo_bench = true,
            "--quick" => arguments.quick = true,
            "--repeats" => repeats = Some(number(&word, words.next())?),
            "--events" => arguments.events = Some(number(&word, words.next())?),
            "--help" | "-h" => return Ok(Request::Say(HELP.to_owned())),
            name => match SUBJECTS.iter().find(|(known, _)| *known == name) {
                Some((_, subject)) => arguments.subjects.push(*subject),
                None => bail!("unknown argument \"{name}\"\n\n{HELP}"),
            },
        }
    }
    if !from_cargo_bench {
        return Ok(Request::Say("this is a benchmark and no test: run scripts/bench".to_owned()));
    }
    if arguments.subjects.is_empty() {
        arguments.subjects = SUBJECTS.iter().map(|(_, subject)| *subject).collect();
    }
    let usual = if arguments.quick { 3 } else { 5 };
    arguments.repeats = repeats.map_or(usual, |repeats| repeats.try_into().unwrap_or(usize::MAX));
    Ok(Request::Measure(arguments))
}

fn number(option: &str, value: Option<String>) -> anyhow::Result<u64> {
    let value = value.with_context(|| format!("{option} needs a number"))?;
    let number: u64 = value.parse().with_context(|| format!("{option} {value} is no number"))?;
    if number == 0 {
        bail!("{option} must be at least 1");
    }
    Ok(number)
}
