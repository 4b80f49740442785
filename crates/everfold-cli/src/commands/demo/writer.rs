//! Those who append: one fills the shop, many write while it is open.
//!
//! A writer knows the version of a cart from its own last append. Mostly it stays with its own
//! carts; now and then it takes any, whose version it knows from long ago. Both it and the cart's
//! owner then expect too little, are refused, and decide again.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everfold::{AppendError, ExpectedVersion, NewEvent, Store, StreamAppend, StreamId, Version};
use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::HumanCount;

use super::random::Random;
use super::shop::{self, EVENTS_PER_CART, Till};
use crate::progress::{Progress, per_second};

/// Carts in one transaction while the shop is filled.
const CARTS_AT_ONCE: usize = 25;
/// One in so many appends goes to any cart.
const STRANGE_CART_IN: usize = 10;
/// How often an append is decided again before another one is tried.
const TRIES_MAX: usize = 100;

/// Fills the shop with carts, and returns the version of each.
pub(super) async fn fill(
    store: &Store,
    carts: &[StreamId],
    events: u64,
    till: &Till,
) -> anyhow::Result<Vec<Version>> {
    let mut progress = Progress::new("filling", Some(events));
    let begun = Instant::now();
    let last = carts.len() - 1;
    let last_count = events - last as u64 * EVENTS_PER_CART;
    let numbered: Vec<_> = carts.iter().enumerate().collect();
    let chunks = numbered.chunks(CARTS_AT_ONCE).map(|chunk| {
        let count = |number: usize| if number == last { last_count } else { EVENTS_PER_CART };
        let carts = chunk.iter().map(|(number, cart)| ((*cart).clone(), count(*number)));
        open_carts(store, carts.collect(), till)
    });
    let mut chunks = stream::iter(chunks).buffered(2);
    let mut versions = Vec::with_capacity(carts.len());
    while let Some(opened) = chunks.try_next().await? {
        versions.extend(opened);
        let stored = till.stored();
        progress.set(stored, || {
            let rate = HumanCount(per_second(stored, begun.elapsed()));
            format!("{} events, {rate}/s", HumanCount(stored))
        });
    }
    Ok(versions)
}

async fn open_carts(
    store: &Store,
    carts: Vec<(StreamId, u64)>,
    till: &Till,
) -> anyhow::Result<Vec<Version>> {
    let mut random = Random::new();
    let (mut appends, mut ids) = (Vec::new(), Vec::new());
    for (cart, count) in &carts {
        let events = shop::opening(&mut random, *count)?;
        ids.push(events.iter().map(NewEvent::id).collect::<Vec<_>>());
        appends.push(StreamAppend::new(cart, ExpectedVersion::NoStream, events));
    }
    let outcomes = store.append_many(appends).await?;
    let mut versions = Vec::with_capacity(carts.len());
    for (((cart, _), ids), outcome) in carts.iter().zip(&ids).zip(outcomes) {
        let version = outcome?.version;
        till.acknowledge(cart, ids, version);
        versions.push(version);
    }
    Ok(versions)
}

pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) carts: Arc<[StreamId]>,
    /// Its own carts among them.
    pub(super) own: Range<usize>,
    /// The version of each cart as far as this writer knows.
    pub(super) known: Vec<Version>,
    /// How long after one append the next is due.
    pub(super) every: Duration,
    pub(super) till: Arc<Till>,
}

impl Writer {
    /// Writes until the shop closes.
    pub(super) async fn write(mut self) -> anyhow::Result<()> {
        let mut random = Random::new();
        let mut due = tokio::time::interval(self.every);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.till.is_closed() {
            due.tick().await;
            let cart = match random.below(STRANGE_CART_IN) {
                0 => random.below(self.carts.len()),
                _ => self.own.start + random.below(self.own.len()),
            };
            self.append(cart, &mut random).await?;
        }
        Ok(())
    }

    /// Appends; refused, it takes the version it is told and decides again.
    async fn append(&mut self, cart: usize, random: &mut Random) -> anyhow::Result<()> {
        for _ in 0..TRIES_MAX {
            let events = shop::visit(random)?;
            let ids: Vec<_> = events.iter().map(NewEvent::id).collect();
            let begun = Instant::now();
            let outcome = self.store.append(&self.carts[cart], self.known[cart], events).await;
            self.till.waited(begun.elapsed());
            match outcome {
                Ok(appended) => {
                    self.till.acknowledge(&self.carts[cart], &ids, appended.version);
                    self.known[cart] = appended.version;
                    return Ok(());
                }
                Err(AppendError::VersionConflict { actual, .. }) => {
                    self.till.refused();
                    self.known[cart] = actual;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
