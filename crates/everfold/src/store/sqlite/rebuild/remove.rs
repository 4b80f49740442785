//! Removing a generation that readers do not see. The one that they see goes only with its projection:
//! it is withdrawn first, which leaves the projection without one.
//!
//! ```text
//!   begin: retired, readers' views dropped ──> rows, a few at a time … ──> end: tables dropped, noted
//! ```
//!
//! Dropping a table of a million rows keeps the file for a second, because each of its pages goes to the
//! list of free ones. So rows are deleted in transactions of some milliseconds first, with appends in
//! between, and what is dropped at the end is empty. Each step looks at what is there: it can be stopped
//! after any of them, and whoever calls again goes on.

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension};

use super::target;
use crate::error::{ProjectionError, StoreError};
use crate::projection::generation::{Generation, GenerationStatus, SystemMessage};
use crate::projection::projector::{ApplyError, Projector};
use crate::store::Removed;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::connection::in_transaction;
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::projection::ENGINE_PATIENCE;
use crate::store::sqlite::projection::apply::guarded;
use crate::store::sqlite::projection::names::identifier;
use crate::store::sqlite::projection::registry::{self, json_or_null, word};
use crate::store::sqlite::projection::unit::record;
use crate::store::sqlite::projection::views;

const FIND: &str = "SELECT p.name, g.version, g.home, g.tables, g.status, g.id IS p.active_generation \
    FROM everfold_generations g JOIN everfold_projections p ON p.id = g.projection WHERE g.id = ?1";
const FIND_REBUILD: &str = "SELECT id, target IS ?1 FROM everfold_rebuilds \
    WHERE finished_at IS NULL AND (target = ?1 OR source = ?1) LIMIT 1";
/// By one of its generations.
const FIND_OPEN_REBUILD: &str = "SELECT r.id, p.name FROM everfold_rebuilds r \
    JOIN everfold_generations g ON g.projection = r.projection \
    JOIN everfold_projections p ON p.id = r.projection \
    WHERE g.id = ?1 AND r.finished_at IS NULL LIMIT 1";
const LIST_PRESENT: &str = "SELECT o.id FROM everfold_generations g \
    JOIN everfold_generations o ON o.projection = g.projection \
    WHERE g.id = ?1 AND o.status <> 'retired' ORDER BY o.id";
const WITHDRAW: &str = "UPDATE everfold_projections SET active_generation = NULL \
    WHERE id = (SELECT projection FROM everfold_generations WHERE id = ?1)";
const LIST_OBJECTS: &str = "SELECT type, name FROM sqlite_schema \
    WHERE type IN ('view', 'trigger') AND substr(name, 1, length(?1)) = ?1 ORDER BY type, name";
const LIST_TABLES: &str = "SELECT name, wr, type FROM pragma_table_list \
    WHERE schema = 'main' AND type IN ('table', 'virtual') AND substr(name, 1, length(?1)) = ?1 \
    ORDER BY type DESC, name";
const LIST_KEY: &str = "SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk";
const NOTE_REMOVED: &str = "UPDATE everfold_generations SET home = '', tables = '[]' WHERE id = ?1";
/// What is owed and put aside, by position within the generation.
const ROWS: [&str; 2] = ["everfold_skips", "everfold_dead_letters"];

/// How long a transaction that deletes rows should take.
const STEP: Duration = Duration::from_millis(20);
/// Longest rest between two of them, which is as long as the last one took.
const REST_MAX: Duration = Duration::from_millis(100);
const ROWS_FIRST: usize = 500;
const ROWS_MAX: usize = 20_000;

/// A generation that is to go.
struct Going {
    id: i32,
    name: String,
    version: u32,
    home: String,
    tables: Vec<String>,
    status: GenerationStatus,
    is_active: bool,
}

/// How far a step came.
pub(super) enum Stepped {
    /// There is more; how many rows are a good number next time.
    More(usize),
    Gone,
}

/// Retired generations whose tables are still there.
pub(super) fn leftovers(connection: &Connection) -> Result<Vec<Generation>, rusqlite::Error> {
    registry::leftovers(connection)
}

pub(super) async fn remove(
    store: &SqliteStore,
    generation: i32,
    projector: Option<Projector>,
    actor: String,
) -> Result<Removed, ProjectionError> {
    let by = actor.clone();
    let begin = move |connection: &Connection| {
        in_transaction(connection, ENGINE_PATIENCE, |connection| begin(connection, generation, &by))
    };
    store.writer.run_job(begin).await??;
    let mut rows = ROWS_FIRST;
    loop {
        let (projector, actor) = (projector.clone(), actor.clone());
        let step = move |connection: &Connection| {
            without_foreign_keys(connection, || {
                in_transaction(connection, ENGINE_PATIENCE, |connection| {
                    step(connection, generation, projector.as_ref(), &actor, rows)
                })
            })
        };
        let begun = Instant::now();
        match store.writer.run_job(step).await?? {
            Stepped::More(next) => {
                rows = next;
                // Writers of other processes look now and then whether the file is free.
                tokio::time::sleep(begun.elapsed().min(REST_MAX)).await;
            }
            Stepped::Gone => return Ok(Removed::Done),
        }
    }
}

/// Retires all generations of a projection, so that readers see none.
pub(super) async fn withdraw(
    store: &SqliteStore,
    generation: i32,
    actor: String,
) -> Result<(), ProjectionError> {
    let withdraw = move |connection: &Connection| {
        in_transaction(connection, ENGINE_PATIENCE, |connection| {
            withdraw_in(connection, generation, &actor)
        })
    };
    store.writer.run_job(withdraw).await?
}

/// The transaction holds the write lock.
fn withdraw_in(
    connection: &Connection,
    generation: i32,
    actor: &str,
) -> Result<(), ProjectionError> {
    let look = || -> Result<Option<(i32, String)>, rusqlite::Error> {
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        connection.prepare_cached(FIND_OPEN_REBUILD)?.query_row([generation], row).optional()
    };
    if let Some((rebuild, projection)) = look().map_err(store_error)? {
        let message = format!("has rebuild {rebuild} open; let it finish, or cancel it");
        return Err(ProjectionError::Refused { projection, message });
    }
    let withdraw = || -> Result<(), rusqlite::Error> {
        let mut present = connection.prepare_cached(LIST_PRESENT)?;
        let present: Vec<i32> =
            present.query_map([generation], |row| row.get(0))?.collect::<Result<_, _>>()?;
        connection.execute(WITHDRAW, [generation])?;
        for id in present {
            let reason = Some(format!("{actor} removed the projection"));
            target::retire_because(connection, id, actor, reason)?;
        }
        Ok(())
    };
    Ok(withdraw().map_err(store_error)?)
}

/// Retires a generation, if nobody sees or fills it, and hides it from readers. The transaction holds
/// the write lock.
pub(super) fn begin(
    connection: &Connection,
    generation: i32,
    actor: &str,
) -> Result<(), ProjectionError> {
    let Some(going) = find(connection, generation).map_err(store_error)? else { return Ok(()) };
    check_unused(connection, &going)?;
    let hide = || -> Result<(), rusqlite::Error> {
        if going.status != GenerationStatus::Retired {
            target::retire(connection, generation, actor)?;
        }
        for table in &going.tables {
            views::drop_of(connection, &format!("{}{table}", going.home))?;
        }
        // A trigger would see rows go that nobody has deleted.
        drop_objects(connection, &going.home)
    };
    Ok(hide().map_err(store_error)?)
}

/// Deletes some rows, or drops what is empty. The transaction holds the write lock.
pub(super) fn step(
    connection: &Connection,
    generation: i32,
    projector: Option<&Projector>,
    actor: &str,
    rows: usize,
) -> Result<Stepped, ProjectionError> {
    let Some(going) = find(connection, generation).map_err(store_error)? else {
        return Ok(Stepped::Gone);
    };
    // Between two steps somebody may have begun to use it again.
    check_unused(connection, &going)?;
    let begun = Instant::now();
    if delete_some(connection, &going, rows).map_err(store_error)? {
        return Ok(Stepped::More(next_rows(rows, begun.elapsed())));
    }
    tear_down(connection, &going, projector)?;
    end(connection, &going, actor).map_err(store_error)?;
    Ok(Stepped::Gone)
}

fn next_rows(rows: usize, took: Duration) -> usize {
    let fits = rows as f64 * STEP.as_secs_f64() / took.as_secs_f64().max(1e-6);
    // No more than twice as many: the next ones may be larger.
    (fits as usize).clamp(10, (rows * 2).min(ROWS_MAX))
}

/// A generation that is not removed yet.
fn find(connection: &Connection, generation: i32) -> Result<Option<Going>, rusqlite::Error> {
    let going = |row: &rusqlite::Row<'_>| {
        Ok(Going {
            id: generation,
            name: row.get(0)?,
            version: row.get(1)?,
            home: row.get(2)?,
            tables: json_or_null(row, 3)?.unwrap_or_default(),
            status: word(row, 4, GenerationStatus::from_stored)?,
            is_active: row.get(5)?,
        })
    };
    let found = connection.prepare_cached(FIND)?.query_row([generation], going).optional()?;
    Ok(found.filter(|going| !going.home.is_empty()))
}

fn check_unused(connection: &Connection, going: &Going) -> Result<(), ProjectionError> {
    let refused =
        |message: String| Err(ProjectionError::Refused { projection: going.name.clone(), message });
    let Going { id, version, .. } = going;
    if going.is_active {
        return refused(format!(
            "has readers of version {version} (generation {id}), so it cannot be removed; promote \
             another one first"
        ));
    }
    let look = || {
        let rebuild = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        connection.prepare_cached(FIND_REBUILD)?.query_row([id], rebuild).optional()
    };
    let rebuild: Option<(i32, bool)> = look().map_err(store_error)?;
    match rebuild {
        Some((rebuild, true)) => refused(format!(
            "is being rebuilt: rebuild {rebuild} fills version {version} (generation {id}); cancel it, \
             or let it end"
        )),
        Some((rebuild, false)) if going.status != GenerationStatus::Retired => refused(format!(
            "is being rebuilt: rebuild {rebuild} may still need version {version} (generation {id}), \
             which it switches away from; let it end"
        )),
        _ => Ok(()),
    }
}

/// Deletes rows of the first table that has some; whether there were any.
fn delete_some(
    connection: &Connection,
    going: &Going,
    rows: usize,
) -> Result<bool, rusqlite::Error> {
    let tables = tables(connection, &going.home)?;
    for (table, without_rowid, _) in tables.iter().filter(|(_, _, kind)| kind == "table") {
        let key = match without_rowid {
            true => key(connection, table)?,
            false => "_rowid_".to_owned(),
        };
        let table = identifier(table);
        let sql = format!(
            "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT {rows})"
        );
        if connection.execute(&sql, [])? > 0 {
            return Ok(true);
        }
    }
    for table in ROWS {
        let sql = format!(
            "DELETE FROM {table} WHERE generation = ?1 AND position IN \
             (SELECT position FROM {table} WHERE generation = ?1 LIMIT {rows})"
        );
        if connection.execute(&sql, [going.id])? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tables with this prefix, virtual ones first: those take their own tables with them.
fn tables(
    connection: &Connection,
    home: &str,
) -> Result<Vec<(String, bool, String)>, rusqlite::Error> {
    let table = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    connection.prepare(LIST_TABLES)?.query_map([home], table)?.collect()
}

fn key(connection: &Connection, table: &str) -> Result<String, rusqlite::Error> {
    let names: Vec<String> = connection
        .prepare(LIST_KEY)?
        .query_map([table], |row| Ok(identifier(row.get_ref(0)?.as_str()?)))?
        .collect::<Result<_, _>>()?;
    Ok(names.join(", "))
}

/// Drops the views and triggers with this prefix.
fn drop_objects(connection: &Connection, home: &str) -> Result<(), rusqlite::Error> {
    let object = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let objects: Vec<(String, String)> =
        connection.prepare(LIST_OBJECTS)?.query_map([home], object)?.collect::<Result<_, _>>()?;
    for (kind, name) in objects {
        connection.execute_batch(&format!("DROP {kind} IF EXISTS {}", identifier(&name)))?;
    }
    Ok(())
}

/// Lets a handler remove what it made elsewhere, in the transaction that drops the rest: so it is done
/// once.
fn tear_down(
    connection: &Connection,
    going: &Going,
    projector: Option<&Projector>,
) -> Result<(), ProjectionError> {
    let Some(Projector::SqliteHandler(handler)) = projector else { return Ok(()) };
    let failed = |message: String| ProjectionError::Refused {
        projection: going.name.clone(),
        message: format!(
            "could not be removed: the tear-down of version {} (generation {}) failed: {message}",
            going.version, going.id
        ),
    };
    match guarded(connection, || handler.tear_down(&going.home, connection)) {
        Ok(()) => Ok(()),
        Err(ApplyError::Store(error)) => Err(error.into()),
        Err(ApplyError::Refused { message, .. } | ApplyError::Broken { message }) => {
            Err(failed(message))
        }
        Err(ApplyError::OutOfTime(late)) => Err(failed(late.message)),
        Err(ApplyError::LeaseLost) => unreachable!("a removal holds no lease"),
    }
}

/// Drops the empty tables, and notes that it is gone.
fn end(connection: &Connection, going: &Going, actor: &str) -> Result<(), rusqlite::Error> {
    drop_objects(connection, &going.home)?;
    for (table, _, _) in tables(connection, &going.home)? {
        connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", identifier(&table)))?;
    }
    for table in ["everfold_checkpoints", ROWS[0], ROWS[1]] {
        connection.execute(&format!("DELETE FROM {table} WHERE generation = ?1"), [going.id])?;
    }
    connection.execute(NOTE_REMOVED, [going.id])?;
    let message = SystemMessage {
        generation: Some(going.id),
        kind: "rebuild",
        position: None,
        key: None,
        actor: actor.to_owned(),
        message: format!("version {} (generation {}) was removed", going.version, going.id),
    };
    record(connection, &message)
}

/// Rows that refer to each other go in any order. The setting cannot be changed in a transaction.
pub(super) fn without_foreign_keys<T, E: From<StoreError>>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let set = |on: bool| connection.pragma_update(None, "foreign_keys", on).map_err(store_error);
    let before: bool = connection
        .pragma_query_value(None, "foreign_keys", |row| row.get(0))
        .map_err(store_error)?;
    set(false)?;
    let outcome = work();
    set(before)?;
    outcome
}
