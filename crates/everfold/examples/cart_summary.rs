//! Read models: a summary that is there with the append, details that follow behind it.
//!
//! `cargo run -p everfold --example cart_summary [URL]`, by default on a file in a temp folder.

use std::time::Duration;

use everfold::{
    DocumentProjection, ExpectedVersion, NewEvent, Projection, RecordedEvent, Runner, Store,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum CartEvent {
    ItemAdded { sku: String, quantity: u32 },
    CheckedOut { city: String },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Summary {
    items: u32,
    city: Option<String>,
}

/// One document for each cart.
struct CartSummary;

impl DocumentProjection for CartSummary {
    type Event = CartEvent;
    type Document = Summary;

    fn evolve(
        &self,
        cart: Option<Summary>,
        event: &CartEvent,
        _: &RecordedEvent,
    ) -> Option<Summary> {
        let mut cart = cart.unwrap_or_default();
        match event {
            CartEvent::ItemAdded { quantity, .. } => cart.items += quantity,
            CartEvent::CheckedOut { city } => cart.city = Some(city.clone()),
        }
        Some(cart)
    }
}

/// One document for each product: how many are in carts.
struct InCarts;

impl DocumentProjection for InCarts {
    type Event = CartEvent;
    type Document = u32;

    fn evolve(&self, count: Option<u32>, event: &CartEvent, _: &RecordedEvent) -> Option<u32> {
        match event {
            CartEvent::ItemAdded { quantity, .. } => Some(count.unwrap_or(0) + quantity),
            CartEvent::CheckedOut { .. } => count,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    let store = Store::open(&std::env::args().nth(1).unwrap_or(file)).await?;

    let summary = Projection::document("cart_summary", 1, CartSummary).inline().index("city");
    store.register(summary.build()?).await?;
    let in_carts = Projection::document("in_carts", 1, InCarts).key(|event, _| match event {
        CartEvent::ItemAdded { sku, .. } => Some(sku.clone()),
        CartEvent::CheckedOut { .. } => None,
    });
    let runner = Runner::new(&store).projection(in_carts.build()?).start().await?;

    let added = |sku: &str, quantity| CartEvent::ItemAdded { sku: sku.to_owned(), quantity };
    let checked_out = CartEvent::CheckedOut { city: "Bern".to_owned() };
    append(&store, "cart-1", [added("tea", 2), added("cup", 1), checked_out]).await?;
    let last = append(&store, "cart-2", [added("tea", 5)]).await?;

    // Inline: it is there with the append.
    let cart = store.documents::<Summary>("cart_summary").get("cart-1").await?;
    println!("cart-1: {cart:?}");
    for found in store.documents::<Summary>("cart_summary").find("city", "Bern").collect().await? {
        println!("to Bern: {}", found.key);
    }
    // Catch-up: wait until it has come as far as the append.
    store.wait_for("in_carts", last, Duration::from_secs(10)).await?;
    let mut products = store.documents::<u32>("in_carts").stream();
    while let Some(product) = products.next().await? {
        println!("{}: {} in carts", product.key, product.document);
    }
    runner.stop().await;
    Ok(())
}

async fn append<const N: usize>(
    store: &Store,
    cart: &str,
    events: [CartEvent; N],
) -> Result<everfold::Position, everfold::Error> {
    let events = events.iter().map(NewEvent::from_event).collect::<Result<Vec<_>, _>>()?;
    Ok(store.append(cart, ExpectedVersion::Any, events).await?.last_position)
}
