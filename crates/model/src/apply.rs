//! Applying events to a generation, and what becomes of one that fails.
//!
//! In configurations in which events fail, the first event of a key does, until somebody tries it
//! again. The policy is `dead-letter`: it is put aside, and later events of its key behind it.

use crate::actions::Protocol;
use crate::append::name_of_generation;
use crate::bits::{Few, Position, Positions};
use crate::note::Note;
use crate::state::State;
use crate::story::Story;
use crate::transaction::Write;

/// Where events are applied, and by whom.
pub(crate) struct Applying<'a> {
    pub(crate) protocol: &'a Protocol,
    pub(crate) state: &'a mut State,
    pub(crate) me: usize,
    pub(crate) generation: usize,
    pub(crate) story: &'a mut Story,
}

impl Applying<'_> {
    fn key_of(&self, position: Position) -> usize {
        self.protocol.configuration.key_of(self.state.log.stream(position))
    }

    /// Deletes skip records.
    pub(crate) fn settle(&mut self, skips: Positions) {
        for position in skips.iter() {
            let settle = Write::Settle { generation: self.generation as u8, position };
            self.state.write(self.me, settle);
        }
    }

    /// In order; events of keys that are held, and those behind one that fails, are put aside.
    pub(crate) fn apply(&mut self, events: Positions, mut held: Few) {
        for position in events.iter() {
            let key = self.key_of(position);
            if held.contains(key) {
                self.put_aside(position, false);
            } else if self.fails(position) {
                held.insert(key);
                self.put_aside(position, true);
            } else {
                self.apply_surely(position);
            }
        }
    }

    /// One that does not fail any more.
    pub(crate) fn apply_surely(&mut self, position: Position) {
        let (key, name) = (self.key_of(position) as u8, name_of_generation(self.generation));
        self.story.say(|| format!("applies event {position} to {name}"));
        let apply = Write::Apply { generation: self.generation as u8, key, position };
        self.state.write(self.me, apply);
    }

    pub(crate) fn put_aside(&mut self, position: Position, failed: bool) {
        self.state.notes.add(if failed { Note::DeadLetter } else { Note::HeldBehindADeadLetter });
        self.story.say(|| match failed {
            true => format!("event {position} fails and is put aside"),
            false => format!("event {position} is put behind the one that failed"),
        });
        let aside = Write::PutAside { generation: self.generation as u8, position, failed };
        self.state.write(self.me, aside);
    }

    /// Whether it is the first event of its key that this transaction knows of.
    pub(crate) fn fails(&self, position: Position) -> bool {
        let stream = self.state.log.stream(position);
        if self.protocol.configuration.fails != Some(stream) {
            return false;
        }
        let key = self.key_of(position);
        let applied = self.state.generations[self.generation].applied[key].positions();
        let aside = self.state.aside_seen(self.me, self.generation);
        let own = self.state.actors[self.me].transaction.writes.iter().any(|write| {
            matches!(write, Write::Apply { generation, key: other, .. }
                if *generation as usize == self.generation && *other as usize == key)
        });
        applied.is_empty() && !own && aside.iter().all(|other| self.key_of(other) != key)
    }
}
