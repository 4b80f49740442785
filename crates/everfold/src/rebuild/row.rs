//! A rebuild as the database has it.

use jiff::Timestamp;
use uuid::Uuid;

use super::compare::Comparison;
use super::options::RebuildOptions;
use crate::Position;
use crate::projection::definition::stored_word;
use crate::projection::generation::Generation;
use crate::projection::operator::operator;

/// What a rebuild does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RebuildKind {
    /// Builds a generation beside the one that readers see, then switches.
    Beside,
    /// Empties the read model and fills it again.
    InPlace,
    /// Switches to a generation that is there: a promotion, or the way back.
    Switch,
    /// Begins with a snapshot instead of the beginning of the log, then switches.
    Replay,
    /// Builds the read model as it was at a position, for a look; nothing is switched.
    AsOf,
}

stored_word!(RebuildKind {
    Beside = "beside",
    InPlace = "in-place",
    Switch = "switch",
    Replay = "replay",
    AsOf = "as-of",
});

/// Where a rebuild stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RebuildPhase {
    /// Nobody works on it yet.
    Requested,
    /// History is copied up to a fixed position.
    Copying,
    /// Indexes and constraints are made.
    Indexing,
    /// What came in meanwhile is applied.
    CatchingUp,
    /// The new read model is compared with the old one.
    Comparing,
    /// Readers and appends are switched over.
    Switching,
    /// Readers see it; what appends recorded on the way is settled.
    Draining,
    /// Ended: readers see it.
    Done,
    /// Ended: it is built, and readers were not switched, as was asked for.
    Built,
    /// Ended by an operator.
    Cancelled,
    /// Ended by a failure; the message says which.
    Failed,
}

stored_word!(RebuildPhase {
    Requested = "requested",
    Copying = "copying",
    Indexing = "indexing",
    CatchingUp = "catching-up",
    Comparing = "comparing",
    Switching = "switching",
    Draining = "draining",
    Done = "done",
    Built = "built",
    Cancelled = "cancelled",
    Failed = "failed",
});

impl RebuildPhase {
    /// Whether nobody works on it any more.
    #[must_use]
    pub fn is_end(self) -> bool {
        self >= RebuildPhase::Done
    }
}

/// What an operator wants of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Run,
    Pause,
    Cancel,
}

impl Wanted {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Wanted::Run => "run",
            Wanted::Pause => "pause",
            Wanted::Cancel => "cancel",
        }
    }

    pub(crate) fn from_stored(word: &str) -> Option<Self> {
        [Wanted::Run, Wanted::Pause, Wanted::Cancel].into_iter().find(|w| w.as_str() == word)
    }
}

/// A row of `rebuilds`.
#[derive(Debug, Clone)]
pub(crate) struct RebuildRow {
    pub(crate) id: i32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) kind: RebuildKind,
    pub(crate) version: u32,
    pub(crate) definition_hash: String,
    pub(crate) target: Option<i32>,
    pub(crate) source: Option<i32>,
    pub(crate) phase: RebuildPhase,
    pub(crate) options: StoredOptions,
    pub(crate) cutoff: Position,
    pub(crate) events_done: u64,
    pub(crate) events_total: u64,
    pub(crate) message: Option<String>,
    pub(crate) report: RebuildReport,
    pub(crate) wanted: Wanted,
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(crate) epoch: i64,
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
    pub(crate) owner: Option<Uuid>,
    pub(crate) owner_name: Option<String>,
    /// Whether its owner has given a sign of life lately.
    pub(crate) is_owned: bool,
    pub(crate) requested_by: String,
    pub(crate) requested_at: Timestamp,
    pub(crate) flipped_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
}

/// What is stored of how a rebuild went.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(crate) struct RebuildReport {
    /// What comparing it with what readers see has found.
    pub(crate) comparison: Option<Comparison>,
    /// How long the switch held appends up, in microseconds.
    pub(crate) held_us: Option<u64>,
    /// What readers saw until the switch was paused, and what they see now is not.
    pub(crate) ended_pause: bool,
}

/// What is stored of how a rebuild is to be done.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredOptions {
    #[serde(flatten)]
    pub(crate) options: RebuildOptions,
    /// The snapshot to begin with.
    #[serde(default)]
    pub(crate) snapshot: Option<i32>,
    /// The last event to apply.
    #[serde(default)]
    pub(crate) up_to: Option<u64>,
    /// History cannot be copied in large parts: some event fails, or the order of its keys matters.
    #[serde(default)]
    pub(crate) by_batches: bool,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct RebuildRequest {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) kind: RebuildKind,
    pub(crate) version: u32,
    pub(crate) definition_hash: String,
    /// The generation to go on with or to switch to; `None`: a new one is made.
    pub(crate) target: Option<i32>,
    pub(crate) options: StoredOptions,
    /// Only if readers see no version of it.
    pub(crate) first: bool,
    pub(crate) requested_by: String,
}

impl RebuildRequest {
    /// A rebuild to what a generation is.
    pub(crate) fn of(
        wanted: &Generation,
        kind: RebuildKind,
        target: Option<i32>,
        options: StoredOptions,
    ) -> Self {
        RebuildRequest {
            namespace: wanted.namespace.clone(),
            name: wanted.name.clone(),
            kind,
            version: wanted.version,
            definition_hash: wanted.definition_hash.clone(),
            target,
            options,
            first: false,
            requested_by: operator(),
        }
    }
}

/// The right to work on a rebuild, until somebody else takes it: then the epoch is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RebuildLease {
    pub(crate) rebuild: i32,
    pub(crate) epoch: i64,
    pub(crate) worker: Uuid,
}

/// Progress, written with each sign of life.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RebuildFigures {
    /// `None`: as it is.
    pub(crate) phase: Option<RebuildPhase>,
    pub(crate) events_done: u64,
    pub(crate) events_total: u64,
    pub(crate) message: Option<String>,
    /// `None`: as it is.
    pub(crate) report: Option<RebuildReport>,
}
