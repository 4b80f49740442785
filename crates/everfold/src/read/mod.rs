//! Reading: a stream's events, all events by position, and following new ones.
//!
//! Every read goes page by page: a page is fetched whole and its connection given back before the
//! first event is handed out, and while a page is consumed the next is already on its way. So a
//! slow reader holds neither a snapshot nor a connection, and memory is bounded by two pages.

mod documents;
mod pages;
mod rows;
mod typed;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{Stream, StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;

use crate::codec::event_types;
use crate::error::ReadError;
use crate::store::Store;
use crate::{Position, RecordedEvent, StreamId, Version};

pub use documents::{Document, DocumentStream, ReadDocuments};
pub use rows::{ReadModelRows, RowOptions};
pub use typed::{TypedEvent, TypedEventStream};

use pages::{Pages, Source};

/// A read of one stream, made by [`Store::read_stream`], which has an example. Nothing is asked for
/// before [`events`](ReadStream::events), [`typed`](ReadStream::typed) or
/// [`collect`](ReadStream::collect).
#[derive(Debug, Clone)]
#[must_use = "a read does nothing until its events are asked for"]
pub struct ReadStream {
    store: Store,
    stream: StreamId,
    from: Option<Version>,
    backward: bool,
    limit: u64,
}

impl ReadStream {
    pub(crate) fn new(store: Store, stream: StreamId) -> Self {
        ReadStream { store, stream, from: None, backward: false, limit: u64::MAX }
    }

    /// From this version on (inclusive), in the direction of the read.
    pub fn from_version(mut self, version: Version) -> Self {
        self.from = Some(version);
        self
    }

    /// From the last event towards the first.
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// At most this many events.
    pub fn limit(mut self, events: u64) -> Self {
        self.limit = events;
        self
    }

    /// The events, one by one. A stream that does not exist has none.
    pub fn events(self) -> EventStream {
        let source = Source::stream(self.stream, self.from, self.backward, self.limit);
        EventStream(Pages::new(self.store, source))
    }

    /// The events as variants of `E`; types that `E` does not have are passed over.
    pub fn typed<E: DeserializeOwned>(self) -> TypedEventStream<E> {
        TypedEventStream::new(self.events())
    }

    /// All events at once.
    ///
    /// # Errors
    /// [`ReadError::Upcast`] if an upcaster refuses an event, [`ReadError::Store`] if the database refuses or
    /// cannot be reached; nothing was changed, and the read can be made again.
    pub async fn collect(self) -> Result<Vec<RecordedEvent>, ReadError> {
        self.events().try_collect().await
    }
}

/// A read of the whole log by position, made by [`Store::read_all`] (ends at the high-water mark
/// of its start) or [`Store::follow`] (goes on for ever).
///
/// Events come in the order of their positions, none missing: the read never goes past the
/// high-water mark, so no event can still appear behind it.
#[derive(Debug, Clone)]
#[must_use = "a read does nothing until its events are asked for"]
pub struct ReadAll {
    store: Store,
    after: Position,
    types: Option<Vec<String>>,
    limit: u64,
    follow: bool,
}

impl ReadAll {
    pub(crate) fn new(store: Store, follow: bool) -> Self {
        ReadAll { store, after: Position::START, types: None, limit: u64::MAX, follow }
    }

    /// Only events after this position.
    pub fn after(mut self, position: Position) -> Self {
        self.after = position;
        self
    }

    /// Only events of these types; the filter runs in the database, over an index.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.types = Some(types.into_iter().map(Into::into).collect());
        self
    }

    /// At most this many events.
    pub fn limit(mut self, events: u64) -> Self {
        self.limit = events;
        self
    }

    /// The events, one by one.
    pub fn events(self) -> EventStream {
        let types = self.types.map(|types| self.store.upcasters().stored_names(&types));
        let source = Source::all(self.after, types, self.limit, self.follow);
        EventStream(Pages::new(self.store, source))
    }

    /// The events that are variants of `E`, as such. Unless types were named, only those that `E`
    /// has are read at all.
    pub fn typed<E: DeserializeOwned>(mut self) -> TypedEventStream<E> {
        if self.types.is_none() {
            let names = event_types::<E>();
            if !names.is_empty() {
                self.types = Some(names.iter().map(|&name| name.to_owned()).collect());
            }
        }
        TypedEventStream::new(self.events())
    }

    /// All events at once. Never ends when following without a limit.
    ///
    /// # Errors
    /// [`ReadError::Upcast`] if an upcaster refuses an event, [`ReadError::Store`] if the database refuses or
    /// cannot be reached; nothing was changed, and the read can be made again.
    pub async fn collect(self) -> Result<Vec<RecordedEvent>, ReadError> {
        self.events().try_collect().await
    }
}

/// Events as they come: an async stream with bounded memory. Dropping it ends the read.
#[must_use = "streams do nothing unless polled"]
pub struct EventStream(Pages);

impl EventStream {
    /// The next event, `None` at the end.
    ///
    /// # Errors
    /// [`ReadError::Upcast`] if an upcaster refuses an event, [`ReadError::Store`] if the next page could not
    /// be read; the stream ends with it.
    pub async fn next(&mut self) -> Result<Option<RecordedEvent>, ReadError> {
        StreamExt::next(self).await.transpose()
    }
}

impl Stream for EventStream {
    type Item = Result<RecordedEvent, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_event(context)
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
