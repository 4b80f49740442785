//! Document projections: a key and a pure function from document and event to document.
//!
//! [`TypedFold`] is what the engine sees of one: documents and events as JSON text go in, documents
//! as JSON text come out, and neither bad data nor a panic of the projection's code gets past it as
//! anything but [`ApplyError::Refused`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folding::TypedFolding;
use super::key::Key;
use super::projector::{ApplyError, FoldDocuments, Folding};
use crate::append::unstorable_escape;
use crate::{Position, RecordedEvent};

/// Longest key of a document in bytes. A stream id always fits.
pub(crate) const KEY_BYTES_MAX: usize = 1024;

/// Folds events into documents, one document for each key (by default: for each stream).
///
/// `evolve` must be pure: the same document and event give the same result, wherever and however
/// often it is called. What it returns is written once for each batch, not for each event, so it
/// must not have effects of its own. `everfold::testing`
/// (feature `testing`) shows where that does not hold.
///
/// ```
/// use everfold::{DocumentProjection, Projection, RecordedEvent};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum CartEvent {
///     ItemAdded { sku: String, quantity: u32 },
///     Emptied,
/// }
///
/// #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
/// struct Cart {
///     items: u32,
/// }
///
/// struct CartSummary;
///
/// impl DocumentProjection for CartSummary {
///     type Event = CartEvent;
///     type Document = Cart;
///
///     fn evolve(&self, cart: Option<Cart>, event: &CartEvent, _: &RecordedEvent) -> Option<Cart> {
///         let mut cart = cart.unwrap_or_default();
///         match event {
///             CartEvent::ItemAdded { quantity, .. } => cart.items += quantity,
///             CartEvent::Emptied => return None, // deletes the document
///         }
///         Some(cart)
///     }
/// }
///
/// let summary = Projection::document("cart_summary", 1, CartSummary).inline().build()?;
/// # let _ = summary;
/// # Ok::<(), everfold::ProjectionError>(())
/// ```
pub trait DocumentProjection: Send + Sync + 'static {
    /// The events it knows: an enum in serde's default form. Events of other types are passed over.
    type Event: DeserializeOwned;
    /// What is kept for each key. Written as JSON and read back before the next batch.
    type Document: Serialize + DeserializeOwned;

    /// The document after an event: `document` is what was there before, if anything; `None` deletes
    /// it, or leaves it missing.
    fn evolve(
        &self,
        document: Option<Self::Document>,
        event: &Self::Event,
        recorded: &RecordedEvent,
    ) -> Option<Self::Document>;
}

/// A key that the projection's own code finds; `None`: the event belongs to no document.
pub(crate) type KeyFunction<E> =
    Box<dyn Fn(&E, &RecordedEvent) -> Option<String> + Send + Sync + 'static>;

/// A document projection without its types.
pub(crate) struct TypedFold<D: DocumentProjection> {
    pub(crate) name: String,
    pub(crate) projection: D,
    pub(crate) key: Key,
    /// Set if `key` is [`Key::Code`].
    pub(crate) key_function: Option<KeyFunction<D::Event>>,
}

impl<D: DocumentProjection> FoldDocuments for TypedFold<D> {
    fn folding(self: Arc<Self>, careful: bool) -> Box<dyn Folding> {
        Box::new(TypedFolding::new(self, careful))
    }

    /// Where the key is data, types that the projection does not know are not looked for here: the
    /// fold passes over them.
    fn key_of(&self, event: &RecordedEvent) -> Result<Option<String>, ApplyError> {
        self.key_and_event(event).map(|(key, _)| key)
    }

    fn fold(
        &self,
        document: Option<&str>,
        events: &[&RecordedEvent],
    ) -> Result<Option<String>, ApplyError> {
        let Some(&last) = events.last() else { return Ok(document.map(str::to_owned)) };
        let mut folded = document.map(|json| self.read(json, events[0])).transpose()?;
        let mut changed = false;
        for &recorded in events {
            let Some(event) = decode::<D::Event>(recorded)? else { continue };
            folded =
                caught(recorded, "evolve", || self.projection.evolve(folded, &event, recorded))?;
            changed = true;
        }
        if !changed {
            return Ok(document.map(str::to_owned));
        }
        folded.map(|document| self.write(&document, last)).transpose()
    }
}

impl<D: DocumentProjection> TypedFold<D> {
    pub(super) fn read(
        &self,
        json: &str,
        event: &RecordedEvent,
    ) -> Result<D::Document, ApplyError> {
        let read = caught(event, "reading the document", || serde_json::from_str(json))?;
        read.map_err(|error| {
            let message = format!(
                "the stored document does not fit today's type: {error}; give new fields a default \
                 (#[serde(default)]), or raise the version of \"{}\" and rebuild it",
                self.name
            );
            ApplyError::Refused { message, position: Some(event.position) }
        })
    }

    pub(super) fn write(
        &self,
        document: &D::Document,
        event: &RecordedEvent,
    ) -> Result<String, ApplyError> {
        self.write_at(document, event.position)
    }

    /// The document as JSON, after the event at this position.
    pub(super) fn write_at(
        &self,
        document: &D::Document,
        position: Position,
    ) -> Result<String, ApplyError> {
        let what = "writing the document";
        let written = caught_at(position, what, || serde_json::to_string(document))?;
        let json = written.map_err(|error| {
            let message = format!("the document cannot be written as JSON: {error}");
            refused_at(position, message)
        })?;
        match unstorable_escape(&json) {
            None => Ok(json),
            Some(_) => Err(refused_at(
                position,
                "the document holds a NUL character (\\u0000), which cannot be stored; remove it",
            )),
        }
    }

    /// The key of an event, and the event where finding the key meant to read it.
    pub(super) fn key_and_event(
        &self,
        event: &RecordedEvent,
    ) -> Result<(Option<String>, Option<D::Event>), ApplyError> {
        let (key, read) = match (&self.key, &self.key_function) {
            (Key::Stream, _) => return Ok((Some(event.stream_id.as_str().to_owned()), None)),
            (Key::Code, Some(function)) => {
                let Some(typed) = decode::<D::Event>(event)? else { return Ok((None, None)) };
                (caught(event, "its key function", || function(&typed, event))?, Some(typed))
            }
            (key, _) => (Some(key.of(event).ok_or_else(|| missing_key(key, event))?), None),
        };
        let key = key.map(|key| checked_key(key, event)).transpose()?;
        Ok((key, read))
    }
}

pub(super) fn refused(event: &RecordedEvent, message: impl Into<String>) -> ApplyError {
    refused_at(event.position, message)
}

fn refused_at(position: Position, message: impl Into<String>) -> ApplyError {
    ApplyError::Refused { message: message.into(), position: Some(position) }
}

pub(super) fn decode<E: DeserializeOwned>(event: &RecordedEvent) -> Result<Option<E>, ApplyError> {
    let decoded = caught(event, "reading the event", || event.decode::<E>())?;
    decoded.map_err(|error| refused(event, error.to_string()))
}

/// Runs the projection's code; a panic in it stops this event and nothing else.
pub(super) fn caught<T>(
    event: &RecordedEvent,
    what: &str,
    run: impl FnOnce() -> T,
) -> Result<T, ApplyError> {
    caught_at(event.position, what, run)
}

fn caught_at<T>(position: Position, what: &str, run: impl FnOnce() -> T) -> Result<T, ApplyError> {
    // Whatever the code has half done to its own values is dropped with them; the projection itself
    // is only lent out by shared reference.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        refused_at(position, format!("{what} panicked: {}", panic_message(&*panic)))
    })
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

fn missing_key(key: &Key, event: &RecordedEvent) -> ApplyError {
    let fields = key.to_stored().unwrap_or_default().join(", ");
    refused(event, format!("key field {fields} is missing or null"))
}

fn checked_key(key: String, event: &RecordedEvent) -> Result<String, ApplyError> {
    if key.contains('\0') {
        return Err(refused(event, "the key holds a NUL character, which cannot be stored"));
    }
    if key.len() > KEY_BYTES_MAX {
        let message = format!(
            "the key is {} bytes long, at most {KEY_BYTES_MAX} are allowed: use a hash of it",
            key.len()
        );
        return Err(refused(event, message));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::projection::key::KeyField;
    use crate::{Uuid, Version};

    #[derive(Deserialize)]
    enum Event {
        Added { n: i64 },
        Named { name: String },
        Cleared,
        Exploded { loudly: bool },
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Document {
        sum: i64,
        names: Vec<String>,
    }

    struct Sum;

    impl DocumentProjection for Sum {
        type Event = Event;
        type Document = Document;

        fn evolve(
            &self,
            document: Option<Document>,
            event: &Event,
            _: &RecordedEvent,
        ) -> Option<Document> {
            let mut document = document.unwrap_or_default();
            match event {
                Event::Added { n } => document.sum += n,
                Event::Named { name } => document.names.push(name.clone()),
                Event::Cleared => return None,
                Event::Exploded { loudly: true } => panic!("number {} is too loud", document.sum),
                Event::Exploded { loudly: false } => panic!("too loud"),
            }
            Some(document)
        }
    }

    fn fold_by(key: Key, key_function: Option<KeyFunction<Event>>) -> TypedFold<Sum> {
        TypedFold { name: "sum".into(), projection: Sum, key, key_function }
    }

    fn recorded(position: u64, event_type: &str, data: Value) -> RecordedEvent {
        RecordedEvent {
            position: Position(position),
            stream_id: "s".into(),
            version: Version(position),
            id: Uuid::nil(),
            event_type: event_type.into(),
            schema_version: 1,
            data: data.to_string(),
            metadata: "{}".into(),
            recorded_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn fold(
        document: Option<&str>,
        events: &[RecordedEvent],
    ) -> Result<Option<String>, (u64, String)> {
        let events: Vec<&RecordedEvent> = events.iter().collect();
        fold_by(Key::Stream, None).fold(document, &events).map_err(message)
    }

    fn message(error: ApplyError) -> (u64, String) {
        match error {
            ApplyError::Refused { message, position } => (position.unwrap().0, message),
            other => panic!("wanted a refusal, got {other:?}"),
        }
    }

    #[test]
    fn events_are_folded_in_order_and_unknown_ones_passed_over() {
        let events = [
            recorded(1, "Added", json!({ "n": 2 })),
            recorded(2, "Nobody", json!({ "n": 2 })),
            recorded(3, "Added", json!({ "n": 3 })),
        ];
        assert_eq!(fold(None, &events), Ok(Some(r#"{"sum":5,"names":[]}"#.into())));
        let before = r#"{ "sum": 1, "names": ["a"] }"#;
        assert_eq!(fold(Some(before), &events), Ok(Some(r#"{"sum":6,"names":["a"]}"#.into())));
        assert_eq!(fold(Some(before), &events[1..2]), Ok(Some(before.into())));
        assert_eq!(fold(None, &events[1..2]), Ok(None));
    }

    #[test]
    fn none_deletes_and_the_next_event_starts_anew() {
        let events = [recorded(1, "Cleared", json!(null)), recorded(2, "Added", json!({ "n": 3 }))];
        let before = r#"{"sum":1,"names":[]}"#;
        assert_eq!(fold(Some(before), &events[..1]), Ok(None));
        assert_eq!(fold(Some(before), &events), Ok(Some(r#"{"sum":3,"names":[]}"#.into())));
    }

    #[test]
    fn a_panic_is_a_refusal_with_its_message() {
        let added = recorded(1, "Added", json!({ "n": 2 }));
        for (loudly, said) in [(true, "number 2 is too loud"), (false, "too loud")] {
            let events = [added.clone(), recorded(2, "Exploded", json!({ "loudly": loudly }))];
            let error = fold(None, &events).unwrap_err();
            assert_eq!(error, (2, format!("evolve panicked: {said}")));
        }
    }

    #[test]
    fn a_document_of_another_shape_says_what_to_do() {
        let added = recorded(7, "Added", json!({ "n": 2 }));
        let (position, message) = fold(Some(r#"{"sum":1}"#), &[added]).unwrap_err();
        assert_eq!(position, 7);
        assert!(message.contains("missing field `names`"), "{message}");
        assert!(message.contains("raise the version of \"sum\" and rebuild it"), "{message}");
    }

    #[test]
    fn an_event_of_another_shape_and_a_nul_are_refused_where_they_stand() {
        let added = recorded(1, "Added", json!({ "n": 2 }));
        let bad = recorded(2, "Added", json!({ "n": "two" }));
        let (position, message) = fold(None, &[added, bad]).unwrap_err();
        assert_eq!(position, 2);
        assert!(message.contains("invalid type: string \"two\""), "{message}");
        let nul = recorded(3, "Named", json!({ "name": "a\0b" }));
        assert!(fold(None, &[nul]).unwrap_err().1.contains("NUL"));
        let backslash = recorded(4, "Named", json!({ "name": r"\u0000" }));
        fold(None, &[backslash]).unwrap().unwrap();
    }

    #[test]
    fn keys_come_from_the_stream_from_fields_or_from_code() {
        let named = recorded(1, "Named", json!({ "name": "ada" }));
        let nobody = recorded(2, "Nobody", json!({ "name": "ada" }));
        let by_stream = fold_by(Key::Stream, None);
        assert_eq!(by_stream.key_of(&named).unwrap().as_deref(), Some("s"));

        let fields = Key::Fields(vec![KeyField::parse("data.name").unwrap()]);
        let by_field = fold_by(fields, None);
        assert_eq!(by_field.key_of(&named).unwrap().as_deref(), Some("ada"));
        let added = recorded(3, "Added", json!({ "n": 1 }));
        let (position, said) = message(by_field.key_of(&added).unwrap_err());
        assert_eq!((position, said.as_str()), (3, "key field data.name is missing or null"));

        let by_code = fold_by(
            Key::Code,
            Some(Box::new(|event, recorded| match event {
                Event::Named { name } => Some(format!("{name}@{}", recorded.stream_id)),
                Event::Added { n } if *n < 0 => panic!("negative"),
                Event::Added { n } => Some("x".repeat(usize::try_from(*n).unwrap())),
                Event::Cleared | Event::Exploded { .. } => None,
            })),
        );
        assert_eq!(by_code.key_of(&named).unwrap().as_deref(), Some("ada@s"));
        assert_eq!(by_code.key_of(&nobody).unwrap(), None);
        assert_eq!(by_code.key_of(&recorded(4, "Cleared", json!(null))).unwrap(), None);
        let panics = recorded(5, "Added", json!({ "n": -1 }));
        let (_, said) = message(by_code.key_of(&panics).unwrap_err());
        assert_eq!(said, "its key function panicked: negative");
        let long = recorded(6, "Added", json!({ "n": 1025 }));
        let (_, said) = message(by_code.key_of(&long).unwrap_err());
        assert!(said.contains("1025 bytes long, at most 1024"), "{said}");
        let nul = recorded(7, "Named", json!({ "name": "\0" }));
        assert!(message(by_code.key_of(&nul).unwrap_err()).1.contains("NUL"));
    }
}
