//! System messages: what happened to projections, and who did it.

use jiff::Timestamp;
use serde::Serialize;

use super::generation::MessageInfo;
use super::letters::LIST_MAX;
use crate::Position;
use crate::error::ProjectionError;
use crate::store::{MessagesAbout, Store};

/// Something that happened to a projection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProjectionMessage {
    /// Its number; later messages have higher ones.
    pub id: i64,
    /// When.
    pub recorded_at: Timestamp,
    /// The projection's name.
    pub projection: String,
    /// The projection's version.
    pub version: u32,
    /// What, in one word: one of [`ProjectionMessage::KINDS`].
    pub kind: String,
    /// The event it is about.
    pub position: Option<Position>,
    /// The key it is about.
    pub key: Option<String>,
    /// Who did it: a worker, an operator, or `append`.
    pub actor: String,
    /// In words.
    pub message: String,
}

impl ProjectionMessage {
    /// The kinds that there are.
    pub const KINDS: [&'static str; 11] = [
        "registered",
        "settings",
        "status",
        "failure",
        "dead-letter",
        "dead-letter-retried",
        "dead-letter-discarded",
        "skipped",
        "skip-settled",
        "verified",
        "rebuild",
    ];
}

/// Which messages are asked for: by default the last hundred, of all projections and all kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageQuery {
    /// Only of this projection, whatever its version.
    pub projection: Option<String>,
    /// Only of these kinds; empty: of all.
    pub kinds: Vec<String>,
    /// So many of the newest, at most 10,000.
    pub limit: usize,
}

impl MessageQuery {
    /// The last hundred of one projection.
    #[must_use]
    pub fn of(projection: impl Into<String>) -> Self {
        MessageQuery { projection: Some(projection.into()), ..Self::default() }
    }
}

impl Default for MessageQuery {
    fn default() -> Self {
        MessageQuery { projection: None, kinds: Vec::new(), limit: 100 }
    }
}

impl Store {
    /// What happened to the projections of this handle's namespace, and who did it, the newest first: what
    /// `everfold messages` prints. Those of versions that are retired, and of projections that were removed,
    /// are among them. Runners forget them after
    /// [`RunnerOptions::log_retention`](crate::RunnerOptions::log_retention).
    ///
    /// ```
    /// use everfold::MessageQuery;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// store.pause("carts").await?;
    /// let mut query = MessageQuery::of("carts");
    /// query.kinds = vec!["status".into()];
    /// let messages = store.messages(&query).await?;
    /// assert!(messages[0].message.contains("paused"), "{}", messages[0].message);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if a projection is named that there is not.
    pub async fn messages(
        &self,
        query: &MessageQuery,
    ) -> Result<Vec<ProjectionMessage>, ProjectionError> {
        let about = MessagesAbout {
            namespace: self.options().namespace.clone(),
            projection: query.projection.clone(),
            kinds: (!query.kinds.is_empty()).then(|| query.kinds.clone()),
            max: query.limit.min(LIST_MAX),
        };
        let rows = self.backend().list_messages(about).await?;
        if let Some(name) = query.projection.as_ref().filter(|_| rows.is_empty()) {
            // For its error, if there never was one of that name.
            self.generations_of(name).await?;
        }
        let of = |row: MessageInfo| ProjectionMessage {
            id: row.id,
            recorded_at: row.recorded_at,
            projection: row.projection,
            version: row.version,
            kind: row.kind,
            position: row.position,
            key: row.key,
            actor: row.actor,
            message: row.message,
        };
        Ok(rows.into_iter().map(of).collect())
    }
}
