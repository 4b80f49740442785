//! What comes after the last part: indexes and constraints, statistics, and the checkpoints.

use tokio_postgres::types::Type;

use super::{TIMEOUTS, in_transaction, lock_lease, look_at_lease};
use crate::Position;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::definition::ProjectionKind;
use crate::projection::projector::ApplyError;
use crate::store::jitter;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::deferred;
use crate::store::postgres::projection::names::{quoted, table};
use crate::store::postgres::projection::tables::Roles;
use crate::store::postgres::projection::unit::PostgresUnit;
use crate::store::{Copying, SwitchUnit};

const MEMORY: &str = "SET LOCAL maintenance_work_mem = '256MB'";
/// Readers of a read model that is rebuilt in place are held up no longer than this at a time.
const TRY_KEY: &str = "SET LOCAL lock_timeout = '200ms'";
const TRIES: u32 = 60;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1_800);

const IS_DEFERRED: &str = "SELECT indexes_deferred FROM everfold.generations WHERE id = $1";
const NOT_DEFERRED: &str = "UPDATE everfold.generations SET indexes_deferred = false WHERE id = $1";
const PARTS_LEFT: &str =
    "SELECT count(*) FROM everfold.rebuild_parts WHERE rebuild = $1 AND NOT done";
const HAS_KEY: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint \
    WHERE conrelid = pg_catalog.to_regclass($1) AND contype = 'p')";
const LIST_TABLES: &str = "SELECT c.relname::text FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1";
const LOCK_CHECKPOINTS: &str =
    "SELECT FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE";
const SET_CHECKPOINTS: &str = "UPDATE everfold.checkpoints \
    SET position = $2, moved_at = clock_timestamp() WHERE generation = $1 AND position < $2";

/// One transaction, so that what is interrupted is begun again and nothing is there twice.
pub(in super::super) async fn finish_copy(
    store: &PostgresStore,
    copying: &Copying,
) -> Result<(), ApplyError> {
    if copying.cutoff == Position::START {
        return Ok(());
    }
    let set_up = format!("{TIMEOUTS}; {MEMORY}");
    in_transaction(store, copying, set_up, async |unit| finish(unit, copying).await).await
}

async fn finish(unit: &mut PostgresUnit<'_>, copying: &Copying) -> Result<(), ApplyError> {
    let generation: Param<'_> = (&copying.generation.id, Type::INT4);
    look_at_lease(unit, copying.lease).await?;
    let left = unit.query(PARTS_LEFT, &[(&copying.lease.rebuild, Type::INT4)]).await?;
    let left: i64 = left.first().map_or(0, |row| row.get(0));
    if left > 0 {
        let message =
            format!("{left} parts of history are not copied yet; try again when they are");
        return Err(ApplyError::Store(StoreError::new(StoreErrorKind::Busy, message)));
    }
    make_deferred(unit, copying, Statistics::Gather).await?;
    lock_lease(unit, copying.lease).await?;
    let cutoff = copying.cutoff.to_stored();
    unit.query(LOCK_CHECKPOINTS, std::slice::from_ref(&generation)).await?;
    unit.query(SET_CHECKPOINTS, &[generation, (&cutoff, Type::INT8)]).await?;
    // What appends recorded up to there, where readers see the target already, is copied. With the
    // checkpoint past them they would be owed, and applied once more.
    unit.settle_skips(copying.generation.id, Position::START, copying.cutoff, "rebuild").await
}

/// Whether the server looks at what the tables hold, for plans to rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistics {
    Gather,
    Leave,
}

/// Makes the indexes and constraints that the generation was made without, if any.
pub(super) async fn make_deferred(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    statistics: Statistics,
) -> Result<(), ApplyError> {
    let generation = &*copying.generation;
    let id: Param<'_> = (&generation.id, Type::INT4);
    let found = unit.query(IS_DEFERRED, std::slice::from_ref(&id)).await?;
    let is_deferred = found.first().is_some_and(|row| row.get(0));
    if !is_deferred && statistics == Statistics::Leave {
        return Ok(());
    }
    let roles = Roles::read(unit).await?;
    if roles.as_admin {
        unit.run("SET LOCAL ROLE everfold_admin").await?;
    }
    let is_document = generation.kind == ProjectionKind::Document;
    // The name that the constraint of a table made at once has.
    let key = format!("{}_pkey", generation.name);
    let documents = table(&generation.home, &generation.name);
    let found = unit.query(HAS_KEY, &[(&documents, Type::TEXT)]).await?;
    // One that was made ahead of time has it from the start.
    let needs_key = is_deferred && is_document && !found.first().is_some_and(|row| row.get(0));
    if is_deferred {
        if needs_key {
            make(unit, &format!("CREATE UNIQUE INDEX {} ON {documents} (key)", quoted(&key)))
                .await?;
        }
        unit.run("SET LOCAL search_path = pg_catalog, pg_temp").await?;
        let statements = deferred::all(&copying.projection.definition, &generation.home);
        for statement in statements.map_err(unreadable)? {
            make(unit, &statement).await?;
        }
    }
    if statistics == Statistics::Gather {
        for row in unit.query(LIST_TABLES, &[(&generation.home, Type::TEXT)]).await? {
            unit.run(&format!("ANALYZE {}", table(&generation.home, row.get(0)))).await?;
        }
    }
    if needs_key {
        let constraint = quoted(&key);
        attach(unit, &format!(
            "ALTER TABLE {documents} ADD CONSTRAINT {constraint} PRIMARY KEY USING INDEX {constraint}"
        ))
        .await?;
    }
    unit.query(NOT_DEFERRED, &[id]).await?;
    if roles.as_admin {
        unit.run("SET LOCAL ROLE NONE").await?;
    }
    Ok(())
}

/// What a row has that an index refuses is the projection's fault.
async fn make(unit: &mut PostgresUnit<'_>, sql: &str) -> Result<(), ApplyError> {
    use crate::store::postgres::projection::apply::broken_or_refused;
    match unit.batch(sql).await {
        Ok(()) => Ok(()),
        Err(QueryError::Driver(error)) => Err(broken_or_refused(error)),
        Err(error) => Err(ApplyError::Store(error.into_store_error())),
    }
}

/// Makes an index the primary key, for which nobody may read the table for a moment. New readers wait
/// behind us while we wait for old ones, so each try is short.
async fn attach(unit: &mut PostgresUnit<'_>, sql: &str) -> Result<(), ApplyError> {
    let sql = format!(
        "SAVEPOINT everfold_key; {TRY_KEY}; {sql}; RELEASE SAVEPOINT everfold_key; \
         SET LOCAL lock_timeout = '10s'"
    );
    for _ in 0..TRIES {
        let error = match unit.batch(&sql).await {
            Ok(()) => return Ok(()),
            Err(error) => error.into_store_error(),
        };
        if error.kind() != StoreErrorKind::Busy {
            return Err(ApplyError::Store(error));
        }
        let undo = "ROLLBACK TO SAVEPOINT everfold_key; RELEASE SAVEPOINT everfold_key";
        unit.run(undo).await?;
        unit.note_undone();
        tokio::time::sleep(PAUSE + jitter(PAUSE / 8)).await;
    }
    let message = "readers held the read model all the time, so that it could not get its primary \
                   key; try again when fewer of them keep transactions open";
    Err(ApplyError::Store(StoreError::new(StoreErrorKind::Busy, message)))
}

fn unreadable(error: ProjectionError) -> ApplyError {
    ApplyError::Broken { message: error.to_string() }
}
