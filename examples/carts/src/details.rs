//! The page of one cart, catch-up: a runner applies it behind the appends, which so pay nothing for it.

use everfold::{DocumentProjection, Projection, ProjectionError, RecordedEvent};
use serde::{Deserialize, Serialize};

use crate::CartEvent;

/// A cart with its lines.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// In the order in which they were put in.
    pub lines: Vec<Line>,
    /// Where it goes, once it is bought.
    pub city: Option<String>,
    /// The cart's last event that is in this.
    pub version: u64,
}

/// Pieces of one product at one price.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The product.
    pub sku: String,
    /// How many.
    pub quantity: u32,
    /// The price of one.
    pub cents: u64,
}

impl Details {
    /// The line of a product at a price, which is made if it is not there.
    fn line(&mut self, sku: &str, cents: u64) -> &mut Line {
        let found = self.lines.iter().position(|line| line.sku == sku && line.cents == cents);
        let at = found.unwrap_or_else(|| {
            self.lines.push(Line { sku: sku.to_owned(), quantity: 0, cents });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }
}

struct CartDetails;

impl DocumentProjection for CartDetails {
    type Event = CartEvent;
    type Document = Details;

    fn evolve(
        &self,
        cart: Option<Details>,
        event: &CartEvent,
        recorded: &RecordedEvent,
    ) -> Option<Details> {
        let mut cart = cart.unwrap_or_default();
        match event {
            CartEvent::ItemAdded { sku, quantity, cents } => {
                cart.line(sku, *cents).quantity += quantity;
            }
            CartEvent::ItemRemoved { sku, quantity, cents } => {
                cart.line(sku, *cents).quantity -= quantity;
                cart.lines.retain(|line| line.quantity > 0);
            }
            CartEvent::CheckedOut { city } => cart.city = Some(city.clone()),
        }
        cart.version = recorded.version.0;
        Some(cart)
    }
}

/// The projection `cart_details`.
///
/// # Errors
/// If it is not well formed, which it is.
pub fn details() -> Result<Projection, ProjectionError> {
    Projection::document("cart_details", 1, CartDetails).build()
}

#[cfg(test)]
mod tests {
    use everfold::testing::{ProjectionTest, TestFailure};

    use super::{Details, Line, details};
    use crate::events::examples::{added, checked_out, removed};

    #[tokio::test]
    async fn details_have_a_line_for_each_product_and_price() -> Result<(), TestFailure> {
        let line = |sku: &str, quantity, cents| Line { sku: sku.to_owned(), quantity, cents };
        let lines = vec![line("tea", 3, 450), line("tea", 1, 400)];
        let city = Some("Bern".to_owned());
        ProjectionTest::new(details().unwrap())
            .given("cart-1", [added("tea", 2, 450), added("cup", 1, 900), added("tea", 1, 400)])
            .given("cart-1", [added("tea", 1, 450), removed("cup", 1, 900), checked_out("Bern")])
            .then_documents([("cart-1", Details { lines, city, version: 6 })])
            .run()
            .await
    }
}
