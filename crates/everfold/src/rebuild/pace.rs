//! How fast a rebuild may go: events a second, what it may cost other commits, and how it gives way to
//! appends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::options::RebuildOptions;

/// Longest pause at a time, so that a change of mind is noticed.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// First pause when commits take too long; it doubles while they do.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Longest rest at a time.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone copies"))]
const REST_MAX: Duration = Duration::from_secs(5);

/// Shared by all that work on one rebuild.
#[derive(Debug)]
pub(crate) struct Pace {
    events_per_second: Option<u32>,
    commit_latency_max: Option<Duration>,
    full_speed: bool,
    /// Whether many appends come in.
    crowded: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the events so far may be done.
    due: Instant,
    /// What is waited after each step because commits take too long.
    pause: Duration,
}

impl Pace {
    pub(crate) fn new(options: &RebuildOptions) -> Self {
        let state = State { due: Instant::now(), pause: Duration::ZERO };
        Pace {
            events_per_second: options.events_per_second.filter(|events| *events > 0),
            commit_latency_max: options.commit_latency_max,
            full_speed: options.full_speed,
            crowded: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Waits as long as needed after so many events.
    pub(crate) async fn went(&self, events: u64) {
        let wait = self.wait_after(events, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Whether many appends come in, from now on.
    pub(crate) fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded && !self.full_speed, Ordering::Relaxed);
    }

    /// Whether there are appends to give way to.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// How long to give way after work of this length: so many times as long.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone copies"))]
    pub(crate) fn rest_after(&self, worked: Duration, times: u32) -> Duration {
        if !self.is_crowded() {
            return Duration::ZERO;
        }
        worked.saturating_mul(times).min(REST_MAX)
    }

    /// Most events that should be taken at once.
    pub(crate) fn at_once(&self) -> usize {
        self.events_per_second.map_or(usize::MAX, |events| (events / 4).max(1) as usize)
    }

    /// A small commit took this long.
    pub(crate) fn commit_took(&self, took: Duration) {
        let Some(most) = self.commit_latency_max else { return };
        let mut state = self.state.lock().expect("nothing panics with this locked");
        state.pause = match took > most {
            true => (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
            false => state.pause / 2,
        };
    }

    fn wait_after(&self, events: u64, now: Instant) -> Duration {
        let mut state = self.state.lock().expect("nothing panics with this locked");
        let mut wait = state.pause;
        if let Some(most) = self.events_per_second {
            let took = Duration::from_secs_f64(events as f64 / f64::from(most));
            state.due = state.due.max(now) + took;
            wait = wait.max(state.due - now);
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_kept_over_many_steps() {
        let options = RebuildOptions { events_per_second: Some(100), ..RebuildOptions::default() };
        let pace = Pace::new(&options);
        let start = Instant::now();
        let first = pace.wait_after(50, start);
        let second = pace.wait_after(50, start);
        assert!(first >= Duration::from_millis(499), "{first:?}");
        assert!(second >= Duration::from_millis(999), "{second:?}");
        assert_eq!(pace.at_once(), 25);
    }

    #[test]
    fn whoever_copies_rests_while_many_appends_come_in() {
        let pace = Pace::new(&RebuildOptions::default());
        let worked = Duration::from_millis(10);
        assert_eq!(pace.rest_after(worked, 2), Duration::ZERO);
        pace.set_crowded(true);
        assert_eq!((pace.rest_after(worked, 1), pace.rest_after(worked, 2)), (worked, worked * 2));
        pace.set_crowded(false);
        assert_eq!(pace.rest_after(worked, 1), Duration::ZERO);
        let options = RebuildOptions { full_speed: true, ..RebuildOptions::default() };
        let pace = Pace::new(&options);
        pace.set_crowded(true);
        assert_eq!(pace.rest_after(worked, 1), Duration::ZERO);
    }

    #[test]
    fn slow_commits_lengthen_the_pause_and_fast_ones_shorten_it() {
        let latency = Some(Duration::from_millis(20));
        let options = RebuildOptions { commit_latency_max: latency, ..RebuildOptions::default() };
        let pace = Pace::new(&options);
        assert_eq!(pace.wait_after(1, Instant::now()), Duration::ZERO);
        pace.commit_took(Duration::from_millis(30));
        pace.commit_took(Duration::from_millis(30));
        assert_eq!(pace.wait_after(1, Instant::now()), PAUSE_MIN * 2);
        pace.commit_took(Duration::from_millis(5));
        assert_eq!(pace.wait_after(1, Instant::now()), PAUSE_MIN);
    }
}
