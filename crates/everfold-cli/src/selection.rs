//! Which events a command reads.

use clap::Args;
use everfold::{Position, ReadError, RecordedEvent, Store, StoreError, StreamId, Version};
use futures::future;
use futures::stream::{self, BoxStream, StreamExt};

use crate::output::shown;

/// Events as they are read.
pub(crate) type Events = BoxStream<'static, Result<RecordedEvent, ReadError>>;

#[derive(Debug, Clone, Args)]
pub(crate) struct Selection {
    /// Only the events of this stream
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Option<String>,
    /// Only events of this type; can be given several times
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) types: Vec<String>,
    /// Begin with the event at this position
    #[arg(long, value_name = "POSITION")]
    pub(crate) from: Option<u64>,
}

impl Selection {
    /// What narrows it down, in words that go on after "events".
    pub(crate) fn described(&self) -> String {
        let mut words = String::new();
        if let Some(stream) = &self.stream {
            words.push_str(&format!(" in stream {}", shown(stream)));
        }
        if !self.types.is_empty() {
            words.push_str(&format!(" of type {}", shown(&self.types.join(", "))));
        }
        if let Some(from) = self.from {
            words.push_str(&format!(" from position {from} on"));
        }
        words
    }

    /// The position just before the first that is wanted.
    pub(crate) fn after(&self) -> Position {
        Position(self.from.unwrap_or(0).saturating_sub(1))
    }

    /// From the first to the last that is there now.
    pub(crate) fn forward(&self, store: &Store, limit: Option<u64>) -> Events {
        let Some(stream) = &self.stream else {
            let read = self.typed(store.read_all().after(self.after()));
            return read.limit(limit.unwrap_or(u64::MAX)).events().boxed();
        };
        let after = self.after();
        let events = store.read_stream(stream).events().boxed();
        let events = keep(events, move |event| event.position > after);
        at_most(self.of_types(events), limit)
    }

    /// From the last to the first of the stream.
    pub(crate) fn backward(&self, store: &Store, limit: Option<u64>) -> Events {
        let stream = self.stream.as_deref().unwrap_or_default();
        let from = Position(self.from.unwrap_or(u64::MAX));
        let events = store.read_stream(stream).backward().events().boxed();
        let events = keep(events, move |event| event.position <= from);
        at_most(self.of_types(events), limit)
    }

    /// From the first, and on with new ones as they come.
    ///
    /// One stream is read by itself first: the log is followed from the high-water mark only,
    /// because all that is at or below it has been read by then.
    pub(crate) async fn follow(
        &self,
        store: &Store,
        limit: Option<u64>,
    ) -> Result<Events, StoreError> {
        let Some(stream) = &self.stream else {
            let read = self.typed(store.follow().after(self.after()));
            return Ok(read.limit(limit.unwrap_or(u64::MAX)).events().boxed());
        };
        let mark = store.high_water_mark().await?;
        let stream = StreamId::from(stream);
        let history = store.read_stream(&stream).events().boxed();
        let news = store.follow().after(mark).events().boxed();
        let news = keep(news, move |event| event.stream_id == stream);
        let after = self.after();
        let events =
            keep(once_each(history.chain(news).boxed()), move |event| event.position > after);
        Ok(at_most(self.of_types(events), limit))
    }

    fn typed(&self, read: everfold::ReadAll) -> everfold::ReadAll {
        if self.types.is_empty() { read } else { read.types(self.types.iter().cloned()) }
    }

    fn of_types(&self, events: Events) -> Events {
        if self.types.is_empty() {
            return events;
        }
        let types = self.types.clone();
        keep(events, move |event| types.contains(&event.event_type))
    }
}

/// Only the events that pass; errors always do.
fn keep(events: Events, passes: impl Fn(&RecordedEvent) -> bool + Send + 'static) -> Events {
    events.filter(move |event| future::ready(event.as_ref().map_or(true, &passes))).boxed()
}

/// Leaves out events of one stream that came before.
fn once_each(events: Events) -> Events {
    let news = stream::unfold((events, Version::NONE), |(mut events, mut last)| async move {
        loop {
            match events.next().await? {
                Ok(event) if event.version <= last => {}
                Ok(event) => {
                    last = event.version;
                    return Some((Ok(event), (events, last)));
                }
                Err(error) => return Some((Err(error), (events, last))),
            }
        }
    });
    news.boxed()
}

fn at_most(events: Events, limit: Option<u64>) -> Events {
    match limit {
        Some(limit) => events.take(usize::try_from(limit).unwrap_or(usize::MAX)).boxed(),
        None => events,
    }
}
