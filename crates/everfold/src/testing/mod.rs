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
//! handler projections with [`then_table`](ProjectionTest::then_table) or, by a query,
//! [`then_rows`](ProjectionTest::then_rows). [`then_refused`](ProjectionTest::then_refused) is for
//! events that must not get in.

mod append;
mod compare;
mod failure;
mod history;
mod refused;
mod run;
mod scratch;
mod table;
mod variant;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;

pub use failure::{RowDifference, TestFailure};
pub use variant::Variation;

use compare::Expectation;
use failure::Cause;
use history::{Given, one_by_one};
use run::{Plan, Setting};
use scratch::{Place, Scratch};
use table::Rows;

use crate::projection::Projection;
use crate::projection::definition::OnError;
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
    /// What refused events say; `None`: nobody asks.
    refused: Option<Vec<String>>,
    stop: Arc<AtomicBool>,
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
            refused: None,
            stop: Arc::default(),
            wrong: None,
        }
    }

    /// On SQLite, in files that are removed afterwards. The default.
    #[cfg(feature = "sqlite")]
    pub fn on_sqlite(mut self) -> Self {
        self.place = Place::TempFile;
        self
    }

    /// On the store of this URL. PostgreSQL: in a database that is made beside the one named and
    /// dropped afterwards, so the role must be allowed to make some (`CREATEDB`), and a pooler must
    /// not be between. SQLite: in a file in the same folder. Nothing that is there is touched.
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
        self.given.push(Given { stream, events, recorded_at: None });
        self
    }

    /// The same for events that were recorded at this time, for projections that go by it.
    pub fn given_events_at(
        mut self,
        recorded_at: jiff::Timestamp,
        stream: impl Into<StreamId>,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Self {
        let (stream, events) = (stream.into(), events.into_iter().collect());
        self.given.push(Given { stream, events, recorded_at: Some(recorded_at) });
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
        match columns_of(rows) {
            Ok(rows) => self.expectations.push(Expectation::Rows { sql: query.into(), rows }),
            Err(error) => _ = self.wrong.get_or_insert(error.to_string()),
        }
        self
    }

    /// A table of the read model (`cart_totals`, without `read_model`) has exactly these rows, in any
    /// order. The columns that are named are compared, by what their values mean: 1 is 1.0, `true` is
    /// 1 on SQLite, one instant may be written in several ways, and JSON may be text.
    ///
    /// ```no_run
    /// # async fn run(test: everfold::testing::ProjectionTest) -> Result<(), everfold::testing::TestFailure> {
    /// test.then_table("cart_totals", ["cart_id", "items"], [("cart-1", 3), ("cart-2", 1)]).run().await
    /// # }
    /// ```
    pub fn then_table<C: Into<String>, R: Serialize>(
        mut self,
        table: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        let table = table.into();
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        match columns_of(rows) {
            Ok(rows) if rows.iter().all(|row| row.len() == columns.len()) => {
                self.expectations.push(Expectation::Table(Rows { table, columns, rows }));
            }
            Ok(_) => {
                let columns = columns.len();
                let wrong = format!("a row of {table} has not the {columns} values of its columns");
                self.wrong.get_or_insert(wrong);
            }
            Err(error) => _ = self.wrong.get_or_insert(error.to_string()),
        }
        self
    }

    /// Exactly so many events are refused, and what is said of each has one of these texts in it.
    /// None at all for none: without this, events that the projection's policy puts aside or leaves
    /// out are passed over. Where the policy is to stop, the event must be the last one given.
    pub fn then_refused<P: Into<String>>(mut self, parts: impl IntoIterator<Item = P>) -> Self {
        self.refused = Some(parts.into_iter().map(Into::into).collect());
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

    /// No further variant is begun once this is true: [`run`](Self::run) cleans up, and its failure
    /// [says so](TestFailure::is_stopped).
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// The variants that [`run`](Self::run) goes through, `as given` first.
    #[must_use]
    pub fn variants(&self) -> Vec<String> {
        self.plans().into_iter().map(|plan| plan.name).collect()
    }

    /// The tables of the read model, each with its columns, as they are on this kind of store.
    ///
    /// # Errors
    /// If the projection cannot be made there.
    pub async fn tables(&self) -> Result<Vec<(String, Vec<String>)>, TestFailure> {
        let failed = |cause: Cause| TestFailure::before(self.projection.name(), cause);
        let scratch = self.scratch().await?;
        let tables = run::tables(&self.projection, &scratch, &self.setting()).await;
        scratch.remove().await.map_err(Cause::from).map_err(failed)?;
        tables.map_err(failed)
    }

    /// Runs the events through the projection, as given and in every variant, each on an empty store.
    ///
    /// # Errors
    /// The first variant whose read model is not as expected, and the first difference.
    pub async fn run(self) -> Result<(), TestFailure> {
        let name = self.projection.name();
        let at_once = |said: String| Err(TestFailure::before(name, Cause::NotRun(said)));
        if let Some(wrong) = &self.wrong {
            return at_once(wrong.clone());
        }
        if self.expectations.is_empty() && self.refused.is_none() {
            let said =
                "nothing is expected: add then_documents, then_rows, then_table or then_refused";
            return at_once(said.to_owned());
        }
        let scratch = self.scratch().await?;
        let outcome = self.run_all(&scratch).await;
        let removed = scratch.remove().await;
        outcome?;
        removed.map_err(|said| TestFailure::before(name, Cause::NotRun(said)))
    }

    async fn run_all(&self, scratch: &Scratch) -> Result<(), TestFailure> {
        let name = self.projection.name();
        for (number, plan) in self.plans().into_iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(TestFailure::before(name, Cause::Stopped));
            }
            let ran = async {
                if number > 0 {
                    scratch.empty().await?;
                }
                plan.run(scratch, &self.setting()).await
            };
            let failed = |cause| TestFailure::within(name, &plan.name, plan.variation, cause);
            ran.await.map_err(failed)?;
        }
        Ok(())
    }

    async fn scratch(&self) -> Result<Scratch, TestFailure> {
        let failed = |said| TestFailure::before(self.projection.name(), Cause::NotRun(said));
        Scratch::create(&self.place).await.map_err(failed)
    }

    fn setting(&self) -> Setting<'_> {
        Setting {
            upcasters: &self.upcasters,
            expectations: &self.expectations,
            ignored: &self.ignored,
            refused: self.refused.as_deref(),
        }
    }

    fn plans(&self) -> Vec<Plan> {
        let (mut given, mut without) = (self.given.clone(), self.without.clone());
        let refusal = self.refused.as_ref().is_some_and(|expected| !expected.is_empty());
        if refusal && self.projection.definition.settings.on_error == OnError::Stop {
            // What else is in its append, or comes after it elsewhere, would be refused with it.
            given = one_by_one(&given);
            without.extend([Variation::Order, Variation::Shards]);
        }
        let keys = keys(&self.projection, &given, &self.upcasters);
        variant::plans(&self.projection, &given, &keys, &without)
    }
}

/// Rows as lists of values: a tuple each, or one value where there is one column.
fn columns_of<R: Serialize>(
    rows: impl IntoIterator<Item = R>,
) -> Result<Vec<Vec<Value>>, serde_json::Error> {
    let row = |row: R| match serde_json::to_value(row)? {
        Value::Array(columns) => Ok(columns),
        column => Ok(vec![column]),
    };
    rows.into_iter().map(row).collect()
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
