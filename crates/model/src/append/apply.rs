//! `apply_inline`: what an append does with its event, generation by generation.

use super::{At, Doing, name_of_generation};
use crate::apply::Applying;
use crate::bits::{Few, Positions};
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::Status;
use crate::transaction::Write;

impl Doing<'_> {
    pub(super) fn decide(&mut self) -> bool {
        let Some(generation) = self.append.next_listed() else { return false };
        let stored = self.state.generations[generation];
        let status = self.append.early[generation].unwrap_or(stored.status);
        if self.append.passed_over.contains(generation) {
            self.append.done_with(generation);
            return true;
        }
        match status {
            Status::Active if self.carries => return self.decide_to_apply(generation),
            Status::Active => self.owe(generation, "not applied by this client"),
            Status::Rebuilding => self.owe(generation, "rebuilding"),
            Status::Paused => self.owe(generation, "paused"),
            Status::Building if stored.recording => self.owe(generation, "being built"),
            status => {
                let name = name_of_generation(generation);
                self.story.say(|| format!("finds {name} {status:?}: nothing to do"));
            }
        }
        self.append.done_with(generation);
        true
    }

    pub(super) fn decide_to_apply(&mut self, generation: usize) -> bool {
        let open = self.open_skips(generation);
        let help = self.protocol.configuration.help;
        if open.is_empty() || self.protocol.has(Mistake::DrainWithoutKeyRule) {
            self.apply_or_hold(generation, Positions::default());
        } else if open.len() > help {
            self.state.notes.add(Note::RecordedBehindOpenSkips);
            self.owe(generation, "behind open skips");
        } else {
            self.append.saw = open;
            self.append.at = At::HelpDrain;
            let name = name_of_generation(generation);
            self.story.say(|| format!("finds open skips of its key in {name}"));
            return true;
        }
        self.append.done_with(generation);
        true
    }

    /// With open skips of the key, which come first. Where a dead letter holds the key, they stay, and
    /// the event waits behind all of it.
    fn apply_or_hold(&mut self, generation: usize, skips: Positions) {
        let position = self.append.position;
        let is_held = self.is_held(generation);
        if is_held && !skips.is_empty() {
            self.owe(generation, "behind open skips");
            return;
        }
        let Doing { protocol, state, me, story, .. } = self;
        let mut applying = Applying { protocol, state, me: *me, generation, story };
        if is_held {
            applying.put_aside(position, false);
            return;
        }
        applying.settle(skips);
        let mut events = skips;
        events.insert(position);
        applying.apply(events, Few::default());
    }

    fn is_held(&self, generation: usize) -> bool {
        let configuration = &self.protocol.configuration;
        let key = configuration.key_of(self.stream);
        let mut aside = self.state.aside_seen(self.me, generation).iter();
        aside.any(|position| configuration.key_of(self.state.log.stream(position)) == key)
    }

    pub(super) fn open_skips(&self, generation: usize) -> Positions {
        let configuration = &self.protocol.configuration;
        let key = configuration.key_of(self.stream);
        let skips = self.state.skips_seen(self.me, generation);
        skips.iter().filter(|p| configuration.key_of(self.state.log.stream(*p)) == key).collect()
    }

    pub(super) fn help_drain(&mut self) -> bool {
        let Some(generation) = self.append.next_listed() else { return false };
        let saw = self.append.saw;
        if !saw.and(self.state.skips_locked(self.me, generation)).is_empty() {
            return false;
        }
        let there = saw.and(self.state.skips_seen(self.me, generation));
        self.state.notes.add(Note::HelpDrained);
        self.apply_or_hold(generation, there);
        self.append.done_with(generation);
        true
    }

    pub(super) fn owe(&mut self, generation: usize, reason: &str) {
        let position = self.append.position;
        let name = name_of_generation(generation);
        self.story.say(|| format!("records a skip of event {position} for {name} ({reason})"));
        self.state.write(self.me, Write::Owe { generation: generation as u8, position });
    }
}
