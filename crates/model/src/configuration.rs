//! Small systems, each around one danger. They share all of the model; they differ in who takes part.

use crate::configurations;
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::Status;

/// How a projection is fed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifecycle {
    Inline,
    CatchUp,
}

/// What order matters within.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Stream,
    /// All streams have one key.
    AcrossStreams,
}

/// How a rebuild goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Beside,
    InPlace,
    /// The promotion of a catch-up generation, which has no gates.
    CatchUp,
}

/// A rebuild.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The generation that is replaced, if there is one.
    pub(crate) from: Option<usize>,
    pub(crate) to: usize,
    pub(crate) kind: Kind,
    pub(crate) fence: bool,
    /// Without the fence: the old generation is kept afterwards; otherwise it is retired.
    pub(crate) keeps: bool,
}

/// What an actor is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Transactions, each with the streams that it appends an event to. One that does not carry the
    /// projection is old code, or another language.
    Appender {
        transactions: &'static [&'static [usize]],
        carries: bool,
    },
    Worker {
        generation: usize,
    },
    Rebuilder {
        plans: &'static [Plan],
    },
    Registrar,
    /// Has dead letters tried again.
    Operator,
    /// Pauses an inline generation and resumes it.
    Pauser,
}

impl Role {
    /// How many events it appends.
    pub(crate) fn appends(&self) -> usize {
        match self {
            Role::Appender { transactions, .. } => transactions.iter().map(|t| t.len()).sum(),
            _ => 0,
        }
    }
}

/// A system to be checked.
#[derive(Debug, Clone)]
pub struct Configuration {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) key: Key,
    /// A stream whose events are of a type that the projection does not want.
    pub(crate) unwanted: Option<usize>,
    /// A stream of whose keys the first event fails, until it is tried again.
    pub(crate) fails: Option<usize>,
    /// Every append has a savepoint before it, and may be rolled back to it.
    pub(crate) savepoints: bool,
    /// Statuses at the beginning. Readers are shown the one that is active.
    pub(crate) generations: [Status; 2],
    /// Streams of the events that are there at the beginning.
    pub(crate) history: &'static [usize],
    pub(crate) actors: &'static [Role],
    /// Positions that are drawn at most. More than there are appends leave room for rollbacks.
    pub(crate) positions: u8,
    /// Open skips of a key that an append drains at most.
    pub(crate) help: u32,
    /// What has to be reached.
    pub(crate) witnesses: &'static [Note],
    pub(crate) mistake: Option<Mistake>,
}

impl Configuration {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Configuration> {
        configurations::all().cloned()
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Configuration> {
        Configuration::all().find(|configuration| configuration.name == name)
    }

    /// The one in which a mistake shows, with the mistake.
    pub fn with(mistake: Mistake) -> Option<Configuration> {
        let configuration = Configuration::named(mistake.configuration())?;
        Some(Configuration { mistake: Some(mistake), ..configuration })
    }

    /// The same with one more append, to the first stream.
    pub fn larger(self) -> Configuration {
        let one_more = Role::Appender { transactions: &[&[0]], carries: true };
        let actors = self.actors.iter().copied().chain([one_more]).collect::<Vec<_>>();
        // Kept to the end of the process: there are only a few of them.
        Configuration { actors: actors.leak(), positions: self.positions + 1, ..self }
    }

    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it is about.
    pub fn about(&self) -> &'static str {
        self.about
    }

    pub(crate) fn wants(&self, stream: usize) -> bool {
        self.unwanted != Some(stream)
    }

    pub(crate) fn key_of(&self, stream: usize) -> usize {
        match self.key {
            Key::Stream => stream,
            Key::AcrossStreams => 0,
        }
    }

    /// What an actor is called in a story.
    pub(crate) fn name_of(&self, actor: usize) -> String {
        let is_same = |role: &Role| {
            std::mem::discriminant(role) == std::mem::discriminant(&self.actors[actor])
        };
        let number = self.actors[..=actor].iter().filter(|role| is_same(role)).count();
        match self.actors[actor] {
            Role::Appender { carries: true, .. } => format!("append {number}"),
            Role::Appender { .. } => format!("append {number} (old code)"),
            Role::Worker { .. } => format!("worker {number}"),
            Role::Rebuilder { .. } => format!("rebuild {number}"),
            Role::Registrar => "registration".into(),
            Role::Operator | Role::Pauser => "operator".into(),
        }
    }
}
