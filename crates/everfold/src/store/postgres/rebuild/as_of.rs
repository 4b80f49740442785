//! Showing a read model as it was at a position, beside what readers see.

use tokio_postgres::types::Type;

use super::super::PostgresStore;
use super::super::connect::{Param, QueryError};
use super::super::projection::names::{readers, table};
use super::super::projection::tables::Roles;
use super::super::projection::transaction::{begin, finish};
use super::super::projection::unit::{PostgresUnit, TIMEOUTS};
use super::super::projection::{gates, names};
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::projector::ApplyError;
use crate::rebuild::replay::as_of_reason;
use crate::rebuild::row::RebuildLease;

const FIND: &str = "SELECT g.id, p.namespace, g.home, g.tables, g.lifecycle \
    FROM everfold.rebuilds r JOIN everfold.generations g ON g.id = r.target \
    JOIN everfold.projections p ON p.id = g.projection \
    WHERE r.id = $1 AND r.epoch = $2 AND r.finished_at IS NULL FOR UPDATE OF r";
const LOCK_SHARDS: &str =
    "SELECT FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE";
/// Nobody feeds it from now on, and appends do not list it.
const STOP: &str = "UPDATE everfold.generations SET lifecycle = 'catch-up', status = 'paused', \
    reason = $2, status_since = clock_timestamp() WHERE id = $1";

/// Views made by [`show`] of the tables in a schema.
const LIST_VIEWS: &str = "SELECT DISTINCT n.nspname::text, v.relname::text \
    FROM pg_catalog.pg_namespace h JOIN pg_catalog.pg_class t ON t.relnamespace = h.oid \
    JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = t.oid \
        AND d.classid = 'pg_catalog.pg_rewrite'::regclass \
    JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid JOIN pg_catalog.pg_class v ON v.oid = r.ev_class \
    JOIN pg_catalog.pg_namespace n ON n.oid = v.relnamespace \
    WHERE h.nspname = $1 AND n.nspname ~ '^read_model' AND v.relname ~ '_at_[0-9]+$'";

/// Drops the views that show the tables of a schema as of a position, before the tables go.
pub(super) async fn drop_views(unit: &mut PostgresUnit<'_>, home: &str) -> Result<(), StoreError> {
    for row in unit.ask(LIST_VIEWS, &[(&home, Type::TEXT)]).await? {
        let view = table(row.get(0), row.get(1));
        let drop = format!("DROP VIEW IF EXISTS {view}");
        unit.batch(&drop).await.map_err(QueryError::into_store_error)?;
    }
    Ok(())
}

pub(super) async fn show(
    store: &PostgresStore,
    lease: RebuildLease,
    position: Position,
) -> Result<(), ProjectionError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = show_in(&mut unit, lease, position).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn show_in(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    position: Position,
) -> Result<(), ProjectionError> {
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.ask(FIND, &params).await?;
    let row = rows.first().ok_or_else(|| super::target::lost(lease, "it"))?;
    let (id, namespace, home): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
    let (tables, inline): (Vec<String>, bool) = (row.get(3), row.get::<_, &str>(4) == "inline");
    unit.ask(LOCK_SHARDS, &[(&id, Type::INT4)]).await?;
    if inline {
        gates::lock(unit, &gates::all_for(id)).await.map_err(|error| match error {
            ApplyError::Store(error) => ProjectionError::Store(error),
            _ => super::target::lost(lease, "it"),
        })?;
    }
    let reason = as_of_reason(position);
    unit.ask(STOP, &[(&id, Type::INT4), (&reason, Type::TEXT)]).await?;
    let roles = Roles::read(unit).await?;
    let mut sql = Vec::new();
    if roles.as_admin {
        sql.push("SET LOCAL ROLE everfold_admin".to_owned());
    }
    for name in &tables {
        let view = table(&readers(&namespace), &names::at_position(name, position));
        sql.push(format!("CREATE OR REPLACE VIEW {view} AS SELECT * FROM {}", table(&home, name)));
        if roles.has_read_models {
            sql.push(format!("GRANT SELECT ON {view} TO everfold_read_models"));
        }
    }
    Ok(unit.batch(&sql.join("; ")).await.map_err(QueryError::into_store_error)?)
}
