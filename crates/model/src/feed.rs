//! Feeding a generation behind the appends: the lease, the mark, and a batch.
//!
//! ```text
//!   no lease ─TakeLease─> Ready ─> Scan ─> Row ─> Apply ─> Commit ─┐
//!      ^                    ^               │                      │
//!      └── the lease is another's ──────────┘ <────────────────────┘
//! ```
//!
//! Leases expire by the clock, of which the model knows nothing: a lease may be taken at any moment
//! between two transactions of its holder. Whoever is not scheduled for a while is paused, and who
//! goes on with an old epoch is a zombie.

use crate::actions::{Protocol, Step};
use crate::append::name_of_generation;
use crate::apply::Applying;
use crate::bits::{Few, Position};
use crate::mistake::Mistake;
use crate::note::Note;
use crate::state::{POSITIONS, State};
use crate::story::Story;
use crate::transaction::Write;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) enum At {
    /// Between transactions.
    #[default]
    Ready,
    /// `high_water_mark`: the sequence has been read, the locks have not.
    Scan,
    /// `lock_checkpoint.sql`.
    Row,
    /// Reads which keys are held, where events can fail.
    Held,
    /// Reads events, applies them, `advance_checkpoint.sql`.
    Apply,
    Commit,
}

/// What a feeder remembers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Feed {
    pub(crate) at: At,
    /// It took a lease, and does not know of another who took it since.
    pub(crate) has_lease: bool,
    pub(crate) last: Position,
    pub(crate) mark: Position,
    pub(crate) from: Position,
    pub(crate) held: Few,
}

impl Feed {
    /// Between transactions, with a lease.
    pub(crate) fn ready() -> Feed {
        Feed { has_lease: true, ..Feed::default() }
    }

    /// `high_water_mark`: the sequence first …
    pub(crate) fn ask_for_mark(&mut self, protocol: &Protocol, state: &State, story: &mut Story) {
        self.at = At::Scan;
        if protocol.has(Mistake::LocksBeforeSequence) {
            self.last = state.lowest_announced().unwrap_or(POSITIONS as Position);
            story.say(|| "asks for the mark: looks at the announcements first".into());
            return;
        }
        self.last = state.log.last;
        story.say(|| format!("asks for the mark: the sequence stands at {}", self.last));
    }

    /// … then the announcements, and what is visible.
    pub(crate) fn find_mark(&mut self, protocol: &Protocol, state: &State, story: &mut Story) {
        let announced = state.lowest_announced().unwrap_or(self.last);
        let visible = state.log.committed().highest();
        self.mark = match protocol.configuration.mistake {
            Some(Mistake::NoMark) => visible,
            Some(Mistake::LocksBeforeSequence) => self.last.min(state.log.last).min(visible),
            _ => self.last.min(announced).min(visible),
        };
        self.last = 0;
        self.at = At::Row;
        story.say(|| format!("looks at the rest: the mark is {}", self.mark));
    }
}

/// `everfold.tick`: a lease that is free or has expired. Rows that are locked are left alone.
pub(crate) fn take_lease(
    state: &mut State,
    me: usize,
    generation: usize,
    story: &mut Story,
) -> Option<Feed> {
    if !state.is_row_free(me, generation) {
        return None;
    }
    let before = state.generations[generation].holder.replace(me as u8);
    let name = name_of_generation(generation);
    story.say(|| match before {
        Some(_) => format!("takes the lease of {name}, which has expired, and raises its epoch"),
        None => format!("takes the lease of {name}"),
    });
    Some(Feed::ready())
}

/// Whoever is gone has no lease; whether it is taken from him or was free makes no difference.
pub(crate) fn leave(state: &mut State, me: usize) {
    for generation in &mut state.generations {
        generation.holder = generation.holder.filter(|holder| *holder as usize != me);
    }
}

/// Locks the checkpoint's row if the epoch is still the own one. `None`: somebody has it locked.
pub(crate) fn lock_row(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    story: &mut Story,
) -> Option<bool> {
    let name = name_of_generation(generation);
    if protocol.has(Mistake::UnfencedCheckpoint) {
        story.say(|| format!("reads the checkpoint of {name}, without a look at the epoch"));
        return Some(true);
    }
    if !state.is_row_free(me, generation) {
        return None;
    }
    if state.generations[generation].holder != Some(me as u8) {
        story.say(|| format!("finds a later epoch at the checkpoint of {name}: it stops"));
        state.roll_back(me);
        state.notes.add(Note::ZombieRefused);
        return Some(false);
    }
    story.say(|| format!("locks the checkpoint of {name}"));
    Some(state.lock_row(me, generation))
}

/// One statement of a batch. A lost lease leaves it without one.
pub(crate) fn go(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    feed: &mut Feed,
    story: &mut Story,
) -> Step {
    match feed.at {
        At::Ready => feed.ask_for_mark(protocol, state, story),
        At::Scan => feed.find_mark(protocol, state, story),
        At::Row => match lock_row(protocol, state, me, generation, story) {
            None => return Step::Blocked,
            Some(false) => *feed = Feed::default(),
            Some(true) => begin_batch(protocol, state, me, generation, feed),
        },
        At::Held => {
            let key_of = |position| protocol.configuration.key_of(state.log.stream(position));
            feed.held = state.generations[generation].failed.iter().map(key_of).collect();
            feed.at = At::Apply;
            story.say(|| match feed.held.is_empty() {
                true => "sees no dead letters".into(),
                false => "sees a dead letter, which holds its key".into(),
            });
        }
        At::Apply => return apply(protocol, state, me, generation, feed, story),
        At::Commit => {
            story.say(|| "commits".into());
            state.commit(me);
            *feed = Feed::ready();
        }
    }
    Step::Done
}

fn begin_batch(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    feed: &mut Feed,
) {
    let row = &state.generations[generation];
    feed.from = row.checkpoint;
    feed.at = if protocol.configuration.fails.is_some() { At::Held } else { At::Apply };
    if feed.mark <= feed.from && row.skips.up_to(feed.mark).is_empty() {
        state.roll_back(me);
        *feed = Feed::ready();
    }
}

/// Everything up to the mark that is not applied: what comes after the checkpoint, and before all of
/// that what is still owed.
fn apply(
    protocol: &Protocol,
    state: &mut State,
    me: usize,
    generation: usize,
    feed: &mut Feed,
    story: &mut Story,
) -> Step {
    let mut owed = state.generations[generation].skips.up_to(feed.mark);
    if protocol.has(Mistake::FeedPastOpenSkips) {
        owed = owed.after(feed.from);
    }
    if !owed.and(state.skips_locked(me, generation)).is_empty() {
        return Step::Blocked;
    }
    let events = state.log.committed().up_to(feed.mark).after(feed.from);
    let events = protocol.wanted(events, state).or(owed);
    let held = feed.held;
    let mut applying = Applying { protocol, state, me, generation, story };
    applying.settle(owed);
    applying.apply(events, held);
    if !owed.is_empty() {
        state.notes.add(Note::SkipsSettledByABatch);
    }
    let to = feed.mark.max(feed.from);
    let checkpoint = Write::Checkpoint { generation: generation as u8, by: me as u8, to };
    state.write(me, checkpoint);
    story.say(|| format!("moves the checkpoint to {to}"));
    feed.at = At::Commit;
    Step::Done
}
