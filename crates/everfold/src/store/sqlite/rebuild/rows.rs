//! Rebuilds as the table has them: asking for one, looking at them, and saying what is wanted of one.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::lease;
use super::target::IS_READ;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::SystemMessage;
use crate::rebuild::row::{
    RebuildFigures, RebuildKind, RebuildPhase, RebuildRequest, RebuildRow, Wanted,
};
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::projection::lease::owner;
use crate::store::sqlite::projection::registry::{json_or_null, word};
use crate::store::sqlite::projection::states::{count, time_or_null};
use crate::store::sqlite::projection::unit::record;
use crate::store::sqlite::read::parsed;

const LIST: &str = include_str!("../../../../sql/sqlite/statements/list_rebuilds.sql");
const REQUEST: &str = include_str!("../../../../sql/sqlite/statements/request_rebuild.sql");
/// If it is to be one that readers see no version of, that too.
const FIND_PROJECTION: &str = "SELECT id FROM everfold_projections \
    WHERE namespace = ?1 AND name = ?2 AND (NOT ?3 OR active_generation IS NULL)";
/// What was removed has generations, and all of them are retired: it is not built again.
const IS_REGISTERED: &str = "SELECT coalesce(max(status <> 'retired'), 1) \
    FROM everfold_generations WHERE projection = ?1";
const FIND_OPEN: &str =
    "SELECT id FROM everfold_rebuilds WHERE projection = ?1 AND finished_at IS NULL";
/// A worker carries generations; what is to be built is one by its definition.
const CARRIERS: &str = "SELECT DISTINCT w.name FROM everfold_rebuilds r \
    JOIN everfold_generations g ON g.projection = r.projection AND g.version = r.version \
        AND g.definition_hash = r.definition_hash \
    JOIN everfold_workers w ON w.expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) \
        AND g.id IN (SELECT value FROM json_each(w.carries)) \
    WHERE r.id = ?1 ORDER BY 1";
const RETIRE: &str =
    "UPDATE everfold_generations SET status = 'retired', reason = NULL WHERE id = ?1";
const WANT: &str = "UPDATE everfold_rebuilds SET wanted = ?2 WHERE id = ?1 AND finished_at IS NULL";

/// Rebuilds, the newest first.
pub(super) fn list(
    connection: &Connection,
    rebuild: Option<i32>,
    open: bool,
    max: usize,
) -> Result<Vec<RebuildRow>, rusqlite::Error> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    connection.prepare_cached(LIST)?.query_map((rebuild, open, max), row)?.collect()
}

/// One rebuild, if there is one with this number.
pub(super) fn find(
    connection: &Connection,
    rebuild: i32,
) -> Result<Option<RebuildRow>, rusqlite::Error> {
    Ok(list(connection, Some(rebuild), false, 1)?.pop())
}

/// Columns in the order of `list_rebuilds.sql`.
fn row(row: &Row<'_>) -> Result<RebuildRow, rusqlite::Error> {
    Ok(RebuildRow {
        id: row.get(0)?,
        namespace: row.get(1)?,
        name: row.get(2)?,
        kind: word(row, 3, RebuildKind::from_stored)?,
        version: row.get(4)?,
        definition_hash: row.get(5)?,
        target: row.get(6)?,
        source: row.get(7)?,
        phase: word(row, 8, RebuildPhase::from_stored)?,
        options: json_or_null(row, 9)?.unwrap_or_default(),
        cutoff: Position::from_stored(row.get(10)?),
        events_done: count(row, 11)?,
        events_total: count(row, 12)?,
        message: row.get(13)?,
        report: json_or_null(row, 23)?.unwrap_or_default(),
        wanted: word(row, 14, Wanted::from_stored)?,
        epoch: row.get(15)?,
        owner: owner(row, 16)?,
        owner_name: row.get(17)?,
        is_owned: row.get(18)?,
        requested_by: row.get(19)?,
        requested_at: parsed(row, 20)?,
        flipped_at: time_or_null(row, 21)?,
        finished_at: time_or_null(row, 22)?,
    })
}

/// Asks for a rebuild, or finds the one that is open (`true`). The transaction holds the write lock.
pub(super) fn request(
    connection: &Connection,
    request: &RebuildRequest,
) -> Result<(RebuildRow, bool), StoreError> {
    let ask = || -> Result<Option<(RebuildRow, bool)>, rusqlite::Error> {
        let names = (&request.namespace, &request.name, request.first);
        let projection: Option<i32> = connection
            .prepare_cached(FIND_PROJECTION)?
            .query_row(names, |row| row.get(0))
            .optional()?;
        let Some(projection) = projection else { return Ok(None) };
        let open: Option<i32> = connection
            .prepare_cached(FIND_OPEN)?
            .query_row([projection], |row| row.get(0))
            .optional()?;
        let registered: bool =
            connection.prepare_cached(IS_REGISTERED)?.query_row([projection], |row| row.get(0))?;
        let id = match open {
            Some(id) => id,
            None if !registered => return Ok(None),
            None => insert(connection, projection, request)?,
        };
        Ok(find(connection, id)?.map(|row| (row, open.is_some())))
    };
    ask().map_err(store_error)?.ok_or_else(|| {
        let message = format!("there is no projection \"{}\" to rebuild", request.name);
        StoreError::new(StoreErrorKind::Missing, message)
    })
}

fn insert(
    connection: &Connection,
    projection: i32,
    request: &RebuildRequest,
) -> Result<i32, rusqlite::Error> {
    let options = serde_json::to_string(&request.options).expect("options are JSON");
    let id = connection.prepare_cached(REQUEST)?.query_row(
        params![
            projection,
            request.kind.as_str(),
            request.version,
            request.definition_hash,
            request.target,
            options,
            request.requested_by,
        ],
        |row| row.get(0),
    )?;
    if let Some(row) = find(connection, id)? {
        say(connection, &row, &request.requested_by, "was asked for")?;
    }
    Ok(id)
}

/// The names of live workers that can build what a rebuild is to build.
pub(super) fn carriers(
    connection: &Connection,
    rebuild: i32,
) -> Result<Vec<String>, rusqlite::Error> {
    connection.prepare_cached(CARRIERS)?.query_map([rebuild], |row| row.get(0))?.collect()
}

/// Writes down what happened to a rebuild.
pub(super) fn say(
    connection: &Connection,
    row: &RebuildRow,
    actor: &str,
    what: &str,
) -> Result<(), rusqlite::Error> {
    let RebuildRow { id, kind, version, .. } = row;
    let message = SystemMessage {
        generation: row.target.or(row.source),
        kind: "rebuild",
        position: None,
        key: None,
        actor: actor.to_owned(),
        message: format!("rebuild {id} ({kind}, version {version}) {what}"),
    };
    record(connection, &message)
}

/// Notes what an operator wants of a rebuild; `false` if it has ended. One that nobody works on is
/// cancelled at once, unless readers see its target: then somebody has to finish what was begun. The
/// transaction holds the write lock.
pub(super) fn steer(
    connection: &Connection,
    rebuild: i32,
    wanted: Wanted,
    actor: &str,
) -> Result<bool, rusqlite::Error> {
    let Some(row) = find(connection, rebuild)? else { return Ok(false) };
    let is_read =
        connection.prepare_cached(IS_READ)?.query_row([row.target], |row| row.get::<_, bool>(0))?;
    if wanted == Wanted::Cancel && (is_read || row.flipped_at.is_some()) {
        return Ok(false);
    }
    if connection.prepare_cached(WANT)?.execute((rebuild, wanted.as_str()))? == 0 {
        return Ok(false);
    }
    if wanted == Wanted::Cancel && !row.is_owned {
        if row.kind != RebuildKind::Switch {
            connection.prepare_cached(RETIRE)?.execute([row.target])?;
        }
        let figures = RebuildFigures {
            phase: Some(RebuildPhase::Cancelled),
            events_done: row.events_done,
            events_total: row.events_total,
            message: Some(format!("cancelled by {actor}")),
            report: None,
        };
        return lease::finish(connection, &row, &figures, actor);
    }
    let what = match wanted {
        Wanted::Run => "is to go on",
        Wanted::Pause => "is to pause",
        Wanted::Cancel => "is to be cancelled",
    };
    say(connection, &row, actor, what)?;
    Ok(true)
}
