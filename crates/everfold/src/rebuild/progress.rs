//! How a rebuild gets on, for people and programs to look at.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::compare::Comparison;
use super::row::{RebuildKind, RebuildPhase, RebuildRow, Wanted};
use crate::Position;

/// A rebuild as it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RebuildProgress {
    /// Its number in the store.
    pub id: i32,
    /// The projection.
    pub name: String,
    /// What it does.
    pub kind: RebuildKind,
    /// The version that is built or switched to.
    pub version: u32,
    /// The generation that is built or switched to, once it is made.
    pub generation: Option<i32>,
    /// Where it stands.
    pub phase: RebuildPhase,
    /// Whether an operator has paused it.
    pub paused: bool,
    /// Events applied so far.
    pub events_done: u64,
    /// Events that there are to apply, as far as is known.
    pub events_total: u64,
    /// The position up to which history is copied.
    pub cutoff: Position,
    /// What it waits for, or why it ended as it did.
    pub message: Option<String>,
    /// Who works on it, if somebody does.
    pub worker: Option<String>,
    /// Who asked for it.
    pub requested_by: String,
    /// When.
    pub requested_at: Timestamp,
    /// When readers were switched over.
    pub switched_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Events applied in a second, lately; known where it is watched.
    pub events_per_second: Option<f64>,
    /// Events appended in a second, lately; known where it is watched.
    pub appended_per_second: Option<f64>,
    /// How long the switch held appends up, once it is done; `None` where nobody was held up.
    pub appends_held: Option<Duration>,
    /// What comparing a new version with the old one has found.
    pub comparison: Option<Comparison>,
}

impl RebuildProgress {
    pub(crate) fn of(row: RebuildRow) -> Self {
        RebuildProgress {
            id: row.id,
            name: row.name,
            kind: row.kind,
            version: row.version,
            generation: row.target,
            phase: row.phase,
            paused: row.wanted == Wanted::Pause,
            events_done: row.events_done,
            events_total: row.events_total,
            cutoff: row.cutoff,
            message: row.message,
            worker: row.owner_name.filter(|_| row.is_owned),
            requested_by: row.requested_by,
            requested_at: row.requested_at,
            switched_at: row.flipped_at,
            finished_at: row.finished_at,
            events_per_second: None,
            appended_per_second: None,
            appends_held: row.report.held_us.map(Duration::from_micros),
            comparison: row.report.comparison,
        }
    }

    /// Events that are left.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.events_total.saturating_sub(self.events_done)
    }

    /// Whether it applies events faster than they are appended; `None` while that is not known.
    #[must_use]
    pub fn converges(&self) -> Option<bool> {
        match self.behind() {
            0 => Some(true),
            _ => Some(self.events_per_second? > self.appended_per_second?),
        }
    }

    /// How long it will take at this rate, if it converges.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let gain = self.events_per_second? - self.appended_per_second.unwrap_or(0.0);
        (gain > 0.0).then(|| Duration::from_secs_f64(self.behind() as f64 / gain))
    }
}
