//! Whether the shop adds up: what was acknowledged, what the log has, and what readers see.
//!
//! ```text
//!   writers ──acknowledged──┐
//!   log ──folded, in order──┼── compared, event by event ──> lost, doubled, reordered
//!   read model ──its rows───┘
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use everfold::{RecordedEvent, StreamId, Uuid, Version};
use serde::Serialize;

use super::shop::{Acknowledged, CartEvent};

/// What is not as it must be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Faults {
    /// Events that were acknowledged or are in the log, and are missing further on.
    pub(super) lost: u64,
    /// Events that are there more than once.
    pub(super) doubled: u64,
    /// Events that stand after a later one of their cart.
    pub(super) reordered: u64,
    /// Events that nobody has appended.
    pub(super) invented: u64,
    /// Rows of read models that are not what the log makes of them.
    pub(super) rows_that_differ: u64,
}

/// A cart as readers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CartRow {
    pub(super) cart: String,
    pub(super) items: i64,
    /// Version and type of each event, in order.
    pub(super) history: Vec<String>,
}

/// What the read models must be, computed from the log event by event.
#[derive(Debug, Default)]
pub(super) struct Fold {
    carts: HashMap<StreamId, (i64, Vec<String>)>,
    products: BTreeMap<String, i64>,
    log: Vec<(Uuid, StreamId, Version)>,
}

impl Fold {
    /// Takes the next event of the log.
    pub(super) fn apply(&mut self, event: &RecordedEvent) -> anyhow::Result<()> {
        let cart = event.decode::<CartEvent>()?;
        self.add(event.id, &event.stream_id, event.version, &event.event_type, cart);
        Ok(())
    }

    fn add(
        &mut self,
        id: Uuid,
        stream: &StreamId,
        version: Version,
        event_type: &str,
        event: Option<CartEvent>,
    ) {
        self.log.push((id, stream.clone(), version));
        let (items, history) = self.carts.entry(stream.clone()).or_default();
        let mut entry = format!("{} {event_type}", version.0);
        let moved = match event {
            Some(CartEvent::ItemAdded { sku, quantity }) => Some((sku, i64::from(quantity), 1)),
            Some(CartEvent::ItemRemoved { sku, quantity }) => Some((sku, i64::from(quantity), -1)),
            _ => None,
        };
        if let Some((sku, quantity, sign)) = moved {
            entry.push_str(&format!(" {quantity} {sku}"));
            *items += sign * quantity;
            *self.products.entry(sku).or_default() += sign * quantity;
        }
        history.push(entry);
    }

    pub(super) fn events(&self) -> u64 {
        self.log.len() as u64
    }

    /// The log against what was acknowledged: each event once, at the version it was given, and the
    /// versions of a cart without holes.
    pub(super) fn compare_acknowledged(&self, acknowledged: &[Acknowledged]) -> Faults {
        let mut faults = Faults::default();
        let known: HashMap<Uuid, &Acknowledged> =
            acknowledged.iter().map(|event| (event.id, event)).collect();
        let mut seen = HashSet::new();
        let mut last: HashMap<&StreamId, Version> = HashMap::new();
        for (id, stream, version) in &self.log {
            let Some(known) = known.get(id) else {
                faults.invented += 1;
                continue;
            };
            if !seen.insert(id) {
                faults.doubled += 1;
                continue;
            }
            let before = last.insert(stream, *version).unwrap_or_default();
            let in_place = known.cart == *stream && known.version == *version;
            if !in_place || *version != before.next() {
                faults.reordered += 1;
            }
        }
        faults.lost = (known.len() - seen.len()) as u64;
        faults
    }

    /// The rows of `cart_totals` against the log.
    pub(super) fn compare_carts(&self, rows: &[CartRow]) -> Faults {
        let mut faults = Faults::default();
        let mut left: HashMap<&str, &(i64, Vec<String>)> =
            self.carts.iter().map(|(cart, expected)| (cart.as_str(), expected)).collect();
        for row in rows {
            let Some((items, history)) = left.remove(row.cart.as_str()) else {
                // A cart that the log does not know, or a second row of one.
                faults.rows_that_differ += 1;
                continue;
            };
            let of_row = compare(history, &row.history);
            let differs = *items != row.items || *history != row.history;
            faults.rows_that_differ += u64::from(differs);
            faults.add(&of_row);
        }
        for (_, history) in left.into_values() {
            faults.lost += history.len() as u64;
            faults.rows_that_differ += 1;
        }
        faults
    }

    /// The rows of `bestsellers` against the log.
    pub(super) fn compare_products(&self, rows: &[(String, i64)]) -> Faults {
        let found: BTreeMap<&str, i64> = rows.iter().map(|(sku, n)| (sku.as_str(), *n)).collect();
        let names: HashSet<&str> =
            self.products.keys().map(String::as_str).chain(found.keys().copied()).collect();
        let differs = |sku: &&str| self.products.get(*sku) != found.get(sku);
        let again = rows.len() - found.len();
        let rows_that_differ = (names.into_iter().filter(differs).count() + again) as u64;
        Faults { rows_that_differ, ..Faults::default() }
    }
}

impl Faults {
    pub(super) fn add(&mut self, other: &Faults) {
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.reordered += other.reordered;
        self.invented += other.invented;
        self.rows_that_differ += other.rows_that_differ;
    }

    /// With what the engine's own verification of the same rows has found.
    pub(super) fn with_verified(mut self, differences: u64) -> Faults {
        self.rows_that_differ = self.rows_that_differ.max(differences);
        self
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Faults::default()
    }
}

/// One history against the one it must be; no entry of that is there twice, since each begins with
/// its version.
fn compare(expected: &[String], found: &[String]) -> Faults {
    let mut faults = Faults::default();
    let places: HashMap<&String, usize> =
        expected.iter().enumerate().map(|(place, entry)| (entry, place)).collect();
    let mut seen = HashSet::new();
    let mut furthest = None;
    for entry in found {
        let Some(place) = places.get(entry) else {
            faults.invented += 1;
            continue;
        };
        if !seen.insert(place) {
            faults.doubled += 1;
            continue;
        }
        if furthest.is_some_and(|furthest| place < furthest) {
            faults.reordered += 1;
        }
        furthest = furthest.max(Some(place));
    }
    faults.lost = (expected.len() - seen.len()) as u64;
    faults
}

#[cfg(test)]
mod tests;
