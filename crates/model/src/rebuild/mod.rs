//! A rebuild: beside or in place, finished with the fence or without it; a promotion and a rollback
//! are the same flip. The design's section on rebuilds is what is modelled; it has no code yet.
//!
//! ```text
//!   in place, first:     row ─> StartRegistry ─> StartGate ─> StartSwap ─> commit
//!   back to a kept one:  row ─> RelistRegistry ─> Relist ─> commit
//!   then, as a feeder:   lease, batches up to the mark
//!   with the fence:      rows ─> FenceGates ─> FenceTail ─> commit
//!   without it:          Record, commit ─> Holders ─> batches ─> row, flip ─> commit
//!   and keeps the old:   KeepHolders ─> KeepMark ─> KeepRow ─> commit
//!   catch-up:            rows ─> PromoteLook ─> commit
//! ```
//!
//! Whoever rebuilds holds the lease of the new generation. A rebuilder that died is followed by one
//! that knows nothing but what is stored.

use crate::actions::{Move, Protocol, Step};
use crate::append::name_of_generation;
use crate::bits::{Few, Position};
use crate::configuration::{Kind, Plan, Role};
use crate::feed::{self, Feed, leave, lock_row, take_lease};
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::{Local, State, Status};
use crate::story::Story;
use crate::transaction::{Gate, Write};

mod begin;
mod fence;
mod keep;
mod without_fence;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum At {
    /// Between transactions, or in a batch.
    #[default]
    Feed,
    /// In place: the registry gate, exclusive.
    StartRegistry,
    /// In place: the gate of the generation that goes.
    StartGate,
    /// In place: an empty generation takes its place.
    StartSwap,
    StartCommit,
    /// Without the fence: says that appends are to record skips for the new generation.
    RecordCommit,
    /// Without the fence: waits for those who held the gate then.
    Holders,
    /// Back to a generation that was kept: the registry gate, exclusive.
    RelistRegistry,
    /// It is listed again, as one that is being built: from now on appends enter its gate.
    Relist,
    /// The gates of both. Their checkpoint rows are locked already, with the epoch checked: nobody
    /// waits for one with a gate in hand.
    FenceGates,
    /// Everything that is not applied yet, then the flip.
    FenceTail,
    PromoteLook,
    FlipCommit,
    /// Without the fence, afterwards: waits for those who hold the gate of the old generation, of
    /// whom some applied to it, …
    KeepHolders,
    /// … finds a mark that has passed all that, …
    KeepMark,
    /// … and has it fed from there.
    KeepRow,
    KeepCommit,
}

/// Where a rebuild stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rebuild {
    at: At,
    feed: Feed,
    /// Which of its plans.
    plan: u8,
    next_gate: usize,
    /// Transactions that it still waits for.
    pub(crate) waits_for: Few,
    /// Without the fence: it has waited, and what was visible then.
    has_waited: bool,
    must_pass: Position,
    is_caught_up: bool,
}

impl Rebuild {
    /// What it does when it does nothing else: it feeds the new generation.
    fn feeding(self) -> Rebuild {
        Rebuild {
            at: At::Feed,
            next_gate: 0,
            feed: Feed { has_lease: self.feed.has_lease, ..Feed::default() },
            ..self
        }
    }

    /// The lease was lost, or the process died.
    fn begin_again(self) -> Rebuild {
        Rebuild { plan: self.plan, ..Rebuild::default() }
    }

    /// The mark that its feeder goes by.
    pub(crate) fn mark(&self) -> Position {
        self.feed.mark
    }
}

fn plan_of(role: &Role, rebuild: &Rebuild) -> Option<Plan> {
    let Role::Rebuilder { plans } = role else { return None };
    plans.get(rebuild.plan as usize).copied()
}

/// What it could do next.
pub(crate) fn moves(protocol: &Protocol, state: &State, me: usize, rebuild: &Rebuild) -> Vec<Move> {
    let Some(plan) = plan_of(&protocol.configuration.actors[me], rebuild) else {
        return Vec::new();
    };
    if rebuild.at != At::Feed || rebuild.feed.at != feed::At::Ready {
        return vec![Move::Go];
    }
    let is_paused = |from: usize| state.generations[from].status == Status::Paused;
    if !rebuild.feed.has_lease && plan.from.is_some_and(is_paused) {
        return vec![Move::Keep];
    }
    let target = &state.generations[plan.to];
    if plan.kind == Kind::InPlace && target.status == Status::Absent {
        return vec![Move::Start];
    }
    if target.status == Status::Kept && !protocol.has(Mistake::KeptNotListed) {
        return vec![Move::Relist];
    }
    if !rebuild.feed.has_lease {
        let may = matches!(target.status, Status::Building | Status::Rebuilding | Status::Kept);
        return if may { vec![Move::TakeLease] } else { Vec::new() };
    }
    let finish = match plan.kind {
        Kind::CatchUp => Some(Move::Promote),
        _ if plan.fence => Some(Move::Fence),
        Kind::Beside if !target.recording => Some(Move::Record),
        _ if !rebuild.has_waited => Some(Move::WaitForHolders),
        _ if rebuild.is_caught_up => Some(Move::Flip),
        _ => None,
    };
    [Move::Go].into_iter().chain(finish).collect()
}

/// A rebuild in the making: what its statements need.
struct Doing<'a> {
    protocol: &'a Protocol,
    state: &'a mut State,
    me: usize,
    rebuild: Rebuild,
    plan: Plan,
    story: &'a mut Story,
}

/// One statement.
pub(crate) fn go(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    rebuild: Rebuild,
    action: Move,
    story: &mut Story,
) -> Step {
    let Some(plan) = plan_of(&protocol.configuration.actors[me], &rebuild) else {
        return Step::Blocked;
    };
    let mut doing = Doing { protocol, state, me, rebuild, plan, story };
    let step = match action {
        Move::Go => doing.statement(),
        action => doing.begin(action),
    };
    let rebuild = doing.rebuild;
    state.actors[me].local = Local::Rebuild(rebuild);
    step
}

/// The process dies, or its connection, or a time-out ends its transaction.
pub(crate) fn crash(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    rebuild: Rebuild,
    story: &mut Story,
) {
    story.say(|| "dies; its transaction is rolled back".into());
    state.roll_back(me);
    leave(state, me);
    if protocol.has(Mistake::ActivationOnClose)
        && let Some(plan) = plan_of(&protocol.configuration.actors[me], &rebuild)
    {
        story.say(|| format!("on its way out it sets {} active", name_of_generation(plan.to)));
        state.write(me, Write::Status { generation: plan.to as u8, to: Status::Active });
        state.write(me, Write::Show { generation: plan.to as u8 });
        state.commit(me);
    }
    state.actors[me].local = Local::Rebuild(rebuild.begin_again());
}

impl Doing<'_> {
    /// Leaves the feeder's loop.
    fn begin(&mut self, action: Move) -> Step {
        match action {
            Move::TakeLease => {
                let plan = self.plan;
                let lease = take_lease(self.state, self.me, plan.to, self.story);
                let Some(feed) = lease else { return Step::Blocked };
                self.rebuild.feed = feed;
                Step::Done
            }
            Move::Start => self.stop_jobs(self.plan.from.unwrap_or_default(), At::StartRegistry),
            Move::Relist => self.stop_jobs(self.plan.to, At::RelistRegistry),
            Move::Record => self.record(),
            Move::WaitForHolders => self.note_holders(),
            Move::Fence => self.lock_rows(At::FenceGates),
            Move::Promote => self.lock_rows(At::PromoteLook),
            Move::Flip => self.flip_without_fence(),
            Move::Keep => self.begin_to_keep(),
            _ => Step::Blocked,
        }
    }

    fn statement(&mut self) -> Step {
        match self.rebuild.at {
            At::Feed => self.feed(),
            At::StartRegistry => self.start_registry(),
            At::StartGate => self.start_gate(),
            At::StartSwap => self.swap(),
            At::StartCommit | At::RecordCommit => self.commit(),
            At::Holders => self.wait_for_holders(),
            At::RelistRegistry => self.take_gate(Gate::Registry, At::Relist),
            At::Relist => self.relist(),
            At::FenceGates => self.fence_gates(),
            At::FenceTail => self.tail_and_flip(),
            At::PromoteLook => self.promote(),
            At::FlipCommit => self.commit_flip(),
            At::KeepHolders => self.wait_to_keep(),
            At::KeepMark => self.find_mark_to_keep(),
            At::KeepRow => self.keep(),
            At::KeepCommit => self.commit_keep(),
        }
    }

    fn feed(&mut self) -> Step {
        let Doing { protocol, state, me, rebuild, plan, story } = self;
        let was_ready = rebuild.feed.at == feed::At::Ready;
        let step = feed::go(protocol, state, *me, plan.to, &mut rebuild.feed, story);
        if !rebuild.feed.has_lease {
            *rebuild = rebuild.begin_again();
        } else if rebuild.feed.at == feed::At::Ready && !was_ready && rebuild.has_waited {
            rebuild.is_caught_up = true;
        }
        step
    }

    fn take_gate(&mut self, gate: Gate, then: At) -> Step {
        self.story.say(|| match gate {
            Gate::Registry => "takes the registry gate, exclusively".into(),
            Gate::Generation(id) => {
                format!("takes the gate of {}, exclusively", name_of_generation(id))
            }
        });
        if !self.state.take(self.me, gate) {
            return Step::Blocked;
        }
        self.rebuild.at = then;
        Step::Done
    }

    fn commit(&mut self) -> Step {
        self.story.say(|| "commits".into());
        self.state.commit(self.me);
        self.rebuild = self.rebuild.feeding();
        Step::Done
    }

    /// The generation that is to be replaced. In place it has gone already.
    fn old(&self) -> Option<usize> {
        self.plan.from.filter(|from| self.state.generations[*from].status == Status::Active)
    }

    /// The rows of both generations, before any gate.
    fn lock_rows(&mut self, then: At) -> Step {
        let old = self.old().filter(|_| !self.protocol.has(Mistake::PromoteWithoutOldCheckpoint));
        let Doing { protocol, state, me, rebuild, plan, story } = self;
        if old.is_some_and(|old| !state.is_row_free(*me, old)) {
            return Step::Blocked;
        }
        match lock_row(protocol, state, *me, plan.to, story) {
            None => return Step::Blocked,
            Some(false) => {
                *rebuild = rebuild.begin_again();
                return Step::Done;
            }
            Some(true) => {}
        }
        if let Some(old) = old {
            state.lock_row(*me, old);
        }
        if then == At::FenceGates && state.has_appends_in_flight() {
            state.notes.add(Note::FenceBeganUnderAnAppend);
        }
        rebuild.at = match protocol.has(Mistake::FlipWithoutWaiting) && then == At::FenceGates {
            true => At::FenceTail,
            false => then,
        };
        Step::Done
    }

    fn set_status(&mut self, generation: usize, to: Status) {
        self.state.write(self.me, Write::Status { generation: generation as u8, to });
    }
}
