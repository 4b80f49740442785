//! The end of a rebuild without the fence, for appends whose transactions outlast it; only where the
//! key is the stream. Nobody takes a gate exclusively, and nobody waits but the rebuild.

use super::{At, Doing};
use crate::actions::Step;
use crate::append::name_of_generation;
use crate::bits::Few;
use crate::feed::lock_row;
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::Status;
use crate::transaction::Write;

impl Doing<'_> {
    pub(super) fn record(&mut self) -> Step {
        let Doing { protocol, state, me, rebuild, plan, story } = self;
        match lock_row(protocol, state, *me, plan.to, story) {
            None => return Step::Blocked,
            Some(false) => *rebuild = rebuild.begin_again(),
            Some(true) => {
                story.say(|| {
                    format!("asks appends to record skips for {}", name_of_generation(plan.to))
                });
                state.write(*me, Write::Record { generation: plan.to as u8 });
                rebuild.at = At::RecordCommit;
            }
        }
        Step::Done
    }

    pub(super) fn note_holders(&mut self) -> Step {
        self.story.say(|| "looks who holds the gate of the new generation".into());
        self.rebuild.waits_for = self.state.holders(self.me, self.plan.to);
        if !self.rebuild.waits_for.is_empty() {
            self.state.notes.add(Note::WaitedForHolders);
        }
        self.rebuild.at = At::Holders;
        Step::Done
    }

    pub(super) fn wait_for_holders(&mut self) -> Step {
        if !self.rebuild.waits_for.is_empty() && !self.protocol.has(Mistake::FlipWithoutHolders) {
            return Step::Blocked;
        }
        self.rebuild.waits_for = Few::default();
        self.rebuild.has_waited = true;
        if !self.protocol.has(Mistake::FlipAtAnyMark) {
            self.rebuild.must_pass = self.state.log.committed().highest();
        }
        let must_pass = self.rebuild.must_pass;
        self.story.say(|| format!("goes on; has to pass event {must_pass}"));
        self.rebuild.at = At::Feed;
        Step::Done
    }

    pub(super) fn flip_without_fence(&mut self) -> Step {
        let must_pass = self.rebuild.must_pass;
        match self.lock_rows(At::FlipCommit) {
            Step::Done if self.rebuild.at == At::FlipCommit => {}
            step => return step,
        }
        if self.state.generations[self.plan.to].checkpoint < must_pass {
            self.state.roll_back(self.me);
            self.rebuild = self.rebuild.feeding();
            self.rebuild.is_caught_up = false;
            return Step::Done;
        }
        let highest = self.state.log.committed().highest();
        let old = match self.plan.keeps {
            true if self.protocol.has(Mistake::KeptWithoutTheFence) => Status::Kept,
            true => Status::Paused,
            false => Status::Retired,
        };
        self.flip(old, highest)
    }
}
