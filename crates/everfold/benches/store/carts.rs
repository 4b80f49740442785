//! The read model that the projections keep: carts with what is in them, as rows and as documents.

use everfold::{
    DocumentBody, DocumentProjection, Projection, ProjectionBuilder, RecordedEvent, SqlBody,
};
use serde::{Deserialize, Serialize};

use crate::workload::ShopEvent;

/// The columns of the read model's rows.
pub(crate) const COLUMNS: &str = "cart_id TEXT PRIMARY KEY, items BIGINT NOT NULL, cents BIGINT NOT NULL, \
     changes BIGINT NOT NULL";

/// The statement that applies a batch to a table of carts.
pub(crate) fn apply(table: &str) -> String {
    format!(
        "INSERT INTO {table} AS c (cart_id, items, cents, changes)
         SELECT stream_id,
                SUM(CASE type WHEN 'ItemAdded' THEN CAST(data->>'quantity' AS BIGINT)
                              WHEN 'ItemRemoved' THEN -CAST(data->>'quantity' AS BIGINT) ELSE 0 END),
                SUM(CASE type WHEN 'ItemAdded' THEN CAST(data->>'price_cents' AS BIGINT) ELSE 0 END),
                COUNT(*)
           FROM batch WHERE true GROUP BY stream_id
         ON CONFLICT (cart_id) DO UPDATE SET items = c.items + EXCLUDED.items,
             cents = c.cents + EXCLUDED.cents, changes = c.changes + EXCLUDED.changes"
    )
}

/// Carts as rows, in the table of the projection's name.
pub(crate) fn rows(name: &str) -> ProjectionBuilder<SqlBody> {
    Projection::sql(name, 1)
        .create(format!("CREATE TABLE read_model.{name} ({COLUMNS})"))
        .apply(apply(&format!("read_model.{name}")))
}

/// Carts as documents.
pub(crate) fn documents(name: &str) -> ProjectionBuilder<DocumentBody<Carts>> {
    Projection::document(name, 1, Carts)
}

/// Folds the events of a cart.
pub(crate) struct Carts;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cart {
    items: i64,
    cents: u64,
    changes: u64,
}

impl Cart {
    pub(crate) fn after(cart: Option<Cart>, event: &ShopEvent) -> Cart {
        let mut cart = cart.unwrap_or_default();
        cart.changes += 1;
        match event {
            ShopEvent::ItemAdded { quantity, price_cents, .. } => {
                cart.items += i64::from(*quantity);
                cart.cents += price_cents;
            }
            ShopEvent::ItemRemoved { quantity, .. } => cart.items -= i64::from(*quantity),
            ShopEvent::CheckedOut { .. } => {}
        }
        cart
    }
}

impl DocumentProjection for Carts {
    type Event = ShopEvent;
    type Document = Cart;

    fn evolve(&self, cart: Option<Cart>, event: &ShopEvent, _: &RecordedEvent) -> Option<Cart> {
        Some(Cart::after(cart, event))
    }
}
