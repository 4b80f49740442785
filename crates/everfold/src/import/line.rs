//! One line of an import: parsed, checked, and with an id of its own.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::append::{check_event_type, check_json, check_schema_version, check_stream_id};
use crate::options::Limits;

/// An event of an import, ready for a backend. `data` and `metadata` are JSON text.
#[derive(Debug)]
pub(crate) struct ImportLine {
    pub(crate) line: u64,
    pub(crate) stream_id: String,
    pub(crate) version: Option<u64>,
    pub(crate) event_type: String,
    pub(crate) schema_version: u32,
    pub(crate) data: String,
    pub(crate) metadata: String,
    pub(crate) id: Uuid,
    pub(crate) recorded_at: Option<jiff::Timestamp>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    stream_id: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    id: Option<Uuid>,
    schema_version: Option<u32>,
    version: Option<u64>,
    recorded_at: Option<jiff::Timestamp>,
    #[serde(default, rename = "position")]
    _position: Option<serde::de::IgnoredAny>,
}

impl ImportLine {
    /// Parses and checks a line; the error says what is wrong with it.
    pub(crate) fn parse(
        text: &str,
        line: u64,
        namespace: &Uuid,
        limits: &Limits,
    ) -> Result<ImportLine, String> {
        let fields: Fields<'_> = serde_json::from_str(text).map_err(describe)?;
        let metadata = fields.metadata.map_or("{}", RawValue::get);
        let metadata = if metadata == "null" { "{}" } else { metadata };
        if !metadata.starts_with('{') {
            return Err("\"metadata\" is not an object".to_owned());
        }
        let schema_version = fields.schema_version.unwrap_or(1);
        check_stream_id(&fields.stream_id, limits)
            .and_then(|()| check_event_type(&fields.event_type, 1, limits))
            .and_then(|()| check_schema_version(schema_version, 1))
            .and_then(|()| {
                let max = limits.data_bytes_max;
                check_json("data", fields.data.get(), &fields.event_type, 1, max)
            })
            .and_then(|()| {
                let max = limits.metadata_bytes_max;
                check_json("metadata", metadata, &fields.event_type, 1, max)
            })
            .map_err(|error| error.to_string())?;
        Ok(ImportLine {
            line,
            version: fields.version,
            schema_version,
            data: fields.data.get().to_owned(),
            metadata: metadata.to_owned(),
            id: fields.id.unwrap_or_else(|| made_id(namespace, line, text)),
            recorded_at: fields.recorded_at,
            stream_id: fields.stream_id.into_owned(),
            event_type: fields.event_type.into_owned(),
        })
    }
}

/// An id that the same line of the same import always gets.
fn made_id(namespace: &Uuid, line: u64, text: &str) -> Uuid {
    Uuid::new_v5(namespace, format!("{line}:{text}").as_bytes())
}

/// serde_json's message without its own line number, which is always 1 here.
fn describe(error: serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} (column {})", error.column()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ImportLine, String> {
        ImportLine::parse(text, 7, &Uuid::nil(), &Limits::default())
    }

    #[test]
    fn line_with_the_fields_that_must_be_there_gets_the_defaults() {
        let line = parse(r#"{"stream_id":"a","type":"T","data":{"n":1}}"#).unwrap();
        assert_eq!((line.stream_id.as_str(), line.event_type.as_str()), ("a", "T"));
        assert_eq!((line.data.as_str(), line.metadata.as_str()), (r#"{"n":1}"#, "{}"));
        assert_eq!((line.schema_version, line.version, line.line), (1, None, 7));
    }

    #[test]
    fn made_ids_are_the_same_for_the_same_line_and_differ_otherwise() {
        let text = r#"{"stream_id":"a","type":"T","data":1}"#;
        let id = |line, text| {
            ImportLine::parse(text, line, &Uuid::nil(), &Limits::default()).unwrap().id
        };
        assert_eq!(id(1, text), id(1, text));
        assert_ne!(id(1, text), id(2, text));
        assert_ne!(id(1, text), id(1, &text.replace('1', "2")));
    }

    #[test]
    fn exported_line_is_taken_and_its_position_read_over() {
        let line = parse(
            r#"{"position":9,"stream_id":"a","version":3,"type":"T","schema_version":2,"data":null,
               "metadata":{"k":1},"id":"0199a0c0-0000-7000-8000-000000000001",
               "recorded_at":"2026-11-15T10:00:00.123456Z"}"#,
        )
        .unwrap();
        assert_eq!((line.version, line.schema_version), (Some(3), 2));
        assert_eq!(line.recorded_at.unwrap().to_string(), "2026-11-15T10:00:00.123456Z");
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (text, wanted) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("[]", "invalid"),
            (r#"{"type":"T","data":1}"#, "missing field `stream_id`"),
            (r#"{"stream_id":"a","data":1}"#, "missing field `type`"),
            (r#"{"stream_id":"a","type":"T"}"#, "missing field `data`"),
            (r#"{"stream_id":"a","type":"T","data":1,"x":2}"#, "unknown field `x`"),
            (r#"{"stream_id":"","type":"T","data":1}"#, "stream id has 0 bytes"),
            (r#"{"stream_id":"a","type":"","data":1}"#, "event type"),
            (r#"{"stream_id":"a","type":"T","data":1,"metadata":[]}"#, "not an object"),
            (r#"{"stream_id":"a","type":"T","data":"\u0000"}"#, "NUL"),
            (r#"{"stream_id":"a","type":"T","data":1,"id":"x"}"#, "UUID"),
            (r#"{"stream_id":"a","type":"T","data":1,"recorded_at":"x"}"#, "column"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
