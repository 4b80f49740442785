//! `apply_inline`: what an append does with its event, generation by generation.

use super::{At, Doing, name_of_generation};
use crate::bits::{Position, Positions};
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
            self.apply(generation, self.append.position);
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
        for position in there.iter() {
            let settle = Write::Settle { generation: generation as u8, position };
            self.state.write(self.me, settle);
            self.apply(generation, position);
        }
        self.state.notes.add(match there == saw {
            true => Note::HelpDrained,
            false => Note::SkipsWereDrainedMeanwhile,
        });
        self.apply(generation, self.append.position);
        self.append.done_with(generation);
        true
    }

    pub(super) fn apply(&mut self, generation: usize, position: Position) {
        let key = self.protocol.configuration.key_of(self.state.log.stream(position)) as u8;
        self.story
            .say(|| format!("applies event {position} to {}", name_of_generation(generation)));
        let apply = Write::Apply { generation: generation as u8, key, position };
        self.state.write(self.me, apply);
    }

    pub(super) fn owe(&mut self, generation: usize, reason: &str) {
        let position = self.append.position;
        let name = name_of_generation(generation);
        self.story.say(|| format!("records a skip of event {position} for {name} ({reason})"));
        self.state.write(self.me, Write::Owe { generation: generation as u8, position });
    }
}
