//! Serde enums as events: the variant's name is the event's type, its content the event's data.
//!
//! Only serde's default form of an enum (externally tagged) is taken. Both ways work on the
//! content's JSON text directly, with no value tree between.

mod decode;
mod encode;

use std::fmt;

use crate::event::RecordedEvent;
use crate::{Position, StreamId};

pub(crate) use decode::decode;
pub use decode::event_types;
pub(crate) use encode::encode;

/// A value could not be written as an event.
#[derive(Debug, thiserror::Error)]
#[error("event cannot be encoded: {reason}")]
pub struct EncodeError {
    reason: String,
}

impl EncodeError {
    pub(crate) fn json(source: serde_json::Error) -> Self {
        EncodeError { reason: source.to_string() }
    }

    fn new(reason: impl fmt::Display) -> Self {
        EncodeError { reason: reason.to_string() }
    }
}

/// A stored event does not fit the type that was asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "event at position {position} (\"{event_type}\" version {schema_version}, stream \"{stream_id}\") \
     does not fit the type asked for: {source}; add an upcaster from schema version {schema_version} \
     or let the type accept the old shape"
)]
#[non_exhaustive]
pub struct DecodeError {
    /// Where the event stands.
    pub position: Position,
    /// Its stream.
    pub stream_id: StreamId,
    /// Its type.
    pub event_type: String,
    /// The version of its data's shape.
    pub schema_version: u32,
    /// What did not fit.
    #[source]
    pub source: serde_json::Error,
}

impl DecodeError {
    pub(crate) fn new(event: &RecordedEvent, source: serde_json::Error) -> Self {
        DecodeError {
            position: event.position,
            stream_id: event.stream_id.clone(),
            event_type: event.event_type.clone(),
            schema_version: event.schema_version,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Sample {
        Unit,
        Newtype(u32),
        Tuple(u32, String),
        Struct {
            name: String,
        },
        #[serde(rename = "other-name")]
        Renamed {
            on: bool,
        },
        Nested(Inner),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        #[serde(default)]
        note: Option<String>,
    }

    #[test]
    fn every_kind_of_variant_survives_the_round_trip() {
        let cases = [
            (Sample::Unit, "Unit", "null"),
            (Sample::Newtype(7), "Newtype", "7"),
            (Sample::Tuple(7, "x".into()), "Tuple", r#"[7,"x"]"#),
            (Sample::Struct { name: "n".into() }, "Struct", r#"{"name":"n"}"#),
            (Sample::Renamed { on: true }, "other-name", r#"{"on":true}"#),
            (Sample::Nested(Inner { note: None }), "Nested", r#"{"note":null}"#),
        ];
        for (event, event_type, data) in cases {
            let (found_type, found_data) = encode(&event).unwrap();
            assert_eq!((found_type, found_data.as_str()), (event_type, data));
            assert_eq!(decode::<Sample>(event_type, data).unwrap(), Some(event));
        }
    }

    #[test]
    fn unknown_type_decodes_to_none_and_bad_data_to_an_error() {
        assert_eq!(decode::<Sample>("Nobody", "{}").unwrap(), None);
        let error = decode::<Sample>("Struct", r#"{"nam":"n"}"#).unwrap_err();
        assert!(error.to_string().contains("missing field `name`"), "{error}");
        // A value inside the data that is not a known variant is an error, not an unknown type.
        #[derive(Debug, PartialEq, Deserialize)]
        enum Outer {
            Holds(Flag),
        }
        #[derive(Debug, PartialEq, Deserialize)]
        enum Flag {
            On,
        }
        assert_eq!(decode::<Outer>("Holds", r#""On""#).unwrap(), Some(Outer::Holds(Flag::On)));
        decode::<Outer>("Holds", r#""Off""#).unwrap_err();
    }

    #[test]
    fn empty_object_is_accepted_for_a_unit_variant() {
        assert_eq!(decode::<Sample>("Unit", "{}").unwrap(), Some(Sample::Unit));
    }

    #[test]
    fn data_with_something_behind_it_is_refused() {
        decode::<Sample>("Newtype", "7 8").unwrap_err();
    }

    #[test]
    fn values_that_are_no_enum_are_refused() {
        assert!(encode(&7).is_err());
        assert!(encode(&Inner { note: None }).is_err());
        #[derive(Serialize)]
        #[serde(tag = "type")]
        enum Internally {
            A { x: u32 },
        }
        let error = encode(&Internally::A { x: 1 }).unwrap_err().to_string();
        assert!(error.contains("externally tagged"), "{error}");
    }

    #[test]
    fn event_types_are_the_names_of_the_variants() {
        assert_eq!(
            event_types::<Sample>(),
            ["Unit", "Newtype", "Tuple", "Struct", "other-name", "Nested"]
        );
        assert!(event_types::<Inner>().is_empty());
    }
}
