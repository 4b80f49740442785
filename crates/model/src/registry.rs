//! Registering a new inline projection while appends are in flight
//! (`store/postgres/projection/register.rs` of the library).

use crate::actions::{Protocol, Step};
use crate::append::name_of_generation;
use crate::note::Note;
use crate::state::{Local, State, Status};
use crate::story::Story;
use crate::transaction::{Gate, Write};

/// Where a registration stands. It makes generation 1, which is the first in the list.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Register {
    /// The registry gate, exclusive.
    #[default]
    Gate,
    /// A later statement: are there events? `active` if not, otherwise `building`.
    Look,
    Commit,
    Done,
}

const GENERATION: usize = 0;

/// One statement.
pub(crate) fn go(
    _: &Protocol,
    state: &mut State,
    me: usize,
    register: Register,
    story: &mut Story,
) -> Step {
    let next = match register {
        Register::Gate => {
            story.say(|| "takes the registry gate, exclusively".into());
            if !state.take(me, Gate::Registry) {
                return Step::Blocked;
            }
            Register::Look
        }
        Register::Look => {
            look(state, me, story);
            Register::Commit
        }
        Register::Commit => {
            story.say(|| "commits".into());
            state.commit(me);
            Register::Done
        }
        Register::Done => return Step::Blocked,
    };
    state.actors[me].local = Local::Register(next);
    Step::Done
}

fn look(state: &mut State, me: usize, story: &mut Story) {
    let is_empty = state.log.committed().is_empty();
    let to = if is_empty { Status::Active } else { Status::Building };
    let name = name_of_generation(GENERATION);
    story.say(|| match is_empty {
        true => format!("sees no events: {name} is active at once"),
        false => format!("sees events: {name} is to be built"),
    });
    state.write(me, Write::Status { generation: GENERATION as u8, to });
    if is_empty {
        state.notes.add(Note::RegisteredOnAnEmptyStore);
        state.write(me, Write::Show { generation: GENERATION as u8 });
    }
}

/// The transaction is rolled back, and tried again.
pub(crate) fn crash(state: &mut State, me: usize, story: &mut Story) {
    story.say(|| "the transaction is rolled back".into());
    state.roll_back(me);
    state.actors[me].local = Local::Register(Register::Gate);
}
