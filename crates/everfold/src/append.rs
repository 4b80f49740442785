//! What is appended, what comes back, and the rules that hold before any database is asked.

use std::collections::HashSet;

use crate::error::InvalidAppend;
use crate::options::Limits;
use crate::{ExpectedVersion, NewEvent, Position, StreamId, Version};

/// The result of an append that is stored, now or (with the same event ids) earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// Position of its first event.
    pub first_position: Position,
    /// Position of its last event: the caller's token for reading its own writes.
    pub last_position: Position,
    /// The stream's version after this append.
    pub version: Version,
}

/// One append among many: a stream, what is expected of it, and the events.
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
        check_ids(&self.events)
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
    if holds_nul(json) {
        return Err(InvalidAppend::Nul { part, number });
    }
    Ok(())
}

/// Whether JSON text has an escaped NUL in a string: `\u0000` whose backslash is not itself
/// escaped. (Valid JSON cannot hold a raw one.)
fn holds_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let backslashes = json[..at].bytes().rev().take_while(|&byte| byte == b'\\').count();
        backslashes % 2 == 0
    })
}

fn check_ids(events: &[NewEvent]) -> Result<(), InvalidAppend> {
    if events.len() == 1 {
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(events.len());
    match events.iter().find(|event| !seen.insert(event.id)) {
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
    fn escaped_nul_is_found_and_its_look_alikes_are_not() {
        assert!(holds_nul(r#""\u0000""#));
        assert!(holds_nul(r#""\\\u0000""#));
        assert!(!holds_nul(r#""\\u0000""#));
        assert!(!holds_nul(r#""\u00000"#.replace("\\u0000", "u0000").as_str()));
        assert!(!holds_nul(r#""\u0001""#));
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
