//! Who works on a rebuild: a lease by the clock of SQLite, fenced by an epoch, as those of shards. With
//! it come the checkpoints of the target, whose epochs fence the batches.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::rows;
use crate::Position;
use crate::projection::generation::{Lease, ShardId};
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase, RebuildRow};

const TAKE: &str = include_str!("../../../../sql/sqlite/statements/take_rebuild.sql");
const BEAT: &str = include_str!("../../../../sql/sqlite/statements/beat_rebuild.sql");
const END: &str = include_str!("../../../../sql/sqlite/statements/end_rebuild.sql");
const LEAVE: &str = "UPDATE everfold_rebuilds SET owner = NULL, expires_at = NULL \
    WHERE id = ?1 AND epoch = ?2 AND owner = ?3";
const TAKE_SHARDS: &str = "UPDATE everfold_checkpoints SET epoch = epoch + 1, owner = ?2, \
    expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3 WHERE generation = ?1";
/// Those that nobody has.
const TAKE_FREE_SHARDS: &str = "UPDATE everfold_checkpoints SET epoch = epoch + 1, owner = ?2, \
    expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3 \
    WHERE generation = ?1 AND (owner IS NULL OR (owner <> ?2 \
        AND coalesce(expires_at, 0) <= CAST(unixepoch('subsec') * 1000 AS INTEGER)))";
const COUNT_FOREIGN_SHARDS: &str =
    "SELECT count(*) FROM everfold_checkpoints WHERE generation = ?1 AND owner IS NOT ?2";
const PROLONG_SHARDS: &str = "UPDATE everfold_checkpoints \
    SET expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3 \
    WHERE generation = ?1 AND owner = ?2";
const RELEASE_SHARDS: &str = "UPDATE everfold_checkpoints SET owner = NULL, expires_at = NULL \
    WHERE generation = ?1 AND owner = ?2";
const LIST_SHARDS: &str = "SELECT generation, shard, epoch, position FROM everfold_checkpoints \
    WHERE generation = ?1 ORDER BY shard";
const MILLISECONDS_LEFT: &str = "SELECT max(0, coalesce(expires_at, 0) \
    - CAST(unixepoch('subsec') * 1000 AS INTEGER)) FROM everfold_rebuilds WHERE id = ?1";

/// Takes a rebuild that nobody works on, with the checkpoints of its target. The transaction holds
/// the write lock.
pub(super) fn take(
    connection: &Connection,
    rebuild: i32,
    worker: Uuid,
    worker_name: &str,
    ttl: Duration,
) -> Result<Option<RebuildLease>, rusqlite::Error> {
    let params = (rebuild, worker.to_string(), worker_name, milliseconds(ttl));
    let taken: Option<(i64, Option<i32>)> = connection
        .prepare_cached(TAKE)?
        .query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((epoch, target)) = taken else { return Ok(None) };
    if let Some(target) = target {
        let params = (target, worker.to_string(), milliseconds(ttl));
        connection.prepare_cached(TAKE_SHARDS)?.execute(params)?;
    }
    Ok(Some(RebuildLease { rebuild, epoch, worker }))
}

/// The rebuild, if the lease still holds.
pub(super) fn held(
    connection: &Connection,
    lease: RebuildLease,
) -> Result<Option<RebuildRow>, rusqlite::Error> {
    let row = rows::find(connection, lease.rebuild)?;
    Ok(row.filter(|row| row.epoch == lease.epoch && row.finished_at.is_none()))
}

/// Makes the worker the owner of those of the target's checkpoints that nobody has, for as long as it
/// has the rebuild. `false` if somebody else has one.
pub(super) fn take_target(
    connection: &Connection,
    lease: RebuildLease,
    target: i32,
) -> Result<bool, rusqlite::Error> {
    let left: i64 = connection
        .prepare_cached(MILLISECONDS_LEFT)?
        .query_row([lease.rebuild], |row| row.get(0))?;
    let worker = lease.worker.to_string();
    connection.prepare_cached(TAKE_FREE_SHARDS)?.execute((target, &worker, left))?;
    let mut statement = connection.prepare_cached(COUNT_FOREIGN_SHARDS)?;
    let foreign: i64 = statement.query_row((target, &worker), |row| row.get(0))?;
    Ok(foreign == 0)
}

/// A sign of life with progress; the row as it is then.
pub(super) fn beat(
    connection: &Connection,
    lease: RebuildLease,
    ttl: Duration,
    figures: &RebuildFigures,
) -> Result<Option<RebuildRow>, rusqlite::Error> {
    let ttl = milliseconds(ttl);
    let params = params![
        lease.rebuild,
        lease.epoch,
        ttl,
        figures.phase.map(RebuildPhase::as_str),
        stored(figures.events_done),
        stored(figures.events_total),
        figures.message,
        figures.report.as_ref().and_then(|report| serde_json::to_string(report).ok()),
    ];
    if connection.prepare_cached(BEAT)?.execute(params)? == 0 {
        return Ok(None);
    }
    let row = rows::find(connection, lease.rebuild)?;
    if let Some(target) = row.as_ref().and_then(|row| row.target) {
        let params = (target, lease.worker.to_string(), ttl);
        connection.prepare_cached(PROLONG_SHARDS)?.execute(params)?;
    }
    Ok(row)
}

/// Gives the lease up.
pub(super) fn leave(connection: &Connection, lease: RebuildLease) -> Result<(), rusqlite::Error> {
    let worker = lease.worker.to_string();
    let Some(row) = held(connection, lease)? else { return Ok(()) };
    connection.prepare_cached(LEAVE)?.execute((lease.rebuild, lease.epoch, &worker))?;
    release(connection, &row, &worker)
}

/// Ends a rebuild and records it; `false` if the lease is lost.
pub(super) fn end(
    connection: &Connection,
    lease: RebuildLease,
    figures: &RebuildFigures,
    actor: &str,
) -> Result<bool, rusqlite::Error> {
    match held(connection, lease)? {
        Some(row) => finish(connection, &row, figures, actor),
        None => Ok(false),
    }
}

/// Ends a rebuild that is as the row says.
pub(super) fn finish(
    connection: &Connection,
    row: &RebuildRow,
    figures: &RebuildFigures,
    actor: &str,
) -> Result<bool, rusqlite::Error> {
    let phase = figures.phase.unwrap_or(row.phase);
    let params = params![
        row.id,
        row.epoch,
        phase.as_str(),
        stored(figures.events_done),
        stored(figures.events_total),
        figures.message,
    ];
    if connection.prepare_cached(END)?.execute(params)? == 0 {
        return Ok(false);
    }
    if let Some(owner) = row.owner {
        release(connection, row, &owner.to_string())?;
    }
    let what = match &figures.message {
        Some(message) => format!("is {phase}: {message}"),
        None => format!("is {phase}"),
    };
    rows::say(connection, row, actor, &what)?;
    Ok(true)
}

fn release(connection: &Connection, row: &RebuildRow, worker: &str) -> Result<(), rusqlite::Error> {
    match row.target {
        Some(target) => {
            connection.prepare_cached(RELEASE_SHARDS)?.execute((target, worker)).map(|_| ())
        }
        None => Ok(()),
    }
}

/// The leases of the target's shards, `None` if the rebuild is somebody else's, or a runner has one,
/// which can be after the switch. A shard that was taken from the worker, by the switch or by an operator
/// who stopped and resumed the generation, is taken again.
pub(super) fn target_leases(
    connection: &Connection,
    lease: RebuildLease,
) -> Result<Option<Vec<Lease>>, rusqlite::Error> {
    let Some(row) = held(connection, lease)? else { return Ok(None) };
    let Some(target) = row.target else { return Ok(Some(Vec::new())) };
    if !take_target(connection, lease, target)? {
        return Ok(None);
    }
    let lease = |row: &rusqlite::Row<'_>| {
        Ok(Lease {
            shard: ShardId { generation: row.get(0)?, shard: row.get(1)? },
            epoch: row.get(2)?,
            position: Position::from_stored(row.get(3)?),
        })
    };
    let mut statement = connection.prepare_cached(LIST_SHARDS)?;
    let leases = statement.query_map([target], lease)?.collect::<Result<_, _>>()?;
    Ok(Some(leases))
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
