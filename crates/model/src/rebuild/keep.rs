//! Keeping the old generation after a flip without the fence.
//!
//! Appends in flight at the flip apply to it or not, by what they had read, so no position says what
//! it holds. It is paused first: from then on appends record skips for it. When those who held its
//! gate are gone, and the mark has passed all that is visible then, every event up to the mark is
//! applied or owed, and none after it is applied: it can be fed from there. All of it under the lease
//! of the old generation, which a change of its status ends.

use super::{At, Doing, Rebuild};
use crate::actions::Step;
use crate::append::name_of_generation;
use crate::bits::Few;
use crate::feed::{self, lock_row, take_lease};
use crate::note::Note;
use crate::state::Status;
use crate::transaction::Write;

impl Doing<'_> {
    pub(super) fn begin_to_keep(&mut self) -> Step {
        let Some(from) = self.plan.from else { return Step::Blocked };
        if take_lease(self.state, self.me, from, self.story).is_none() {
            return Step::Blocked;
        }
        self.story.say(|| "looks who holds the gate of the old generation".into());
        self.rebuild.waits_for = self.state.holders(self.me, from);
        self.rebuild.at = At::KeepHolders;
        Step::Done
    }

    pub(super) fn wait_to_keep(&mut self) -> Step {
        if !self.rebuild.waits_for.is_empty() {
            return Step::Blocked;
        }
        self.rebuild.waits_for = Few::default();
        self.rebuild.must_pass = self.state.log.committed().highest();
        self.rebuild.at = At::KeepMark;
        let must_pass = self.rebuild.must_pass;
        self.story.say(|| format!("goes on; the mark has to pass event {must_pass}"));
        Step::Done
    }

    pub(super) fn find_mark_to_keep(&mut self) -> Step {
        match self.rebuild.feed.at {
            feed::At::Ready => {
                self.rebuild.feed.ask_for_mark(self.protocol, self.state, self.story)
            }
            _ => {
                self.rebuild.feed.find_mark(self.protocol, self.state, self.story);
                if self.rebuild.feed.mark >= self.rebuild.must_pass {
                    self.rebuild.at = At::KeepRow;
                } else {
                    self.rebuild.feed = Default::default();
                }
            }
        }
        Step::Done
    }

    pub(super) fn keep(&mut self) -> Step {
        let Some(from) = self.plan.from else { return Step::Blocked };
        match lock_row(self.protocol, self.state, self.me, from, self.story) {
            None => return Step::Blocked,
            Some(false) => {
                self.rebuild = self.rebuild.begin_again();
                return Step::Done;
            }
            Some(true) => {}
        }
        let at = self.rebuild.feed.mark;
        let name = name_of_generation(from);
        self.story.say(|| format!("has {name} kept, and fed from {at}"));
        self.set_status(from, Status::Kept);
        self.state.write(self.me, Write::Keep { generation: from as u8, at });
        self.rebuild.at = At::KeepCommit;
        Step::Done
    }

    pub(super) fn commit_keep(&mut self) -> Step {
        self.story.say(|| "commits".into());
        self.state.commit(self.me);
        self.state.notes.add(Note::KeptWithoutTheFence);
        self.rebuild = Rebuild { plan: self.rebuild.plan + 1, ..Rebuild::default() };
        Step::Done
    }
}
