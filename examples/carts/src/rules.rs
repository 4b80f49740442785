//! What may be done to a cart: the rules as pure functions, which no test needs a store for.

use std::collections::BTreeMap;

use everfold::Decider;
use serde::{Deserialize, Serialize};

use crate::CartEvent;

/// So many pieces go into a cart.
pub const PIECES_MAX: u32 = 20;

/// What is asked for.
#[derive(Debug)]
pub enum Command {
    /// Put pieces in: of what, how many, the price of one.
    Add(&'static str, u32, u64),
    /// Take pieces out: of what, how many.
    Remove(&'static str, u32),
    /// Buy it, and send it to this city.
    CheckOut(&'static str),
}

/// Why it is refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// It was bought already.
    #[error("the cart is checked out")]
    CheckedOut,
    /// There would be too many pieces.
    #[error("a cart holds {PIECES_MAX} pieces")]
    Full,
    /// There are fewer pieces of it.
    #[error("there are only {0} pieces of it in the cart")]
    Only(u32),
    /// There is nothing to buy.
    #[error("the cart is empty")]
    Empty,
}

/// What decisions are based on; as JSON in snapshots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cart {
    /// How many of each product, and the price of one.
    items: BTreeMap<String, (u32, u64)>,
    checked_out: bool,
}

impl Cart {
    /// How many pieces there are in it.
    #[must_use]
    pub fn pieces(&self) -> u32 {
        self.items.values().map(|(quantity, _)| quantity).sum()
    }
}

/// The rules.
#[derive(Debug, Clone, Copy)]
pub struct CartRules;

impl Decider for CartRules {
    type Command = Command;
    type Event = CartEvent;
    type State = Cart;
    type Error = Refusal;

    fn initial(&self) -> Cart {
        Cart::default()
    }

    fn evolve(&self, mut cart: Cart, event: &CartEvent) -> Cart {
        match event {
            CartEvent::ItemAdded { sku, quantity, cents } => {
                let item = cart.items.entry(sku.clone()).or_default();
                *item = (item.0 + quantity, *cents);
            }
            CartEvent::ItemRemoved { sku, quantity, .. } => {
                cart.items.entry(sku.clone()).or_default().0 -= quantity;
            }
            CartEvent::CheckedOut { .. } => cart.checked_out = true,
        }
        cart
    }

    fn decide(&self, cart: &Cart, command: &Command) -> Result<Vec<CartEvent>, Refusal> {
        if cart.checked_out {
            return Err(Refusal::CheckedOut);
        }
        let event = match *command {
            Command::Add(_, quantity, _) if cart.pieces() + quantity > PIECES_MAX => {
                return Err(Refusal::Full);
            }
            Command::Add(sku, quantity, cents) => {
                CartEvent::ItemAdded { sku: sku.to_owned(), quantity, cents }
            }
            Command::Remove(sku, quantity) => {
                let (there, cents) = cart.items.get(sku).copied().unwrap_or_default();
                if there < quantity {
                    return Err(Refusal::Only(there));
                }
                CartEvent::ItemRemoved { sku: sku.to_owned(), quantity, cents }
            }
            Command::CheckOut(_) if cart.pieces() == 0 => return Err(Refusal::Empty),
            Command::CheckOut(city) => CartEvent::CheckedOut { city: city.to_owned() },
        };
        Ok(vec![event])
    }
}

#[cfg(test)]
mod tests {
    use everfold::Decider;

    use super::{Cart, CartRules, Command, Refusal};
    use crate::CartEvent;
    use crate::events::examples::{added, checked_out, removed};

    /// What comes of a command after these events.
    fn decided(given: &[CartEvent], command: Command) -> Result<Vec<CartEvent>, Refusal> {
        let cart = given.iter().fold(Cart::default(), |cart, event| CartRules.evolve(cart, event));
        CartRules.decide(&cart, &command)
    }

    #[test]
    fn pieces_are_taken_out_at_the_price_they_went_in_for() {
        let given = [added("tea", 2, 450)];
        assert_eq!(decided(&given, Command::Remove("tea", 1)), Ok(vec![removed("tea", 1, 450)]));
        assert_eq!(decided(&given, Command::Remove("tea", 3)), Err(Refusal::Only(2)));
        assert_eq!(decided(&given, Command::Remove("cup", 1)), Err(Refusal::Only(0)));
    }

    #[test]
    fn cart_holds_so_many_pieces() {
        let given = [added("tea", 15, 450), added("cup", 3, 900)];
        assert_eq!(decided(&given, Command::Add("tea", 2, 450)), Ok(vec![added("tea", 2, 450)]));
        assert_eq!(decided(&given, Command::Add("tea", 3, 450)), Err(Refusal::Full));
    }

    #[test]
    fn cart_is_bought_once_and_not_empty() {
        let given = [added("tea", 1, 450), checked_out("Bern")];
        assert_eq!(decided(&[], Command::CheckOut("Bern")), Err(Refusal::Empty));
        let bought = decided(&given[..1], Command::CheckOut("Bern"));
        assert_eq!(bought, Ok(vec![checked_out("Bern")]));
        assert_eq!(decided(&given, Command::CheckOut("Bern")), Err(Refusal::CheckedOut));
        assert_eq!(decided(&given, Command::Remove("tea", 1)), Err(Refusal::CheckedOut));
    }
}
