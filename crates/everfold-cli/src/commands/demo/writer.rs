//! A writer of the demo: appends to carts, each time expecting a version.
//!
//! A writer knows the version of a cart from its own last append. Mostly it stays with its own
//! carts; now and then it takes any, whose version it knows from long ago or not at all. Both it
//! and the cart's owner then expect too little, are refused, and decide again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everfold::{AppendError, NewEvent, Position, Store, StreamId, Version};
use serde_json::json;

use super::random::Random;

/// One in so many appends goes to any cart.
const STRANGE_CART_IN: usize = 10;
const EVENTS_MAX: u64 = 3;
/// How often an append is decided again before another one is tried.
const TRIES_MAX: usize = 100;

/// What all writers share: what is left to do, and what was done.
pub(super) struct Shared {
    left: AtomicU64,
    deadline: Instant,
    stored: AtomicU64,
    conflicts: AtomicU64,
    accepted_stale: AtomicU64,
    last_position: AtomicU64,
}

/// What the writers counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) stored: u64,
    pub(super) conflicts: u64,
    pub(super) accepted_stale: u64,
    pub(super) elapsed: Duration,
}

impl Shared {
    pub(super) fn new(events: u64, deadline: Instant) -> Shared {
        Shared {
            left: events.into(),
            deadline,
            stored: 0.into(),
            conflicts: 0.into(),
            accepted_stale: 0.into(),
            last_position: 0.into(),
        }
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// The highest position that was acknowledged.
    pub(super) fn last_position(&self) -> Position {
        Position(self.last_position.load(Ordering::Relaxed))
    }

    pub(super) fn counts(&self, elapsed: Duration) -> Counts {
        Counts {
            stored: self.stored(),
            conflicts: self.conflicts.load(Ordering::Relaxed),
            accepted_stale: self.accepted_stale.load(Ordering::Relaxed),
            elapsed,
        }
    }

    /// Takes up to so many events from what is left; none when it is time to end.
    fn take(&self, wanted: u64) -> u64 {
        if Instant::now() >= self.deadline {
            return 0;
        }
        let take = |left: u64| Some(left - left.min(wanted));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_default().min(wanted)
    }
}

pub(super) struct Writer {
    store: Store,
    carts: Arc<[StreamId]>,
    own: Range<usize>,
    /// The version of each cart as far as this writer knows.
    known: Vec<Version>,
    random: Random,
    shared: Arc<Shared>,
}

impl Writer {
    pub(super) fn new(
        store: Store,
        carts: Arc<[StreamId]>,
        own: Range<usize>,
        shared: Arc<Shared>,
    ) -> Writer {
        let known = vec![Version::NONE; carts.len()];
        Writer { store, carts, own, known, random: Random::new(), shared }
    }

    pub(super) async fn write(mut self) -> Result<(), AppendError> {
        loop {
            let wanted = 1 + self.random.below(EVENTS_MAX as usize) as u64;
            let count = self.shared.take(wanted);
            if count == 0 {
                return Ok(());
            }
            let cart = self.choose();
            self.append(cart, count).await?;
        }
    }

    fn choose(&mut self) -> usize {
        if self.random.below(STRANGE_CART_IN) == 0 {
            return self.random.below(self.carts.len());
        }
        self.own.start + self.random.below(self.own.len())
    }

    /// Appends; refused, it takes the version it is told and decides again.
    async fn append(&mut self, cart: usize, count: u64) -> Result<(), AppendError> {
        for _ in 0..TRIES_MAX {
            let expected = self.known[cart];
            let events: Vec<_> =
                (0..count).map(|_| self.event()).collect::<Result<_, _>>().expect("it is JSON");
            match self.store.append(&self.carts[cart], expected, events).await {
                Ok(appended) => {
                    let shared = &self.shared;
                    shared.stored.fetch_add(count, Ordering::Relaxed);
                    shared.last_position.fetch_max(appended.last_position.0, Ordering::Relaxed);
                    if appended.version.0 != expected.0 + count {
                        shared.accepted_stale.fetch_add(1, Ordering::Relaxed);
                    }
                    self.known[cart] = appended.version;
                    return Ok(());
                }
                Err(AppendError::VersionConflict { actual, .. }) => {
                    self.shared.conflicts.fetch_add(1, Ordering::Relaxed);
                    self.known[cart] = actual;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Result<NewEvent, everfold::EncodeError> {
        let sku = format!("SKU-{:03}", self.random.below(1_000));
        let quantity = 1 + self.random.below(5);
        match self.random.below(8) {
            0 => NewEvent::new("ItemRemoved", &json!({ "sku": sku })),
            1 => NewEvent::new("CheckedOut", &json!({})),
            _ => NewEvent::new("ItemAdded", &json!({ "sku": sku, "quantity": quantity })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_is_left() {
        let shared = Shared::new(5, Instant::now() + Duration::from_secs(60));
        assert_eq!([3, 3, 3].map(|wanted| shared.take(wanted)), [3, 2, 0]);
        let late = Shared::new(5, Instant::now());
        assert_eq!(late.take(1), 0);
    }
}
