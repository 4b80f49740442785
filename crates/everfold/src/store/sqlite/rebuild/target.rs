//! The generation that a rebuild fills.

use rusqlite::Connection;

use super::lease;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::generation::Generation;
use crate::rebuild::row::{RebuildLease, RebuildRow};
use crate::store::StoreKind;
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::projection::{register, registry};

const SET_TARGET: &str = "UPDATE everfold_rebuilds SET target = ?2 WHERE id = ?1";

/// Makes an empty generation for a rebuild, or finds the one that was made for it. The transaction
/// holds the write lock.
pub(super) fn make(
    connection: &Connection,
    lease: RebuildLease,
    projection: &Projection,
) -> Result<Generation, ProjectionError> {
    let row = lease::held(connection, lease).map_err(store_error)?;
    let row = row.ok_or_else(|| lost(lease))?;
    check_asked_for(&row, projection)?;
    if let Some(target) = row.target {
        let made = registry::find(connection, target).map_err(store_error)?;
        return made.ok_or_else(|| gone(&row, target));
    }
    let reason = format!("rebuild {} fills it; readers do not see it yet", row.id);
    let generation = register::make_another(connection, projection, &reason)?;
    let own = || -> Result<(), rusqlite::Error> {
        connection.prepare_cached(SET_TARGET)?.execute((row.id, generation.id))?;
        lease::take_target(connection, lease, generation.id)
    };
    own().map_err(store_error)?;
    Ok(generation)
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

/// The error of a worker whose rebuild is another's by now.
fn lost(lease: RebuildLease) -> StoreError {
    let message = format!("rebuild {} is somebody else's by now, or has ended", lease.rebuild);
    StoreError::new(StoreErrorKind::Busy, message)
}
