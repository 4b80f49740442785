//! The order of the log, whether it is shorter than it was, and the clock.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::diagnosis::{Finding, LostPosition, log_findings, newest_event};
use crate::store::sqlite::read;

const LOST: &str = include_str!("../../../../sql/sqlite/statements/find_lost_positions.sql");
const NEWEST: &str = "SELECT position, recorded_at, strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' \
    FROM everfold_events ORDER BY position DESC LIMIT 1";

pub(super) fn order(sequence: i64, highest: i64) -> Finding {
    let message = format!("highest position {highest}, handed out {sequence}");
    if highest <= sequence {
        return Finding::ok("sequence", message);
    }
    Finding::problem(
        "sequence",
        message,
        "sqlite_sequence was changed by hand: UPDATE sqlite_sequence SET seq = (SELECT max(position) \
         FROM everfold_events) WHERE name = 'everfold_events'",
    )
}

/// Whether anything knows of events that the log does not have. A position that was rolled back is handed
/// out again here, so that one without an event was taken away.
pub(super) fn lost(
    connection: &Connection,
    sequence: i64,
    highest: i64,
) -> Result<Vec<Finding>, rusqlite::Error> {
    let lost = |row: &Row<'_>| {
        Ok(LostPosition {
            projection: row.get(0)?,
            place: format!("everfold_{}", row.get::<_, String>(1)?),
            position: row.get(2)?,
        })
    };
    let mut statement = connection.prepare(LOST)?;
    let lost: Vec<LostPosition> = statement.query_map([], lost)?.collect::<Result<_, _>>()?;
    Ok(log_findings(highest, &lost, (sequence - highest).max(0)))
}

/// An event of the future. There is one clock only, that of this machine.
pub(super) fn clock(connection: &Connection) -> Result<Option<Finding>, rusqlite::Error> {
    let newest = connection
        .query_row(NEWEST, [], |row| {
            Ok((row.get(0)?, read::parsed(row, 1)?, read::parsed(row, 2)?))
        })
        .optional()?;
    Ok(newest.and_then(|(position, recorded, now)| newest_event(position, recorded, now)))
}
