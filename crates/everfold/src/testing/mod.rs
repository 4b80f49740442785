//! A given/when/then kit for tests of projections, on the real store (feature `testing`).
//!
//! A [`ProjectionTest`] gives events to a projection and compares the read model with what is
//! expected. Then it does the same again in other ways that must make no difference: appends
//! repeated, batches of other sizes, a crash before each commit, streams in another order, several
//! shards, inline instead of catch-up. A projection whose result depends on any of that works by
//! luck; here it fails, and the failure names the way and the first document or row that differs.
//!
//! ```
//! use everfold::testing::ProjectionTest;
//! use everfold::{DocumentProjection, Projection, RecordedEvent};
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! #[derive(Serialize, Deserialize)]
//! enum CartEvent {
//!     ItemAdded { quantity: u32 },
//!     CheckedOut,
//! }
//!
//! #[derive(Default, Serialize, Deserialize)]
//! struct Cart {
//!     items: u32,
//!     open: bool,
//! }
//!
//! struct Carts;
//!
//! impl DocumentProjection for Carts {
//!     type Event = CartEvent;
//!     type Document = Cart;
//!
//!     fn evolve(&self, cart: Option<Cart>, event: &CartEvent, _: &RecordedEvent) -> Option<Cart> {
//!         let mut cart = cart.unwrap_or(Cart { items: 0, open: true });
//!         match event {
//!             CartEvent::ItemAdded { quantity } => cart.items += quantity,
//!             CartEvent::CheckedOut => cart.open = false,
//!         }
//!         Some(cart)
//!     }
//! }
//!
//! # #[cfg(feature = "sqlite")]
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let carts = Projection::document("carts", 1, Carts).inline().build()?;
//! ProjectionTest::new(carts)
//!     .given("cart-1", [CartEvent::ItemAdded { quantity: 2 }])
//!     .given("cart-2", [CartEvent::ItemAdded { quantity: 1 }])
//!     .given("cart-1", [CartEvent::ItemAdded { quantity: 1 }, CartEvent::CheckedOut])
//!     .then_documents([
//!         ("cart-1", json!({ "items": 3, "open": false })),
//!         ("cart-2", json!({ "items": 1, "open": true })),
//!     ])
//!     .run()
//!     .await?;
//! # Ok(()) }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```
//!
//! Documents are compared with [`then_documents`](ProjectionTest::then_documents), tables of SQL and
//! handler projections with [`then_rows`](ProjectionTest::then_rows).

mod compare;
mod history;
mod run;
mod scratch;
mod variant;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

pub use variant::Variation;

use compare::Expectation;
use history::Given;
use run::{Plan, Setting};
use scratch::Place;

use crate::projection::Projection;
use crate::projection::key::Key;
use crate::projection::projector::Projector;
use crate::{NewEvent, Position, RecordedEvent, StreamId, Upcasters, Version};

/// A test of one projection: given events, then documents or rows. See the [module](self).
#[derive(Debug, Clone)]
#[must_use = "a test does nothing until it is run"]
pub struct ProjectionTest {
    projection: Projection,
    place: Place,
    upcasters: Arc<Upcasters>,
    given: Vec<Given>,
    expectations: Vec<Expectation>,
    ignored: Vec<String>,
    without: Vec<Variation>,
    /// The first value that is not JSON.
    wrong: Option<String>,
}

impl ProjectionTest {
    /// A test of this projection, on SQLite unless another store is named.
    pub fn new(projection: Projection) -> Self {
        ProjectionTest {
            projection,
            place: Place::TempFile,
            upcasters: Arc::default(),
            given: Vec::new(),
            expectations: Vec::new(),
            ignored: Vec::new(),
            without: Vec::new(),
            wrong: None,
        }
    }

    /// On SQLite, in files that are removed afterwards. The default.
    #[cfg(feature = "sqlite")]
    pub fn on_sqlite(mut self) -> Self {
        self.place = Place::TempFile;
        self
    }

    /// On the store of this URL. PostgreSQL: in databases that are made beside the one named and
    /// dropped afterwards, so the role must be allowed to make some (`CREATEDB`), and a pooler must
    /// not be between. SQLite: in files in the same folder. Nothing that is there is touched.
    pub fn on(mut self, url: impl Into<String>) -> Self {
        self.place = Place::Beside(url.into());
        self
    }

    /// With these upcasters, as the store that the projection will run on has them.
    pub fn upcasters(mut self, upcasters: Arc<Upcasters>) -> Self {
        self.upcasters = upcasters;
        self
    }

    /// These events, variants of a serde enum, are appended to a stream, after those given before.
    pub fn given<E: Serialize>(
        mut self,
        stream: impl Into<StreamId>,
        events: impl IntoIterator<Item = E>,
    ) -> Self {
        let encoded = events.into_iter().map(|event| NewEvent::from_event(&event));
        match encoded.collect::<Result<Vec<_>, _>>() {
            Ok(events) => self.given_events(stream, events),
            Err(error) => {
                self.wrong.get_or_insert(error.to_string());
                self
            }
        }
    }

    /// The same for events of any kind: with metadata, ids or schema versions of their own.
    pub fn given_events(
        mut self,
        stream: impl Into<StreamId>,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Self {
        let (stream, events) = (stream.into(), events.into_iter().collect());
        self.given.push(Given { stream, events });
        self
    }

    /// The projection has exactly these documents, by key.
    pub fn then_documents<K: Into<String>, D: Serialize>(
        mut self,
        documents: impl IntoIterator<Item = (K, D)>,
    ) -> Self {
        let value = |(key, document): (K, D)| Ok((key.into(), serde_json::to_value(document)?));
        let values: Result<_, serde_json::Error> = documents.into_iter().map(value).collect();
        match values {
            Ok(documents) => self.expectations.push(Expectation::Documents(documents)),
            Err(error) => _ = self.wrong.get_or_insert(error.to_string()),
        }
        self
    }

    /// A query gives exactly these rows, in its order. Tables are named `read_model.<table>` on
    /// either kind of store. A row is a tuple, or one value where there is one column.
    ///
    /// ```
    /// use everfold::Projection;
    /// use everfold::testing::ProjectionTest;
    /// # #[derive(serde::Serialize)] enum CartEvent { ItemAdded { quantity: u32 } }
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let totals = Projection::sql("cart_totals", 1)
    ///     .create("CREATE TABLE read_model.cart_totals (cart_id TEXT PRIMARY KEY, items BIGINT NOT NULL)")
    ///     .apply(
    ///         "INSERT INTO read_model.cart_totals AS t (cart_id, items)
    ///          SELECT stream_id, SUM(CAST(data->>'quantity' AS BIGINT)) FROM batch GROUP BY stream_id
    ///          ON CONFLICT (cart_id) DO UPDATE SET items = t.items + EXCLUDED.items",
    ///     )
    ///     .build()?;
    /// ProjectionTest::new(totals)
    ///     .given("cart-1", [CartEvent::ItemAdded { quantity: 2 }, CartEvent::ItemAdded { quantity: 1 }])
    ///     .then_rows(
    ///         "SELECT cart_id, items FROM read_model.cart_totals ORDER BY cart_id",
    ///         [("cart-1", 3)],
    ///     )
    ///     .run()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn then_rows<R: Serialize>(
        mut self,
        query: impl Into<String>,
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        let row = |row: R| match serde_json::to_value(row)? {
            Value::Array(columns) => Ok(columns),
            column => Ok(vec![column]),
        };
        let rows: Result<_, serde_json::Error> = rows.into_iter().map(row).collect();
        match rows {
            Ok(rows) => self.expectations.push(Expectation::Rows { sql: query.into(), rows }),
            Err(error) => _ = self.wrong.get_or_insert(error.to_string()),
        }
        self
    }

    /// Fields of documents at this path (`updated_at`, `customer.since`) are not compared: times and
    /// positions differ from run to run.
    pub fn ignoring(mut self, path: impl Into<String>) -> Self {
        self.ignored.push(path.into());
        self
    }

    /// This is not varied: for a projection that is known to depend on it, and may.
    pub fn without(mut self, variation: Variation) -> Self {
        self.without.push(variation);
        self
    }

    /// Runs the events through the projection, as given and in every variant, each on a store of its
    /// own.
    ///
    /// # Errors
    /// The first variant whose read model is not as expected, and the first difference.
    pub async fn run(self) -> Result<(), TestFailure> {
        let name = self.projection.definition.name.clone();
        let failure = |said: String| TestFailure(format!("projection \"{name}\": {said}"));
        if let Some(wrong) = self.wrong {
            return Err(failure(wrong));
        }
        if self.expectations.is_empty() {
            return Err(failure("nothing is expected: add then_documents or then_rows".to_owned()));
        }
        let keys = keys(&self.projection, &self.given, &self.upcasters);
        let setting = Setting {
            place: &self.place,
            upcasters: &self.upcasters,
            expectations: &self.expectations,
            ignored: &self.ignored,
        };
        for plan in variant::plans(&self.projection, &self.given, &keys, &self.without) {
            let Plan { name, variation, .. } = &plan;
            plan.run(&setting).await.map_err(|said| match variation {
                None => failure(format!("{name}: {said}")),
                Some(variation) => failure(format!(
                    "{name}: {said}\nIt is as expected with the events as given; {}",
                    variation.rule()
                )),
            })?;
        }
        Ok(())
    }
}

/// The keys of the events of each append. An event without a key moves freely.
fn keys(projection: &Projection, given: &[Given], upcasters: &Upcasters) -> Vec<Vec<String>> {
    let key_of = |event: &RecordedEvent| match (&projection.definition.key, &projection.projector) {
        (Key::Stream, _) => None,
        (Key::Code, Projector::Document(fold)) => fold.key_of(event).ok().flatten(),
        (key, _) => key.of(event),
    };
    let keys_of = |append: &Given| {
        let recorded = append.events.iter().map(|event| recorded(&append.stream, event));
        let today =
            recorded.filter_map(|mut event| upcasters.apply(&mut event).ok().map(|()| event));
        today.filter_map(|event| key_of(&event)).collect()
    };
    given.iter().map(keys_of).collect()
}

/// What an event looks like once it is stored, as far as a key depends on it.
fn recorded(stream: &StreamId, event: &NewEvent) -> RecordedEvent {
    RecordedEvent {
        position: Position::START,
        stream_id: stream.clone(),
        version: Version(1),
        id: event.id,
        event_type: event.event_type.clone(),
        schema_version: event.schema_version,
        data: event.data.clone(),
        metadata: serde_json::to_string(&event.metadata).unwrap_or_else(|_| "{}".to_owned()),
        recorded_at: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// What a [`ProjectionTest`] found, in several lines for people to read.
#[derive(Clone)]
pub struct TestFailure(String);

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same, so that `unwrap` and a test that returns it show the lines as they are.
impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TestFailure {}
