//! The follower of the demo: reads along while the writers write, and checks what it sees.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use everfold::{Position, ReadError, RecordedEvent, Store, StreamId, Version};
use futures::stream::StreamExt;
use tokio::sync::watch;

use super::Run;
use super::report::Place;

pub(super) struct Follower {
    run: Run,
    within: Duration,
    seen: Arc<AtomicU64>,
    followed: Followed,
    last: Position,
    versions: HashMap<StreamId, Version>,
}

/// What the follower saw, in the order in which it saw it, and what was wrong with that.
#[derive(Debug, Default)]
pub(super) struct Followed {
    pub(super) places: Vec<Place>,
    /// Events at or below the position of the one before.
    pub(super) out_of_order: u64,
    /// Events whose version is not the next of their stream.
    pub(super) holes: u64,
}

impl Follower {
    /// A follower that gives up when it has not seen the last event so long after the end.
    pub(super) fn new(run: Run, within: Duration) -> Follower {
        Follower {
            run,
            within,
            seen: Arc::default(),
            followed: Followed::default(),
            last: Position::START,
            versions: HashMap::new(),
        }
    }

    /// How many events it has seen so far.
    pub(super) fn seen(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.seen)
    }

    /// Follows until it has seen the position that `end` names, once it names one.
    pub(super) async fn follow(
        mut self,
        store: Store,
        mut end: watch::Receiver<Option<Position>>,
    ) -> Result<Followed, ReadError> {
        let mut events = store.follow().after(self.run.start).events();
        let last = loop {
            tokio::select! {
                event = StreamExt::next(&mut events) => match event {
                    Some(event) => self.see(&event?),
                    None => return Ok(self.followed),
                },
                _ = end.changed() => match *end.borrow() {
                    Some(last) => break last,
                    // The writers have failed.
                    None => return Ok(self.followed),
                },
            }
        };
        let within = self.within;
        let rest = async {
            while self.last < last {
                match StreamExt::next(&mut events).await {
                    Some(event) => self.see(&event?),
                    None => break,
                }
            }
            Ok(())
        };
        match tokio::time::timeout(within, rest).await {
            Ok(Err(error)) => Err(error),
            // Too late: what it has not seen counts as missed.
            Ok(Ok(())) | Err(_) => Ok(self.followed),
        }
    }

    fn see(&mut self, event: &RecordedEvent) {
        if !self.run.has(&event.stream_id) {
            return;
        }
        self.check(Place::of(event), event.stream_id.clone());
        self.seen.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&mut self, place: Place, stream: StreamId) {
        if place.position <= self.last {
            self.followed.out_of_order += 1;
        }
        self.last = self.last.max(place.position);
        let version = self.versions.entry(stream).or_default();
        if place.version != version.next() {
            self.followed.holes += 1;
        }
        *version = place.version;
        self.followed.places.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(places: &[(u64, &str, u64)]) -> (u64, u64) {
        let run = Run { prefix: String::new(), start: Position::START };
        let mut follower = Follower::new(run, Duration::ZERO);
        for &(position, stream, version) in places {
            let place = Place { position: Position(position), version: Version(version) };
            follower.check(place, stream.into());
        }
        (follower.followed.out_of_order, follower.followed.holes)
    }

    #[test]
    fn rising_positions_without_holes_are_right() {
        assert_eq!(followed(&[(1, "a", 1), (2, "b", 1), (5, "a", 2)]), (0, 0));
    }

    #[test]
    fn each_thing_that_is_wrong_is_counted() {
        assert_eq!(followed(&[(1, "a", 1), (1, "a", 1)]), (1, 1), "doubled");
        assert_eq!(followed(&[(2, "b", 1), (1, "a", 1)]), (1, 0), "out of order");
        assert_eq!(followed(&[(1, "a", 1), (3, "a", 3)]), (0, 1), "a hole");
    }
}
