//! What operators ask for: changes of status, dead letters, skips, messages, retention.

use std::time::Duration;

use rusqlite::{Connection, Row};

use super::states::time_or_null;
use super::unit::{dead_letter, record};
use crate::projection::generation::{DeadLetterInfo, MessageInfo, SkipInfo, SystemMessage};
use crate::store::sqlite::read::parsed;
use crate::store::{MessagesAbout, StatusChange};
use crate::{Position, StreamId};

const LIST_DEAD_LETTERS: &str =
    include_str!("../../../../sql/sqlite/statements/list_dead_letters.sql");
const CHANGE_STATUS: &str = "UPDATE everfold_generations SET status = ?2, reason = ?3, \
    status_since = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' \
    WHERE id = ?1 AND status IN (SELECT value FROM json_each(?4)) \
    AND NOT (?2 IN ('kept', 'building') AND EXISTS (SELECT 1 FROM everfold_rebuilds r \
        WHERE r.finished_at IS NULL AND ?1 IN (r.source, r.target))) \
    AND NOT (?2 = 'retired' AND (EXISTS (SELECT 1 FROM everfold_rebuilds r \
            WHERE r.finished_at IS NULL AND r.target = ?1) \
        OR EXISTS (SELECT 1 FROM everfold_projections p WHERE p.active_generation = ?1)))";
const CLEAR_FAILURES: &str = "UPDATE everfold_checkpoints \
    SET attempts = 0, failure = NULL, epoch = epoch + 1, owner = NULL, expires_at = NULL \
    WHERE generation = ?1";
const OWN_REBUILD: &str = "SELECT 1 FROM everfold_rebuilds \
    WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL";
const LIST_SKIPS: &str = "SELECT position, key, reason, skipped_at FROM everfold_skips \
    WHERE generation = ?1 ORDER BY position LIMIT ?2";
const LIST_MESSAGES: &str = "SELECT m.recorded_at, p.name, m.kind, m.position, m.key, m.actor, \
        m.message, m.id, g.version \
    FROM everfold_system_messages m JOIN everfold_generations g ON g.id = m.generation \
    JOIN everfold_projections p ON p.id = g.projection \
    WHERE p.namespace = ?1 AND (?2 IS NULL OR p.name = ?2) \
    AND (?3 IS NULL OR m.kind IN (SELECT value FROM json_each(?3))) ORDER BY m.id DESC LIMIT ?4";
const WANT_RETRY: &str = "UPDATE everfold_dead_letters SET retry_wanted = 1 \
    WHERE generation = ?1 AND behind IS NULL AND (?2 IS NULL OR position = ?2)";
const WANTED_RETRIES: &str = "SELECT generation, position FROM everfold_dead_letters \
    WHERE retry_wanted AND generation IN (SELECT value FROM json_each(?1)) \
    ORDER BY position LIMIT ?2";
const PRUNE_RUNS: &str = include_str!("../../../../sql/sqlite/statements/prune_run_log.sql");
const PRUNE_MESSAGES: &str =
    include_str!("../../../../sql/sqlite/statements/prune_system_messages.sql");

/// Rows that one transaction of the retention deletes, so that appends do not wait long for it.
const PRUNE_MAX: usize = 1_000;

/// Changes a generation's status, if it is one of those named, and records it. Raises the epochs, so
/// that no batch goes on under the old status. The transaction holds the write lock.
pub(in crate::store::sqlite) fn change_status(
    connection: &Connection,
    change: &StatusChange,
) -> Result<bool, rusqlite::Error> {
    if let Some(lease) = change.rebuild {
        let params = (lease.rebuild, lease.epoch);
        if !connection.prepare_cached(OWN_REBUILD)?.exists(params)? {
            return Ok(false);
        }
    }
    let from: Vec<&str> = change.from.iter().map(|status| status.as_str()).collect();
    let from = serde_json::to_string(&from).expect("a list of texts is JSON");
    let params = (change.generation, change.to.as_str(), &change.reason, from);
    if connection.prepare_cached(CHANGE_STATUS)?.execute(params)? == 0 {
        return Ok(false);
    }
    connection.prepare_cached(CLEAR_FAILURES)?.execute([change.generation])?;
    let message = match &change.reason {
        Some(reason) => format!("{}: {reason}", change.to),
        None => change.to.to_string(),
    };
    let message = SystemMessage {
        generation: Some(change.generation),
        kind: "status",
        position: None,
        key: None,
        actor: change.actor.clone(),
        message,
    };
    record(connection, &message)?;
    Ok(true)
}

pub(super) fn list_dead_letters(
    connection: &Connection,
    generation: i32,
    max: usize,
) -> Result<Vec<DeadLetterInfo>, rusqlite::Error> {
    let info = |row: &Row<'_>| {
        Ok(DeadLetterInfo {
            row: dead_letter(row)?,
            stream_id: StreamId::from(row.get_ref(5)?.as_str()?),
            event_type: row.get(6)?,
            created_at: parsed(row, 7)?,
            tried_at: time_or_null(row, 8)?,
            retry_wanted: row.get(9)?,
        })
    };
    connection
        .prepare_cached(LIST_DEAD_LETTERS)?
        .query_map((generation, most(max)), info)?
        .collect()
}

pub(super) fn list_skips(
    connection: &Connection,
    generation: i32,
    max: usize,
) -> Result<Vec<SkipInfo>, rusqlite::Error> {
    let info = |row: &Row<'_>| {
        Ok(SkipInfo {
            position: Position::from_stored(row.get(0)?),
            key: row.get(1)?,
            reason: row.get(2)?,
            skipped_at: parsed(row, 3)?,
        })
    };
    connection.prepare_cached(LIST_SKIPS)?.query_map((generation, most(max)), info)?.collect()
}

pub(super) fn list_messages(
    connection: &Connection,
    about: &MessagesAbout,
) -> Result<Vec<MessageInfo>, rusqlite::Error> {
    let info = |row: &Row<'_>| {
        Ok(MessageInfo {
            id: row.get(7)?,
            projection: row.get(1)?,
            version: row.get(8)?,
            recorded_at: parsed(row, 0)?,
            kind: row.get(2)?,
            position: row.get::<_, Option<i64>>(3)?.map(Position::from_stored),
            key: row.get(4)?,
            actor: row.get(5)?,
            message: row.get(6)?,
        })
    };
    let kinds = about.kinds.as_ref().map(|kinds| serde_json::json!(kinds).to_string());
    let params = (&about.namespace, &about.projection, kinds, most(about.max));
    connection.prepare_cached(LIST_MESSAGES)?.query_map(params, info)?.collect()
}

/// Asks for a retry of one dead letter or of all; how many there were.
pub(super) fn want_retry(
    connection: &Connection,
    generation: i32,
    position: Option<Position>,
) -> Result<u64, rusqlite::Error> {
    let params = (generation, position.map(Position::to_stored));
    Ok(connection.prepare_cached(WANT_RETRY)?.execute(params)? as u64)
}

pub(super) fn wanted_retries(
    connection: &Connection,
    generations: &[i32],
    max: usize,
) -> Result<Vec<(i32, Position)>, rusqlite::Error> {
    let wanted = |row: &Row<'_>| Ok((row.get(0)?, Position::from_stored(row.get(1)?)));
    let params = (numbers(generations), most(max));
    connection.prepare_cached(WANTED_RETRIES)?.query_map(params, wanted)?.collect()
}

/// Deletes some of what is older from the run log and the system messages; whether there is more.
pub(super) fn prune(
    connection: &Connection,
    older_than: Duration,
) -> Result<bool, rusqlite::Error> {
    let age = format!("-{} seconds", older_than.as_secs());
    let mut more = false;
    for sql in [PRUNE_RUNS, PRUNE_MESSAGES] {
        let deleted = connection.prepare_cached(sql)?.execute((&age, most(PRUNE_MAX)))?;
        more |= deleted == PRUNE_MAX;
    }
    Ok(more)
}

fn numbers(generations: &[i32]) -> String {
    serde_json::to_string(generations).expect("a list of numbers is JSON")
}

fn most(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::schema;

    #[test]
    fn retention_deletes_what_is_old_in_bounded_steps() {
        let connection = Connection::open_in_memory().unwrap();
        schema::migrate(&connection, Duration::from_secs(1)).unwrap();
        let insert = "INSERT INTO everfold_system_messages (recorded_at, kind, actor, message)
            VALUES (coalesce(?1, strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'), 'k', 'a', 'm')";
        for _ in 0..PRUNE_MAX + 5 {
            connection.execute(insert, [Some("2001-01-01T00:00:00.000000Z")]).unwrap();
        }
        connection.execute(insert, [None::<&str>]).unwrap();
        let left = || -> usize {
            let count = "SELECT count(*) FROM everfold_system_messages";
            connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
        };
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(prune(&connection, day).unwrap(), "there is more");
        assert_eq!(left(), 6);
        assert!(!prune(&connection, day).unwrap());
        assert_eq!(left(), 1, "the young one stays");
    }
}
