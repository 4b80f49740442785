//! The fence, the flip, and the promotion of a catch-up generation.

use super::{At, Doing, Rebuild};
use crate::actions::Step;
use crate::append::name_of_generation;
use crate::apply::Applying;
use crate::bits::{Few, Position};
use crate::configuration::{Kind, Plan};
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::{GENERATIONS, Status};
use crate::transaction::{Gate, Write};

impl Doing<'_> {
    /// In the order of ids.
    pub(super) fn fence_gates(&mut self) -> Step {
        let (old, new) = (self.old(), self.plan.to);
        let is_meant = |id: &usize| old == Some(*id) || new == *id;
        let Some(generation) = (self.rebuild.next_gate..GENERATIONS).find(is_meant) else {
            return Step::Blocked;
        };
        let last = old.map_or(new, |old| old.max(new));
        let then = if generation == last { At::FenceTail } else { At::FenceGates };
        self.rebuild.next_gate = generation + 1;
        self.take_gate(Gate::Generation(generation), then)
    }

    pub(super) fn tail_and_flip(&mut self) -> Step {
        let Doing { protocol, state, me, plan, story, .. } = self;
        let target = state.generations[plan.to];
        if !state.skips_locked(*me, plan.to).is_empty() {
            return Step::Blocked;
        }
        let committed = protocol.wanted(state.log.committed(), state);
        let owed = state.skips_seen(*me, plan.to);
        let tail = committed.after(target.checkpoint).or(owed);
        let mut applying = Applying { protocol, state, me: *me, generation: plan.to, story };
        applying.settle(owed);
        applying.apply(tail, Few::default());
        let highest = committed.highest();
        self.move_checkpoint(highest.max(target.checkpoint));
        self.flip(Status::Kept, highest)
    }

    pub(super) fn move_checkpoint(&mut self, to: Position) {
        let (generation, by) = (self.plan.to as u8, self.me as u8);
        self.state.write(self.me, Write::Checkpoint { generation, by, to });
    }

    /// The one value that readers go by, and the two statuses that appends go by.
    pub(super) fn flip(&mut self, old: Status, kept_at: Position) -> Step {
        let Plan { to, kind, .. } = self.plan;
        if let Some(from) = self.old() {
            self.story.say(|| format!("sets {} {old:?}", name_of_generation(from)));
            self.set_status(from, old);
            if old == Status::Kept && kind != Kind::CatchUp {
                self.state.write(self.me, Write::Keep { generation: from as u8, at: kept_at });
            }
        }
        self.story.say(|| format!("sets {} active, for readers too", name_of_generation(to)));
        self.set_status(to, Status::Active);
        self.state.write(self.me, Write::Show { generation: to as u8 });
        self.rebuild.at = At::FlipCommit;
        Step::Done
    }

    pub(super) fn commit_flip(&mut self) -> Step {
        self.story.say(|| "commits".into());
        if self.state.has_appends_in_flight() {
            self.state.notes.add(Note::FlippedUnderAnAppend);
        }
        self.state.notes.add(match self.plan.fence {
            true => Note::Flipped,
            false => Note::FlippedWithoutTheFence,
        });
        self.state.commit(self.me);
        let is_done = u8::from(!self.plan.keeps || self.protocol.has(Mistake::KeptWithoutTheFence));
        self.rebuild = Rebuild { plan: self.rebuild.plan + is_done, ..Rebuild::default() };
        Step::Done
    }
}

/// A catch-up projection: there are no gates, and readers must not go back in time.
impl Doing<'_> {
    pub(super) fn promote(&mut self) -> Step {
        let Plan { from, to, .. } = self.plan;
        let old = from.map_or(0, |from| self.state.generations[from].checkpoint);
        let new = self.state.generations[to].checkpoint;
        if new < old {
            self.story
                .say(|| format!("sees that the new generation is at {new}, the old one at {old}"));
            self.state.roll_back(self.me);
            self.rebuild = self.rebuild.feeding();
            self.state.notes.add(Note::PromotionRefused);
            return Step::Done;
        }
        self.story.say(|| format!("sees the new generation at {new}, the old one at {old}"));
        self.flip(Status::Kept, old)
    }
}
