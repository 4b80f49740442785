//! Which events a read model holds at one moment, and how another one gets to hold the same.
//!
//! A catch-up read model holds the events of each shard up to its checkpoint. An inline one is no prefix
//! of positions: it holds every event that can be seen at that moment. Both without what is owed, put
//! aside or given up.

use std::collections::{BTreeSet, HashMap};

use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::job::Job;
use crate::projection::projector::ApplyError;
use crate::store::{Unit, Wanted};
use crate::{Position, RecordedEvent};

/// Events that are read and applied at once.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
const PAGE_EVENTS: usize = 5_000;

/// Which events a read model holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The position of each shard. One for all shards where appends feed it: the highest that can be
    /// seen.
    pub(crate) shards: Vec<Position>,
    /// Owed, put aside, or held behind what is put aside.
    pub(crate) owed: BTreeSet<Position>,
    /// Left out for good: skipped by the policy, or discarded.
    pub(crate) given_up: BTreeSet<Position>,
}

/// Whether appends feed a generation, so that its checkpoint says nothing.
pub(crate) fn fed_by_appends(generation: &Generation) -> bool {
    use GenerationStatus::{Building, Kept, Rebuilding};
    generation.lifecycle == Lifecycle::Inline
        && !matches!(generation.status, Building | Kept | Rebuilding)
}

impl Holding {
    pub(crate) fn lowest(&self) -> Position {
        self.shards.iter().copied().min().unwrap_or_default()
    }

    pub(crate) fn highest(&self) -> Position {
        self.shards.iter().copied().max().unwrap_or_default()
    }

    /// Whether it can only be told by its shard if an event at this position is in it.
    fn depends_on_shard(&self, position: Position) -> bool {
        position > self.lowest() && position <= self.highest()
    }

    /// Whether it holds an event of this shard.
    pub(crate) fn holds(&self, position: Position, shard: u32) -> bool {
        let reached = match &self.shards[..] {
            [all] => *all,
            shards => shards.get(shard as usize).copied().unwrap_or_default(),
        };
        position <= reached && !self.leaves_out(position)
    }

    /// Those of these events that it holds; `job` finds their shards.
    pub(crate) fn of(&self, job: &Job, mut events: Vec<RecordedEvent>) -> Vec<RecordedEvent> {
        let depends = events.iter().any(|event| self.depends_on_shard(event.position));
        let shards = if depends { job.shards_of(&events) } else { HashMap::new() };
        let shard = |position| shards.get(&position).copied().unwrap_or(0);
        events.retain(|event| self.holds(event.position, shard(event.position)));
        events
    }

    pub(crate) fn leaves_out(&self, position: Position) -> bool {
        self.owed.contains(&position) || self.given_up.contains(&position)
    }
}

/// A read model that is thrown away afterwards, and what is in it.
pub(crate) struct Trial<'a> {
    pub(crate) job: &'a Job,
    /// The position of each of its shards.
    pub(crate) has: &'a [Position],
    /// What it is to hold.
    pub(crate) wanted: &'a Holding,
    /// Finds the shards that `wanted` speaks of.
    pub(crate) wanted_by: &'a Job,
}

impl Trial<'_> {
    /// Applies what it does not have yet; returns how many events that were.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    pub(crate) async fn fill<U: Unit>(&self, unit: &mut U) -> Result<u64, ApplyError> {
        let generation = &*self.job.generation;
        let mut after = self.has.iter().copied().min().unwrap_or_default();
        let up_to = self.wanted.highest();
        let mut applied = 0;
        while after < up_to {
            let wanted = Wanted { generation, after, up_to, events_max: PAGE_EVENTS };
            let page = unit.read_events(wanted).await?;
            after = page.read_to;
            let events = self.missing(page.events);
            applied += events.len() as u64;
            if !events.is_empty() {
                self.job.try_on(unit, events).await?;
            }
        }
        Ok(applied)
    }

    /// Those that it is to hold and does not have.
    pub(crate) fn missing(&self, mut events: Vec<RecordedEvent>) -> Vec<RecordedEvent> {
        let uneven = self.has.windows(2).any(|pair| pair[0] != pair[1]);
        let shards = if uneven { self.job.shards_of(&events) } else { HashMap::new() };
        events.retain(|event| {
            let shard = shards.get(&event.position).copied().unwrap_or(0);
            self.has.get(shard as usize).is_none_or(|has| event.position > *has)
        });
        self.wanted.of(self.wanted_by, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_held_by_the_checkpoint_of_its_shard_and_if_it_is_not_left_out() {
        let positions = |numbers: &[u64]| numbers.iter().map(|n| Position(*n)).collect();
        let holding = Holding {
            shards: vec![Position(5), Position(9)],
            owed: positions(&[3]),
            given_up: positions(&[4]),
        };
        assert!(holding.holds(Position(5), 0) && !holding.holds(Position(6), 0));
        assert!(holding.holds(Position(6), 1) && !holding.holds(Position(10), 1));
        assert!(!holding.holds(Position(3), 1) && !holding.holds(Position(4), 1));
        assert_eq!((holding.lowest(), holding.highest()), (Position(5), Position(9)));
        let inline = Holding { shards: vec![Position(7)], ..holding };
        assert!(inline.holds(Position(7), 3) && !inline.holds(Position(8), 3));
    }
}
