//! What `status`, `health` and `wait` ask: where generations stand, and how far they are.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use super::registry;
use super::unit::owed_to;
use crate::Position;
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{
    Generation, GenerationState, GenerationStatus, LastVerification, ShardState,
};
use crate::store::sqlite::read;
use crate::store::{AllPage, Heads, Reach};

const SHARDS: &str = include_str!("../../../../sql/sqlite/statements/list_shard_states.sql");
const OWED: &str = include_str!("../../../../sql/sqlite/statements/count_owed.sql");
const RECENT: &str = include_str!("../../../../sql/sqlite/statements/sum_recent_runs.sql");
const REACH: &str = include_str!("../../../../sql/sqlite/statements/read_reach.sql");
const NOW: &str = "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'";
const RECORDED_AT: &str = "SELECT recorded_at FROM everfold_events WHERE position >= ?1 \
    ORDER BY position LIMIT 1";
const OWES: &str = "SELECT EXISTS (SELECT 1 FROM everfold_skips s WHERE s.generation = ?1 \
    AND s.position <= ?2 AND NOT EXISTS (SELECT 1 FROM everfold_dead_letters d \
                    WHERE d.generation = s.generation AND d.key = s.key))";

const LAST_VERIFIED: &str = "SELECT verified_at, scope, compared, differences \
    FROM everfold_verifications WHERE generation = ?1 ORDER BY id DESC LIMIT 1";

/// Events behind are counted up to here.
const BEHIND_MAX: usize = 10_000;

/// All generations that are not retired, at one moment.
pub(super) fn states(connection: &Connection) -> Result<Vec<GenerationState>, rusqlite::Error> {
    let snapshot = connection.unchecked_transaction()?;
    let head = read::high_water_mark(&snapshot)?;
    let listed = registry::list(&snapshot, None, |row| {
        Ok((registry::generation(row)?, read::parsed::<Timestamp>(row, 16)?))
    })?;
    listed
        .into_iter()
        .map(|(generation, since)| state(&snapshot, generation, since, head))
        .collect()
}

fn state(
    connection: &Connection,
    generation: Generation,
    status_since: Timestamp,
    head: Position,
) -> Result<GenerationState, rusqlite::Error> {
    let id = generation.id;
    let shards: Vec<ShardState> = connection
        .prepare_cached(SHARDS)?
        .query_map([id], shard_state)?
        .collect::<Result<_, _>>()?;
    let (behind_events, behind_since) = behind(connection, &generation, &shards, head)?;
    let (recent_events, recent_seconds) = recent(connection, id)?;
    let verified = last_verified(connection, id)?;
    connection.prepare_cached(OWED)?.query_row([id], |row| {
        Ok(GenerationState {
            status_since,
            open_skips: count(row, 0)?,
            oldest_skip: time_or_null(row, 1)?,
            dead_letters: count(row, 2)?,
            oldest_dead_letter: time_or_null(row, 3)?,
            held_events: count(row, 4)?,
            behind_since,
            behind_events,
            recent_events,
            recent_seconds,
            verified,
            shards,
            generation,
        })
    })
}

fn last_verified(
    connection: &Connection,
    generation: i32,
) -> Result<Option<LastVerification>, rusqlite::Error> {
    let last = |row: &Row<'_>| {
        Ok(LastVerification {
            at: read::parsed(row, 0)?,
            scope: row.get(1)?,
            compared: count(row, 2)?,
            differences: count(row, 3)?,
        })
    };
    connection.prepare_cached(LAST_VERIFIED)?.query_row([generation], last).optional()
}

fn shard_state(row: &Row<'_>) -> Result<ShardState, rusqlite::Error> {
    Ok(ShardState {
        shard: row.get(0)?,
        position: Position::from_stored(row.get(1)?),
        owner_name: row.get(4)?,
        owner_since: time_or_null(row, 8)?,
        last_owner: row.get(9)?,
        expires_at: row
            .get::<_, Option<i64>>(10)?
            .and_then(|at| Timestamp::from_millisecond(at).ok()),
        moved_at: read::parsed(row, 5)?,
        attempts: row.get(6)?,
        failure: row.get(7)?,
    })
}

/// How many wanted events there are behind the lowest checkpoint, and when the first of them was
/// recorded. An inline generation that appends feed is not fed from the log; what it owes are its skips.
fn behind(
    connection: &Connection,
    generation: &Generation,
    shards: &[ShardState],
    head: Position,
) -> Result<(u64, Option<Timestamp>), rusqlite::Error> {
    let lowest = shards.iter().map(|shard| shard.position).min();
    use GenerationStatus::{Building, Kept, Rebuilding};
    let from_the_log = generation.lifecycle == Lifecycle::CatchUp
        || matches!(generation.status, Building | Rebuilding | Kept);
    let Some(after) = lowest.filter(|_| from_the_log) else {
        return Ok((0, None));
    };
    let types = generation.event_types.clone();
    let page = AllPage { after, up_to: head, types, max: BEHIND_MAX, dense: false };
    let positions = read::positions(connection, &page)?;
    let since = match positions.first() {
        Some(&first) => recorded_at(connection, first)?,
        None => None,
    };
    Ok((positions.len() as u64, since))
}

fn recent(connection: &Connection, generation: i32) -> Result<(u64, f64), rusqlite::Error> {
    let mut statement = connection.prepare_cached(RECENT)?;
    statement.query_row([generation], |row| Ok((count(row, 0)?, row.get(1)?)))
}

/// When the event at a position was recorded, or the first one behind it.
fn recorded_at(
    connection: &Connection,
    position: i64,
) -> Result<Option<Timestamp>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(RECORDED_AT)?;
    statement.query_row([position], |row| read::parsed(row, 0)).optional()
}

pub(in crate::store::sqlite) fn count(
    row: &Row<'_>,
    column: usize,
) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

pub(in crate::store::sqlite) fn time_or_null(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<Timestamp>, rusqlite::Error> {
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => read::parsed(row, column).map(Some),
    }
}

/// How far a projection is; `None` if there is no such projection.
pub(super) fn reach(
    connection: &Connection,
    namespace: &str,
    name: &str,
    position: Position,
) -> Result<Option<Reach>, rusqlite::Error> {
    connection
        .prepare_cached(REACH)?
        .query_row((namespace, name, position.to_stored()), |row| {
            Ok(Reach {
                position: Position::from_stored(row.get(0)?),
                owed: count(row, 1)?,
                status: registry::word(row, 2, GenerationStatus::from_stored)?,
                reason: row.get(3)?,
            })
        })
        .optional()
}

/// Which of these generations owe open skips that no dead letter holds.
pub(super) fn owing(
    connection: &Connection,
    mut generations: Vec<i32>,
) -> Result<Vec<i32>, rusqlite::Error> {
    let mut owing = Vec::new();
    for generation in generations.drain(..) {
        if owes(connection, generation)? {
            owing.push(generation);
        }
    }
    Ok(owing)
}

/// Whether a generation owes open skips that no dead letter holds.
pub(super) fn owes(connection: &Connection, generation: i32) -> Result<bool, rusqlite::Error> {
    let owed_to = owed_to(connection, generation)?;
    connection.prepare_cached(OWES)?.query_row((generation, owed_to), |row| row.get(0))
}

/// The mark, which here is the highest position, and the time.
pub(super) fn heads(connection: &Connection) -> Result<Heads, rusqlite::Error> {
    let mark = read::high_water_mark(connection)?;
    let now = connection.prepare_cached(NOW)?.query_row([], |row| read::parsed(row, 0))?;
    Ok(Heads { mark, highest: mark, now })
}
