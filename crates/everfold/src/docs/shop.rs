// What examples in the documentation begin with, hidden there: a shop in a folder that goes away.

mod shop {
    use everfold::{
        DocumentProjection, Error, ExpectedVersion, NewEvent, Projection, RecordedEvent, Runner, Store,
    };
    use serde::{Deserialize, Serialize};
    use tempfile::TempDir;

    #[derive(Serialize, Deserialize)]
    pub enum CartChange {
        ItemAdded { quantity: u32 },
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct Cart {
        pub items: u32,
    }

    pub struct Carts;

    impl DocumentProjection for Carts {
        type Event = CartChange;
        type Document = Cart;

        fn evolve(&self, cart: Option<Cart>, event: &CartChange, _: &RecordedEvent) -> Option<Cart> {
            let CartChange::ItemAdded { quantity } = event;
            Some(Cart { items: cart.unwrap_or_default().items + quantity })
        }
    }

    /// Where a store can be, and the folder, which goes away when it is dropped.
    pub fn url() -> (TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        (folder, url)
    }

    /// An empty store.
    pub async fn open() -> (TempDir, Store) {
        let (folder, url) = url();
        (folder, Store::open(&url).await.unwrap())
    }

    /// A store with three events of two carts, and the catch-up projection `carts` over them.
    pub async fn with_carts() -> (TempDir, Store) {
        let (folder, store) = open().await;
        fill(&store).await.unwrap();
        (folder, store)
    }

    async fn fill(store: &Store) -> Result<(), Error> {
        for (cart, quantity) in [("cart-1", 2), ("cart-2", 1), ("cart-1", 3)] {
            let added = NewEvent::from_event(&CartChange::ItemAdded { quantity })?;
            store.append(cart, ExpectedVersion::Any, [added]).await?;
        }
        let carts = Projection::document("carts", 1, Carts).build()?;
        Ok(Runner::new(store).projection(carts).run_once().await?)
    }
}
