//! Who may do what next: the model as the checker sees it.

use stateright::{Model, Property};

use crate::bits::{Position, Positions};
use crate::configuration::Configuration;
use crate::mistake::Mistake;
use crate::properties;
use crate::state::{Local, State};
use crate::story::Story;
use crate::{append, pause, rebuild, registry, retry, worker};

/// A step of one actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Action {
    pub(crate) actor: u8,
    pub(crate) r#move: Move,
}

/// What an actor does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Move {
    /// The next statement of what it is doing.
    Go,
    /// Its transaction is rolled back: a crash, a lost connection, a time-out, a deadlock.
    Crash,
    /// An append: rolls back to the savepoint before it, and its transaction goes on.
    RollBackTo,
    TakeLease,
    /// A worker: settles what an inline generation owes …
    Drain,
    /// … of this key.
    DrainKey(usize),
    /// A rebuild: begins in place.
    Start,
    /// A rebuild: back to a generation that was kept.
    Relist,
    /// A rebuild: the fence.
    Fence,
    /// A rebuild without the fence: has skips recorded, waits for holders, flips.
    Record,
    WaitForHolders,
    Flip,
    /// … and keeps the old generation.
    Keep,
    /// A promotion of a catch-up generation.
    Promote,
}

/// Whether a step could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Done,
    /// It waits for a lock, or there is nothing to do. The state is to be thrown away.
    Blocked,
}

/// The protocols, in one configuration.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub(crate) configuration: Configuration,
}

impl Protocol {
    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.configuration.mistake == Some(mistake)
    }

    /// Those of the types that the projection wants.
    pub(crate) fn wanted(&self, positions: Positions, state: &State) -> Positions {
        let wants = |position: &Position| self.configuration.wants(state.log.stream(*position));
        positions.iter().filter(wants).collect()
    }

    /// Makes a step, and tells about it.
    pub(crate) fn step(&self, last: &State, action: Action, story: &mut Story) -> Option<State> {
        let mut state = last.clone();
        state.notes = Default::default();
        let me = action.actor as usize;
        let step = match action.r#move {
            Move::Crash => {
                self.crash(&mut state, me, story);
                Step::Done
            }
            action => match state.actors[me].local {
                Local::Append(local) if action == Move::RollBackTo => {
                    append::roll_back_to(self, &mut state, me, local, story)
                }
                Local::Append(local) => append::go(self, &mut state, me, local, story),
                Local::Work(local) => worker::go(self, &mut state, me, local, action, story),
                Local::Rebuild(local) => rebuild::go(self, &mut state, me, local, action, story),
                Local::Register(local) => registry::go(self, &mut state, me, local, story),
                Local::Retry(local) => retry::go(self, &mut state, me, local, story),
                Local::Pause(local) => pause::go(&mut state, me, local, story),
            },
        };
        (step == Step::Done).then_some(state)
    }

    fn crash(&self, state: &mut State, me: usize, story: &mut Story) {
        match state.actors[me].local {
            Local::Append(local) => append::crash(state, me, local, story),
            Local::Work(_) => worker::crash(state, me, story),
            Local::Rebuild(local) => rebuild::crash(self, state, me, local, story),
            Local::Register(_) => registry::crash(state, me, story),
            Local::Retry(_) => retry::crash(state, me, story),
            Local::Pause(local) => pause::crash(state, me, local, story),
        }
    }

    fn moves(&self, state: &State, me: usize) -> Vec<Move> {
        let role = &self.configuration.actors[me];
        match &state.actors[me].local {
            Local::Append(local) if append::is_done(role, local) => Vec::new(),
            Local::Pause(local) if local.is_done => Vec::new(),
            Local::Append(_) | Local::Register(_) | Local::Retry(_) | Local::Pause(_) => {
                vec![Move::Go]
            }
            Local::Work(local) => worker::moves(self, state, me, local),
            Local::Rebuild(local) => rebuild::moves(self, state, me, local),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.configuration)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What follows the violation that is looked for is of no interest.
        if let Some(mistake) = self.configuration.mistake
            && !properties::holds(mistake.violates(), self, state)
        {
            return;
        }
        for actor in 0..self.configuration.actors.len() {
            let mut moves = self.moves(state, actor);
            if state.has_savepoint(actor) {
                moves.push(Move::RollBackTo);
            }
            if state.actors[actor].transaction.is_open {
                moves.push(Move::Crash);
            }
            actions.extend(moves.into_iter().map(|r#move| Action { actor: actor as u8, r#move }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.step(last, action, &mut Story::default())
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        properties::of(&self.configuration)
    }
}
