//! What comes before the feeding: a rebuild in place, or the way back to a generation that was kept.
//! Both change which generations appends find in the registry, so both take its gate, for a moment.

use super::{At, Doing};
use crate::actions::Step;
use crate::append::name_of_generation;
use crate::mistake::Mistake;
use crate::state::Status;
use crate::transaction::{Gate, Write};

impl Doing<'_> {
    /// A change of status raises the epoch, in the checkpoint's row: a job that has it locked is
    /// waited for. Before any gate, because appends wait for those.
    pub(super) fn stop_jobs(&mut self, generation: usize, then: At) -> Step {
        if self.protocol.has(Mistake::StatusWithoutCheckpoint) {
            self.story.say(|| "begins to change a status, without the checkpoint".into());
            self.state.transaction(self.me);
        } else if self.state.lock_row(self.me, generation) {
            let name = name_of_generation(generation);
            self.story.say(|| format!("locks the checkpoint of {name}"));
        } else {
            return Step::Blocked;
        }
        self.rebuild.at = then;
        Step::Done
    }

    pub(super) fn start_registry(&mut self) -> Step {
        match self.protocol.has(Mistake::SwapWithoutRegistryGate) {
            true => self.start_gate(),
            false => self.take_gate(Gate::Registry, At::StartGate),
        }
    }

    pub(super) fn start_gate(&mut self) -> Step {
        let from = self.plan.from.unwrap_or_default();
        self.take_gate(Gate::Generation(from), At::StartSwap)
    }

    /// Somebody else may have begun meanwhile: then there is nothing to do.
    pub(super) fn swap(&mut self) -> Step {
        let (from, to) = (self.plan.from.unwrap_or_default(), self.plan.to);
        if self.state.generations[to].status != Status::Absent {
            self.story.say(|| "finds the rebuild begun already".into());
            self.state.roll_back(self.me);
            self.rebuild = self.rebuild.begin_again();
            return Step::Done;
        }
        self.story.say(|| {
            let (old, new) = (name_of_generation(from), name_of_generation(to));
            format!("retires {old} and puts {new} in its place, empty, rebuilding")
        });
        self.set_status(from, Status::Retired);
        self.set_status(to, Status::Rebuilding);
        self.state.write(self.me, Write::Show { generation: to as u8 });
        self.rebuild.at = At::StartCommit;
        Step::Done
    }

    pub(super) fn relist(&mut self) -> Step {
        let to = self.plan.to;
        if self.state.generations[to].status != Status::Kept {
            self.state.roll_back(self.me);
            self.rebuild = self.rebuild.begin_again();
            return Step::Done;
        }
        self.story.say(|| {
            format!("sets {} building, so that appends enter its gate", name_of_generation(to))
        });
        self.set_status(to, Status::Building);
        self.rebuild.at = At::StartCommit;
        Step::Done
    }
}
