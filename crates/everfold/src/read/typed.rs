//! Events as variants of a serde enum.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::stream::{Stream, StreamExt};
use serde::de::DeserializeOwned;

use super::EventStream;
use crate::error::ReadError;
use crate::event::RecordedEvent;

/// An event as the reader's own type, with what the log knows about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypedEvent<E> {
    /// The event.
    pub event: E,
    /// Where it stands, and all else that is stored with it.
    pub recorded: RecordedEvent,
}

/// Events as variants of `E`; others are passed over.
#[must_use = "streams do nothing unless polled"]
pub struct TypedEventStream<E> {
    events: EventStream,
    event: PhantomData<fn() -> E>,
}

impl<E: DeserializeOwned> TypedEventStream<E> {
    pub(super) fn new(events: EventStream) -> Self {
        TypedEventStream { events, event: PhantomData }
    }

    /// The next event, `None` at the end.
    ///
    /// # Errors
    /// If a page could not be read, or an event does not fit `E`. After an event that does not
    /// fit, the events behind it can still be read.
    pub async fn next(&mut self) -> Result<Option<TypedEvent<E>>, ReadError> {
        StreamExt::next(self).await.transpose()
    }
}

impl<E: DeserializeOwned> Stream for TypedEventStream<E> {
    type Item = Result<TypedEvent<E>, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(recorded) = ready!(self.events.poll_next_unpin(context)?) else {
                return Poll::Ready(None);
            };
            if let Some(event) = recorded.decode::<E>()? {
                return Poll::Ready(Some(Ok(TypedEvent { event, recorded })));
            }
        }
    }
}

impl<E> std::fmt::Debug for TypedEventStream<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedEventStream").finish_non_exhaustive()
    }
}
