//! Rows of `rebuilds`, as they are read.

use tokio_postgres::Row;

use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::rebuild::row::{RebuildKind, RebuildPhase, RebuildRow, Wanted};
use crate::store::postgres::types::{JsonString, Time};

/// What [`rebuild`] reads, of `rebuilds r` and `projections p`.
macro_rules! columns {
    () => {
        "r.id, p.namespace, p.name, r.kind, r.version, r.definition_hash, r.target, r.source, \
         r.phase, r.options, r.cutoff, r.events_done, r.events_total, r.message, r.wanted, r.epoch, \
         r.owner, r.owner_name, (r.owner IS NOT NULL AND r.expires_at >= clock_timestamp()) IS TRUE, \
         r.requested_by, r.requested_at, r.flipped_at, r.finished_at, r.report"
    };
}
pub(super) use columns;

pub(super) fn rebuild(row: &Row) -> Result<RebuildRow, StoreError> {
    let (JsonString(options), JsonString(report)) = (row.get(9), row.get(23));
    let time = |column| row.get::<_, Option<Time>>(column).map(|time| time.0);
    Ok(RebuildRow {
        id: row.get(0),
        namespace: row.get(1),
        name: row.get(2),
        kind: known(row, 3, RebuildKind::from_stored)?,
        version: row.get::<_, i32>(4).unsigned_abs(),
        definition_hash: row.get(5),
        target: row.get(6),
        source: row.get(7),
        phase: known(row, 8, RebuildPhase::from_stored)?,
        options: serde_json::from_str(&options).map_err(unreadable)?,
        cutoff: Position::from_stored(row.get(10)),
        events_done: row.get::<_, i64>(11).unsigned_abs(),
        events_total: row.get::<_, i64>(12).unsigned_abs(),
        message: row.get(13),
        report: serde_json::from_str(&report).map_err(unreadable)?,
        wanted: known(row, 14, Wanted::from_stored)?,
        epoch: row.get(15),
        owner: row.get(16),
        owner_name: row.get(17),
        is_owned: row.get(18),
        requested_by: row.get(19),
        requested_at: row.get::<_, Time>(20).0,
        flipped_at: time(21),
        finished_at: time(22),
    })
}

/// A value that is one of a few words.
fn known<T>(
    row: &Row,
    column: usize,
    from_stored: impl Fn(&str) -> Option<T>,
) -> Result<T, StoreError> {
    let stored: &str = row.get(column);
    from_stored(stored).ok_or_else(|| {
        unreadable(format!("\"{stored}\" is not known to this version of everfold; upgrade it"))
    })
}

fn unreadable(error: impl std::fmt::Display) -> StoreError {
    let message = format!("the rows of rebuilds cannot be read: {error}");
    StoreError::new(StoreErrorKind::Other, message)
}

/// A number as the database has it.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
