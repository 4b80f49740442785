//! Snapshots of read models: taken at one moment, and filled into a new generation.
//!
//! A catch-up read model and its checkpoints are seen together in one snapshot of the database. The
//! highest position that can be seen says nothing about an inline one, because appends commit in another
//! order than they draw positions: so the moment is chosen while its gate is held. (✗ Without the gate
//! the copy lacks events below its position, and a replay from it loses them.)

use tokio_postgres::types::Type;

use super::super::PostgresStore;
use super::super::connect::{Connection, Param, QueryError};
use super::super::projection::names::{quoted, table};
use super::super::projection::tables::Roles;
use super::super::projection::transaction::{begin, finish};
use super::super::projection::unit::{PostgresUnit, TIMEOUTS, statement};
use super::super::projection::{gates, names};
use super::super::types::Time;
use super::looking;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::projector::ApplyError;
use crate::rebuild::ReadModelSnapshot;
use crate::rebuild::holding::fed_by_appends;
use crate::rebuild::row::RebuildLease;
use crate::store::{SwitchUnit, Unit};

const COLUMNS: &str = statement!("list_snapshot_columns");
const INSERT: &str = statement!("insert_snapshot");
const COMPLETE: &str = "UPDATE everfold.read_model_snapshots \
    SET home = $2, tables = $3, rows = $4, bytes = ( \
        SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0) FROM pg_catalog.pg_class c \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2 AND c.relkind = 'r') \
    WHERE id = $1";
const HIGHEST: &str = "SELECT coalesce(max(position), 0) FROM everfold.events";
const CHECKPOINTS: &str =
    "SELECT position FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard";
const LIST: &str = "SELECT s.id, p.name, s.version, s.positions, s.rows, s.taken_by, s.taken_at, \
    s.definition_hash, s.bytes FROM everfold.read_model_snapshots s \
    JOIN everfold.projections p ON p.id = s.projection \
    WHERE (p.namespace = $1 AND p.name = $2) OR s.id = $3 ORDER BY s.id DESC";
const DROP_ROW: &str = "DELETE FROM everfold.read_model_snapshots WHERE id = $1 RETURNING home";
const FIND: &str = "SELECT s.home, s.positions, g.home, g.id FROM everfold.read_model_snapshots s, \
    everfold.rebuilds r JOIN everfold.generations g ON g.id = r.target \
    WHERE s.id = $1 AND r.id = $2 AND r.epoch = $3 AND s.definition_hash = g.definition_hash";
const IS_FILLED: &str = "SELECT EXISTS (SELECT FROM everfold.checkpoints \
    WHERE generation = $1 AND position > 0)";
const FILL_CHECKPOINTS: &str = "UPDATE everfold.checkpoints c SET position = s.positions[c.shard + 1], \
    moved_at = clock_timestamp() FROM everfold.read_model_snapshots s WHERE c.generation = $1 AND s.id = $2";
const FILL_DEAD_LETTERS: &str = "INSERT INTO everfold.dead_letters \
    (generation, position, key, behind, error, attempts) \
    SELECT $1, d.position, d.key, d.behind, d.error, d.attempts FROM everfold.read_model_snapshots s, \
    jsonb_to_recordset(s.dead_letters) AS d(position bigint, key text, behind bigint, error text, \
    attempts integer) WHERE s.id = $2";
const FILL_SKIPS: &str = "INSERT INTO everfold.skips (generation, position, key, reason) \
    SELECT $1, d.position, d.key, d.reason FROM everfold.read_model_snapshots s, \
    jsonb_to_recordset(s.skips) AS d(position bigint, key text, reason text) WHERE s.id = $2";
/// Copying takes as long as it takes.
const UNHURRIED: &str = "SET LOCAL jit = off; SET LOCAL lock_timeout = '4s'; \
    SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '60s'";

/// Takes a snapshot.
pub(super) async fn take(
    store: &PostgresStore,
    generation: &Generation,
    actor: &str,
) -> Result<ReadModelSnapshot, StoreError> {
    let mut connection = store.engine.get().await?;
    let stop = connection.stop_unless_done();
    let mut unit = looking::begin(&mut connection, &store.options).await?;
    let outcome = take_in(store, &mut unit, generation, actor).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    stop.done();
    let id = outcome?;
    let found = list(store, "", "", Some(id)).await?;
    found.into_iter().next().ok_or_else(|| gone(id))
}

async fn take_in(
    store: &PostgresStore,
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    actor: &str,
) -> Result<i32, StoreError> {
    let positions = match fed_by_appends(generation) {
        true => vec![cut(store, unit, generation).await?],
        false => {
            let rows = unit.ask(CHECKPOINTS, &[(&generation.id, Type::INT4)]).await?;
            rows.iter().map(|row| row.get(0)).collect()
        }
    };
    as_admin(unit).await?;
    let params: [Param<'_>; 3] =
        [(&generation.id, Type::INT4), (&positions, Type::INT8_ARRAY), (&actor, Type::TEXT)];
    let rows = unit.ask(INSERT, &params).await?;
    let id: i32 = rows.first().ok_or_else(|| gone(0))?.get(0);
    let home = names::snapshot_home(id, &generation.name);
    run(unit, &format!("CREATE SCHEMA {}", quoted(&home))).await?;
    let tables = columns(unit, &generation.home).await?;
    let mut count = 0;
    for copied in &tables {
        let selected: Vec<String> = copied.columns.iter().map(Column::selected).collect();
        let (to, from) = (table(&home, &copied.name), table(&generation.home, &copied.name));
        run(unit, &format!("CREATE TABLE {to} AS SELECT {} FROM {from}", selected.join(", ")))
            .await?;
        let rows = unit.ask_anew(&format!("SELECT count(*) FROM {to}"), &[]).await?;
        count += rows[0].get::<_, i64>(0);
    }
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    let params: [Param<'_>; 4] =
        [(&id, Type::INT4), (&home, Type::TEXT), (&names, Type::TEXT_ARRAY), (&count, Type::INT8)];
    unit.ask(COMPLETE, &params).await?;
    Ok(id)
}

/// The moment of `unit` is one at which no append of the generation is under way; returns the highest
/// position then.
async fn cut(
    store: &PostgresStore,
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
) -> Result<i64, StoreError> {
    for _ in 0..gates::TRIES {
        let mut connection = store.engine.get().await?;
        match cut_behind(&mut connection, store, unit, generation).await? {
            Some(position) => return Ok(position),
            None => gates::pause().await,
        }
    }
    let message = "transactions that stay open after an append held a gate all the time; try again when \
                   there are fewer of them";
    Err(StoreError::new(StoreErrorKind::Busy, message))
}

/// `None` if appends that are under way did not end in time.
async fn cut_behind(
    connection: &mut Connection,
    store: &PostgresStore,
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
) -> Result<Option<i64>, StoreError> {
    let mut gate = begin(connection, &store.options, gates::TIMEOUTS).await?;
    let outcome = match gate.batch(&gates::of_generation(generation.id)).await {
        Ok(()) => match unit.ask(HIGHEST, &[]).await {
            Ok(rows) => Ok(Some(rows[0].get(0))),
            Err(error) => Err(error),
        },
        Err(error) => match error.into_store_error() {
            error if error.kind() == StoreErrorKind::Busy => Ok(None),
            error => Err(error),
        },
    };
    let end = looking::end(gate).await;
    end.settle(connection);
    outcome
}

/// A table and its columns.
struct Copied {
    name: String,
    columns: Vec<Column>,
}

struct Column {
    name: String,
    /// Its type, if that is made in the schema: it goes with the schema, so a copy has it as text.
    own_type: Option<String>,
    computed: bool,
    sequence: Option<String>,
}

impl Column {
    fn selected(&self) -> String {
        let name = quoted(&self.name);
        match self.own_type {
            Some(_) => format!("{name}::text AS {name}"),
            None => name,
        }
    }

    fn restored(&self) -> String {
        let name = quoted(&self.name);
        match &self.own_type {
            Some(own) => format!("{name}::{own}"),
            None => name,
        }
    }
}

async fn columns(unit: &mut PostgresUnit<'_>, home: &str) -> Result<Vec<Copied>, StoreError> {
    let rows = unit.ask(COLUMNS, &[(&home, Type::TEXT)]).await?;
    let mut tables: Vec<Copied> = Vec::new();
    for row in rows {
        let name: String = row.get(0);
        if tables.last().is_none_or(|last| last.name != name) {
            tables.push(Copied { name, columns: Vec::new() });
        }
        let column = Column {
            name: row.get(1),
            own_type: row.get(2),
            computed: row.get(3),
            sequence: row.get(4),
        };
        tables.last_mut().expect("one was put there").columns.push(column);
    }
    Ok(tables)
}

/// Whatever is made belongs to all that may manage read models.
async fn as_admin(unit: &mut PostgresUnit<'_>) -> Result<(), StoreError> {
    match Roles::read(unit).await?.as_admin {
        true => run(unit, "SET LOCAL ROLE everfold_admin").await,
        false => Ok(()),
    }
}

async fn run(unit: &mut PostgresUnit<'_>, sql: &str) -> Result<(), StoreError> {
    unit.batch(sql).await.map_err(QueryError::into_store_error)
}

fn gone(id: i32) -> StoreError {
    let message = format!("snapshot {id} or its projection was removed meanwhile");
    StoreError::new(StoreErrorKind::Other, message)
}

/// The snapshots of a projection, or one by its id.
pub(super) async fn list(
    store: &PostgresStore,
    namespace: &str,
    name: &str,
    id: Option<i32>,
) -> Result<Vec<ReadModelSnapshot>, StoreError> {
    let params: [Param<'_>; 3] = [(&namespace, Type::TEXT), (&name, Type::TEXT), (&id, Type::INT4)];
    let rows = store.engine.get().await?.query(LIST, &params).await?;
    let snapshot = |row: &tokio_postgres::Row| {
        let positions: Vec<i64> = row.get(3);
        let position = |position: Option<&i64>| {
            position.map_or(Position(0), |position| Position::from_stored(*position))
        };
        ReadModelSnapshot {
            id: row.get(0),
            name: row.get(1),
            version: row.get::<_, i32>(2).unsigned_abs(),
            position: position(positions.iter().min()),
            rows: row.get::<_, i64>(4).unsigned_abs(),
            bytes: row.get::<_, i64>(8).unsigned_abs(),
            taken_by: row.get(5),
            taken_at: row.get::<_, Time>(6).0,
            definition_hash: row.get(7),
            reaches: position(positions.iter().max()),
        }
    };
    Ok(rows.iter().map(snapshot).collect())
}

pub(super) async fn drop_snapshot(store: &PostgresStore, id: i32) -> Result<(), StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, UNHURRIED).await?;
    let dropping = async {
        as_admin(&mut unit).await?;
        let rows = unit.ask(DROP_ROW, &[(&id, Type::INT4)]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let home: String = row.get(0);
        run(&mut unit, &format!("DROP SCHEMA IF EXISTS {} CASCADE", quoted(&home))).await
    };
    let outcome = dropping.await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

pub(super) async fn note(store: &PostgresStore, message: SystemMessage) -> Result<(), StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = match unit.record(&[message]).await {
        Err(ApplyError::Store(error)) => Err(error),
        _ => Ok(()),
    };
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

/// Fills the target of a rebuild with a snapshot: all of it or nothing. Does nothing if it is filled.
pub(super) async fn restore(
    store: &PostgresStore,
    lease: RebuildLease,
    snapshot: i32,
) -> Result<(), ApplyError> {
    let mut connection = store.engine.get().await?;
    let stop = connection.stop_unless_done();
    let mut unit = begin(&mut connection, &store.options, UNHURRIED).await?;
    unit.request_timeout = std::time::Duration::from_secs(24 * 60 * 60);
    let outcome = restore_in(&mut unit, lease, snapshot).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    stop.done();
    outcome
}

async fn restore_in(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    snapshot: i32,
) -> Result<(), ApplyError> {
    let params: [Param<'_>; 3] =
        [(&snapshot, Type::INT4), (&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.query(FIND, &params).await?;
    let Some(row) = rows.first() else {
        unit.own_rebuild(&lease).await?;
        let message =
            format!("snapshot {snapshot} is gone, or is of another definition; replay again");
        return Err(ApplyError::Broken { message });
    };
    let (from, home, target): (String, String, i32) = (row.get(0), row.get(2), row.get(3));
    if unit.query(IS_FILLED, &[(&target, Type::INT4)]).await?[0].get(0) {
        return Ok(());
    }
    as_admin(unit).await?;
    for copied in columns(unit, &home).await? {
        let to = table(&home, &copied.name);
        // Rows that create.sql has made are in the snapshot too.
        unit.run(&format!("DELETE FROM {to}")).await?;
        let kept: Vec<&Column> = copied.columns.iter().filter(|column| !column.computed).collect();
        let names: Vec<String> = kept.iter().map(|column| quoted(&column.name)).collect();
        let values: Vec<String> = kept.iter().map(|column| column.restored()).collect();
        let from = table(&from, &copied.name);
        unit.run(&format!(
            "INSERT INTO {to} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {from}",
            names.join(", "),
            values.join(", ")
        ))
        .await?;
        for column in &copied.columns {
            let Some(sequence) = &column.sequence else { continue };
            let (sequence, name) = (names::literal(sequence), quoted(&column.name));
            unit.run(&format!(
                "SELECT pg_catalog.setval({sequence}, (SELECT max({name}) FROM {to})) \
                 WHERE EXISTS (SELECT FROM {to})"
            ))
            .await?;
        }
    }
    // Only now, so that signs of life go on while tables are filled.
    unit.own_rebuild(&lease).await?;
    unit.lock_shards(target).await?;
    let params: [Param<'_>; 2] = [(&target, Type::INT4), (&snapshot, Type::INT4)];
    for fill in [FILL_CHECKPOINTS, FILL_DEAD_LETTERS, FILL_SKIPS] {
        unit.query(fill, &params).await?;
    }
    Ok(())
}
