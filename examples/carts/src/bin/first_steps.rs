//! The first steps: open a store, append to a stream, read everything back as typed events.
//!
//! `cargo run --bin first_steps [URL]`, by default on the file `shop.db` in a temp folder.

use everfold::{ExpectedVersion, NewEvent, Store};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum CartEvent {
    ItemAdded { sku: String, quantity: u32 },
    CheckedOut,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| format!("sqlite:{}", folder.path().join("shop.db").display()));
    let store = Store::open(&url).await?;

    let added = CartEvent::ItemAdded { sku: "A1".into(), quantity: 2 };
    let stored =
        store.append("cart-1", ExpectedVersion::NoStream, [NewEvent::from_event(&added)?]).await?;
    store.append("cart-1", stored.version, [NewEvent::from_event(&CartEvent::CheckedOut)?]).await?;

    let mut events = store.read_all().typed::<CartEvent>();
    while let Some(cart) = events.next().await? {
        println!("{} {:?}", cart.recorded.position, cart.event);
    }
    Ok(())
}
