//! Schema evolution: old events are brought to today's shape when they are read.
//!
//! The log is never changed. An upcaster takes the data of one (type, schema version) to the next
//! schema version; several run one after the other. A type can also be given a new name.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde_json::Value;

use crate::error::ReadError;
use crate::event::RecordedEvent;

type Upcast = Box<dyn Fn(Value) -> Result<Value, String> + Send + Sync>;

/// Changes from old shapes of events to today's, given to a store as
/// [`StoreOptions::upcasters`](crate::StoreOptions::upcasters). The log is never changed.
///
/// ```
/// use std::sync::Arc;
///
/// use everfold::{ExpectedVersion, NewEvent, Store, StoreOptions, Upcasters};
/// use serde_json::{Value, json};
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
/// # let (_folder, url) = url();
/// // Version 1 had one field `name`; version 2 has `first` and `last`.
/// let upcasters = Upcasters::new()
///     .add("CustomerNamed", 1, |data: Value| {
///         let name = data["name"].as_str().ok_or("no name")?;
///         let (first, last) = name.split_once(' ').unwrap_or((name, ""));
///         Ok::<_, &str>(json!({ "first": first, "last": last }))
///     })
///     .rename("ClientNamed", "CustomerNamed");
///
/// let mut options = StoreOptions::default();
/// options.upcasters = Arc::new(upcasters);
/// let store = Store::open_with(&url, options).await?;
///
/// let old = NewEvent::from_json("ClientNamed", r#"{"name": "Ada Lovelace"}"#)?;
/// store.append("customer-1", ExpectedVersion::Any, [old]).await?;
/// let read = store.read_stream("customer-1").collect().await?;
/// assert_eq!(read[0].event_type, "CustomerNamed");
/// assert_eq!(read[0].data, r#"{"first":"Ada","last":"Lovelace"}"#);
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Upcasters {
    steps: HashMap<String, HashMap<u32, Upcast>>,
    names: HashMap<String, String>,
}

impl Upcasters {
    /// No upcasters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step: data of `event_type` at `schema_version` becomes that of the next version. Steps of
    /// a type run one after the other, up to the newest. What the step returns as an error fails the read,
    /// or in a projection the event ([`ReadError::Upcast`](crate::ReadError::Upcast)).
    #[must_use]
    pub fn add<F, E>(
        mut self,
        event_type: impl Into<String>,
        schema_version: u32,
        upcast: F,
    ) -> Self
    where
        F: Fn(Value) -> Result<Value, E> + Send + Sync + 'static,
        E: fmt::Display,
    {
        let step: Upcast = Box::new(move |data| upcast(data).map_err(|error| error.to_string()));
        self.steps.entry(event_type.into()).or_default().insert(schema_version, step);
        self
    }

    /// Events stored as `old` are read as `new`, before any step runs. A reader that filters by
    /// `new` gets them too.
    #[must_use]
    pub fn rename(mut self, old: impl Into<String>, new: impl Into<String>) -> Self {
        self.names.insert(old.into(), new.into());
        self
    }

    /// Every step: type and the schema version that it starts from.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&str, u32)> {
        let steps = self.steps.iter();
        steps.flat_map(|(name, versions)| versions.keys().map(|version| (name.as_str(), *version)))
    }

    /// Every rename: the old name and the new one.
    pub(crate) fn renames(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().map(|(old, new)| (old.as_str(), new.as_str()))
    }

    /// What a type is called after all renames, one after the other. A circle ends somewhere.
    fn name_today<'a>(&'a self, stored: &'a str) -> &'a str {
        let mut name = stored;
        for _ in 0..self.names.len() {
            match self.names.get(name) {
                Some(new) => name = new,
                None => break,
            }
        }
        name
    }

    /// The names under which events of these types may be stored.
    pub(crate) fn stored_names(&self, types: &[String]) -> Vec<String> {
        let mut names: BTreeSet<&str> = types.iter().map(String::as_str).collect();
        names.extend(self.names.keys().map(String::as_str).filter(|old| {
            let today = self.name_today(old);
            types.iter().any(|wanted| wanted == today)
        }));
        names.into_iter().map(str::to_owned).collect()
    }

    /// Brings one event to today's shape.
    pub(crate) fn apply(&self, event: &mut RecordedEvent) -> Result<(), ReadError> {
        if self.names.contains_key(&event.event_type) {
            event.event_type = self.name_today(&event.event_type).to_owned();
        }
        let Some(steps) = self.steps.get(&event.event_type) else { return Ok(()) };
        if !steps.contains_key(&event.schema_version) {
            return Ok(());
        }
        let mut data: Value =
            serde_json::from_str(&event.data).map_err(|error| refused(event, error.to_string()))?;
        while let Some(step) = steps.get(&event.schema_version) {
            data = step(data).map_err(|message| refused(event, message))?;
            event.schema_version += 1;
        }
        event.data = data.to_string();
        Ok(())
    }
}

fn refused(event: &RecordedEvent, message: String) -> ReadError {
    ReadError::Upcast {
        position: event.position,
        event_type: event.event_type.clone(),
        schema_version: event.schema_version,
        message,
    }
}

impl fmt::Debug for Upcasters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: usize = self.steps.values().map(HashMap::len).sum();
        f.debug_struct("Upcasters").field("steps", &steps).field("names", &self.names).finish()
    }
}
