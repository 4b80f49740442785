//! Pages of events, one consumed while the next is fetched.
//!
//! ```text
//!   Source --next_page--> (events, where to go on)
//!      ^                        |
//!      +---- fetched ahead -----+     one page is consumed, one is on its way
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::vec;

use tokio::task::JoinHandle;

use crate::error::{ReadError, StoreError, StoreErrorKind};
use crate::store::{AllPage, LogPage, Page, Store, StreamPage};
use crate::{Position, RecordedEvent, StreamId, Version};

/// Where a read stands.
pub(super) enum Source {
    Stream(StreamSource),
    All(AllSource),
}

pub(super) struct StreamSource {
    stream: StreamId,
    from: Option<Version>,
    backward: bool,
    size: PageSize,
}

pub(super) struct AllSource {
    after: Position,
    types: Option<Vec<String>>,
    follow: bool,
    size: PageSize,
    /// Whether the types are a good part of the log around here.
    dense: bool,
    /// How far may be read; asked for at the start, and again when following reaches it.
    mark: Option<Position>,
}

/// What became of a page.
struct Fetched {
    events: Vec<RecordedEvent>,
    /// Where to go on, if there may be more.
    next: Option<Source>,
    /// What ends the read behind these events.
    failure: Option<ReadError>,
}

impl Fetched {
    fn new(events: Vec<RecordedEvent>, next: Option<Source>) -> Self {
        Fetched { events, next, failure: None }
    }

    /// Brings the events to today's shape. One that cannot be ends the read, behind those before it.
    fn upcast(mut self, store: &Store) -> Self {
        let upcasters = store.upcasters();
        for index in 0..self.events.len() {
            if let Err(failure) = upcasters.apply(&mut self.events[index]) {
                self.events.truncate(index);
                (self.next, self.failure) = (None, Some(failure));
                break;
            }
        }
        self
    }
}

impl Source {
    pub(super) fn stream(
        stream: StreamId,
        from: Option<Version>,
        backward: bool,
        limit: u64,
    ) -> Self {
        Source::Stream(StreamSource { stream, from, backward, size: PageSize::new(limit) })
    }

    pub(super) fn all(
        after: Position,
        types: Option<Vec<String>>,
        limit: u64,
        follow: bool,
    ) -> Self {
        let size = PageSize::new(limit);
        Source::All(AllSource { after, types, follow, size, dense: true, mark: None })
    }

    async fn next_page(self, store: &Store) -> Result<Fetched, ReadError> {
        match self {
            Source::Stream(source) => source.next_page(store).await,
            Source::All(source) => source.next_page(store).await,
        }
    }
}

impl StreamSource {
    async fn next_page(mut self, store: &Store) -> Result<Fetched, ReadError> {
        let max = self.size.max(store);
        if max == 0 {
            return Ok(Fetched::new(Vec::new(), None));
        }
        let (stream, from, backward) = (self.stream.clone(), self.from, self.backward);
        let query = StreamPage { stream, from, backward, max };
        let Page { events, more } = store.backend().read_stream(query).await?;
        self.size.fetched(events.len(), max, more);
        self.from = events.last().filter(|_| more).and_then(|last| match backward {
            true => last.version.0.checked_sub(1).filter(|&version| version > 0).map(Version),
            false => Some(last.version.next()),
        });
        let goes_on = self.from.is_some();
        Ok(Fetched::new(events, goes_on.then_some(Source::Stream(self))).upcast(store))
    }
}

impl AllSource {
    async fn next_page(mut self, store: &Store) -> Result<Fetched, ReadError> {
        let max = self.size.max(store);
        if max == 0 {
            return Ok(Fetched::new(Vec::new(), None));
        }
        let up_to = match self.mark {
            Some(mark) => mark,
            None if self.follow => store.wait_past(self.after).await?,
            None => store.high_water_mark().await?,
        };
        let (after, types, dense) = (self.after, self.types.clone(), self.dense);
        let query = AllPage { after, up_to, types, max, dense };
        let page = match store.backend().read_all(query).await {
            Err(error) if self.follow && error.is_transient() => {
                tracing::warn!(%error, "following could not read, trying again");
                store.pause_before_retry().await;
                // Whoever answers next may be another server, with a mark of its own.
                self.mark = None;
                return Ok(Fetched::new(Vec::new(), Some(Source::All(self))));
            }
            page => page?,
        };
        let LogPage { events, read_to, dense } = page;
        let more = read_to < up_to;
        self.size.fetched(
            events.len(),
            max,
            events.last().is_some_and(|last| last.position == read_to),
        );
        (self.after, self.dense) = (read_to, dense);
        self.mark = more.then_some(up_to);
        let next = (more || self.follow).then_some(Source::All(self));
        Ok(Fetched::new(events, next).upcast(store))
    }
}

/// How many events the next page asks for: few at first, more as long as they turn out small, so
/// that large events are not sent only to be thrown away.
struct PageSize {
    next: usize,
    /// Events until the read's own limit.
    remaining: u64,
}

const FIRST_PAGE_EVENTS: usize = 64;

impl PageSize {
    fn new(limit: u64) -> Self {
        PageSize { next: FIRST_PAGE_EVENTS, remaining: limit }
    }

    fn max(&self, store: &Store) -> usize {
        let max = self.next.min(store.options().page_events_max);
        usize::try_from(self.remaining).map_or(max, |remaining| remaining.min(max))
    }

    fn fetched(&mut self, events: usize, asked: usize, more: bool) {
        self.remaining -= events as u64;
        if events == asked {
            self.next = asked.saturating_mul(4);
        } else if more {
            // Cut short by its bytes; about as many will fit again.
            self.next = events.max(1).saturating_mul(2);
        }
    }
}

/// The running read: the page in hand and the one on its way.
pub(super) struct Pages {
    store: Store,
    in_hand: vec::IntoIter<RecordedEvent>,
    /// Where to go on, before the first page is asked for.
    next: Option<Source>,
    fetch: Option<Fetch>,
    /// What ends the read behind the page in hand.
    failure: Option<ReadError>,
}

impl Pages {
    /// Nothing is read before the first poll.
    pub(super) fn new(store: Store, source: Source) -> Self {
        Pages {
            store,
            in_hand: Vec::new().into_iter(),
            next: Some(source),
            fetch: None,
            failure: None,
        }
    }

    pub(super) fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<RecordedEvent, ReadError>>> {
        loop {
            self.fetch_ahead();
            if let Some(event) = self.in_hand.next() {
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(fetch) = &mut self.fetch else {
                return Poll::Ready(self.failure.take().map(Err));
            };
            let fetched = ready!(Pin::new(&mut fetch.0).poll(context));
            self.fetch = None;
            match fetched {
                Ok(Ok(Fetched { events, next, failure })) => {
                    self.in_hand = events.into_iter();
                    (self.next, self.failure) = (next, failure);
                }
                Ok(Err(error)) => return Poll::Ready(Some(Err(error))),
                Err(stopped) if stopped.is_panic() => {
                    std::panic::resume_unwind(stopped.into_panic());
                }
                Err(_) => {
                    let error = StoreError::new(
                        StoreErrorKind::HandleClosed,
                        "the read was ended because its runtime shut down",
                    );
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    fn fetch_ahead(&mut self) {
        if let Some(source) = self.next.take() {
            let store = self.store.clone();
            let task = tokio::spawn(async move { source.next_page(&store).await });
            self.fetch = Some(Fetch(task));
        }
    }
}

/// A page on its way; dropping it stops the fetch.
struct Fetch(JoinHandle<Result<Fetched, ReadError>>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
