//! What a projection is, apart from what it does with events: name, version, which events, in which
//! order, what happens on failure. The registry stores it; its hash tells when it was changed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::generation::Generation;
use super::key::Key;
use super::script::SqlScripts;
use crate::store::StoreKind;

/// When events are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifecycle {
    /// In the append's own transaction: readers see the event and its effect at the same moment.
    Inline,
    /// Behind the appends, by a [`Runner`](crate::Runner).
    CatchUp,
}

/// What happens to an event that cannot be applied, once retrying has not helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// The projection stops before the event and says why. An inline one fails the append.
    #[default]
    Stop,
    /// The event is put aside, and later events of its key wait behind it; other keys go on.
    DeadLetter,
    /// The event is left out for good, with a record of it.
    Skip,
}

/// How a projection is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProjectionKind {
    /// SQL files, applied by the database.
    Sql,
    /// Documents folded in Rust.
    Document,
    /// A Rust handler with the open transaction.
    Handler,
}

macro_rules! stored_word {
    ($name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $name {
            /// The word for it in the database, the command and the files.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

            pub(crate) fn from_stored(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use stored_word;

stored_word!(Lifecycle { Inline = "inline", CatchUp = "catch-up" });
stored_word!(OnError { Stop = "stop", DeadLetter = "dead-letter", Skip = "skip" });
stored_word!(ProjectionKind { Sql = "sql", Document = "document", Handler = "handler" });

/// What may change without a new version, because it does not change what the read model holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProjectionSettings {
    /// What happens to an event that cannot be applied: stop.
    pub on_error: OnError,
    /// Most events in one batch: 2,000. Batches are smaller when they take long.
    pub batch_events: u32,
    /// How often an event that fails is tried again before `on_error` decides: 3.
    pub retries: u32,
    /// First pause before such a retry; it doubles each time, with jitter: 200 ms.
    pub retry_delay: Duration,
    /// Longest pause between retries: 30 s.
    pub retry_delay_max: Duration,
    /// `everfold health` warns when the projection is further behind than this. Default: never.
    pub lag_warn: Option<Duration>,
    /// `everfold health` fails when the projection is further behind than this. Default: never.
    pub lag_fail: Option<Duration>,
    /// A runner copies the read model this often ([`Store::snapshot_read_model`]). Default: never.
    ///
    /// [`Store::snapshot_read_model`]: crate::Store::snapshot_read_model
    pub snapshot_every: Option<Duration>,
    /// So many of these copies are kept, the newest: 2.
    pub snapshots_kept: u32,
    /// A runner verifies the whole read model this often ([`Store::verify`]). Default: never.
    ///
    /// [`Store::verify`]: crate::Store::verify
    pub verify_every: Option<Duration>,
}

impl Default for ProjectionSettings {
    fn default() -> Self {
        ProjectionSettings {
            on_error: OnError::Stop,
            batch_events: 2_000,
            retries: 3,
            retry_delay: Duration::from_millis(200),
            retry_delay_max: Duration::from_secs(30),
            lag_warn: None,
            lag_fail: None,
            snapshot_every: None,
            snapshots_kept: 2,
            verify_every: None,
        }
    }
}

/// A projection as the registry knows it.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    /// Empty for the default one.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) lifecycle: Lifecycle,
    /// `None`: all types. Sorted, without repeats.
    pub(crate) event_types: Option<Vec<String>>,
    pub(crate) key: Key,
    pub(crate) shards: u32,
    pub(crate) settings: ProjectionSettings,
    pub(crate) body: Body,
}

/// What of a projection the database has to make.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Sql(Box<SqlScripts>),
    /// A table of documents under the projection's name, with indexes on these JSON paths.
    Document {
        indexes: Vec<String>,
    },
    /// Whatever the handler's set-up makes.
    Handler,
}

impl Definition {
    pub(crate) fn kind(&self) -> ProjectionKind {
        match self.body {
            Body::Sql(_) => ProjectionKind::Sql,
            Body::Document { .. } => ProjectionKind::Document,
            Body::Handler => ProjectionKind::Handler,
        }
    }

    /// Changes when anything changes that decides what the read model holds in such a store. Settings
    /// are left out, and so is the SQL for the other kind of store.
    pub(crate) fn hash(&self, store: StoreKind) -> String {
        let content = self.content(store).to_string();
        uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, content.as_bytes()).to_string()
    }

    /// A definition as the registry has it, with the SQL for this kind of store: what
    /// [`Definition::content`] wrote.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn restore(
        generation: &Generation,
        content: &serde_json::Value,
        store: StoreKind,
    ) -> Result<Definition, String> {
        let body = &content["body"];
        let body = match generation.kind {
            ProjectionKind::Sql => Body::Sql(Box::new(SqlScripts::restore(body, store)?)),
            ProjectionKind::Document => {
                let indexes = serde_json::from_value(body["indexes"].clone());
                Body::Document { indexes: indexes.map_err(|error| error.to_string())? }
            }
            ProjectionKind::Handler => Body::Handler,
        };
        Ok(Definition {
            namespace: generation.namespace.clone(),
            name: generation.name.clone(),
            version: generation.version,
            lifecycle: generation.lifecycle,
            event_types: generation.event_types.clone(),
            key: generation.key.clone(),
            shards: generation.shards,
            settings: generation.settings.clone(),
            body,
        })
    }

    /// What the hash is made of, for people to look at: stored in `generations.definition` beside
    /// the settings.
    pub(crate) fn content(&self, store: StoreKind) -> serde_json::Value {
        let body = match &self.body {
            Body::Sql(scripts) => scripts.of(store).content(),
            Body::Document { indexes } => serde_json::json!({ "indexes": indexes }),
            Body::Handler => serde_json::json!({}),
        };
        serde_json::json!({
            "kind": self.kind().as_str(),
            "lifecycle": self.lifecycle.as_str(),
            "event_types": self.event_types,
            "key": self.key.to_stored(),
            "shards": self.shards,
            "body": body,
        })
    }
}
