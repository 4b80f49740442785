//! The shop: what happens to its carts, and what was acknowledged of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use everfold::{EncodeError, NewEvent, StreamId, Uuid, Version};
use serde::{Deserialize, Serialize};

use super::random::Random;

/// Products, the ones that sell best first.
const PRODUCTS: [&str; 8] =
    ["TEA-250", "CUP-BLUE", "POT-1L", "HONEY-500", "CUP-RED", "SPOON", "TRAY", "LAMP"];
/// What a cart has when the shop opens.
pub(super) const EVENTS_PER_CART: u64 = 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum CartEvent {
    CartOpened { customer: String },
    ItemAdded { sku: String, quantity: u32 },
    ItemRemoved { sku: String, quantity: u32 },
    CheckedOut {},
}

pub(super) fn carts(events: u64) -> Vec<StreamId> {
    let count = events.div_ceil(EVENTS_PER_CART);
    (1..=count).map(|number| StreamId::from(format!("cart-{number}"))).collect()
}

/// The first events of a cart.
pub(super) fn opening(random: &mut Random, count: u64) -> Result<Vec<NewEvent>, EncodeError> {
    let customer = format!("c-{}", random.below(1_000));
    let mut events = vec![CartEvent::CartOpened { customer }];
    while (events.len() as u64) < count {
        events.extend(change(random));
    }
    events.truncate(count as usize);
    events.iter().map(NewEvent::from_event).collect()
}

/// What one visit changes in a cart: nothing is taken out that was not put in.
pub(super) fn visit(random: &mut Random) -> Result<Vec<NewEvent>, EncodeError> {
    change(random).iter().map(NewEvent::from_event).collect()
}

fn change(random: &mut Random) -> Vec<CartEvent> {
    // The lower of two numbers: some products sell better than others.
    let product = random.below(PRODUCTS.len()).min(random.below(PRODUCTS.len()));
    let (sku, quantity) = (PRODUCTS[product].to_owned(), 1 + random.below(3) as u32);
    let added = CartEvent::ItemAdded { sku: sku.clone(), quantity };
    match random.below(8) {
        0 => vec![added, CartEvent::CheckedOut {}],
        1 | 2 => vec![added, CartEvent::ItemRemoved { sku, quantity: 1 }],
        _ => vec![added],
    }
}

/// An event whose append was acknowledged.
#[derive(Debug, Clone)]
pub(super) struct Acknowledged {
    pub(super) id: Uuid,
    pub(super) cart: StreamId,
    pub(super) version: Version,
}

/// What all who append share: what was acknowledged, and what it took.
#[derive(Debug, Default)]
pub(super) struct Till {
    closed: AtomicBool,
    stored: AtomicU64,
    conflicts: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
    waits: Mutex<Vec<Duration>>,
}

impl Till {
    /// Notes an append that left its cart at this version.
    pub(super) fn acknowledge(&self, cart: &StreamId, ids: &[Uuid], version: Version) {
        let first = version.0.saturating_sub(ids.len() as u64) + 1;
        let entry = |(id, version): (&Uuid, u64)| Acknowledged {
            id: *id,
            cart: cart.clone(),
            version: Version(version),
        };
        let entries = ids.iter().zip(first..).map(entry);
        self.acknowledged.lock().expect("nothing panics with this locked").extend(entries);
        self.stored.fetch_add(ids.len() as u64, Ordering::Relaxed);
    }

    /// Notes how long a writer waited for the answer to an append.
    pub(super) fn waited(&self, wait: Duration) {
        self.waits.lock().expect("nothing panics with this locked").push(wait);
    }

    pub(super) fn refused(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub(super) fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn longest_wait(&self) -> Duration {
        let waits = self.waits.lock().expect("nothing panics with this locked");
        waits.iter().copied().max().unwrap_or_default()
    }

    /// All waits, the shortest first.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let mut waits = self.waits.lock().expect("nothing panics with this locked").clone();
        waits.sort_unstable();
        waits
    }

    pub(super) fn acknowledged(&self) -> Vec<Acknowledged> {
        self.acknowledged.lock().expect("nothing panics with this locked").clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carts_begin_with_as_many_events_as_asked_for() {
        let mut random = Random::new();
        for count in [1, 2, EVENTS_PER_CART] {
            let events = opening(&mut random, count).unwrap();
            assert_eq!(events.len() as u64, count);
            assert_eq!(events[0].event_type(), "CartOpened");
        }
        assert_eq!(carts(95).len(), 10);
    }

    #[test]
    fn acknowledged_events_have_the_versions_up_to_that_of_the_append() {
        let till = Till::default();
        let ids = [Uuid::now_v7(), Uuid::now_v7()];
        till.acknowledge(&"cart-1".into(), &ids, Version(7));
        let versions: Vec<u64> = till.acknowledged().iter().map(|known| known.version.0).collect();
        assert_eq!((versions, till.stored()), (vec![6, 7], 2));
    }
}
