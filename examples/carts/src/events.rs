//! What can happen to a cart.

use serde::{Deserialize, Serialize};

/// An event of a cart. The variant's name is the type under which it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CartEvent {
    /// Pieces were put in.
    ItemAdded {
        /// Of what.
        sku: String,
        /// How many.
        quantity: u32,
        /// The price of one.
        cents: u64,
    },
    /// Pieces were taken out.
    ItemRemoved {
        /// Of what.
        sku: String,
        /// How many.
        quantity: u32,
        /// The price of one.
        cents: u64,
    },
    /// It was bought.
    CheckedOut {
        /// Where it goes.
        city: String,
    },
}

/// Events for tests.
#[cfg(test)]
pub(crate) mod examples {
    use super::CartEvent;

    pub(crate) fn added(sku: &str, quantity: u32, cents: u64) -> CartEvent {
        CartEvent::ItemAdded { sku: sku.to_owned(), quantity, cents }
    }

    pub(crate) fn removed(sku: &str, quantity: u32, cents: u64) -> CartEvent {
        CartEvent::ItemRemoved { sku: sku.to_owned(), quantity, cents }
    }

    pub(crate) fn checked_out(city: &str) -> CartEvent {
        CartEvent::CheckedOut { city: city.to_owned() }
    }
}
