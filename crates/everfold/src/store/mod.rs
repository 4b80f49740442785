//! The store handle, and the one seam behind it: [`Backend`]. Only the backends know SQL.
//!
//! The handle checks what needs no database, tries appends again when that is safe, and shares one
//! poll of the high-water mark among all that follow.

mod backend;
mod mark;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod projections;
mod rebuilds;
mod schema;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod switching;
mod unit;
mod url;
mod verifying;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::append::{Appended, StreamAppend, check_ids_of_all};
use crate::diagnosis::Diagnosis;
use crate::error::{AppendError, OpenError, ReadError, StoreError};
use crate::options::StoreOptions;
use crate::projection::HealthOptions;
use crate::projection::registry::Hub;
use crate::read::{ReadAll, ReadStream};
use crate::upcast::Upcasters;
use crate::{ExpectedVersion, NewEvent, Position, StreamId, Version};

pub(crate) use backend::*;
use mark::MarkPoller;
pub(crate) use projections::*;
pub(crate) use rebuilds::*;
pub use schema::{AppliedSchema, Schema};
pub(crate) use switching::*;
pub(crate) use unit::*;
pub use url::StoreKind;
pub(crate) use url::StoreUrl;
pub(crate) use verifying::*;

/// An open event store on PostgreSQL or SQLite: a cheap handle to clone and share.
///
/// | to | |
/// |---|---|
/// | append | [`append`](Store::append), [`append_many`](Store::append_many), [`import`](Store::import); in a transaction of your own `everfold::postgres::append_in`, `everfold::sqlite::append_in`; from commands a [`CommandHandler`](crate::CommandHandler) |
/// | read events | [`read_stream`](Store::read_stream), [`read_all`](Store::read_all), [`follow`](Store::follow), [`stream_version`](Store::stream_version), [`high_water_mark`](Store::high_water_mark) |
/// | have projections | [`register`](Store::register), a [`Runner`](crate::Runner); [`documents`](Store::documents), [`wait_for`](Store::wait_for) to read them |
/// | change them under load | [`plan`](Store::plan), [`rebuild`](Store::rebuild), [`promote`](Store::promote), [`rollback`](Store::rollback), [`retire`](Store::retire), [`replay`](Store::replay), [`snapshot_read_model`](Store::snapshot_read_model), [`verify`](Store::verify) |
/// | look after them | [`projections`](Store::projections), [`health`](Store::health), [`diagnose`](Store::diagnose), [`messages`](Store::messages), [`pause`](Store::pause), [`resume`](Store::resume), [`dead_letters`](Store::dead_letters), [`skips`](Store::skips), [`drain`](Store::drain) |
///
/// Appends that many tasks make through clones of one handle at the same time are collected into
/// one transaction, each with its own result.
///
/// Dropping the last clone closes the store. Dropping the future of an append leaves its outcome
/// unknown; appending the same events again is safe.
///
/// ```
/// use everfold::{ExpectedVersion, NewEvent, Store, Version};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// enum CartEvent {
///     ItemAdded { sku: String, quantity: u32 },
///     CheckedOut,
/// }
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
/// # let (_folder, url) = url();
/// let store = Store::open(&url).await?; // "sqlite:shop.db", or "postgres://…"
///
/// let added = CartEvent::ItemAdded { sku: "A1".into(), quantity: 2 };
/// let stored = store
///     .append("cart-1", ExpectedVersion::NoStream, [NewEvent::from_event(&added)?])
///     .await?;
/// store.append("cart-1", stored.version, [NewEvent::from_event(&CartEvent::CheckedOut)?]).await?;
///
/// let mut events = store.read_stream("cart-1").typed::<CartEvent>();
/// assert_eq!(events.next().await?.unwrap().event, added);
/// assert_eq!(events.next().await?.unwrap().recorded.version, Version(2));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    options: Arc<StoreOptions>,
    url: StoreUrl,
    mark: MarkPoller,
    hub: Hub,
}

impl Store {
    /// Opens a store with the default options: `sqlite:file.db` or `postgres://user@host/database`.
    ///
    /// A SQLite file is made if it is not there, and its schema is kept up to date. A PostgreSQL database
    /// must have the schema: from `everfold schema apply`, [`Schema::apply`] or [`StoreOptions::migrate`].
    ///
    /// ```
    /// use everfold::{Store, StoreKind};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, url) = url();
    /// let store = Store::open(&url).await?; // "sqlite:shop.db"
    /// assert_eq!(store.kind(), StoreKind::Sqlite);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Url`] if the URL is not understood, or its backend is not part of this build;
    /// [`OpenError::Schema`] if the schema is missing, older or newer than this version: apply it, or
    /// upgrade; [`OpenError::Unsafe`] if a start-up check fails, with what to change;
    /// [`OpenError::Store`] if the database refuses or cannot be reached.
    pub async fn open(url: &str) -> Result<Store, OpenError> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// Opens a store with options of the caller's.
    ///
    /// ```
    /// use everfold::{Durability, Store, StoreOptions};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, url) = url();
    /// let mut options = StoreOptions::default();
    /// options.namespace = "east".into(); // its projections, apart from those of others
    /// options.durability = Durability::Normal;
    /// let store = Store::open_with(&url, options).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Store::open`]; and [`OpenError::Option`] if an option is out of range, with what is allowed.
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Store, OpenError> {
        options.check()?;
        let url = StoreUrl::parse(url)?;
        let options = Arc::new(options);
        let backend: Arc<dyn Backend> = match &url {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => postgres::open(url, Arc::clone(&options)).await?,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(path) => sqlite::open(path, Arc::clone(&options)).await?,
        };
        if let Some(every) = options.publish_mark_every {
            tokio::spawn(mark::keep_publishing(Arc::downgrade(&backend), every));
        }
        let mark = MarkPoller::new(&backend, Arc::clone(&options));
        Ok(Store(Arc::new(Inner { backend, options, url, mark, hub: Hub::new() })))
    }

    /// Which kind of database this is.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.0.url.kind()
    }

    /// Where it is, without a password.
    #[must_use]
    pub fn location(&self) -> String {
        self.0.url.to_string()
    }

    /// Appends events to one stream, all or none, if the stream is as expected.
    ///
    /// A transient failure (a lost connection, a deadlock) is tried again with the same event ids,
    /// so that nothing is stored twice. Inline projections are applied in the same transaction.
    ///
    /// ```
    /// use everfold::{AppendError, ExpectedVersion, NewEvent, Version};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let placed = NewEvent::from_json("OrderPlaced", r#"{"total": 1999}"#)?;
    /// let stored = store.append("order-7", ExpectedVersion::NoStream, [placed.clone()]).await?;
    /// assert_eq!(stored.version, Version(1));
    ///
    /// // Again with the same id: the first result, and nothing is stored twice.
    /// assert_eq!(store.append("order-7", ExpectedVersion::NoStream, [placed]).await?, stored);
    ///
    /// // Another event that expects what is no longer so.
    /// let paid = NewEvent::from_json("OrderPaid", "{}")?;
    /// let late = store.append("order-7", ExpectedVersion::NoStream, [paid.clone()]).await;
    /// assert!(matches!(late, Err(AppendError::VersionConflict { actual: Version(1), .. })));
    /// store.append("order-7", stored.version, [paid]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Nothing is stored then, unless [`AppendError::is_transient`] says that the outcome is open and the
    /// same append should be made again.
    /// - [`AppendError::VersionConflict`]: the stream is at another version. Read it again and decide again.
    /// - [`AppendError::Invalid`]: a rule is broken, such as a [limit](crate::Limits); the message says which.
    /// - [`AppendError::IdConflict`]: an event id is stored already with other content. A new event needs a new id.
    /// - [`AppendError::Projection`]: an inline projection refused an event, and its policy is to stop.
    /// - [`AppendError::Store`]: the database refused or could not be reached, also after some tries.
    pub async fn append(
        &self,
        stream: impl Into<StreamId>,
        expected: impl Into<ExpectedVersion>,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Result<Appended, AppendError> {
        let append = StreamAppend::new(stream, expected, events);
        append.check(&self.0.options.limits)?;
        let retries = self.0.options.append_retries_max;
        for attempt in 0..retries {
            match self.0.backend.append(append.clone()).await {
                Err(error) if error.is_worth_a_retry() => self.before_retry(attempt, &error).await,
                outcome => return outcome.map_err(|error| append.blamed(error)),
            }
        }
        let outcome = self.0.backend.append(append.clone()).await;
        outcome.map_err(|error| append.blamed(error))
    }

    /// Appends to many streams in one transaction. Each member has its own outcome, in the order
    /// given: a conflict of one leaves the others stored. Several members may name the same
    /// stream; they are appended in their order.
    ///
    /// ```
    /// use everfold::{ExpectedVersion, NewEvent, StreamAppend};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let opened = || NewEvent::from_json("CartOpened", "{}");
    /// let outcomes = store
    ///     .append_many([
    ///         StreamAppend::new("cart-8", ExpectedVersion::NoStream, [opened()?]),
    ///         StreamAppend::new("cart-1", ExpectedVersion::NoStream, [opened()?]), // is there already
    ///     ])
    ///     .await?;
    /// assert!(outcomes[0].is_ok());
    /// assert!(outcomes[1].is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the whole could not be stored, no member is: [`AppendError::Invalid`] if one of them breaks a
    /// rule, [`AppendError::Store`] if the database refused or could not be reached. What befalls a member
    /// alone, as in [`Store::append`], is in its place in the list.
    pub async fn append_many(
        &self,
        appends: impl IntoIterator<Item = StreamAppend>,
    ) -> Result<Vec<Result<Appended, AppendError>>, AppendError> {
        let appends: Vec<StreamAppend> = appends.into_iter().collect();
        for append in &appends {
            append.check(&self.0.options.limits)?;
        }
        check_ids_of_all(&appends)?;
        if appends.is_empty() {
            return Ok(Vec::new());
        }
        let retries = self.0.options.append_retries_max;
        for attempt in 0..retries {
            match self.0.backend.append_many(appends.clone()).await {
                Err(error) if error.is_worth_a_retry() => self.before_retry(attempt, &error).await,
                outcome => return outcome.map(|outcomes| blamed(&appends, outcomes)),
            }
        }
        let outcome = self.0.backend.append_many(appends.clone()).await;
        outcome.map(|outcomes| blamed(&appends, outcomes))
    }

    async fn before_retry(&self, attempt: u32, error: &AppendError) {
        tracing::debug!(%error, attempt, "append failed, trying again with the same event ids");
        let delay = self.0.options.retry_delay * 2u32.pow(attempt.min(6));
        tokio::time::sleep(jitter(delay)).await;
    }

    /// Reads one stream, forward or backward. A stream that does not exist has no events.
    ///
    /// ```
    /// use everfold::Version;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let events = store.read_stream("cart-1").collect().await?;
    /// assert_eq!(events[0].version, Version(1));
    /// assert_eq!(events[0].event_type, "ItemAdded");
    ///
    /// let last = store.read_stream("cart-1").backward().limit(1).collect().await?;
    /// assert_eq!(last[0].version, Version(2));
    ///
    /// let later = store.read_stream("cart-1").from_version(Version(2)).collect().await?;
    /// assert_eq!(later, last);
    /// # Ok(()) }
    /// ```
    pub fn read_stream(&self, stream: impl Into<StreamId>) -> ReadStream {
        ReadStream::new(self.clone(), stream.into())
    }

    /// Reads everything by position, up to the high-water mark at its start.
    ///
    /// No event is missing up to the last one that was read, so its position is enough to go on from.
    ///
    /// ```
    /// use everfold::Position;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let mut last = Position::START;
    /// let mut events = store.read_all().types(["ItemAdded"]).events();
    /// while let Some(event) = events.next().await? {
    ///     println!("{} {} {}", event.position, event.stream_id, event.data);
    ///     last = event.position;
    /// }
    ///
    /// let newer = store.read_all().after(last).collect().await?;
    /// assert!(newer.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn read_all(&self) -> ReadAll {
        ReadAll::new(self.clone(), false)
    }

    /// Reads everything by position, then goes on with new events as they come. Lost connections
    /// are waited out; the stream ends only with an error that trying again does not mend.
    ///
    /// What is done with an event is up to the caller, and so is keeping its position: whoever keeps it
    /// together with the effect, and begins [after](ReadAll::after) it next time, has each event once.
    ///
    /// ```
    /// use everfold::{ExpectedVersion, NewEvent};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let mark = store.high_water_mark().await?;
    /// let mut events = store.follow().after(mark).events();
    ///
    /// store.append("cart-9", ExpectedVersion::Any, [NewEvent::from_json("CartOpened", "{}")?]).await?;
    /// let event = events.next().await?.expect("a follower does not end");
    /// assert_eq!(event.stream_id.as_str(), "cart-9");
    /// # Ok(()) }
    /// ```
    pub fn follow(&self) -> ReadAll {
        ReadAll::new(self.clone(), true)
    }

    /// The version of a stream, which is that of its last event; 0 if it does not exist.
    ///
    /// ```
    /// use everfold::Version;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// assert_eq!(store.stream_version("cart-1").await?, Version(2));
    /// assert_eq!(store.stream_version("no-such-cart").await?, Version::NONE);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database refuses or cannot be reached.
    pub async fn stream_version(&self, stream: impl Into<StreamId>) -> Result<Version, StoreError> {
        self.0.backend.stream_version(stream.into()).await
    }

    /// The high-water mark: every position at or below it can be read now, or will never exist.
    ///
    /// It stands below every append that is in flight, however long that takes; [`Store::diagnose`] names
    /// who holds it. On SQLite, where writers take turns, it is the last position.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let mark = store.high_water_mark().await?;
    /// assert_eq!(mark, store.last_position().await?); // nobody is in the middle of an append
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database refuses or cannot be reached; on a standby, if no mark was published
    /// ([`Store::publish_high_water_mark`], on the primary).
    pub async fn high_water_mark(&self) -> Result<Position, StoreError> {
        self.0.backend.high_water_mark().await
    }

    /// Publishes the high-water mark for readers on standbys, which cannot see who is in the middle of
    /// an append, and returns it. [`StoreOptions::publish_mark_every`] does it regularly. On SQLite, which
    /// has no standbys, it only returns it.
    ///
    /// # Errors
    /// If the database refuses, as a standby does, or cannot be reached.
    pub async fn publish_high_water_mark(&self) -> Result<Position, StoreError> {
        self.0.backend.publish_high_water_mark().await
    }

    /// Looks at server, settings, privileges, projections and whoever holds the high-water mark, each with
    /// what to do about it: what `everfold doctor` prints. It changes nothing.
    ///
    /// ```
    /// use everfold::Severity;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let diagnosis = store.diagnose().await?;
    /// for finding in diagnosis.findings.iter().filter(|finding| finding.severity > Severity::Ok) {
    ///     println!("{}: {}", finding.check, finding.message);
    /// }
    /// assert!(diagnosis.holders.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database refuses or cannot be reached. What cannot be looked at alone is a finding.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        self.diagnose_with(&HealthOptions::default()).await
    }

    /// As [`Store::diagnose`], with thresholds of the caller's.
    ///
    /// # Errors
    /// If the database refuses or cannot be reached.
    pub async fn diagnose_with(&self, options: &HealthOptions) -> Result<Diagnosis, StoreError> {
        let mut diagnosis = self.0.backend.diagnose(options.clone()).await?;
        diagnosis.findings.extend(self.projection_findings(options).await);
        Ok(diagnosis)
    }

    /// Finishes appends under way, ends background work and closes the connections. Whatever is asked of
    /// clones of this handle afterwards fails, with [`StoreErrorKind::HandleClosed`].
    ///
    /// ```
    /// use everfold::{StoreError, StoreErrorKind};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), StoreError> {
    /// # let (_folder, store) = open().await;
    /// store.close().await;
    /// let error = store.high_water_mark().await.unwrap_err();
    /// assert_eq!(error.kind(), StoreErrorKind::HandleClosed);
    /// # Ok(()) }
    /// ```
    ///
    /// [`StoreErrorKind::HandleClosed`]: crate::StoreErrorKind::HandleClosed
    pub async fn close(&self) {
        self.0.backend.close().await;
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        self.0.backend.as_ref()
    }

    pub(crate) fn backend_weak(&self) -> std::sync::Weak<dyn Backend> {
        Arc::downgrade(&self.0.backend)
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.0.hub
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    pub(crate) fn upcasters(&self) -> &Upcasters {
        &self.0.options.upcasters
    }

    pub(crate) fn upcasters_shared(&self) -> Arc<Upcasters> {
        Arc::clone(&self.0.options.upcasters)
    }

    /// Waits until the high-water mark is past a position.
    pub(crate) async fn mark_past(&self, after: Position) -> Result<Position, StoreError> {
        self.0.mark.wait_past(after).await
    }

    /// Waits until the high-water mark is past a position.
    pub(crate) async fn wait_past(&self, after: Position) -> Result<Position, ReadError> {
        Ok(self.0.mark.wait_past(after).await?)
    }

    pub(crate) async fn pause_before_retry(&self) {
        tokio::time::sleep(jitter(self.0.options.poll_max)).await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.location()).finish()
    }
}

/// The outcomes of many appends, each error with what it is about.
fn blamed(
    appends: &[StreamAppend],
    outcomes: Vec<Result<Appended, AppendError>>,
) -> Vec<Result<Appended, AppendError>> {
    let members = appends.iter().zip(outcomes);
    members.map(|(append, outcome)| outcome.map_err(|error| append.blamed(error))).collect()
}

/// Between half and the whole of a duration, so that many processes do not act in step.
pub(crate) fn jitter(duration: Duration) -> Duration {
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    duration / 2 + duration.mul_f64(f64::from(random) / f64::from(u32::MAX)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_half_and_whole() {
        let whole = Duration::from_millis(100);
        for _ in 0..1_000 {
            let jittered = jitter(whole);
            assert!(jittered >= whole / 2 && jittered <= whole, "{jittered:?}");
        }
    }
}
