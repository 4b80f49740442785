//! What must hold in every state. Only what is committed counts: nobody sees anything else.

use stateright::Property;

use crate::actions::Protocol;
use crate::bits::{Position, Positions};
use crate::configuration::{Configuration, Kind, Lifecycle, Role};
use crate::note::Note;
use crate::state::{Generation, Local, State, Status};

/// G1, G3: nothing is lost, also not at a flip.
pub(crate) const COMPLETE: &str =
    "every committed event is applied or owed in every live generation";
/// G1.
pub(crate) const ONCE: &str = "no event is applied twice";
/// G3.
pub(crate) const NEVER_BOTH: &str = "no event is applied and owed at once";
/// G1.
pub(crate) const IN_ORDER: &str = "events of a key are applied in the order of the log";
/// G7.
pub(crate) const NO_HOLES: &str = "no event is applied over one of its key that is owed";
/// G7.
pub(crate) const NOT_STRANDED: &str = "no event is held behind nothing";
/// G4, G6.
pub(crate) const WHOLE: &str = "readers are shown a live generation, and a whole one";
/// G4, G6.
pub(crate) const READERS_KEEP: &str = "readers never lose what they saw, unless it is owed";
/// G5.
pub(crate) const CURRENT_EPOCH: &str = "only the current epoch moves a checkpoint";
/// G5.
pub(crate) const FORWARD: &str = "no checkpoint moves back";
/// G1: the checkpoint says what is in the read model.
pub(crate) const NOT_AHEAD: &str = "a fed generation holds nothing beyond its checkpoint";
/// G2.
pub(crate) const DECIDED: &str = "no event appears at or below a mark or a checkpoint";

/// A condition on every state.
type Condition = fn(&Protocol, &State) -> bool;

const ALWAYS: [(&str, Condition); 12] = [
    (COMPLETE, is_complete),
    (ONCE, |_, state| live(state).all(|g| g.applied.iter().all(|order| !order.has_repeats()))),
    (NEVER_BOTH, |_, state| {
        live(state).all(|g| g.holds().and(g.owes()).is_empty() && g.skips.and(g.aside()).is_empty())
    }),
    (IN_ORDER, |_, state| live(state).all(|g| g.applied.iter().all(|order| order.rises()))),
    (NO_HOLES, has_no_holes),
    (NOT_STRANDED, is_none_stranded),
    (WHOLE, is_whole),
    (READERS_KEEP, |protocol, state| {
        is_in_place(&protocol.configuration) || !state.notes.has(Note::ReadersLostWhatTheySaw)
    }),
    (CURRENT_EPOCH, |_, state| !state.notes.has(Note::CheckpointMovedByAnOldEpoch)),
    (FORWARD, |_, state| !state.notes.has(Note::CheckpointMovedBack)),
    (NOT_AHEAD, |protocol, state| {
        fed(protocol, state).all(|g| g.holds().after(g.checkpoint).is_empty())
    }),
    (DECIDED, is_decided),
];

/// The properties of a configuration: what always holds, and what it has to reach.
pub(crate) fn of(configuration: &Configuration) -> Vec<Property<Protocol>> {
    let always = ALWAYS.iter().map(|(name, condition)| Property::always(name, *condition));
    let reached = configuration.witnesses.iter().map(|note| note.happens());
    let end = Property::sometimes("everything has ended, and nothing is owed", has_ended);
    always.chain(reached).chain([end]).collect()
}

pub(crate) fn holds(name: &str, protocol: &Protocol, state: &State) -> bool {
    ALWAYS.iter().all(|(other, condition)| *other != name || condition(protocol, state))
}

fn live(state: &State) -> impl Iterator<Item = &Generation> {
    state.generations.iter().filter(|g| !matches!(g.status, Status::Absent | Status::Retired))
}

/// Those whose checkpoint says what they hold.
fn fed<'s>(protocol: &Protocol, state: &'s State) -> impl Iterator<Item = &'s Generation> {
    let is_inline = protocol.configuration.lifecycle == Lifecycle::Inline;
    live(state).filter(move |g| !(is_inline && matches!(g.status, Status::Active | Status::Paused)))
}

fn is_in_place(configuration: &Configuration) -> bool {
    let is_in_place = |role: &Role| match role {
        Role::Rebuilder { plans } => plans.iter().any(|plan| plan.kind == Kind::InPlace),
        _ => false,
    };
    configuration.actors.iter().any(is_in_place)
}

/// What a generation has to hold or owe by now.
fn due(protocol: &Protocol, state: &State, generation: &Generation) -> Positions {
    let is_inline = protocol.configuration.lifecycle == Lifecycle::Inline;
    let wanted = protocol.wanted(state.log.committed(), state);
    match generation.status {
        Status::Active | Status::Paused if is_inline => wanted,
        _ => wanted.up_to(generation.checkpoint),
    }
}

fn is_complete(protocol: &Protocol, state: &State) -> bool {
    let has_all =
        |g: &Generation| due(protocol, state, g).without(g.holds()).without(g.owes()).is_empty();
    live(state).all(has_all)
}

fn has_no_holes(protocol: &Protocol, state: &State) -> bool {
    let key_of = |position: Position| protocol.configuration.key_of(state.log.stream(position));
    let is_behind_none = |g: &Generation| {
        g.owes().iter().all(|owed| g.applied[key_of(owed)].positions().after(owed).is_empty())
    };
    live(state).all(is_behind_none)
}

fn is_none_stranded(protocol: &Protocol, state: &State) -> bool {
    let key_of = |position: Position| protocol.configuration.key_of(state.log.stream(position));
    let is_behind_one = |g: &Generation, held: Position| {
        g.failed.up_to(held).iter().any(|failed| key_of(failed) == key_of(held))
    };
    live(state).all(|g| g.held.iter().all(|held| is_behind_one(g, held)))
}

/// Whoever asked for a rebuild in place has asked for a read model that fills up.
fn is_whole(protocol: &Protocol, state: &State) -> bool {
    let Some(shown) = state.shown else { return true };
    let generation = &state.generations[shown];
    match generation.status {
        Status::Active => due(protocol, state, generation)
            .without(generation.holds())
            .without(generation.owes())
            .is_empty(),
        Status::Rebuilding => is_in_place(&protocol.configuration),
        // What comes meanwhile is owed.
        Status::Paused => protocol.configuration.actors.contains(&Role::Pauser),
        _ => false,
    }
}

fn is_decided(protocol: &Protocol, state: &State) -> bool {
    let in_flight = state.log.in_flight();
    let wanted = protocol.wanted(in_flight, state);
    let mark_of = |local: &Local| match local {
        Local::Work(work) => work.mark(),
        Local::Rebuild(rebuild) => rebuild.mark(),
        Local::Append(_) | Local::Register(_) | Local::Retry(_) | Local::Pause(_) => 0,
    };
    state.actors.iter().all(|actor| in_flight.up_to(mark_of(&actor.local)).is_empty())
        && fed(protocol, state).all(|g| wanted.up_to(g.checkpoint).is_empty())
}

fn has_ended(protocol: &Protocol, state: &State) -> bool {
    let committed = state.log.committed();
    let is_idle = state.actors.iter().all(|actor| !actor.transaction.is_open);
    let appended: usize = protocol.configuration.actors.iter().map(Role::appends).sum();
    let has_all = committed.len() as usize == appended + protocol.configuration.history.len();
    let wanted = protocol.wanted(committed, state);
    let is_built = |g: &Generation| g.status == Status::Active && g.holds() == wanted;
    is_idle && has_all && state.shown.is_some_and(|shown| is_built(&state.generations[shown]))
}
