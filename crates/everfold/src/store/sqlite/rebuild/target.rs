//! The generation that a rebuild fills.

use rusqlite::Connection;

use super::lease;
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::rebuild::row::{RebuildLease, RebuildRow};
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::projection::{operate, register, registry};
use crate::store::{StatusChange, StoreKind};

const FORGET_TARGET: &str = "UPDATE everfold_rebuilds SET target = NULL, \
    options = json_set(options, '$.by_batches', json('true')) WHERE id = ?1";
pub(super) const IS_READ: &str =
    "SELECT EXISTS (SELECT 1 FROM everfold_projections WHERE active_generation = ?1)";
const NOT_RETIRED: [GenerationStatus; 6] = [
    GenerationStatus::Building,
    GenerationStatus::Active,
    GenerationStatus::Rebuilding,
    GenerationStatus::Kept,
    GenerationStatus::Paused,
    GenerationStatus::Failed,
];
const SET_TARGET: &str = "UPDATE everfold_rebuilds SET target = ?2 WHERE id = ?1";

/// Makes an empty generation for a rebuild, or finds the one that was made for it. The transaction
/// holds the write lock.
pub(super) fn make(
    connection: &Connection,
    lease: RebuildLease,
    projection: &Projection,
) -> Result<Generation, ProjectionError> {
    let row = lease::held(connection, lease).map_err(store_error)?;
    let row = row.ok_or_else(|| lost(lease, &projection.definition.name))?;
    check_asked_for(&row, projection)?;
    if let Some(target) = row.target {
        let made = registry::find(connection, target).map_err(store_error)?;
        return made.ok_or_else(|| gone(&row, target));
    }
    let reason = format!("rebuild {} fills it; readers do not see it yet", row.id);
    let generation = register::make_another(connection, projection, &reason)?;
    let own = || -> Result<(), rusqlite::Error> {
        connection.prepare_cached(SET_TARGET)?.execute((row.id, generation.id))?;
        lease::take_target(connection, lease, generation.id).map(drop)
    };
    own().map_err(store_error)?;
    Ok(generation)
}

/// Gives up a target, so that a new one is made and filled in batches. `false` if the lease is lost. The
/// transaction holds the write lock.
pub(super) fn discard(
    connection: &Connection,
    lease: RebuildLease,
    actor: &str,
) -> Result<bool, rusqlite::Error> {
    let Some(row) = lease::held(connection, lease)? else { return Ok(false) };
    connection.prepare_cached(FORGET_TARGET)?.execute([row.id])?;
    if let Some(target) = row.target {
        retire(connection, target, actor)?;
    }
    Ok(true)
}

/// Nobody feeds a generation any more, unless readers see it.
pub(super) fn retire(
    connection: &Connection,
    generation: i32,
    actor: &str,
) -> Result<(), rusqlite::Error> {
    retire_because(connection, generation, actor, None)
}

/// The same for a reason that is kept.
pub(super) fn retire_because(
    connection: &Connection,
    generation: i32,
    actor: &str,
    reason: Option<String>,
) -> Result<(), rusqlite::Error> {
    let is_read: bool =
        connection.prepare_cached(IS_READ)?.query_row([generation], |row| row.get(0))?;
    if is_read {
        return Ok(());
    }
    let change = StatusChange {
        generation,
        from: NOT_RETIRED.to_vec(),
        to: GenerationStatus::Retired,
        reason,
        actor: actor.to_owned(),
        rebuild: None,
    };
    operate::change_status(connection, &change).map(drop)
}

fn check_asked_for(row: &RebuildRow, projection: &Projection) -> Result<(), ProjectionError> {
    let definition = &projection.definition;
    let same = definition.namespace == row.namespace
        && definition.name == row.name
        && definition.version == row.version
        && definition.hash(StoreKind::Sqlite) == row.definition_hash;
    if same {
        return Ok(());
    }
    Err(ProjectionError::Refused {
        projection: row.name.clone(),
        message: format!(
            "is not what rebuild {} was asked for (version {} of \"{}\"); cancel it and ask again, or go \
             on with the code it was asked for with",
            row.id, row.version, row.name
        ),
    })
}

fn gone(row: &RebuildRow, target: i32) -> ProjectionError {
    ProjectionError::Refused {
        projection: row.name.clone(),
        message: format!(
            "has no generation {target} any more, which rebuild {} fills; cancel it and ask again",
            row.id
        ),
    }
}

/// Somebody else has taken the rebuild, or ended it.
pub(super) fn lost(lease: RebuildLease, name: &str) -> ProjectionError {
    let message = format!(
        "is rebuilt by somebody else now, or its rebuild {} has ended; nothing was changed here",
        lease.rebuild
    );
    ProjectionError::Refused { projection: name.to_owned(), message }
}
