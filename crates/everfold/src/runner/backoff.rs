//! Pauses between tries, and the size of batches.

use std::time::Duration;

use crate::store::jitter;

/// Pauses that double up to a bound, with jitter.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Backoff { first, max, next: first }
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause.saturating_mul(2);
        jitter(pause)
    }
}

/// How many events the next batch may have, so that it takes about as long as it should.
#[derive(Debug, Clone)]
pub(crate) struct BatchSize {
    events: usize,
    max: usize,
    aim: Duration,
    /// What the server has let through, once it has given something up.
    limit: usize,
}

/// Fewer than this are never asked for.
const EVENTS_MIN: usize = 16;
/// A first batch has this many, until it is known how long they take.
const EVENTS_FIRST: usize = 256;

impl BatchSize {
    pub(crate) fn new(max: usize, aim: Duration) -> Self {
        let max = max.max(1);
        BatchSize { events: EVENTS_FIRST.min(max), max, aim, limit: usize::MAX }
    }

    pub(crate) fn events(&self) -> usize {
        self.events
    }

    /// At most so many, and no more than the server has time for.
    pub(crate) fn at_most(&self, events: usize) -> usize {
        events.min(self.limit)
    }

    /// The server gave up what had this many events: the next try has half of them.
    pub(crate) fn took_too_long(&mut self, events: usize) {
        self.limit = (events / 2).max(1);
    }

    /// Something was done in time; a little more may be, too.
    pub(crate) fn went_well(&mut self) {
        if self.limit < self.max {
            self.limit += self.limit.div_ceil(8);
        }
    }

    /// Learns from a batch that took this long; `full` if it had all the events it might have.
    pub(crate) fn learn(&mut self, took: Duration, full: bool) {
        if took > self.aim {
            let share = self.aim.as_secs_f64() / took.as_secs_f64();
            let smaller = (self.events as f64 * share.max(0.25)) as usize;
            self.events = smaller.max(EVENTS_MIN).min(self.max);
        } else if full && took < self.aim / 2 {
            self.events = self.events.saturating_mul(2).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for most in [100, 200, 350, 350] {
            let pause = backoff.pause();
            let most = Duration::from_millis(most);
            assert!(pause >= most / 2 && pause <= most, "{pause:?} of {most:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(100));
    }

    #[test]
    fn batches_grow_while_they_are_quick_and_shrink_when_they_are_not() {
        let aim = Duration::from_millis(50);
        let mut size = BatchSize::new(2_000, aim);
        for _ in 0..10 {
            size.learn(Duration::from_millis(5), true);
        }
        assert_eq!(size.events(), 2_000);
        size.learn(Duration::from_millis(100), true);
        assert_eq!(size.events(), 1_000);
        for _ in 0..20 {
            size.learn(Duration::from_secs(5), true);
        }
        assert_eq!(size.events(), EVENTS_MIN);
        size.learn(Duration::from_millis(5), false);
        assert_eq!(size.events(), EVENTS_MIN);
        assert_eq!(BatchSize::new(3, aim).events(), 3);
    }

    #[test]
    fn what_took_too_long_is_halved_down_to_one_event() {
        let mut size = BatchSize::new(2_000, Duration::from_millis(50));
        assert_eq!(size.at_most(256), 256);
        for _ in 0..20 {
            size.took_too_long(size.at_most(256));
        }
        assert_eq!((size.at_most(256), size.at_most(64)), (1, 1));
        for _ in 0..100 {
            size.went_well();
        }
        assert_eq!(size.at_most(2_000), 2_000);
    }
}
