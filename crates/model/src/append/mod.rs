//! An append, statement by statement: `everfold.append_event` and its relatives
//! (`crates/everfold/sql/postgres/functions`, 015, 025 and 030 to 060).
//!
//! ```text
//!   Begin ─> Stream ─> List ─> Gate … ─> Keys ─> Announce ─> AnnounceLock ─> Draw ─> Decide … ─> End
//!     ^                                                                      └> HelpDrain ┘        │
//!     └──────────────────── the next append of the transaction, or the next transaction ───────────┘
//! ```

use crate::actions::{Protocol, Step};
use crate::bits::{Few, Position, Positions};
use crate::configuration::{Key, Lifecycle, Role};
use crate::mistake::Mistake;
use crate::state::{GENERATIONS, Local, State, Status};
use crate::story::Story;
use crate::transaction::Gate;

mod apply;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum At {
    /// `enter_append`: the registry gate, shared.
    #[default]
    Begin,
    /// `enter_append`: the stream.
    Stream,
    /// The statement that reads the version and which inline generations there are.
    List,
    /// `enter_inline`: the gates, shared, in the order of ids.
    Gate,
    /// With the mistake that reads the status in the statement that waits for the gate.
    GateAfterStatus,
    /// `lock_inline_keys`.
    Keys,
    /// `announce`: the sequence's last value …
    Announce,
    /// … and the lock on it.
    AnnounceLock,
    /// The insert.
    Draw,
    /// `apply_inline`, generation by generation: status, then apply or record.
    Decide,
    /// `apply_inline_carefully`: open skips of the key first. The statement has seen some, and waits
    /// for whoever has locked them.
    HelpDrain,
    /// The end of this append; that of the transaction if it was the last.
    End,
}

/// Where an append stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Append {
    at: At,
    /// Which transaction of its plan, and which append of that.
    transaction: u8,
    append: u8,
    /// Generations that it found in the registry.
    listed: Few,
    /// Generations below this have been dealt with.
    next: usize,
    /// Generations whose gate it did not get, with try-locks.
    passed_over: Few,
    /// Statuses read too early, with the mistake.
    early: [Option<Status>; GENERATIONS],
    last: Position,
    position: Position,
    /// Only with the mistake that remembers it.
    has_announced: bool,
    /// Skips that the statement of a help-drain saw when it began.
    saw: Positions,
}

impl Append {
    fn next_listed(&self) -> Option<usize> {
        self.listed.iter().find(|generation| *generation >= self.next)
    }

    /// After the gates, or where there are none.
    fn after_gates(&mut self, protocol: &Protocol) {
        self.next = 0;
        let across_streams = protocol.configuration.key == Key::AcrossStreams;
        self.at =
            match across_streams && !self.listed.is_empty() && !protocol.has(Mistake::NoKeyLock) {
                true => At::Keys,
                false => At::Announce,
            };
    }

    fn done_with(&mut self, generation: usize) {
        self.next = generation + 1;
        self.saw = Positions::default();
        self.at = match self.next_listed() {
            Some(_) => At::Decide,
            None => At::End,
        };
    }
}

/// An append in the making: what its statements need.
struct Doing<'a> {
    protocol: &'a Protocol,
    state: &'a mut State,
    me: usize,
    append: Append,
    stream: usize,
    /// Whether this client applies the projection; otherwise the server records a skip for it.
    carries: bool,
    story: &'a mut Story,
}

/// Whether there is anything left to append.
pub(crate) fn is_done(role: &Role, append: &Append) -> bool {
    matches!(role, Role::Appender { transactions, .. }
        if append.transaction as usize >= transactions.len())
}

/// One statement.
pub(crate) fn go(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    append: Append,
    story: &mut Story,
) -> Step {
    let Role::Appender { transactions, carries } = protocol.configuration.actors[me] else {
        return Step::Blocked;
    };
    let stream = transactions[append.transaction as usize][append.append as usize];
    let appends = transactions[append.transaction as usize].len();
    let mut doing = Doing { protocol, state, me, append, stream, carries, story };
    if !doing.statement(appends) {
        return Step::Blocked;
    }
    let append = doing.append;
    state.actors[me].local = Local::Append(append);
    Step::Done
}

/// The transaction is rolled back; the caller tries again.
pub(crate) fn crash(state: &mut State, me: usize, append: Append, story: &mut Story) {
    story.say(|| "the transaction is rolled back".into());
    state.roll_back(me);
    let again = Append { transaction: append.transaction, ..Append::default() };
    state.actors[me].local = Local::Append(again);
}

/// This append is undone, and the transaction goes on without it.
pub(crate) fn roll_back_to(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    append: Append,
    story: &mut Story,
) -> Step {
    let Role::Appender { transactions, .. } = protocol.configuration.actors[me] else {
        return Step::Blocked;
    };
    story.say(|| "rolls back to the savepoint before this append".into());
    state.roll_back_to_savepoint(me, append.position);
    let last = transactions[append.transaction as usize].len() as u8 - 1;
    let Append { transaction, append, has_announced, .. } = append;
    let next = match append < last {
        true => Append { transaction, append: append + 1, has_announced, ..Append::default() },
        false => Append { at: At::End, transaction, append, ..Append::default() },
    };
    state.actors[me].local = Local::Append(next);
    Step::Done
}

impl Doing<'_> {
    fn statement(&mut self, appends: usize) -> bool {
        match self.append.at {
            At::Begin => self.begin(),
            At::Stream => self.lock_stream(),
            At::List => self.list(),
            At::Gate => self.enter_gate(),
            At::GateAfterStatus => self.enter_gate_after_status(),
            At::Keys => self.lock_keys(),
            At::Announce => self.announce(),
            At::AnnounceLock => self.lock_announcement(),
            At::Draw => self.draw(),
            At::Decide => self.decide(),
            At::HelpDrain => self.help_drain(),
            At::End => self.end(appends),
        }
    }

    fn begin(&mut self) -> bool {
        if self.protocol.configuration.savepoints {
            self.state.set_savepoint(self.me);
        }
        if self.protocol.has(Mistake::NoRegistryGate) {
            self.state.transaction(self.me);
            self.story.say(|| "begins, without the registry gate".into());
        } else if self.state.share(self.me, Gate::Registry) {
            self.story.say(|| "takes the registry gate, shared".into());
        } else {
            return false;
        }
        self.append.at = At::Stream;
        true
    }

    fn lock_stream(&mut self) -> bool {
        let stream = self.stream;
        self.story.say(|| format!("locks stream {}", name_of_stream(stream)));
        self.append.at = At::List;
        self.state.lock_stream(self.me, stream)
    }

    fn list(&mut self) -> bool {
        let configuration = &self.protocol.configuration;
        if configuration.lifecycle == Lifecycle::Inline && configuration.wants(self.stream) {
            let generations = self.state.generations;
            self.append.listed =
                (0..GENERATIONS).filter(|id| generations[*id].is_listed()).collect();
        }
        let listed = self.append.listed;
        self.story.say(|| match listed.is_empty() {
            true => "reads the registry: no inline generation wants it".into(),
            false => format!("reads the registry: {}", names_of_generations(listed)),
        });
        match listed.is_empty() || self.protocol.has(Mistake::NoGate) {
            true => self.append.after_gates(self.protocol),
            false => self.append.at = At::Gate,
        }
        true
    }

    fn enter_gate(&mut self) -> bool {
        let Some(generation) = self.append.next_listed() else { return false };
        let gate = Gate::Generation(generation);
        let name = name_of_generation(generation);
        if self.protocol.has(Mistake::StatusWithTheGate) {
            self.read_statuses_early();
            return true;
        }
        if self.state.share(self.me, gate) {
            self.story.say(|| format!("takes the gate of {name}, shared"));
        } else if self.protocol.has(Mistake::TryLock) {
            self.append.passed_over.insert(generation);
            self.story
                .say(|| format!("tries for the gate of {name}, does not get it, and says nothing"));
        } else {
            return false;
        }
        self.past_gate(generation);
        true
    }

    /// One statement that takes the gates and reads the statuses: its snapshot is taken first.
    fn read_statuses_early(&mut self) {
        for generation in self.append.listed.iter() {
            let status = self.state.generations[generation].status;
            self.append.early[generation] = Some(status);
            self.story.say(|| {
                format!(
                    "begins the statement that waits for the gates, and sees {} {status:?}",
                    name_of_generation(generation)
                )
            });
        }
        self.append.at = At::GateAfterStatus;
    }

    fn enter_gate_after_status(&mut self) -> bool {
        let Some(generation) = self.append.next_listed() else { return false };
        self.story
            .say(|| format!("is given the gate of {}, shared", name_of_generation(generation)));
        if !self.state.share(self.me, Gate::Generation(generation)) {
            return false;
        }
        self.past_gate(generation);
        true
    }

    fn past_gate(&mut self, generation: usize) {
        self.append.next = generation + 1;
        if self.append.next_listed().is_none() {
            self.append.after_gates(self.protocol);
        }
    }

    /// In the order of generations, one key each. Those that are being built need none, because the
    /// fence waits for all appends; unless they are to be finished without it.
    fn lock_keys(&mut self) -> bool {
        let key = self.protocol.configuration.key_of(self.stream);
        for generation in self.append.listed.iter() {
            let stored = self.state.generations[generation];
            let is_recorded = stored.recording && !self.protocol.has(Mistake::BuildingKeysUnlocked);
            if (stored.status != Status::Building || is_recorded)
                && !self.state.lock_key(self.me, generation, key)
            {
                return false;
            }
        }
        self.story.say(|| "locks the key".into());
        self.append.at = At::Announce;
        true
    }

    fn announce(&mut self) -> bool {
        let last = self.state.log.last;
        self.append.last = last;
        if self.append.has_announced {
            self.append.at = At::Draw;
            self.story.say(|| "remembers that it has announced already".into());
            return true;
        }
        self.append.at = match self.protocol.has(Mistake::LateAnnouncement) {
            true => At::Draw,
            false => At::AnnounceLock,
        };
        self.story.say(|| format!("reads the sequence: {last}"));
        true
    }

    fn lock_announcement(&mut self) -> bool {
        let last = self.append.last;
        self.story.say(|| format!("announces positions after {last}"));
        self.state.announce(self.me, last);
        self.append.last = 0;
        self.append.has_announced = self.protocol.has(Mistake::AnnouncementRemembered);
        self.append.at = At::Draw;
        if self.append.position != 0 {
            self.append.at = self.after_draw();
        }
        true
    }

    fn draw(&mut self) -> bool {
        if self.state.log.last >= self.protocol.configuration.positions {
            return false;
        }
        let position = self.state.log.draw(self.me, self.stream);
        let stream = self.stream;
        self.story.say(|| format!("inserts event {position} of stream {}", name_of_stream(stream)));
        self.append.position = position;
        self.append.at = match self.protocol.has(Mistake::LateAnnouncement) {
            true => At::AnnounceLock,
            false => self.after_draw(),
        };
        true
    }

    fn after_draw(&self) -> At {
        if self.append.listed.is_empty() { At::End } else { At::Decide }
    }

    fn end(&mut self, appends: usize) -> bool {
        let Append { transaction, append, has_announced, .. } = self.append;
        self.append = Append { transaction, ..Append::default() };
        if append as usize + 1 < appends {
            self.story.say(|| "goes on to its next append, in the same transaction".into());
            self.append.append = append + 1;
            self.append.has_announced = has_announced;
            self.state.release_savepoint(self.me);
        } else {
            self.story.say(|| "commits".into());
            self.state.commit(self.me);
            self.append.transaction = transaction + 1;
        }
        true
    }
}

pub(crate) fn name_of_stream(stream: usize) -> char {
    ['A', 'B'][stream]
}

pub(crate) fn name_of_generation(generation: usize) -> String {
    format!("generation {}", generation + 1)
}

fn names_of_generations(generations: Few) -> String {
    let names: Vec<String> = generations.iter().map(name_of_generation).collect();
    names.join(" and ")
}
