//! Spares: generations made ahead of time, empty, which the next rebuild of the same definition fills.
//!
//! The readers' views show a spare from the beginning, behind the condition that it is the active one.
//! So that rebuild changes no view, and waits for nobody who has read one and stays in his transaction.
//!
//! ```text
//!   prepare: made ──> the views show it ──> take: building, with checkpoints ──> as any target
//!               └──> another definition is active: retired
//! ```
//!
//! Nobody lists a spare: neither appends nor runners nor `status`. A handler may have effects when it
//! sets up, so there are none of handlers.

use tokio_postgres::types::Type;

use super::remove::become_admin;
use super::target::defer_indexes;
use super::views::{self, Narrowed};
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::definition::{Definition, ProjectionKind};
use crate::projection::generation::GenerationStatus;
use crate::rebuild::row::RebuildLease;
use crate::store::StoreKind;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::deferred;
use crate::store::postgres::projection::register::{Made, TURN, complete, make};
use crate::store::postgres::projection::tables::{Indexes, Roles};
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{PostgresUnit, statement};

/// As registrations, but nobody is waited for: whoever has the turn is busy with the same, or goes first.
const TIMEOUTS: &str = "SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '60s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'";
/// Why a spare is not of use yet; without a reason it is.
const NOT_SHOWN: &str = "the views that readers use do not show it yet";

const LOOK: &str = statement!("look_for_spare");
const RETIRE: &str = statement!("retire_spares");
/// Read models of the past are not switched to, so they leave it alone.
const FIND: &str = "SELECT g.id, g.home, g.tables FROM everfold.generations g \
    JOIN everfold.projections p ON p.id = g.projection \
    WHERE p.namespace = $1 AND p.name = $2 AND g.version = $3 AND g.definition_hash = $4 \
    AND g.status = 'spare' AND EXISTS (SELECT FROM everfold.rebuilds r \
        WHERE r.id = $5 AND r.projection = p.id AND r.kind <> 'as-of') \
    ORDER BY g.reason IS NULL DESC, g.id LIMIT 1";
const ALL_MADE: &str = "UPDATE everfold.generations SET indexes_deferred = false WHERE id = $1";

/// How a projection stands as to its spare.
struct Found {
    projection: i32,
    spare: Option<i32>,
    /// The views show the spare.
    is_shown: bool,
    /// Whether one is of use now.
    is_wanted: bool,
    /// There are spares of another definition than the one that readers see.
    has_others: bool,
    /// The user may make one.
    may: bool,
}

impl Found {
    fn is_complete(&self) -> bool {
        !self.is_wanted || (self.spare.is_some() && self.is_shown)
    }
}

/// Makes a spare, if one is of use and there is none, and lets the views show it.
pub(super) async fn prepare(
    store: &PostgresStore,
    projection: &Projection,
) -> Result<(), ProjectionError> {
    let definition = &projection.definition;
    let version = stored_version(definition);
    let hash = definition.hash(StoreKind::Postgres);
    let rows = store.engine.get().await?.query(LOOK, &params(definition, &version, &hash)).await?;
    let Some(found) = rows.first().map(|row| read(row, definition)) else { return Ok(()) };
    if !found.may || (found.is_complete() && !found.has_others) {
        return Ok(());
    }
    let Some(spare) = try_make(store, projection).await? else { return Ok(()) };
    match views::prepare(store, found.projection, spare).await? {
        Narrowed::Done => {}
        Narrowed::Held(holders) => {
            let holders = holders.join(", ");
            let name = &definition.name;
            tracing::debug!(
                projection = name,
                holders,
                "readers hold a view; a runner tries again"
            );
        }
    }
    Ok(())
}

/// The spare that the views are to show, if one is of use.
async fn try_make(
    store: &PostgresStore,
    projection: &Projection,
) -> Result<Option<i32>, ProjectionError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = make_in(&mut unit, projection).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn make_in(
    unit: &mut PostgresUnit<'_>,
    projection: &Projection,
) -> Result<Option<i32>, ProjectionError> {
    let definition = &projection.definition;
    unit.batch(TURN).await.map_err(QueryError::into_store_error)?;
    // Again: somebody else may have made it meanwhile.
    let version = stored_version(definition);
    let hash = definition.hash(StoreKind::Postgres);
    let rows = unit.ask(LOOK, &params(definition, &version, &hash)).await?;
    let Some(found) = rows.first().map(|row| read(row, definition)) else { return Ok(None) };
    become_admin(unit).await?;
    if found.has_others {
        unit.ask(RETIRE, &[(&found.projection, Type::INT4)]).await?;
    }
    if !found.is_wanted || found.spare.is_some() {
        return Ok(found.spare.filter(|_| found.is_wanted && !found.is_shown));
    }
    let made = make(unit, projection, Indexes::LaterButKeys).await?;
    let reason = Some(NOT_SHOWN.to_owned());
    complete(unit, definition, &made, GenerationStatus::Spare, reason).await?;
    defer_indexes(unit, made.id).await?;
    Ok(Some(made.id))
}

/// The spare that a rebuild's target becomes, if there is one, with the indexes that it needs now. The
/// caller has the turn of registrations, and enters it as a target.
pub(super) async fn take(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
    definition: &Definition,
    indexes: Indexes,
) -> Result<Option<Made>, ProjectionError> {
    let version = stored_version(definition);
    let hash = definition.hash(StoreKind::Postgres);
    let [namespace, name, version, hash] = params(definition, &version, &hash);
    let params: [Param<'_>; 5] = [namespace, name, version, hash, (&lease.rebuild, Type::INT4)];
    let rows = unit.ask(FIND, &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let roles = Roles::read(unit).await?;
    let made = Made { id: row.get(0), home: row.get(1), tables: row.get(2), roles };
    become_admin(unit).await?;
    if indexes == Indexes::Now {
        make_indexes(unit, definition, &made).await?;
    }
    Ok(Some(made))
}

async fn make_indexes(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    made: &Made,
) -> Result<(), ProjectionError> {
    let mut sql = vec!["SET LOCAL search_path = pg_catalog, pg_temp".to_owned()];
    sql.extend(deferred::all(definition, &made.home)?);
    unit.batch(&sql.join("; ")).await.map_err(QueryError::into_store_error)?;
    Ok(unit.ask(ALL_MADE, &[(&made.id, Type::INT4)]).await.map(drop)?)
}

fn stored_version(definition: &Definition) -> i32 {
    i32::try_from(definition.version).unwrap_or(i32::MAX)
}

fn params<'p>(definition: &'p Definition, version: &'p i32, hash: &'p String) -> [Param<'p>; 4] {
    [
        (&definition.namespace, Type::TEXT),
        (&definition.name, Type::TEXT),
        (version, Type::INT4),
        (hash, Type::TEXT),
    ]
}

fn read(row: &tokio_postgres::Row, definition: &Definition) -> Found {
    let (is_read, is_rebuilt): (bool, bool) = (row.get(1), row.get(5));
    Found {
        projection: row.get(0),
        spare: row.get(2),
        is_shown: row.get(3),
        is_wanted: is_read && !is_rebuilt && definition.kind() != ProjectionKind::Handler,
        has_others: row.get(4),
        may: row.get(6),
    }
}
