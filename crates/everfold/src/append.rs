//! What is appended, what comes back, and the rules that hold before any database is asked.

use std::collections::HashSet;

use crate::error::{AppendError, InvalidAppend};
use crate::options::Limits;
use crate::{ExpectedVersion, NewEvent, Position, StreamId, Version};

/// So many types of an append are named in an error.
const TYPES_SHOWN: usize = 3;

/// The result of an append that is stored, now or (with the same event ids) earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Appended {
    /// Position of its first event.
    pub first_position: Position,
    /// Position of its last event: the caller's token for reading its own writes.
    pub last_position: Position,
    /// The stream's version after this append.
    pub version: Version,
}

/// One append: a stream, what is expected of it, and the events. For [`Store::append_many`] and for
/// `append_in` of either backend.
///
/// [`Store::append_many`]: crate::Store::append_many
#[derive(Debug, Clone)]
pub struct StreamAppend {
    pub(crate) stream: StreamId,
    pub(crate) expected: ExpectedVersion,
    pub(crate) events: Vec<NewEvent>,
}

impl StreamAppend {
    /// An append to `stream`.
    pub fn new(
        stream: impl Into<StreamId>,
        expected: impl Into<ExpectedVersion>,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Self {
        StreamAppend {
            stream: stream.into(),
            expected: expected.into(),
            events: events.into_iter().collect(),
        }
    }

    /// Checks every rule that needs no database, in the order in which a caller would mend them.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), InvalidAppend> {
        check_stream_id(self.stream.as_str(), limits)?;
        if self.events.is_empty() {
            return Err(InvalidAppend::Empty { stream: self.stream.clone() });
        }
        if self.events.len() > limits.append_events_max {
            return Err(InvalidAppend::TooManyEvents {
                stream: self.stream.clone(),
                count: self.events.len(),
                max: limits.append_events_max,
            });
        }
        for (index, event) in self.events.iter().enumerate() {
            check_event(event, index + 1, limits)?;
        }
        let (bytes, max) = (self.bytes(), limits.append_bytes_max);
        if bytes > max {
            return Err(InvalidAppend::TooManyBytes { stream: self.stream.clone(), bytes, max });
        }
        check_ids(self.events.iter())
    }

    /// An error with the events that it is about, where a projection refused them.
    pub(crate) fn blamed(&self, error: AppendError) -> AppendError {
        let AppendError::Projection { projection, message } = error else { return error };
        let mut types: Vec<&str> = self.events.iter().map(|e| e.event_type.as_str()).collect();
        types.dedup();
        let (shown, more) = types.split_at(types.len().min(TYPES_SHOWN));
        let shown: Vec<String> = shown.iter().map(|name| format!("\"{name}\"")).collect();
        let more = if more.is_empty() { "" } else { " …" };
        let events = match self.events.len() {
            1 => "event".to_owned(),
            count => format!("{count} events"),
        };
        let message = format!(
            "{message} (while appending {events} {}{more} to stream \"{}\")",
            shown.join(", "),
            self.stream
        );
        AppendError::Projection { projection, message }
    }

    /// How much data it has.
    pub(crate) fn bytes(&self) -> usize {
        self.events.iter().map(|event| event.data.len()).sum()
    }
}

pub(crate) fn check_stream_id(name: &str, limits: &Limits) -> Result<(), InvalidAppend> {
    if name.is_empty() || name.len() > limits.stream_id_bytes_max {
        return Err(InvalidAppend::StreamIdLength {
            bytes: name.len(),
            max: limits.stream_id_bytes_max,
        });
    }
    if name.contains('\0') {
        return Err(InvalidAppend::Nul { part: "stream id", number: 1 });
    }
    Ok(())
}

fn check_event(event: &NewEvent, number: usize, limits: &Limits) -> Result<(), InvalidAppend> {
    check_event_type(&event.event_type, number, limits)?;
    check_schema_version(event.schema_version, number)?;
    check_json("data", &event.data, &event.event_type, number, limits.data_bytes_max)?;
    if event.metadata.is_empty() {
        return Ok(());
    }
    let metadata = event.metadata.to_json();
    check_json("metadata", &metadata, &event.event_type, number, limits.metadata_bytes_max)
}

pub(crate) fn check_event_type(
    event_type: &str,
    number: usize,
    limits: &Limits,
) -> Result<(), InvalidAppend> {
    if event_type.is_empty() || event_type.len() > limits.event_type_bytes_max {
        return Err(InvalidAppend::EventTypeLength {
            number,
            bytes: event_type.len(),
            max: limits.event_type_bytes_max,
        });
    }
    if event_type.contains('\0') {
        return Err(InvalidAppend::Nul { part: "event type", number });
    }
    Ok(())
}

pub(crate) fn check_schema_version(found: u32, number: usize) -> Result<(), InvalidAppend> {
    let max = i32::MAX.unsigned_abs();
    if (1..=max).contains(&found) {
        return Ok(());
    }
    Err(InvalidAppend::SchemaVersion { number, found, max })
}

pub(crate) fn check_json(
    part: &'static str,
    json: &str,
    event_type: &str,
    number: usize,
    max: usize,
) -> Result<(), InvalidAppend> {
    if json.len() > max {
        return Err(InvalidAppend::TooLarge {
            part,
            number,
            event_type: event_type.to_owned(),
            bytes: json.len(),
            max,
        });
    }
    match unstorable_escape(json) {
        None => Ok(()),
        Some(Unstorable::Nul) => Err(InvalidAppend::Nul { part, number }),
        Some(Unstorable::HalfPair) => Err(InvalidAppend::HalfPair { part, number }),
    }
}

/// An escape in JSON text that is no character a store can hold, if there is one: NUL, or half of
/// a surrogate pair. The text is valid JSON otherwise.
pub(crate) fn unstorable_escape(json: &str) -> Option<Unstorable> {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at + 1..];
        rest = escape.get(1..)?;
        if !escape.starts_with('u') {
            continue;
        }
        let unit = unit_of(rest)?;
        rest = &rest[4..];
        match unit {
            0 => return Some(Unstorable::Nul),
            0xD800..=0xDBFF => {
                let low = rest.strip_prefix("\\u").and_then(unit_of);
                if !matches!(low, Some(0xDC00..=0xDFFF)) {
                    return Some(Unstorable::HalfPair);
                }
                rest = &rest[6..];
            }
            0xDC00..=0xDFFF => return Some(Unstorable::HalfPair),
            _ => {}
        }
    }
    None
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unstorable {
    Nul,
    HalfPair,
}

/// The number that four hex digits stand for.
fn unit_of(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits.get(..4)?, 16).ok()
}

/// No id may stand twice in one call.
pub(crate) fn check_ids<'a>(
    events: impl ExactSizeIterator<Item = &'a NewEvent>,
) -> Result<(), InvalidAppend> {
    if events.len() <= 1 {
        return Ok(());
    }
    find_twice(events)
}

/// The same over the members of a call.
pub(crate) fn check_ids_of_all(appends: &[StreamAppend]) -> Result<(), InvalidAppend> {
    find_twice(appends.iter().flat_map(|append| &append.events))
}

fn find_twice<'a>(mut events: impl Iterator<Item = &'a NewEvent>) -> Result<(), InvalidAppend> {
    let mut seen = HashSet::new();
    match events.find(|event| !seen.insert(event.id)) {
        Some(event) => Err(InvalidAppend::DuplicateId { id: event.id }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> NewEvent {
        NewEvent::from_json("Added", "{}").unwrap()
    }

    fn check(stream: &str, events: Vec<NewEvent>) -> Result<(), InvalidAppend> {
        let limits = Limits {
            data_bytes_max: 20,
            metadata_bytes_max: 20,
            append_events_max: 2,
            ..Limits::default()
        };
        StreamAppend::new(stream, ExpectedVersion::Any, events).check(&limits)
    }

    #[test]
    fn escapes_that_cannot_be_stored_are_found_and_their_look_alikes_are_not() {
        let cases = [
            (r#""\u0000""#, Some(Unstorable::Nul)),
            (r#""\\\u0000""#, Some(Unstorable::Nul)),
            (r#""\\u0000""#, None),
            (r#""u0000 \u0001 \n""#, None),
            (r#""\ud83d\ude00""#, None),
            (r#""\ud83d""#, Some(Unstorable::HalfPair)),
            (r#""\ud83d\u0041""#, Some(Unstorable::HalfPair)),
            (r#""\ude00""#, Some(Unstorable::HalfPair)),
            (r#""\ud83d\\ude00""#, Some(Unstorable::HalfPair)),
            (r#""\ud83d\ude00\u0000""#, Some(Unstorable::Nul)),
        ];
        for (json, wanted) in cases {
            assert_eq!(unstorable_escape(json), wanted, "{json}");
        }
    }

    #[test]
    fn append_that_keeps_every_rule_passes() {
        assert_eq!(check("cart-1", vec![event(), event()]), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let long = "x".repeat(600);
        let same = event();
        assert!(matches!(check("", vec![event()]), Err(InvalidAppend::StreamIdLength { .. })));
        assert!(matches!(check(&long, vec![event()]), Err(InvalidAppend::StreamIdLength { .. })));
        assert!(matches!(check("a\0b", vec![event()]), Err(InvalidAppend::Nul { .. })));
        assert!(matches!(check("a", vec![]), Err(InvalidAppend::Empty { .. })));
        assert!(matches!(
            check("a", vec![event(), event(), event()]),
            Err(InvalidAppend::TooManyEvents { count: 3, max: 2, .. })
        ));
        for event_type in ["", long.as_str()] {
            let event = NewEvent::from_json(event_type, "{}").unwrap();
            assert!(matches!(
                check("a", vec![event]),
                Err(InvalidAppend::EventTypeLength { number: 1, .. })
            ));
        }
        assert!(matches!(
            check("a", vec![event(), event().with_schema_version(0)]),
            Err(InvalidAppend::SchemaVersion { number: 2, .. })
        ));
        let large = NewEvent::new("Added", &long).unwrap();
        assert!(matches!(
            check("a", vec![large]),
            Err(InvalidAppend::TooLarge { part: "data", .. })
        ));
        assert!(matches!(
            check("a", vec![event().with_correlation_id(&long)]),
            Err(InvalidAppend::TooLarge { part: "metadata", .. })
        ));
        let nul = NewEvent::new("Added", &"a\0b").unwrap();
        assert!(matches!(check("a", vec![nul]), Err(InvalidAppend::Nul { part: "data", .. })));
        assert!(matches!(
            check("a", vec![same.clone(), same]),
            Err(InvalidAppend::DuplicateId { .. })
        ));
    }
}
