//! An operator has a dead letter tried again (`src/projection/job/retry.rs` of the library): it is
//! applied this time, and what waits behind it follows, in order.

use crate::actions::{Protocol, Step};
use crate::append::name_of_generation;
use crate::apply::Applying;
use crate::bits::{Position, Positions};
use crate::configuration::Lifecycle;
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::{Local, State};
use crate::story::Story;
use crate::transaction::{Gate, Write};

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum At {
    /// Which dead letter there is.
    #[default]
    Look,
    /// The checkpoint's row, as every job.
    Row,
    /// The gate, where appends apply: none is under way then.
    Gate,
    /// All that waits, read again.
    Take,
    Commit,
}

/// Where an operator stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Retry {
    at: At,
    position: Position,
}

/// Dead letters are those of the first generation.
const GENERATION: usize = 0;

/// One statement.
pub(crate) fn go(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    mut retry: Retry,
    story: &mut Story,
) -> Step {
    let is_inline = protocol.configuration.lifecycle == Lifecycle::Inline;
    let name = name_of_generation(GENERATION);
    match retry.at {
        At::Look => {
            let failed = state.generations[GENERATION].failed.iter().next();
            let Some(position) = failed else { return Step::Blocked };
            story.say(|| format!("finds event {position} among the dead letters"));
            state.transaction(me);
            retry = Retry { at: At::Row, position };
            if protocol.has(Mistake::RetryWithoutCheckpoint) {
                retry.at = At::Take;
            }
        }
        At::Row => {
            story.say(|| format!("locks the checkpoint of {name}"));
            if !state.lock_row(me, GENERATION) {
                return Step::Blocked;
            }
            retry.at = if is_inline { At::Gate } else { At::Take };
        }
        At::Gate => {
            story.say(|| format!("takes the gate of {name}, exclusively"));
            if !state.take(me, Gate::Generation(GENERATION)) {
                return Step::Blocked;
            }
            retry.at = At::Take;
        }
        At::Take => {
            let step = take(protocol, state, me, is_inline, &mut retry, story);
            if step == Step::Blocked {
                return step;
            }
        }
        At::Commit => {
            story.say(|| "commits".into());
            state.commit(me);
            retry = Retry::default();
        }
    }
    state.actors[me].local = Local::Retry(retry);
    Step::Done
}

fn take(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    is_inline: bool,
    retry: &mut Retry,
    story: &mut Story,
) -> Step {
    let generation = &state.generations[GENERATION];
    if !generation.failed.contains(retry.position) {
        story.say(|| "finds that somebody was faster".into());
        state.roll_back(me);
        *retry = Retry::default();
        return Step::Done;
    }
    let key_of = |position: Position| protocol.configuration.key_of(state.log.stream(position));
    let key = key_of(retry.position);
    let of_key = |some: Positions| some.iter().filter(|p| key_of(*p) == key).collect::<Positions>();
    let aside = of_key(generation.aside());
    let skips = if is_inline { of_key(generation.skips) } else { Positions::default() };
    if !skips.and(state.skips_locked(me, GENERATION)).is_empty() {
        return Step::Blocked;
    }
    for position in aside.iter() {
        state.write(me, Write::TakeBack { generation: GENERATION as u8, position });
    }
    let mut applying = Applying { protocol, state, me, generation: GENERATION, story };
    applying.settle(skips);
    aside.or(skips).iter().for_each(|position| applying.apply_surely(position));
    state.notes.add(match skips.is_empty() {
        true => Note::DeadLetterRetried,
        false => Note::DeadLetterRetriedWithSkips,
    });
    retry.at = At::Commit;
    Step::Done
}

/// The transaction is rolled back.
pub(crate) fn crash(state: &mut State, me: usize, story: &mut Story) {
    story.say(|| "the transaction is rolled back".into());
    state.roll_back(me);
    state.actors[me].local = Local::Retry(Retry::default());
}
