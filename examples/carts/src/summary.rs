//! The summary that the list of carts shows, inline: it is there with the append. In two versions: the
//! code of the first stays for as long as one may want to go back to it.

use std::collections::BTreeMap;

use everfold::{DocumentProjection, Projection, ProjectionError, RecordedEvent};
use serde::{Deserialize, Serialize};

use crate::CartEvent;

/// Version 1: what is in the cart, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// How many pieces.
    pub item_count: u32,
    /// What they cost, in cents.
    pub amount: u64,
}

impl Totals {
    fn after(self, event: &CartEvent) -> Totals {
        let Totals { item_count, amount } = self;
        match event {
            CartEvent::ItemAdded { quantity, cents, .. } => Totals {
                item_count: item_count + quantity,
                amount: amount + u64::from(*quantity) * cents,
            },
            CartEvent::ItemRemoved { quantity, cents, .. } => Totals {
                item_count: item_count - quantity,
                amount: amount - u64::from(*quantity) * cents,
            },
            CartEvent::CheckedOut { .. } => self,
        }
    }
}

struct Summary1;

impl DocumentProjection for Summary1 {
    type Event = CartEvent;
    type Document = Totals;

    fn evolve(&self, cart: Option<Totals>, event: &CartEvent, _: &RecordedEvent) -> Option<Totals> {
        Some(cart.unwrap_or_default().after(event))
    }
}

/// Version 1 of the projection `cart_summary`.
///
/// # Errors
/// If it is not well formed, which it is.
pub fn summary_1() -> Result<Projection, ProjectionError> {
    Projection::document("cart_summary", 1, Summary1).inline().build()
}

/// Version 2: the totals as before, so that old readers go on reading, then what is in it, and its status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// As in version 1.
    #[serde(flatten)]
    pub totals: Totals,
    /// Whether it was bought.
    pub status: Status,
    /// How many of each product.
    pub items: BTreeMap<String, u32>,
}

/// Where a cart stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It is being filled.
    #[default]
    Open,
    /// It was bought.
    CheckedOut,
}

struct Summary2;

impl DocumentProjection for Summary2 {
    type Event = CartEvent;
    type Document = Summary;

    fn evolve(
        &self,
        cart: Option<Summary>,
        event: &CartEvent,
        _: &RecordedEvent,
    ) -> Option<Summary> {
        let mut cart = cart.unwrap_or_default();
        cart.totals = cart.totals.after(event);
        match event {
            CartEvent::ItemAdded { sku, quantity, .. } => {
                *cart.items.entry(sku.clone()).or_default() += quantity;
            }
            CartEvent::ItemRemoved { sku, quantity, .. } => {
                *cart.items.entry(sku.clone()).or_default() -= quantity;
                cart.items.retain(|_, quantity| *quantity > 0);
            }
            CartEvent::CheckedOut { .. } => cart.status = Status::CheckedOut,
        }
        Some(cart)
    }
}

/// Version 2 of the projection `cart_summary`, which can be searched by status.
///
/// # Errors
/// If it is not well formed, which it is.
pub fn summary_2() -> Result<Projection, ProjectionError> {
    Projection::document("cart_summary", 2, Summary2).inline().index("status").build()
}

/// Tests of projections with everfold's kit: the events below, and the same ones again in other batches,
/// repeated, after crashes, with the streams in another order and as a catch-up projection.
#[cfg(test)]
mod tests {
    use everfold::Projection;
    use everfold::testing::{ProjectionTest, TestFailure};
    use serde_json::json;

    use super::{summary_1, summary_2};
    use crate::events::examples::{added, checked_out, removed};

    fn two_carts(projection: Projection) -> ProjectionTest {
        ProjectionTest::new(projection)
            .given("cart-1", [added("tea", 2, 450), added("cup", 1, 900)])
            .given("cart-2", [added("tea", 5, 450)])
            .given("cart-1", [removed("tea", 1, 450), removed("cup", 1, 900), checked_out("Bern")])
    }

    #[tokio::test]
    async fn version_1_counts_pieces_and_cents() -> Result<(), TestFailure> {
        two_carts(summary_1().unwrap())
            .then_documents([
                ("cart-1", json!({ "item_count": 1, "amount": 450 })),
                ("cart-2", json!({ "item_count": 5, "amount": 2250 })),
            ])
            .run()
            .await
    }

    #[tokio::test]
    async fn version_2_also_has_the_status_and_what_is_in_it() -> Result<(), TestFailure> {
        let cart_1 = json!({
            "item_count": 1, "amount": 450, "status": "checked-out", "items": { "tea": 1 },
        });
        let cart_2 = json!({
            "item_count": 5, "amount": 2250, "status": "open", "items": { "tea": 5 },
        });
        two_carts(summary_2().unwrap())
            .then_documents([("cart-1", cart_1), ("cart-2", cart_2)])
            .run()
            .await
    }
}
