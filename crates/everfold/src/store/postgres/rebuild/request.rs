//! Asking for rebuilds, looking at them, and steering them.

use tokio_postgres::types::Type;

use super::ownership::end_statement;
use super::row::{columns, rebuild};
use crate::error::{StoreError, StoreErrorKind};
use crate::rebuild::row::{RebuildFigures, RebuildPhase, RebuildRequest, RebuildRow, Wanted};
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{PostgresUnit, TIMEOUTS, statement};
use crate::store::postgres::read::stored_max;
use crate::store::postgres::types::JsonText;

/// Requests take turns, and a removal of the target does with them.
const LOCK_PROJECTION: &str = "SELECT id FROM everfold.projections \
    WHERE namespace = $1 AND name = $2 FOR NO KEY UPDATE";
const REQUEST: &str = statement!("request_rebuild");
const FIND: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM everfold.rebuilds r JOIN everfold.projections p ON p.id = r.projection \
     WHERE p.id = $1 AND r.finished_at IS NULL"
);
const LIST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM everfold.rebuilds r JOIN everfold.projections p ON p.id = r.projection \
     WHERE NOT $1 OR r.finished_at IS NULL \
     ORDER BY r.id DESC LIMIT CASE WHEN $1 THEN NULL ELSE $2::bigint END"
);
/// A worker carries generations; what is to be built is one by its definition.
const CARRIERS: &str = "SELECT DISTINCT w.name FROM everfold.rebuilds r \
    JOIN everfold.generations g ON (g.projection, g.version, g.definition_hash) \
        = (r.projection, r.version, r.definition_hash) \
    JOIN everfold.workers w ON g.id = ANY (w.carries) AND w.expires_at >= clock_timestamp() \
    WHERE r.id = $1 ORDER BY 1";
const LOCK_OPEN: &str = "SELECT epoch, flipped_at IS NOT NULL OR EXISTS (\
            SELECT FROM everfold.projections p WHERE p.active_generation = target), \
        (owner IS NOT NULL AND expires_at >= clock_timestamp()) IS TRUE \
    FROM everfold.rebuilds WHERE id = $1 AND finished_at IS NULL FOR UPDATE";
const STEER: &str = "WITH steered AS (UPDATE everfold.rebuilds SET wanted = $2 WHERE id = $1 \
        RETURNING id, projection, target, source) \
    INSERT INTO everfold.system_messages (generation, kind, actor, message) \
    SELECT coalesce(s.target, s.source, \
            (SELECT max(g.id) FROM everfold.generations g WHERE g.projection = s.projection)), \
        'rebuild', $3, format('rebuild %s is to %s', s.id, $2) FROM steered s";

pub(super) async fn request(
    store: &PostgresStore,
    request: &RebuildRequest,
) -> Result<(RebuildRow, bool), StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = request_in(&mut unit, request).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn request_in(
    unit: &mut PostgresUnit<'_>,
    request: &RebuildRequest,
) -> Result<(RebuildRow, bool), StoreError> {
    let RebuildRequest { namespace, name, .. } = request;
    let names: [Param<'_>; 2] = [(namespace, Type::TEXT), (name, Type::TEXT)];
    let rows = unit.ask(LOCK_PROJECTION, &names).await?;
    let Some(projection) = rows.first().map(|row| row.get::<_, i32>(0)) else {
        let message = format!("projection \"{name}\" is not registered; register it first");
        return Err(StoreError::new(StoreErrorKind::Missing, message));
    };
    let options = serde_json::to_string(&request.options)
        .map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))?;
    let options = JsonText::new(&options);
    let version = i32::try_from(request.version).unwrap_or(i32::MAX);
    let params: [Param<'_>; 8] = [
        (&projection, Type::INT4),
        (&request.kind.as_str(), Type::TEXT),
        (&version, Type::INT4),
        (&request.definition_hash, Type::TEXT),
        (&request.target, Type::INT4),
        (&options, Type::JSONB),
        (&request.requested_by, Type::TEXT),
        (&request.first, Type::BOOL),
    ];
    let is_new = !unit.ask(REQUEST, &params).await?.is_empty();
    let rows = unit.ask(FIND, &[(&projection, Type::INT4)]).await?;
    let Some(row) = rows.first() else {
        let message = match request.target {
            Some(target) => format!(
                "generation {target} of projection \"{name}\" is gone or being removed; ask again for \
                 another"
            ),
            None if request.first => {
                format!("readers see a version of projection \"{name}\" already")
            }
            None => format!("projection \"{name}\" was removed; register it first"),
        };
        return Err(StoreError::new(StoreErrorKind::Missing, message));
    };
    Ok((rebuild(row)?, !is_new))
}

pub(super) async fn list(
    store: &PostgresStore,
    open: bool,
    max: usize,
) -> Result<Vec<RebuildRow>, StoreError> {
    let max = stored_max(max);
    let params: [Param<'_>; 2] = [(&open, Type::BOOL), (&max, Type::INT8)];
    let rows = store.engine.get().await?.query(LIST, &params).await?;
    rows.iter().map(rebuild).collect()
}

pub(super) async fn carriers(
    store: &PostgresStore,
    rebuild: i32,
) -> Result<Vec<String>, StoreError> {
    let rows = store.engine.get().await?.query(CARRIERS, &[(&rebuild, Type::INT4)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn steer(
    store: &PostgresStore,
    rebuild: i32,
    wanted: Wanted,
    actor: &str,
) -> Result<bool, StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = steer_in(&mut unit, rebuild, wanted, actor).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn steer_in(
    unit: &mut PostgresUnit<'_>,
    rebuild: i32,
    wanted: Wanted,
    actor: &str,
) -> Result<bool, StoreError> {
    let rows = unit.ask(LOCK_OPEN, &[(&rebuild, Type::INT4)]).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let (epoch, flipped, owned): (i64, bool, bool) = (row.get(0), row.get(1), row.get(2));
    if wanted == Wanted::Cancel && flipped {
        return Ok(false);
    }
    if wanted == Wanted::Cancel && !owned {
        let figures = RebuildFigures {
            phase: Some(RebuildPhase::Cancelled),
            message: Some(format!("cancelled by {actor}")),
            ..RebuildFigures::default()
        };
        return end_statement(unit, (rebuild, epoch), &figures, actor, false).await;
    }
    let params: [Param<'_>; 3] =
        [(&rebuild, Type::INT4), (&wanted.as_str(), Type::TEXT), (&actor, Type::TEXT)];
    unit.ask(STEER, &params).await?;
    Ok(true)
}
