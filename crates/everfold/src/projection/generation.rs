//! What the registry knows: projections, their generations, how far each shard has come, and what is
//! owed or put aside.

use jiff::Timestamp;
use uuid::Uuid;

use super::definition::{Lifecycle, OnError, ProjectionKind, ProjectionSettings, stored_word};
use super::key::Key;
use crate::{Position, StreamId};

/// Where a generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GenerationStatus {
    /// Being filled; readers do not see it, appends do not apply to it.
    Building,
    /// Fed, and what readers see.
    Active,
    /// Being filled again in place; inline appends record what they leave out.
    Rebuilding,
    /// An earlier one, fed behind the appends so that one can go back to it.
    Kept,
    /// Stopped by an operator; inline appends record what they leave out.
    Paused,
    /// Stopped by a failure; the reason says which. Inline appends record what they leave out.
    Failed,
    /// No longer fed, to be dropped.
    Retired,
    /// Made ahead of time and empty, for the next rebuild; listed nowhere.
    Spare,
}

stored_word!(GenerationStatus {
    Building = "building",
    Active = "active",
    Rebuilding = "rebuilding",
    Kept = "kept",
    Paused = "paused",
    Failed = "failed",
    Retired = "retired",
    Spare = "spare",
});

/// One generation of a projection, as the registry has it.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    pub(crate) id: i32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) kind: ProjectionKind,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) event_types: Option<Vec<String>>,
    pub(crate) key: Key,
    pub(crate) shards: u32,
    pub(crate) definition_hash: String,
    pub(crate) settings: ProjectionSettings,
    /// PostgreSQL: the schema of its tables and functions. SQLite: the prefix of its tables.
    pub(crate) home: String,
    pub(crate) tables: Vec<String>,
    pub(crate) status: GenerationStatus,
    pub(crate) reason: Option<String>,
    /// Whether readers see it.
    pub(crate) is_active: bool,
}

impl Generation {
    pub(crate) fn on_error(&self) -> OnError {
        self.settings.on_error
    }
}

/// One shard of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardId {
    pub(crate) generation: i32,
    pub(crate) shard: u32,
}

/// The right to run a shard, until it is taken by somebody else: then the epoch is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) shard: ShardId,
    pub(crate) epoch: i64,
    /// The checkpoint when the lease was last looked at.
    pub(crate) position: Position,
}

/// A shard's row, with who runs it.
#[derive(Debug, Clone)]
pub(crate) struct ShardState {
    pub(crate) shard: u32,
    pub(crate) position: Position,
    /// The owner's name, if it lives.
    pub(crate) owner_name: Option<String>,
    /// Since when the owner runs.
    pub(crate) owner_since: Option<Timestamp>,
    /// The owner's name, also if it has not been heard of for too long.
    pub(crate) last_owner: Option<String>,
    /// When the lease ends, or has ended.
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) moved_at: Timestamp,
    pub(crate) attempts: u32,
    pub(crate) failure: Option<String>,
}

/// A generation with all that `status` shows, read at one moment.
#[derive(Debug, Clone)]
pub(crate) struct GenerationState {
    pub(crate) generation: Generation,
    pub(crate) status_since: Timestamp,
    pub(crate) shards: Vec<ShardState>,
    pub(crate) open_skips: u64,
    pub(crate) oldest_skip: Option<Timestamp>,
    /// Failed events, without those that wait behind them.
    pub(crate) dead_letters: u64,
    pub(crate) held_events: u64,
    pub(crate) oldest_dead_letter: Option<Timestamp>,
    /// The oldest event wanted behind the lowest of `shards`' positions: when it was recorded, and how
    /// many there are up to the highest position that can be seen, so that a mark that stands still
    /// shows (counted up to a bound).
    pub(crate) behind_since: Option<Timestamp>,
    pub(crate) behind_events: u64,
    /// Events and seconds of the batches of the last minute, from the run log.
    pub(crate) recent_events: u64,
    pub(crate) recent_seconds: f64,
    /// The last verification.
    pub(crate) verified: Option<LastVerification>,
}

/// The last verification of a read model: the drift that it found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LastVerification {
    /// When it ended.
    pub at: Timestamp,
    /// What was verified: `all`, `sample` or `keys`.
    pub scope: String,
    /// Rows that were compared.
    pub compared: u64,
    /// Rows that are not as the log says.
    pub differences: u64,
}

/// A row of `dead_letters`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadLetterRow {
    pub(crate) position: Position,
    pub(crate) key: String,
    /// `None`: the event failed. Otherwise it waits behind the one there.
    pub(crate) behind: Option<Position>,
    pub(crate) error: Option<String>,
    pub(crate) attempts: u32,
}

/// A row of `dead_letters` with its event, for people to look at.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetterInfo {
    pub(crate) row: DeadLetterRow,
    pub(crate) stream_id: StreamId,
    pub(crate) event_type: String,
    pub(crate) created_at: Timestamp,
    pub(crate) tried_at: Option<Timestamp>,
    pub(crate) retry_wanted: bool,
}

/// A row of `skips` with its event, for people to look at.
#[derive(Debug, Clone)]
pub(crate) struct SkipInfo {
    pub(crate) position: Position,
    pub(crate) key: String,
    pub(crate) reason: String,
    pub(crate) skipped_at: Timestamp,
}

/// A row of `system_messages`, as read.
#[derive(Debug, Clone)]
pub(crate) struct MessageInfo {
    pub(crate) id: i64,
    /// The projection's name, and the version that it is about.
    pub(crate) projection: String,
    pub(crate) version: u32,
    pub(crate) recorded_at: Timestamp,
    pub(crate) kind: String,
    pub(crate) position: Option<Position>,
    pub(crate) key: Option<String>,
    pub(crate) actor: String,
    pub(crate) message: String,
}

/// A row of `system_messages`, to be written.
#[derive(Debug, Clone)]
pub(crate) struct SystemMessage {
    pub(crate) generation: Option<i32>,
    pub(crate) kind: &'static str,
    pub(crate) position: Option<Position>,
    pub(crate) key: Option<String>,
    pub(crate) actor: String,
    pub(crate) message: String,
}

/// A row of `run_log`, to be written.
#[derive(Debug, Clone)]
pub(crate) struct RunLogRow {
    pub(crate) shard: ShardId,
    pub(crate) from: Position,
    pub(crate) to: Position,
    pub(crate) events: u64,
    pub(crate) duration_ms: f32,
    pub(crate) owner: Uuid,
}
