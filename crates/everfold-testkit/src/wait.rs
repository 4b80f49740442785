//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls `condition` until it holds.
///
/// # Panics
///
/// When it does not hold within `limit`; the message says `what` was awaited.
pub async fn eventually(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// [`eventually`] for tests without a runtime; it blocks the thread.
///
/// # Panics
///
/// As [`eventually`] does.
#[track_caller]
pub fn eventually_blocking(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
