//! Removing a generation that readers do not see, step by step. Each step may be the last one that is
//! done: a later call goes on behind it.
//!
//! ```text
//!   retire ──> wait for transactions that may see it ──> narrow the views ──> tear down ──> drop
//! ```
//!
//! The one that readers see is removed only with its projection, which is [withdrawn](super::withdraw)
//! first.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use super::as_of;
use super::views::{Narrowed, narrow, take_turn};
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::Removed;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::names::{quoted, table};
use crate::store::postgres::projection::registry::generation as read_generation;
use crate::store::postgres::projection::tables::Roles;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{PostgresUnit, TIMEOUTS, statement, timeouts};
use crate::store::postgres::projection::{apply, gates};

/// Dropping large tables may take a while; waiting for others should not.
const DROP_TIMEOUTS: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '60s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; \
    SET LOCAL search_path = pg_catalog, pg_temp";
/// How often locks are tried for.
pub(super) const TRIES: u32 = 5;
/// How long transactions that may see the generation are waited for.
const WAIT_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a handler may take to remove what it made elsewhere.
const TEAR_DOWN_MAX: Duration = Duration::from_secs(10);

const FACTS: &str = "SELECT g.projection, p.name, g.version, g.lifecycle, g.status, g.home, \
        (g.id = p.active_generation) IS TRUE, \
        (SELECT r.id FROM everfold.rebuilds r WHERE r.target = g.id AND r.finished_at IS NULL), \
        EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = g.home) \
    FROM everfold.generations g JOIN everfold.projections p ON p.id = g.projection WHERE g.id = $1";
pub(super) const LOCK_CHECKPOINTS: &str =
    "SELECT FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE";
/// As requests for rebuilds do: none gets it as its target from here on.
pub(super) const LOCK_PROJECTION: &str =
    "SELECT FROM everfold.projections WHERE id = $1 FOR NO KEY UPDATE";
pub(super) const RETIRE: &str = "WITH freed AS (UPDATE everfold.checkpoints \
        SET epoch = epoch + 1, owner = NULL, expires_at = NULL WHERE generation = $1), \
    recorded AS (INSERT INTO everfold.system_messages (generation, kind, actor, message) \
        VALUES ($1, 'status', $2, 'retired: ' || $3)) \
    UPDATE everfold.generations SET status = 'retired', reason = $3, status_since = clock_timestamp() \
    WHERE id = $1";
const LIST_OLD: &str = statement!("list_old_transactions");
const LIST_DEPENDENTS: &str = statement!("list_foreign_dependents");
const LIST_TABLES: &str = "SELECT c.relname::text FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1";
const FORGET: &str = statement!("forget_generation");
const NOTE: &str = "INSERT INTO everfold.system_messages (generation, kind, actor, message) \
    VALUES ($1, 'rebuild', $2, $3)";
const LIST_LEFTOVERS: &str = statement!("list_leftovers");

/// What has to be known of a generation to remove it.
struct Facts {
    id: i32,
    projection: i32,
    name: String,
    version: u32,
    is_listed: bool,
    is_retired: bool,
    home: String,
    is_active: bool,
    open_rebuild: Option<i32>,
    has_home: bool,
}

impl Facts {
    /// Readers' generation, and one that is being built, stay.
    fn check(&self) -> Result<(), ProjectionError> {
        let refuse = |message| ProjectionError::Refused { projection: self.name.clone(), message };
        if self.is_active {
            let message = format!(
                "is read through generation {} (version {}), so that stays; switch readers over to \
                 another one first",
                self.id, self.version
            );
            return Err(refuse(message));
        }
        if let Some(rebuild) = self.open_rebuild {
            let message = format!(
                "has rebuild {rebuild} open, which fills or switches to generation {}; let it finish, \
                 or cancel it",
                self.id
            );
            return Err(refuse(message));
        }
        Ok(())
    }
}

pub(super) async fn remove(
    store: &PostgresStore,
    generation: i32,
    projector: Option<Projector>,
    actor: &str,
) -> Result<Removed, ProjectionError> {
    let facts = match retire(store, generation, actor).await {
        Ok(facts) => facts,
        Err(ProjectionError::Store(error)) if error.kind() == StoreErrorKind::Busy => {
            return Ok(Removed::Seen(vec![error.to_string()]));
        }
        Err(error) => return Err(error),
    };
    let seen = wait(store, generation).await?;
    if !seen.is_empty() {
        return Ok(Removed::Seen(seen));
    }
    if let Narrowed::Held(holders) = narrow(store, facts.projection, generation).await? {
        return Ok(Removed::Seen(holders));
    }
    if let Some(projector) = projector.filter(|_| facts.has_home) {
        tear_down(store, &facts, &projector, actor).await?;
    }
    drop_home(store, &facts, actor).await
}

/// Retired generations whose schema is still there.
pub(super) async fn leftovers(store: &PostgresStore) -> Result<Vec<Generation>, StoreError> {
    let rows = store.engine.get().await?.query(LIST_LEFTOVERS, &[]).await?;
    rows.iter().map(read_generation).collect()
}

/// Marks it retired, unless it is. From then on it is nobody's target, and no append that begins later
/// knows it.
async fn retire(
    store: &PostgresStore,
    generation: i32,
    actor: &str,
) -> Result<Facts, ProjectionError> {
    let mut tries = 0;
    loop {
        let mut connection = store.engine.get().await?;
        let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
        let outcome = retire_in(&mut unit, generation, actor).await;
        let (outcome, end) = finish(unit, outcome).await;
        end.settle(&connection);
        tries += 1;
        match outcome {
            Err(ProjectionError::Store(error))
                if error.kind() == StoreErrorKind::Busy && tries < TRIES =>
            {
                drop(connection);
                gates::pause().await;
            }
            outcome => return outcome,
        }
    }
}

async fn retire_in(
    unit: &mut PostgresUnit<'_>,
    generation: i32,
    actor: &str,
) -> Result<Facts, ProjectionError> {
    let found = facts(unit, generation).await?;
    found.check()?;
    if found.is_retired {
        return Ok(found);
    }
    let id: Param<'_> = (&generation, Type::INT4);
    unit.ask(LOCK_CHECKPOINTS, std::slice::from_ref(&id)).await?;
    if found.is_listed {
        // In short tries, as for any change of its status: whatever such a try waits for, appends do.
        let gates = format!("{}; {}", gates::TIMEOUTS, gates::all_for(generation));
        unit.batch(&gates).await.map_err(QueryError::into_store_error)?;
    }
    unit.ask(LOCK_PROJECTION, &[(&found.projection, Type::INT4)]).await?;
    // Again: a rebuild may have begun, or ended, meanwhile.
    let found = facts(unit, generation).await?;
    found.check()?;
    let reason = format!("{actor} retired it");
    let params: [Param<'_>; 3] = [id, (&actor, Type::TEXT), (&reason, Type::TEXT)];
    unit.ask(RETIRE, &params).await?;
    Ok(found)
}

async fn facts(unit: &mut PostgresUnit<'_>, generation: i32) -> Result<Facts, StoreError> {
    let rows = unit.ask(FACTS, &[(&generation, Type::INT4)]).await?;
    let row = rows.first().ok_or_else(|| {
        let message = format!("there is no generation {generation}");
        StoreError::new(StoreErrorKind::Missing, message)
    })?;
    let (lifecycle, status): (&str, &str) = (row.get(3), row.get(4));
    Ok(Facts {
        id: generation,
        projection: row.get(0),
        name: row.get(1),
        version: row.get::<_, i32>(2).unsigned_abs(),
        is_listed: lifecycle == "inline" && !["kept", "spare"].contains(&status),
        is_retired: status == "retired",
        home: row.get(5),
        is_active: row.get(6),
        open_rebuild: row.get(7),
        has_home: row.get(8),
    })
}

/// Waits for those transactions of this moment that may see the generation; who is left, in words.
async fn wait(store: &PostgresStore, generation: i32) -> Result<Vec<String>, StoreError> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut among: Option<Vec<String>> = None;
    loop {
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&among, Type::TEXT_ARRAY)];
        let rows = store.engine.get().await?.query(LIST_OLD, &params).await?;
        if rows.is_empty() || Instant::now() >= deadline {
            return Ok(rows.iter().map(|row| row.get(1)).collect());
        }
        among = Some(rows.iter().map(|row| row.get(0)).collect());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks a handler to remove what it made outside its schema. Its failure is told and no reason to keep
/// the rest: otherwise a handler with a mistake in it could never be removed.
async fn tear_down(
    store: &PostgresStore,
    facts: &Facts,
    projector: &Projector,
    actor: &str,
) -> Result<(), ProjectionError> {
    if !matches!(projector, Projector::PostgresHandler(_)) {
        return Ok(());
    }
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, timeouts(TEAR_DOWN_MAX)).await?;
    let outcome = tear_down_in(&mut unit, facts, projector).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    drop(connection);
    let message = match outcome {
        Ok(()) => return Ok(()),
        Err(ApplyError::Store(error)) if error.is_transient() => return Err(error.into()),
        Err(ApplyError::Store(error)) => error.to_string(),
        Err(ApplyError::Refused { message, .. } | ApplyError::Broken { message }) => message,
        Err(ApplyError::OutOfTime(late)) => late.message,
        Err(ApplyError::LeaseLost) => "its lease was lost".to_owned(),
    };
    let message = format!(
        "the handler did not tear down what it made for version {} in {}: {message}; remove by hand \
         what it left outside that schema",
        facts.version, facts.home
    );
    tracing::warn!(projection = facts.name, "{message}");
    let params: [Param<'_>; 3] =
        [(&facts.id, Type::INT4), (&actor, Type::TEXT), (&message, Type::TEXT)];
    Ok(store.engine.get().await?.query(NOTE, &params).await.map(drop)?)
}

async fn tear_down_in(
    unit: &mut PostgresUnit<'_>,
    facts: &Facts,
    projector: &Projector,
) -> Result<(), ApplyError> {
    become_admin(unit).await?;
    apply::tear_down(unit, &facts.name, &facts.home, projector, TEAR_DOWN_MAX).await
}

/// What registrations make belongs to everfold_admin, where there is one.
pub(super) async fn become_admin(unit: &mut PostgresUnit<'_>) -> Result<(), StoreError> {
    if Roles::read(unit).await?.as_admin {
        unit.batch("SET LOCAL ROLE everfold_admin").await.map_err(QueryError::into_store_error)?;
    }
    Ok(())
}

async fn drop_home(
    store: &PostgresStore,
    facts: &Facts,
    actor: &str,
) -> Result<Removed, ProjectionError> {
    let mut tries = 0;
    loop {
        let mut connection = store.engine.get().await?;
        let mut unit = begin(&mut connection, &store.options, DROP_TIMEOUTS).await?;
        let outcome = drop_in(&mut unit, facts, actor).await;
        let (outcome, end) = finish(unit, outcome).await;
        end.settle(&connection);
        drop(connection);
        tries += 1;
        match outcome {
            Ok(()) => return Ok(Removed::Done),
            Err(ProjectionError::Store(error)) if error.kind() == StoreErrorKind::Busy => {
                if tries >= TRIES {
                    return Ok(Removed::Seen(vec![error.to_string()]));
                }
                gates::pause().await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn drop_in(
    unit: &mut PostgresUnit<'_>,
    facts: &Facts,
    actor: &str,
) -> Result<(), ProjectionError> {
    become_admin(unit).await?;
    take_turn(unit, facts.projection).await?;
    let home: [Param<'_>; 1] = [(&facts.home, Type::TEXT)];
    let tables = unit.ask(LIST_TABLES, &home).await?;
    let tables: Vec<String> = tables.iter().map(|row| table(&facts.home, row.get(0))).collect();
    if !tables.is_empty() {
        // From here on nobody can make anything that depends on them.
        let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", tables.join(", "));
        unit.batch(&lock).await.map_err(QueryError::into_store_error)?;
    }
    as_of::drop_views(unit, &facts.home).await?;
    let dependents = unit.ask(LIST_DEPENDENTS, &home).await?;
    if !dependents.is_empty() {
        let names: Vec<String> = dependents.iter().map(|row| row.get(0)).collect();
        let message = format!(
            "cannot have its version {} removed, since this depends on its tables in {}: {}; drop or \
             change that first, then try again",
            facts.version,
            facts.home,
            names.join(", ")
        );
        return Err(ProjectionError::Refused { projection: facts.name.clone(), message });
    }
    let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", quoted(&facts.home));
    unit.batch(&drop).await.map_err(QueryError::into_store_error)?;
    let reason = format!("version {} was removed", facts.version);
    let params: [Param<'_>; 3] =
        [(&facts.id, Type::INT4), (&reason, Type::TEXT), (&actor, Type::TEXT)];
    unit.ask(FORGET, &params).await?;
    Ok(())
}
