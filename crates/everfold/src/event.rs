//! Events before and after they are stored.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::codec::{self, DecodeError, EncodeError};
use crate::metadata::Metadata;
use crate::{Position, StreamId, Version};

/// An event about to be appended.
///
/// It has its id (a version 7 UUID) from the start: appending the same `NewEvent`s again after an
/// unknown outcome stores nothing twice.
///
/// ```
/// use everfold::NewEvent;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum CartEvent {
///     ItemAdded { sku: String, quantity: u32 },
///     CheckedOut,
/// }
///
/// let event = NewEvent::from_event(&CartEvent::ItemAdded { sku: "A1".into(), quantity: 2 })?
///     .with_correlation_id("request-7");
/// assert_eq!(event.event_type(), "ItemAdded");
/// assert_eq!(event.data(), r#"{"sku":"A1","quantity":2}"#);
/// # Ok::<(), everfold::EncodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub(crate) id: Uuid,
    pub(crate) event_type: String,
    pub(crate) schema_version: u32,
    /// JSON text.
    pub(crate) data: String,
    pub(crate) metadata: Metadata,
}

impl NewEvent {
    /// An event of the given type whose data is any serialisable value.
    ///
    /// # Errors
    /// If the value cannot be written as JSON.
    pub fn new(event_type: impl Into<String>, data: &impl Serialize) -> Result<Self, EncodeError> {
        let data = serde_json::to_string(data).map_err(EncodeError::json)?;
        Ok(Self::from_parts(event_type.into(), data))
    }

    /// An event whose data is JSON text already.
    ///
    /// # Errors
    /// If `data` is not one JSON value.
    pub fn from_json(
        event_type: impl Into<String>,
        data: impl Into<String>,
    ) -> Result<Self, EncodeError> {
        let data = data.into();
        serde_json::from_str::<serde::de::IgnoredAny>(&data).map_err(EncodeError::json)?;
        Ok(Self::from_parts(event_type.into(), data))
    }

    /// A variant of a serde enum: the variant's name becomes the type, its content the data.
    ///
    /// # Errors
    /// If the value is not an enum in serde's default (externally tagged) form.
    pub fn from_event<E: Serialize>(event: &E) -> Result<Self, EncodeError> {
        let (event_type, data) = codec::encode(event)?;
        Ok(Self::from_parts(event_type.to_owned(), data))
    }

    fn from_parts(event_type: String, data: String) -> Self {
        NewEvent {
            id: Uuid::now_v7(),
            event_type,
            schema_version: 1,
            data,
            metadata: Metadata::default(),
        }
    }

    /// With this id instead of a fresh one. The id is the idempotency key of the append.
    #[must_use]
    pub fn with_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// With the version of the data's shape (from 1, the default).
    #[must_use]
    pub fn with_schema_version(mut self, schema_version: u32) -> Self {
        self.schema_version = schema_version;
        self
    }

    /// With this metadata instead of none.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// With the id that ties together all that one request caused.
    #[must_use]
    pub fn with_correlation_id(mut self, id: impl Into<String>) -> Self {
        self.metadata = self.metadata.with_correlation_id(id);
        self
    }

    /// With the id of the event or command that caused this one.
    #[must_use]
    pub fn with_causation_id(mut self, id: impl Into<String>) -> Self {
        self.metadata = self.metadata.with_causation_id(id);
        self
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Its type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// The version of the data's shape.
    #[must_use]
    pub fn schema_version(&self) -> u32 {
        self.schema_version
    }

    /// Its data as JSON text.
    #[must_use]
    pub fn data(&self) -> &str {
        &self.data
    }

    /// Its metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// An event as it stands in the log.
///
/// Written as JSON it is a line of `everfold export`, which [`Store::import`](crate::Store::import) takes:
///
/// ```
/// use std::io::Cursor;
///
/// use everfold::ImportOptions;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, store) = with_carts().await;
/// let mut lines = String::new();
/// for event in store.read_all().collect().await? {
///     lines += &(serde_json::to_string(&event)? + "\n");
/// }
/// assert!(lines.starts_with(r#"{"position":1,"stream_id":"cart-1","version":1,"type":"ItemAdded""#));
///
/// let (_folder, copy) = open().await;
/// let imported = copy.import("copy", Cursor::new(lines), ImportOptions::default(), |_| {}).await?;
/// assert_eq!(imported.stored, 3);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Its place in the global order.
    pub position: Position,
    /// The stream it belongs to.
    pub stream_id: StreamId,
    /// Its place in that stream.
    pub version: Version,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of the data's shape, after upcasting.
    pub schema_version: u32,
    /// Its data as JSON text, after upcasting.
    #[serde(serialize_with = "as_json")]
    pub data: String,
    /// Its metadata as JSON text: an object.
    #[serde(serialize_with = "as_json")]
    pub metadata: String,
    /// Its id.
    pub id: Uuid,
    /// When the store took it, by the store's clock.
    pub recorded_at: jiff::Timestamp,
}

impl RecordedEvent {
    /// The event as a variant of `E`, or `None` if `E` has no variant of this type: types that a
    /// reader does not know never fail it.
    ///
    /// # Errors
    /// If `E` has the variant and the data does not fit it.
    pub fn decode<E: DeserializeOwned>(&self) -> Result<Option<E>, DecodeError> {
        codec::decode(&self.event_type, &self.data).map_err(|source| DecodeError::new(self, source))
    }

    /// The data as a value of any type, whatever the event's type is called.
    ///
    /// # Errors
    /// If the data does not fit.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        serde_json::from_str(&self.data).map_err(|source| DecodeError::new(self, source))
    }

    /// The metadata, parsed.
    ///
    /// # Errors
    /// If it is not a JSON object, which the stores do not let happen.
    pub fn metadata(&self) -> Result<Metadata, DecodeError> {
        serde_json::from_str(&self.metadata).map_err(|source| DecodeError::new(self, source))
    }
}

/// The text as the JSON that it is, on one line, so that numbers keep every digit.
fn as_json<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let text = on_one_line(text);
    let json: &RawValue = serde_json::from_str(&text).map_err(S::Error::custom)?;
    json.serialize(serializer)
}

/// Line breaks in JSON stand between its tokens only; inside strings they are escaped.
fn on_one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ").into() } else { json.into() }
}
