//! An operator pauses an inline generation and resumes it
//! (`store/postgres/projection/operate.rs` of the library, `change_status`).

use crate::actions::Step;
use crate::append::name_of_generation;
use crate::note::Note;
use crate::state::{Local, State, Status};
use crate::story::Story;
use crate::transaction::{Gate, Write};

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum At {
    #[default]
    Registry,
    Gate,
    /// The status, and the checkpoint's row: a job that has it locked is waited for.
    Set,
    Commit,
}

/// Where an operator stands: first it pauses, then it resumes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Pause {
    at: At,
    has_paused: bool,
    pub(crate) is_done: bool,
}

const GENERATION: usize = 0;

/// One statement.
pub(crate) fn go(state: &mut State, me: usize, mut pause: Pause, story: &mut Story) -> Step {
    let name = name_of_generation(GENERATION);
    let to = if pause.has_paused { Status::Active } else { Status::Paused };
    let is_free = match pause.at {
        At::Registry => {
            story.say(|| "takes the registry gate, exclusively".into());
            pause.at = At::Gate;
            state.take(me, Gate::Registry)
        }
        At::Gate => {
            story.say(|| format!("takes the gate of {name}, exclusively"));
            pause.at = At::Set;
            state.take(me, Gate::Generation(GENERATION))
        }
        At::Set => {
            story.say(|| format!("sets {name} {to:?}"));
            state.write(me, Write::Status { generation: GENERATION as u8, to });
            pause.at = At::Commit;
            state.lock_row(me, GENERATION)
        }
        At::Commit => {
            story.say(|| "commits".into());
            if to == Status::Active && !state.generations[GENERATION].skips.is_empty() {
                state.notes.add(Note::ResumedWithOpenSkips);
            }
            state.commit(me);
            pause = Pause { at: At::Registry, has_paused: true, is_done: pause.has_paused };
            true
        }
    };
    state.actors[me].local = Local::Pause(pause);
    if is_free { Step::Done } else { Step::Blocked }
}

/// The transaction is rolled back, and tried again.
pub(crate) fn crash(state: &mut State, me: usize, pause: Pause, story: &mut Story) {
    story.say(|| "the transaction is rolled back".into());
    state.roll_back(me);
    state.actors[me].local = Local::Pause(Pause { at: At::Registry, ..pause });
}
