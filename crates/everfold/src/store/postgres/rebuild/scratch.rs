//! A second home for a read model, made in a transaction that is rolled back: the registry does not know
//! it, and nobody else ever sees it.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::super::projection::names;
use super::super::projection::tables::{Indexes, Making, Roles};
use super::super::projection::unit::PostgresUnit;
use super::super::types::JsonString;
use crate::error::{ProjectionError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::definition::Definition;
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::{StoreKind, Unit};

const DEFINITION: &str = "SELECT definition FROM everfold.generations WHERE id = $1";

/// Makes an empty read model as that of a generation, in one shard.
pub(super) async fn make(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    projector: &Projector,
) -> Result<Arc<Generation>, ApplyError> {
    let rows = unit.query(DEFINITION, &[(&generation.id, Type::INT4)]).await?;
    let stored = rows.first().ok_or(ApplyError::LeaseLost)?.get::<_, JsonString>(0).0;
    let content = serde_json::from_str(&stored).unwrap_or_default();
    let definition = Definition::restore(generation, &content, StoreKind::Postgres);
    let mut definition = definition.map_err(refused)?;
    definition.shards = 1;
    let projection = Projection { definition, projector: projector.clone() };
    let roles = Roles::read(unit).await?;
    if roles.as_admin {
        unit.run("SET LOCAL ROLE everfold_admin").await?;
    }
    // Several may be at it at once.
    let unique = uuid::Uuid::now_v7().simple().to_string();
    let home = names::home(generation.id, &format!("scratch_{unique}"));
    let indexes = Indexes::Later;
    let mut making = Making { unit, projection: &projection, home: &home, roles: &roles, indexes };
    let tables = making.create().await.map_err(|error| match error {
        ProjectionError::Store(error) if error.kind() == StoreErrorKind::Privilege => refused(format!(
            "cannot be recomputed beside itself: {error}; verify it as a member of everfold_admin"
        )),
        ProjectionError::Store(error) => ApplyError::Store(error),
        error => refused(format!("cannot be made a second time for a comparison: {error}")),
    })?;
    do_without_log(unit, &home, &tables).await?;
    let scratch = Generation { home, tables, shards: 1, is_active: false, ..generation.clone() };
    Ok(Arc::new(scratch))
}

/// Nobody needs these tables after a crash. Where one refers to another that comes later, all are logged.
async fn do_without_log(
    unit: &mut PostgresUnit<'_>,
    home: &str,
    tables: &[String],
) -> Result<(), ApplyError> {
    unit.savepoint().await?;
    for name in tables {
        let sql = format!("ALTER TABLE {} SET UNLOGGED", names::table(home, name));
        if unit.batch(&sql).await.is_err() {
            return unit.rollback_to_savepoint().await;
        }
    }
    unit.release_savepoint().await
}

pub(super) fn refused(message: String) -> ApplyError {
    ApplyError::Refused { message, position: None }
}
