//! A worker of a runner: batches for a generation that is fed behind the appends, drains for one that
//! is inline and active (`projection/job/batch.rs` and `drain.rs` of the library).

use crate::actions::{Move, Protocol, Step};
use crate::append::name_of_generation;
use crate::apply::Applying;
use crate::bits::{Few, Position, Positions};
use crate::configuration::{Key, Lifecycle, Role};
use crate::feed::{self, Feed, leave, lock_row, take_lease};
use crate::note::Note;
use crate::state::{Local, STREAMS, State, Status};
use crate::story::Story;
use crate::transaction::Gate;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum At {
    /// Between jobs, or in a batch.
    #[default]
    Feed,
    /// `careful_drain`: the gate, exclusive, so that no append is under way.
    DrainGate,
    /// `take_skips`: the locks of keys, tried for.
    DrainKey,
    /// `take_skips`: the rows of the key, in a later statement; then apply.
    DrainTake,
    DrainCommit,
}

/// Where a worker stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Work {
    at: At,
    feed: Feed,
    key: usize,
    /// A drain was refused: the next one looks which event it is.
    is_careful: bool,
}

impl Work {
    /// The mark that its feeder goes by.
    pub(crate) fn mark(&self) -> Position {
        self.feed.mark
    }
}

/// What it could do next.
pub(crate) fn moves(protocol: &Protocol, state: &State, me: usize, work: &Work) -> Vec<Move> {
    let Role::Worker { generation } = protocol.configuration.actors[me] else { return Vec::new() };
    let status = state.generations[generation].status;
    let is_inline = protocol.configuration.lifecycle == Lifecycle::Inline;
    let is_run = match status {
        Status::Active | Status::Kept => true,
        Status::Building => !is_inline,
        Status::Absent | Status::Rebuilding | Status::Paused | Status::Retired => false,
    };
    match (work.at, work.feed.at) {
        (At::Feed, feed::At::Ready) if !work.feed.has_lease && is_run => vec![Move::TakeLease],
        (At::Feed, feed::At::Ready) if !work.feed.has_lease => Vec::new(),
        (At::Feed, feed::At::Ready) if is_inline && status == Status::Active => vec![Move::Drain],
        (At::Feed, _) => vec![Move::Go],
        (At::DrainKey, _) => (0..STREAMS).map(Move::DrainKey).collect(),
        (At::DrainGate | At::DrainTake | At::DrainCommit, _) => vec![Move::Go],
    }
}

/// One statement.
pub(crate) fn go(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    mut work: Work,
    action: Move,
    story: &mut Story,
) -> Step {
    let Role::Worker { generation } = protocol.configuration.actors[me] else {
        return Step::Blocked;
    };
    let done = match action {
        Move::TakeLease => match take_lease(state, me, generation, story) {
            Some(feed) => {
                work.feed = feed;
                Step::Done
            }
            None => Step::Blocked,
        },
        Move::Drain => begin_drain(protocol, state, me, generation, &mut work, story),
        Move::DrainKey(key) => lock_key(protocol, state, me, generation, key, &mut work, story),
        _ if work.at == At::Feed => {
            feed::go(protocol, state, me, generation, &mut work.feed, story)
        }
        _ => drain(protocol, state, me, generation, &mut work, story),
    };
    state.actors[me].local = Local::Work(work);
    done
}

/// The process dies, or its connection.
pub(crate) fn crash(state: &mut State, me: usize, story: &mut Story) {
    story.say(|| "dies; its transaction is rolled back".into());
    state.roll_back(me);
    leave(state, me);
    state.actors[me].local = Local::Work(Work::default());
}

fn begin_drain(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    work: &mut Work,
    story: &mut Story,
) -> Step {
    if state.generations[generation].skips.is_empty() {
        return Step::Blocked;
    }
    match lock_row(protocol, state, me, generation, story) {
        None => return Step::Blocked,
        Some(false) => *work = Work::default(),
        Some(true) if work.is_careful => work.at = At::DrainGate,
        Some(true) => work.at = At::DrainKey,
    }
    Step::Done
}

/// Tried for, not waited for: an append that works on the key settles its skips itself.
fn lock_key(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    key: usize,
    work: &mut Work,
    story: &mut Story,
) -> Step {
    let got = !owed(protocol, state, me, generation, key).is_empty()
        && match protocol.configuration.key {
            Key::Stream => state.lock_stream(me, key),
            Key::AcrossStreams => state.lock_key(me, generation, key),
        };
    if !got {
        return Step::Blocked;
    }
    story.say(|| format!("locks key {key} to drain what {} owes", name_of_generation(generation)));
    work.key = key;
    work.at = At::DrainTake;
    Step::Done
}

/// What is owed of a key. Where a dead letter holds the key, that comes first.
fn owed(protocol: &Protocol, state: &State, me: usize, generation: usize, key: usize) -> Positions {
    let key_of = |position: &Position| protocol.configuration.key_of(state.log.stream(*position));
    if state.aside_seen(me, generation).iter().any(|position| key_of(&position) == key) {
        return Positions::default();
    }
    state.skips_seen(me, generation).iter().filter(|position| key_of(position) == key).collect()
}

fn drain(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    work: &mut Work,
    story: &mut Story,
) -> Step {
    match work.at {
        At::DrainGate => {
            let name = name_of_generation(generation);
            story.say(|| format!("takes the gate of {name}, exclusively"));
            if !state.take(me, Gate::Generation(generation)) {
                return Step::Blocked;
            }
            work.at = At::DrainKey;
        }
        At::DrainCommit => {
            story.say(|| "commits".into());
            state.commit(me);
            *work = Work { feed: Feed::ready(), ..Work::default() };
        }
        _ => return take(protocol, state, me, generation, work, story),
    }
    Step::Done
}

fn take(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    work: &mut Work,
    story: &mut Story,
) -> Step {
    let owed = owed(protocol, state, me, generation, work.key);
    if !owed.and(state.skips_locked(me, generation)).is_empty() {
        return Step::Blocked;
    }
    let mut applying = Applying { protocol, state, me, generation, story };
    if !work.is_careful && owed.iter().next().is_some_and(|first| applying.fails(first)) {
        applying.story.say(|| "an event fails: the drain is rolled back".into());
        state.roll_back(me);
        *work = Work { feed: Feed::ready(), is_careful: true, ..Work::default() };
        return Step::Done;
    }
    applying.settle(owed);
    applying.apply(owed, Few::default());
    state.notes.add(Note::DrainedByAWorker);
    work.at = At::DrainCommit;
    Step::Done
}
