//! The program of `docs/start/rust.md`.

// page: quick_start
use everfold::{DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Store};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum CartEvent {
    ItemAdded { sku: String, quantity: u32 },
    CheckedOut,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Cart {
    items: u32,
    checked_out: bool,
}

struct CartSummary;

impl DocumentProjection for CartSummary {
    type Event = CartEvent;
    type Document = Cart;

    fn evolve(&self, cart: Option<Cart>, event: &CartEvent, _: &RecordedEvent) -> Option<Cart> {
        let mut cart = cart.unwrap_or_default();
        match event {
            CartEvent::ItemAdded { quantity, .. } => cart.items += quantity,
            CartEvent::CheckedOut => cart.checked_out = true,
        }
        Some(cart)
    }
}

#[tokio::main]
async fn main() -> Result<(), everfold::Error> {
    let store = Store::open("sqlite:shop.db").await?; // or postgres://…
    store.register(Projection::document("cart_summary", 1, CartSummary).inline().build()?).await?;

    let added = CartEvent::ItemAdded { sku: "A1".into(), quantity: 2 };
    let stored =
        store.append("cart-1", ExpectedVersion::Any, [NewEvent::from_event(&added)?]).await?;
    println!("stored at position {}", stored.last_position);

    let cart = store.documents::<Cart>("cart_summary").get("cart-1").await?;
    println!("{cart:?}");
    Ok(())
}
// end

/// As its `main` is called.
pub(super) fn run() -> Result<(), everfold::Error> {
    main()
}
