//! The program of `README.md`.

// page: first_steps
use everfold::{ExpectedVersion, NewEvent, Store};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum CartEvent {
    ItemAdded { sku: String, quantity: u32 },
    CheckedOut,
}

#[tokio::main]
async fn main() -> Result<(), everfold::Error> {
    let store = Store::open("sqlite:shop.db").await?; // or postgres://…
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
// end

/// As its `main` is called.
pub(super) fn run() -> Result<(), everfold::Error> {
    main()
}
