//! What is stored, and where every actor stands.
//!
//! All but `actors` is the committed state of the database. What a transaction has written and not
//! committed is with its actor (`transaction.rs`), where nobody else can see it: each step of an
//! actor is one statement, and sees what was committed when it began, and its own writes.

use crate::append::Append;
use crate::bits::{Order, Position, Positions};
use crate::configuration::{Configuration, Lifecycle, Role};
use crate::note::Notes;
use crate::pause::Pause;
use crate::rebuild::Rebuild;
use crate::registry::Register;
use crate::retry::Retry;
use crate::transaction::Transaction;
use crate::worker::Work;

/// Positions that may be drawn, in any configuration.
pub(crate) const POSITIONS: usize = 6;
/// Streams and keys.
pub(crate) const STREAMS: usize = 2;
/// Generations of the one projection.
pub(crate) const GENERATIONS: usize = 2;

/// `generations.status`, and `Absent` where there is no row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Status {
    Absent,
    Building,
    Active,
    Rebuilding,
    Paused,
    Kept,
    Retired,
}

/// A row of `generations` with its row of `checkpoints`, its read model and its skips.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Generation {
    pub(crate) status: Status,
    /// Appends record a skip, although it is being built: it is to be finished without the fence.
    pub(crate) recording: bool,
    pub(crate) checkpoint: Position,
    /// Who has the lease. Epochs are numbers that only matter as the current one and older ones: the
    /// current one is this actor's, and whoever else thinks that he has a lease has an older one.
    pub(crate) holder: Option<u8>,
    /// The read model: what was applied to each key, in this order.
    pub(crate) applied: [Order; STREAMS],
    /// Open skips.
    pub(crate) skips: Positions,
    /// Dead letters: events that failed …
    pub(crate) failed: Positions,
    /// … and those that wait behind them.
    pub(crate) held: Positions,
}

impl Generation {
    fn new(status: Status) -> Generation {
        Generation {
            status,
            recording: false,
            checkpoint: 0,
            holder: None,
            applied: Default::default(),
            skips: Positions::default(),
            failed: Positions::default(),
            held: Positions::default(),
        }
    }

    /// What its read model holds.
    pub(crate) fn holds(&self) -> Positions {
        self.applied.iter().fold(Positions::default(), |all, order| all.or(order.positions()))
    }

    /// What was put aside.
    pub(crate) fn aside(&self) -> Positions {
        self.failed.or(self.held)
    }

    /// What it does not hold, and knows of.
    pub(crate) fn owes(&self) -> Positions {
        self.skips.or(self.aside())
    }

    /// Whether appends enter its gate.
    pub(crate) fn is_listed(&self) -> bool {
        matches!(
            self.status,
            Status::Building | Status::Active | Status::Rebuilding | Status::Paused
        )
    }
}

/// What became of a position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Slot {
    /// Not drawn yet.
    Free,
    /// Drawn by a transaction that has not ended.
    InFlight {
        by: u8,
        stream: u8,
    },
    Committed {
        stream: u8,
    },
    /// Its transaction was rolled back.
    Gap,
}

/// `events` and its sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Log {
    slots: [Slot; POSITIONS],
    /// The sequence's last value.
    pub(crate) last: Position,
}

impl Log {
    fn new(history: &[usize]) -> Log {
        let mut log = Log { slots: [Slot::Free; POSITIONS], last: 0 };
        for stream in history {
            log.slots[log.last as usize] = Slot::Committed { stream: *stream as u8 };
            log.last += 1;
        }
        log
    }

    /// `nextval` and the insert of an event: a rollback undoes the second only.
    pub(crate) fn draw(&mut self, by: usize, stream: usize) -> Position {
        self.slots[self.last as usize] = Slot::InFlight { by: by as u8, stream: stream as u8 };
        self.last += 1;
        self.last
    }

    pub(crate) fn end(&mut self, of: usize, commit: bool) {
        for slot in &mut self.slots {
            if let Slot::InFlight { by, stream } = *slot
                && by as usize == of
            {
                *slot = if commit { Slot::Committed { stream } } else { Slot::Gap };
            }
        }
    }

    /// A rollback to a savepoint.
    pub(crate) fn undo(&mut self, position: Position) {
        self.slots[position as usize - 1] = Slot::Gap;
    }

    pub(crate) fn stream(&self, position: Position) -> usize {
        match self.slots[position as usize - 1] {
            Slot::InFlight { stream, .. } | Slot::Committed { stream } => stream as usize,
            Slot::Free | Slot::Gap => unreachable!("position {position} holds no event"),
        }
    }

    fn those(&self, wanted: impl Fn(Slot) -> bool) -> Positions {
        (1..).zip(&self.slots).filter(|(_, slot)| wanted(**slot)).map(|(p, _)| p).collect()
    }

    pub(crate) fn committed(&self) -> Positions {
        self.those(|slot| matches!(slot, Slot::Committed { .. }))
    }

    pub(crate) fn in_flight(&self) -> Positions {
        self.those(|slot| matches!(slot, Slot::InFlight { .. }))
    }

    pub(crate) fn in_flight_of(&self, actor: usize) -> Positions {
        self.those(|slot| matches!(slot, Slot::InFlight { by, .. } if by as usize == actor))
    }
}

/// Where an actor stands in its protocol, and what it remembers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Local {
    Append(Append),
    Work(Work),
    Rebuild(Rebuild),
    Register(Register),
    Retry(Retry),
    Pause(Pause),
}

/// An actor: a session with its open transaction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Actor {
    pub(crate) transaction: Transaction,
    pub(crate) local: Local,
}

/// A state of the whole system.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) log: Log,
    pub(crate) generations: [Generation; GENERATIONS],
    /// `projections.active_generation`: the one value that readers go by.
    pub(crate) shown: Option<usize>,
    pub(crate) actors: Vec<Actor>,
    /// What the step that led here was remarkable for. Nothing depends on it.
    pub(crate) notes: Notes,
}

impl State {
    /// The beginning: history is committed, and in whichever generation readers are shown.
    pub(crate) fn first(configuration: &Configuration) -> State {
        let log = Log::new(configuration.history);
        let mut generations = configuration.generations.map(Generation::new);
        let shown = generations.iter().position(|g| g.status == Status::Active);
        if let Some(shown) = shown
            && configuration.lifecycle == Lifecycle::Inline
        {
            for position in log.committed().iter() {
                let key = configuration.key_of(log.stream(position));
                generations[shown].applied[key].push(position);
            }
        }
        let actors = configuration.actors.iter().map(|role| Actor {
            transaction: Transaction::default(),
            local: match role {
                Role::Appender { .. } => Local::Append(Append::default()),
                Role::Worker { .. } => Local::Work(Work::default()),
                Role::Rebuilder { .. } => Local::Rebuild(Rebuild::default()),
                Role::Pauser => Local::Pause(Pause::default()),
                Role::Operator => Local::Retry(Retry::default()),
                Role::Registrar => Local::Register(Register::default()),
            },
        });
        State { log, generations, shown, actors: actors.collect(), notes: Notes::default() }
    }

    pub(crate) fn has_appends_in_flight(&self) -> bool {
        self.actors.iter().any(|a| matches!(a.local, Local::Append(_)) && a.transaction.is_open)
    }
}
