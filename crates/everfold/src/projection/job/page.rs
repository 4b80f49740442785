//! Events of a job with their keys.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Job;
use crate::projection::document::panic_message;
use crate::projection::key::{Key, shard_of};
use crate::projection::projector::{ApplyError, Projector};
use crate::upcast::Upcasters;
use crate::{Position, RecordedEvent};

/// Events in rising order, as the projector sees them, each with its key.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) events: Vec<RecordedEvent>,
    pub(super) keys: Vec<String>,
    /// Why an event cannot be applied whatever is tried: it has no key, or no shape of today.
    pub(super) refused: Vec<Option<String>>,
}

/// What stands for the key of an event that has none, or none that can be found out: its own, so
/// that no other waits for it. (025_inline.sql has the same.)
pub(crate) fn no_key(position: Position) -> String {
    format!("no key: {position}")
}

/// Events without a key belong to the shard of this one.
pub(super) const SHARD_KEY_OF_NONE: &str = "";

impl Page {
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.events.len()).collect()
    }

    /// The events at these places, in rising order.
    pub(super) fn at(&self, places: &[usize]) -> Cow<'_, [RecordedEvent]> {
        match places {
            [] => Cow::Borrowed(&[]),
            [first, .., last] if last - first + 1 == places.len() => {
                Cow::Borrowed(&self.events[*first..=*last])
            }
            [only] => Cow::Borrowed(&self.events[*only..=*only]),
            _ => Cow::Owned(places.iter().map(|&place| self.events[place].clone()).collect()),
        }
    }

    pub(super) fn position(&self, place: usize) -> Position {
        self.events[place].position
    }

    /// The place of the event at a position.
    pub(super) fn place(&self, position: Position) -> Option<usize> {
        self.events.binary_search_by_key(&position, |event| event.position).ok()
    }

    /// An event and what was wrong with it, in words.
    pub(super) fn describe(&self, place: usize, error: &str) -> String {
        describe(&self.events[place], error)
    }
}

impl Job {
    /// Brings events to the shape that the projector sees and finds their keys. Events that the
    /// projection does not know, and those of other shards, are left out.
    pub(super) fn page(&self, events: Vec<RecordedEvent>, shard: Option<u32>) -> Page {
        let mut page = Page::default();
        for mut event in events {
            let (key, refused) = match self.key_of(&mut event) {
                Ok(Some(key)) => (Some(key), None),
                Ok(None) => continue,
                Err(message) => (self.key_of_refused(&event), Some(message)),
            };
            let refused = refused.or_else(|| self.given_up(event.position));
            let shard_key = key.as_deref().unwrap_or(SHARD_KEY_OF_NONE);
            if shard.is_some_and(|shard| self.shard_of(shard_key) != shard) {
                continue;
            }
            page.keys.push(key.unwrap_or_else(|| no_key(event.position)));
            page.events.push(event);
            page.refused.push(refused);
        }
        page
    }

    fn given_up(&self, position: Position) -> Option<String> {
        let (at, message) = self.given_up.as_ref()?;
        (*at == position).then(|| message.clone())
    }

    pub(super) fn shard_of(&self, key: &str) -> u32 {
        match self.generation.shards {
            1 => 0,
            shards => shard_of(key, shards),
        }
    }

    /// Upcasts the event, unless the database applies it, and returns its key.
    fn key_of(&self, event: &mut RecordedEvent) -> Result<Option<String>, String> {
        if !matches!(self.projector, Projector::Sql) {
            upcast(&self.upcasters, event)?;
        }
        let key = match &self.projector {
            Projector::Document(fold) => return fold.key_of(event).map_err(said),
            _ => self.generation.key.of(event),
        };
        key.map(Some).ok_or_else(|| {
            let fields = self.generation.key.to_stored().unwrap_or_default().join(", ");
            format!("key field {fields} is missing or null")
        })
    }

    /// An event of today's shape or not: its stream is known, and so may be its fields.
    fn key_of_refused(&self, event: &RecordedEvent) -> Option<String> {
        key_of_refused(&self.generation.key, event)
    }
}

/// An event and what was wrong with it, in words.
pub(crate) fn describe(event: &RecordedEvent, error: &str) -> String {
    let RecordedEvent { position, event_type, stream_id, .. } = event;
    format!("event at position {position} (\"{event_type}\", stream \"{stream_id}\"): {error}")
}

/// Brings an event to today's shape; what went wrong in words.
pub(crate) fn upcast(upcasters: &Upcasters, event: &mut RecordedEvent) -> Result<(), String> {
    let upcast = catch_unwind(AssertUnwindSafe(|| upcasters.apply(event)))
        .map_err(|panic| format!("an upcaster panicked: {}", panic_message(&*panic)))?;
    upcast.map_err(|error| error.to_string())
}

/// The key of an event that cannot be applied, if it can be told.
pub(crate) fn key_of_refused(key: &Key, event: &RecordedEvent) -> Option<String> {
    match key {
        Key::Code => None,
        key => key.of(event),
    }
}

/// What an error said, where it can only be a refusal.
pub(crate) fn said(error: ApplyError) -> String {
    match error {
        ApplyError::Refused { message, .. } | ApplyError::Broken { message } => message,
        ApplyError::OutOfTime(error) => error.message,
        ApplyError::Store(error) => error.to_string(),
        ApplyError::LeaseLost => "the lease was lost".to_owned(),
    }
}
