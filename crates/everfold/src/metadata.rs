//! What is known about an event beside its data: where it came from, and who caused it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object beside the event's data. Three names have a meaning by convention:
/// `correlation_id`, `causation_id` and `traceparent` (W3C trace context).
///
/// ```
/// use everfold::{Metadata, NewEvent};
///
/// let metadata = Metadata::new()
///     .with_correlation_id("request-7")
///     .with_causation_id("command-3")
///     .with_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
///     .with("tenant", "east");
/// let event = NewEvent::from_json("OrderPlaced", "{}")?.with_schema_version(2).with_metadata(metadata);
///
/// assert_eq!(event.schema_version(), 2);
/// assert_eq!(event.metadata().correlation_id(), Some("request-7"));
/// assert_eq!(event.metadata().causation_id(), Some("command-3"));
/// assert!(event.metadata().traceparent().is_some());
/// assert_eq!(event.metadata().get("tenant"), Some(&"east".into()));
/// # Ok::<(), everfold::EncodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Map<String, Value>);

const CORRELATION_ID: &str = "correlation_id";
const CAUSATION_ID: &str = "causation_id";
const TRACEPARENT: &str = "traceparent";

impl Metadata {
    /// Empty metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more entry; an entry of the same name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// With the id that ties together all that one request caused.
    #[must_use]
    pub fn with_correlation_id(self, id: impl Into<String>) -> Self {
        self.with(CORRELATION_ID, id.into())
    }

    /// With the id of the event or command that caused this one.
    #[must_use]
    pub fn with_causation_id(self, id: impl Into<String>) -> Self {
        self.with(CAUSATION_ID, id.into())
    }

    /// With the W3C trace context of the caller, so that spans can be linked.
    #[must_use]
    pub fn with_traceparent(self, traceparent: impl Into<String>) -> Self {
        self.with(TRACEPARENT, traceparent.into())
    }

    /// An entry by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The correlation id, if there is one.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        self.text(CORRELATION_ID)
    }

    /// The causation id, if there is one.
    #[must_use]
    pub fn causation_id(&self) -> Option<&str> {
        self.text(CAUSATION_ID)
    }

    /// The trace context, if there is one.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.text(TRACEPARENT)
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(crate) fn to_json(&self) -> String {
        if self.0.is_empty() {
            return "{}".to_owned();
        }
        serde_json::to_string(&self.0).expect("a map of JSON values is JSON")
    }
}

impl From<Map<String, Value>> for Metadata {
    fn from(map: Map<String, Value>) -> Self {
        Metadata(map)
    }
}
