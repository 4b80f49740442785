//! What order matters within: the key of an event for a projection, and the shard of a key.
//!
//! The key of a SQL projection, and of every inline one, is data: the stream, or fields of the event.
//! That of a catch-up projection in Rust may be code.

use std::collections::HashMap;
use std::fmt;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::RecordedEvent;

/// What order matters within.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    /// Events of one stream are applied in their order.
    Stream,
    /// Events with the same values in these fields are.
    Fields(Vec<KeyField>),
    /// A function of the projection decides. Catch-up only.
    Code,
}

/// A field of an event: `data.tenant`, `metadata.region`, `stream_id` or `type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyField {
    StreamId,
    Type,
    /// Names on the way into the data.
    Data(Vec<String>),
    /// Names on the way into the metadata.
    Metadata(Vec<String>),
}

impl Key {
    /// As in the registry: `None` for the stream, the fields otherwise.
    pub(crate) fn to_stored(&self) -> Option<Vec<String>> {
        match self {
            Key::Stream => None,
            Key::Fields(fields) => Some(fields.iter().map(ToString::to_string).collect()),
            Key::Code => Some(vec!["code".to_owned()]),
        }
    }

    /// Reads what [`Key::to_stored`] wrote, and what `projection.toml` says.
    ///
    /// # Errors
    /// If a field is not one of the event's; the message says which and what is allowed.
    pub(crate) fn from_stored(stored: Option<&[String]>) -> Result<Key, String> {
        match stored {
            None => Ok(Key::Stream),
            Some([code]) if code == "code" => Ok(Key::Code),
            Some([]) => Err("a key needs at least one field".to_owned()),
            Some(fields) => {
                let fields = fields.iter().map(|field| KeyField::parse(field));
                Ok(Key::Fields(fields.collect::<Result<_, _>>()?))
            }
        }
    }

    /// The key of an event, `None` where a field is missing or null. One field gives its text,
    /// several a JSON array of texts. The databases compute the same (`key_sql` of each backend).
    /// Not for [`Key::Code`].
    pub(crate) fn of(&self, event: &RecordedEvent) -> Option<String> {
        let RecordedEvent { stream_id, event_type, data, metadata, .. } = event;
        self.of_parts(stream_id.as_str(), event_type, data, metadata)
    }

    /// The same for an event in pieces; data and metadata are JSON text.
    pub(crate) fn of_parts(
        &self,
        stream_id: &str,
        event_type: &str,
        data: &str,
        metadata: &str,
    ) -> Option<String> {
        let of = |field: &KeyField| field.of(stream_id, event_type, data, metadata);
        match self {
            Key::Stream | Key::Code => Some(stream_id.to_owned()),
            Key::Fields(fields) => match fields.as_slice() {
                [field] => of(field),
                fields => {
                    let values: Option<Vec<String>> = fields.iter().map(of).collect();
                    serde_json::to_string(&values?).ok()
                }
            },
        }
    }
}

impl KeyField {
    pub(crate) fn parse(text: &str) -> Result<KeyField, String> {
        let names = |path: &str| -> Option<Vec<String>> {
            let names: Vec<String> = path.split('.').map(str::to_owned).collect();
            names.iter().all(|name| is_plain(name)).then_some(names)
        };
        let field = match text.split_once('.') {
            None if text == "stream_id" => Some(KeyField::StreamId),
            None if text == "type" => Some(KeyField::Type),
            Some(("data", path)) => names(path).map(KeyField::Data),
            Some(("metadata", path)) => names(path).map(KeyField::Metadata),
            _ => None,
        };
        field.ok_or_else(|| {
            format!(
                "key field \"{text}\" is not one: use stream_id, type, data.<name> or metadata.<name>, \
                 with letters, digits, _ and - in names, not numbers alone"
            )
        })
    }

    /// The text of a value: strings as they are, anything else as JSON.
    fn of(&self, stream_id: &str, event_type: &str, data: &str, metadata: &str) -> Option<String> {
        let (json, path) = match self {
            KeyField::StreamId => return Some(stream_id.to_owned()),
            KeyField::Type => return Some(event_type.to_owned()),
            KeyField::Data(path) => (data, path),
            KeyField::Metadata(path) => (metadata, path),
        };
        let found = path.iter().try_fold(json, |json, name| member(json, name))?;
        match found.as_bytes().first()? {
            b'n' => None,
            b'"' => serde_json::from_str(found).ok(),
            _ => Some(found.to_owned()),
        }
    }
}

impl fmt::Display for KeyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyField::StreamId => f.write_str("stream_id"),
            KeyField::Type => f.write_str("type"),
            KeyField::Data(path) => write!(f, "data.{}", path.join(".")),
            KeyField::Metadata(path) => write!(f, "metadata.{}", path.join(".")),
        }
    }
}

/// The shard of a key: the first four bytes of its SHA-256 as a number, modulo the shards. The
/// databases compute the same (`everfold.shard_of` on PostgreSQL); fixed for ever, because the
/// checkpoints of a generation stand for it.
pub(crate) fn shard_of(key: &str, shards: u32) -> u32 {
    hash_of(key) % shards.max(1)
}

/// The first four bytes of the SHA-256 of a key as a number.
pub(crate) fn hash_of(key: &str) -> u32 {
    let digest = Sha256::digest(key.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// A member of a JSON object, as it is written there: numbers must not be read and printed anew, the
/// databases do not do so either.
fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    members.get(name).map(|value| value.get())
}

/// Names that need no quoting anywhere, and that PostgreSQL does not take for the index of an array.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.parse::<i64>().is_err()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_the_text_of_the_value() {
        let data = r#"{"a": {"b": "x\u0041"}, "n": 0.10, "big": 123456789012345678901234567890,
            "e": 1e2, "o": {"k": 1}, "null": null, "t": true, "s": "null"}"#;
        let of = |path: &str| {
            let key = Key::from_stored(Some(&[path.to_owned()])).unwrap();
            key.of_parts("stream", "Type", data, "{}")
        };
        assert_eq!(of("data.a.b").as_deref(), Some("xA"));
        assert_eq!(of("data.n").as_deref(), Some("0.10"));
        assert_eq!(of("data.big").as_deref(), Some("123456789012345678901234567890"));
        assert_eq!(of("data.e").as_deref(), Some("1e2"));
        assert_eq!(of("data.o").as_deref(), Some(r#"{"k": 1}"#));
        assert_eq!(of("data.t").as_deref(), Some("true"));
        assert_eq!(of("data.s").as_deref(), Some("null"));
        assert_eq!((of("data.null"), of("data.missing"), of("data.n.x")), (None, None, None));
        assert!(Key::from_stored(Some(&["data.items.0".to_owned()])).is_err());
    }

    /// The SQL function has the same vectors in its test.
    #[test]
    fn shard_of_a_key_never_changes() {
        let long = "x".repeat(512);
        let vectors = [
            ("", [0, 0, 1, 2, 66]),
            ("cart-1", [0, 0, 5, 8, 696]),
            ("cart-2", [0, 0, 3, 10, 42]),
            ("ä/ß 漢字 😀", [0, 1, 1, 9, 393]),
            (r#"["acme","42"]"#, [0, 0, 5, 2, 306]),
            (&long, [0, 1, 0, 3, 67]),
        ];
        for (key, shards) in vectors {
            let found = [1, 2, 7, 16, 1024].map(|count| shard_of(key, count));
            assert_eq!(found, shards, "{key}");
        }
    }
}
