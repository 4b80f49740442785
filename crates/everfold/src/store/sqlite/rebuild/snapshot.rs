//! Snapshots of read models: read at one moment on a connection for reading, and written a little at a
//! time, so that nobody waits for long.

use std::sync::Arc;

use rusqlite::types::Value as Stored;
use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::json;
use tokio::sync::mpsc;

use super::super::SqliteStore;
use super::super::projection::names::identifier;
use super::super::projection::registry::json_or_null;
use super::super::read;
use super::lease;
use super::looking::{failed, positions, written_columns};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::projection::projector::ApplyError;
use crate::rebuild::ReadModelSnapshot;
use crate::rebuild::holding::fed_by_appends;
use crate::rebuild::row::RebuildLease;
use crate::rebuild::snapshot::{KeptLetter, KeptSkip};

const CHECKPOINTS: &str =
    "SELECT position FROM everfold_checkpoints WHERE generation = ?1 ORDER BY shard";
const DEAD_LETTERS: &str = "SELECT position, key, behind, error, attempts FROM everfold_dead_letters \
    WHERE generation = ?1 ORDER BY position";
const SKIPS: &str =
    "SELECT position, key, reason FROM everfold_skips WHERE generation = ?1 ORDER BY position";
/// A row without positions is one that is being made, or that nobody went on with.
const INSERT: &str = "INSERT INTO everfold_read_model_snapshots (projection, generation, version, \
    definition_hash, home, tables, positions, taken_by) \
    SELECT g.projection, g.id, g.version, g.definition_hash, '', '[]', '[]', ?2 \
    FROM everfold_generations g WHERE g.id = ?1 RETURNING id";
const NAME_HOME: &str =
    "UPDATE everfold_read_model_snapshots SET home = ?2, tables = ?3 WHERE id = ?1";
const COMPLETE: &str = "UPDATE everfold_read_model_snapshots \
    SET positions = ?2, dead_letters = ?3, skips = ?4, rows = ?5, bytes = ?6 WHERE id = ?1";
const BYTES: &str =
    "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = ?1 AND aggregate = TRUE";
const LIST: &str = "SELECT s.id, p.name, s.version, s.positions, s.rows, s.taken_by, s.taken_at, \
    s.definition_hash, s.bytes FROM everfold_read_model_snapshots s \
    JOIN everfold_projections p ON p.id = s.projection \
    WHERE ((p.namespace = ?1 AND p.name = ?2) OR s.id = ?3) AND s.positions <> '[]' ORDER BY s.id DESC";
const UNFINISHED: &str = "SELECT s.id FROM everfold_read_model_snapshots s \
    WHERE s.projection = (SELECT projection FROM everfold_generations WHERE id = ?1) \
    AND s.positions = '[]' AND s.taken_at < strftime('%Y-%m-%dT%H:%M:%f', 'now', '-1 hours')";
const FIND: &str = "SELECT s.home, s.tables, s.positions, s.dead_letters, s.skips \
    FROM everfold_read_model_snapshots s WHERE s.id = ?1 AND s.definition_hash = ?2";
const DROP_ROW: &str = "DELETE FROM everfold_read_model_snapshots WHERE id = ?1";
const HOME: &str = "SELECT home, tables FROM everfold_read_model_snapshots WHERE id = ?1";
const IS_FILLED: &str =
    "SELECT EXISTS (SELECT 1 FROM everfold_checkpoints WHERE generation = ?1 AND position > 0)";
const FILL_CHECKPOINT: &str =
    "UPDATE everfold_checkpoints SET position = ?3 WHERE generation = ?1 AND shard = ?2";
const FILL_DEAD_LETTER: &str = "INSERT INTO everfold_dead_letters \
    (generation, position, key, behind, error, attempts) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const FILL_SKIP: &str =
    "INSERT INTO everfold_skips (generation, position, key, reason) VALUES (?1, ?2, ?3, ?4)";

/// Rows that are written in one transaction.
const ROWS: usize = 500;
/// Pages of rows that wait to be written.
const PAGES: usize = 4;

/// What is read, piece by piece.
enum Piece {
    Rows { table: usize, rows: Vec<Vec<Stored>> },
    Rest { positions: Vec<i64>, dead_letters: Vec<KeptLetter>, skips: Vec<KeptSkip> },
}

/// Takes a snapshot.
pub(super) async fn take(
    store: &SqliteStore,
    generation: Arc<Generation>,
    actor: String,
) -> Result<ReadModelSnapshot, StoreError> {
    let id = generation.id;
    let unfinished: Vec<Position> =
        store.ask(move |connection| positions(connection, UNFINISHED, id)).await?;
    for left in unfinished {
        drop_snapshot(store, i32::try_from(left.0).unwrap_or(0)).await?;
    }
    let begun = Arc::clone(&generation);
    let snapshot = store.change(move |connection| begin(connection, &begun, &actor)).await?;
    let outcome = copy(store, generation, snapshot).await;
    if outcome.is_err() {
        drop_snapshot(store, snapshot).await?;
    }
    outcome?;
    let found = list(store, String::new(), String::new(), Some(snapshot)).await?;
    found.into_iter().next().ok_or_else(|| {
        StoreError::new(StoreErrorKind::Other, format!("snapshot {snapshot} was removed meanwhile"))
    })
}

fn home(snapshot: i32) -> String {
    format!("s{snapshot}_")
}

/// Makes the tables, without keys and indexes.
fn begin(
    connection: &Connection,
    generation: &Generation,
    actor: &str,
) -> Result<i32, rusqlite::Error> {
    let id: i32 =
        connection.prepare_cached(INSERT)?.query_row((generation.id, actor), |row| row.get(0))?;
    for table in &generation.tables {
        let (to, from) = (format!("{}{table}", home(id)), format!("{}{table}", generation.home));
        let sql = format!(
            "CREATE TABLE {} AS SELECT * FROM {} WHERE 0",
            identifier(&to),
            identifier(&from)
        );
        connection.execute_batch(&sql)?;
    }
    let tables = json!(generation.tables).to_string();
    connection.prepare_cached(NAME_HOME)?.execute((id, home(id), tables))?;
    Ok(id)
}

/// Copies what there is at one moment.
async fn copy(
    store: &SqliteStore,
    generation: Arc<Generation>,
    snapshot: i32,
) -> Result<(), StoreError> {
    let (send, mut receive) = mpsc::channel(PAGES);
    let read = Arc::clone(&generation);
    let reading = store.at_one_moment(move |connection| read_all(connection, &read, &send));
    let writing = async {
        let mut count = 0;
        while let Some(piece) = receive.recv().await {
            match piece {
                Piece::Rows { table, rows } => {
                    count += rows.len();
                    let table = format!("{}{}", home(snapshot), generation.tables[table]);
                    store.change(move |connection| write(connection, &table, rows)).await?;
                }
                Piece::Rest { positions, dead_letters, skips } => {
                    let texts = [json!(positions), json!(dead_letters), json!(skips)];
                    let [positions, letters, skips] = texts.map(|value| value.to_string());
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    let bytes = measure(store, &generation, snapshot).await?;
                    let params = (snapshot, positions, letters, skips, count, bytes);
                    let complete = move |connection: &Connection| {
                        connection.prepare_cached(COMPLETE)?.execute(params)
                    };
                    store.change(complete).await?;
                }
            }
        }
        Ok::<_, StoreError>(())
    };
    let (read, written) = futures::future::join(reading, writing).await;
    written?;
    match read {
        Err(ApplyError::Store(error)) => Err(error),
        _ => Ok(()),
    }
}

/// The pages of its tables, which are written by now.
async fn measure(
    store: &SqliteStore,
    generation: &Generation,
    snapshot: i32,
) -> Result<i64, StoreError> {
    let home = home(snapshot);
    let tables: Vec<String> =
        generation.tables.iter().map(|table| format!("{home}{table}")).collect();
    let pages = move |connection: &Connection| {
        let mut bytes = connection.prepare_cached(BYTES)?;
        tables.iter().map(|table| bytes.query_row([table], |row| row.get::<_, i64>(0))).sum()
    };
    store.ask(pages).await
}

fn read_all(
    connection: &Connection,
    generation: &Generation,
    send: &mpsc::Sender<Piece>,
) -> Result<(), ApplyError> {
    let read = || -> Result<(), rusqlite::Error> {
        for (table, name) in generation.tables.iter().enumerate() {
            let from = identifier(&format!("{}{name}", generation.home));
            let mut statement = connection.prepare(&format!("SELECT * FROM {from}"))?;
            let width = statement.column_count();
            let mut found = statement.query([])?;
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                rows.push((0..width).map(|n| row.get(n)).collect::<Result<Vec<Stored>, _>>()?);
                if rows.len() == ROWS {
                    let rows = std::mem::take(&mut rows);
                    if send.blocking_send(Piece::Rows { table, rows }).is_err() {
                        return Ok(());
                    }
                }
            }
            let _ = send.blocking_send(Piece::Rows { table, rows });
        }
        let positions = match fed_by_appends(generation) {
            true => vec![read::high_water_mark(connection)?],
            false => positions(connection, CHECKPOINTS, generation.id)?,
        };
        let positions = positions.into_iter().map(Position::to_stored).collect();
        let dead_letters = list_of(connection, DEAD_LETTERS, generation.id, |row| {
            let (position, key, behind) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(KeptLetter { position, key, behind, error: row.get(3)?, attempts: row.get(4)? })
        })?;
        let skips = list_of(connection, SKIPS, generation.id, |row| {
            Ok(KeptSkip { position: row.get(0)?, key: row.get(1)?, reason: row.get(2)? })
        })?;
        let _ = send.blocking_send(Piece::Rest { positions, dead_letters, skips });
        Ok(())
    };
    read().map_err(failed)
}

fn list_of<T>(
    connection: &Connection,
    sql: &str,
    generation: i32,
    of: impl FnMut(&Row<'_>) -> Result<T, rusqlite::Error>,
) -> Result<Vec<T>, rusqlite::Error> {
    connection.prepare_cached(sql)?.query_map([generation], of)?.collect()
}

fn write(
    connection: &Connection,
    table: &str,
    rows: Vec<Vec<Stored>>,
) -> Result<(), rusqlite::Error> {
    let Some(first) = rows.first() else { return Ok(()) };
    let places = vec!["?"; first.len()].join(", ");
    let sql = format!("INSERT INTO {} VALUES ({places})", identifier(table));
    let mut insert = connection.prepare(&sql)?;
    for row in rows {
        insert.execute(rusqlite::params_from_iter(row))?;
    }
    Ok(())
}

/// The snapshots of a projection, or one by its id.
pub(super) async fn list(
    store: &SqliteStore,
    namespace: String,
    name: String,
    id: Option<i32>,
) -> Result<Vec<ReadModelSnapshot>, StoreError> {
    let snapshot = |row: &Row<'_>| {
        let positions: Vec<i64> = json_or_null(row, 3)?.unwrap_or_default();
        let position = |position: Option<&i64>| {
            position.map_or(Position(0), |position| Position::from_stored(*position))
        };
        Ok(ReadModelSnapshot {
            id: row.get(0)?,
            name: row.get(1)?,
            version: row.get(2)?,
            position: position(positions.iter().min()),
            rows: row.get::<_, i64>(4)?.unsigned_abs(),
            bytes: row.get::<_, i64>(8)?.unsigned_abs(),
            taken_by: row.get(5)?,
            taken_at: read::parsed(row, 6)?,
            definition_hash: row.get(7)?,
            reaches: position(positions.iter().max()),
        })
    };
    let ask = move |connection: &Connection| {
        connection.prepare_cached(LIST)?.query_map((namespace, name, id), snapshot)?.collect()
    };
    store.ask(ask).await
}

/// Removes a snapshot: its rows a few at a time, then the tables.
pub(super) async fn drop_snapshot(store: &SqliteStore, id: i32) -> Result<(), StoreError> {
    let read = move |connection: &Connection| {
        let home = |row: &Row<'_>| Ok((row.get(0)?, json_or_null(row, 1)?.unwrap_or_default()));
        connection.prepare_cached(HOME)?.query_row([id], home).optional()
    };
    let found: Option<(String, Vec<String>)> = store.ask(read).await?;
    let Some((home, tables)) = found else { return Ok(()) };
    for table in tables {
        let table = identifier(&format!("{home}{table}"));
        empty(store, table.clone()).await?;
        let drop = format!("DROP TABLE IF EXISTS {table}");
        store.change(move |connection| connection.execute_batch(&drop)).await?;
    }
    store.change(move |connection| connection.execute(DROP_ROW, [id]).map(drop)).await
}

/// Deletes the rows of a table, a few at a time.
async fn empty(store: &SqliteStore, table: String) -> Result<(), StoreError> {
    loop {
        let table = table.clone();
        let some = move |connection: &Connection| {
            let rows = format!("SELECT rowid FROM {table} LIMIT {ROWS}");
            connection.execute(&format!("DELETE FROM {table} WHERE rowid IN ({rows})"), [])
        };
        if store.change(some).await? < ROWS {
            return Ok(());
        }
    }
}

/// A snapshot as it is filled into a generation.
struct Kept {
    home: String,
    tables: Vec<String>,
    positions: Vec<i64>,
    dead_letters: Vec<KeptLetter>,
    skips: Vec<KeptSkip>,
}

/// Fills the target of a rebuild with a snapshot. Its checkpoints are set at the end: until then it is
/// begun anew. Does nothing if it is filled.
pub(super) async fn restore(
    store: &SqliteStore,
    lease: RebuildLease,
    snapshot: i32,
) -> Result<(), ApplyError> {
    let find = move |connection: &Connection| target(connection, lease, snapshot);
    let Some((target, kept)) = store.ask(find).await?.ok_or(ApplyError::LeaseLost)? else {
        return Ok(());
    };
    let Some(kept) = kept else {
        let message =
            format!("snapshot {snapshot} is gone, or is of another definition; replay again");
        return Err(ApplyError::Broken { message });
    };
    for table in &kept.tables {
        let to = format!("{}{table}", target.home);
        let from = identifier(&format!("{}{table}", kept.home));
        let delete = format!("DELETE FROM {}", identifier(&to));
        store.change(move |connection| connection.execute(&delete, [])).await?;
        let mut after = 0;
        loop {
            let (to, from) = (to.clone(), from.clone());
            let some = move |connection: &Connection| {
                if lease::held(connection, lease)?.is_none() {
                    return Ok(None);
                }
                copy_some(connection, &from, &to, after).map(Some)
            };
            match store.change(some).await?.ok_or(ApplyError::LeaseLost)? {
                Some(last) => after = last,
                None => break,
            }
        }
    }
    let finish = move |connection: &Connection| {
        if lease::held(connection, lease)?.is_none() {
            return Ok(false);
        }
        fill_rest(connection, target.id, &kept).map(|()| true)
    };
    if store.change(finish).await? { Ok(()) } else { Err(ApplyError::LeaseLost) }
}

type Found = Option<Option<(Generation, Option<Kept>)>>;

/// The target with the snapshot; nothing inside if it is filled, nothing at all if the lease is lost.
fn target(
    connection: &Connection,
    lease: RebuildLease,
    snapshot: i32,
) -> Result<Found, rusqlite::Error> {
    let Some(row) = lease::held(connection, lease)? else { return Ok(None) };
    let Some(target) = row.target else { return Ok(Some(None)) };
    let Some(target) = super::super::projection::registry::find(connection, target)? else {
        return Ok(None);
    };
    if connection.query_row(IS_FILLED, [target.id], |row| row.get(0))? {
        return Ok(Some(None));
    }
    let kept = |row: &Row<'_>| {
        Ok(Kept {
            home: row.get(0)?,
            tables: json_or_null(row, 1)?.unwrap_or_default(),
            positions: json_or_null(row, 2)?.unwrap_or_default(),
            dead_letters: json_or_null(row, 3)?.unwrap_or_default(),
            skips: json_or_null(row, 4)?.unwrap_or_default(),
        })
    };
    let params = (snapshot, &target.definition_hash);
    let kept = connection.prepare_cached(FIND)?.query_row(params, kept).optional()?;
    Ok(Some(Some((target, kept))))
}

/// Copies the next rows; the last of them, or nothing if there are none left.
fn copy_some(
    connection: &Connection,
    from: &str,
    to: &str,
    after: i64,
) -> Result<Option<i64>, rusqlite::Error> {
    let last = format!(
        "SELECT max(rowid) FROM (SELECT rowid FROM {from} WHERE rowid > ?1 ORDER BY rowid LIMIT {ROWS})"
    );
    let last: Option<i64> = connection.query_row(&last, [after], |row| row.get(0))?;
    if let Some(last) = last {
        let names = written_columns(connection, to)?.join(", ");
        let sql = format!(
            "INSERT INTO {} ({names}) SELECT {names} FROM {from} WHERE rowid > ?1 AND rowid <= ?2",
            identifier(to)
        );
        connection.execute(&sql, (after, last))?;
    }
    Ok(last)
}

fn fill_rest(connection: &Connection, target: i32, kept: &Kept) -> Result<(), rusqlite::Error> {
    for (shard, position) in kept.positions.iter().enumerate() {
        let shard = i64::try_from(shard).unwrap_or(i64::MAX);
        connection.prepare_cached(FILL_CHECKPOINT)?.execute((target, shard, position))?;
    }
    let mut letters = connection.prepare_cached(FILL_DEAD_LETTER)?;
    for KeptLetter { position, key, behind, error, attempts } in &kept.dead_letters {
        letters.execute((target, position, key, behind, error, attempts))?;
    }
    let mut skips = connection.prepare_cached(FILL_SKIP)?;
    for KeptSkip { position, key, reason } in &kept.skips {
        skips.execute((target, position, key, reason))?;
    }
    Ok(())
}
