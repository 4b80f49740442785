//! Changing the readers' views, one in a transaction: widened before a switch, narrowed before a
//! generation is dropped. No gate is held, so appends do not notice.
//!
//! Whoever has read a view holds a lock on it to the end of his transaction, and readers that come
//! while we wait for it queue behind us. So each try is short, and the pauses are long.
//!
//! Changes of one projection's views take turns by a lock of their own. What a zombie adds is a
//! generation that is not retired at that moment; a removal that retires it later narrows the view
//! again before it drops anything.

use tokio_postgres::types::Type;

use super::layout::{Change, View};
use super::remove::become_admin;
use super::shapes::{Shown, read};
use super::target::lost;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::rebuild::row::RebuildLease;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::gates;
use crate::store::postgres::projection::names::{quoted, readers, table};
use crate::store::postgres::projection::tables::Roles;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::PostgresUnit;

/// What readers wait for at most, and what else the transaction needs.
const TIMEOUTS: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '10s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; \
    SET LOCAL search_path = pg_catalog, pg_temp";
/// How often a view is tried for: before a switch, and before a removal, which can wait for another day.
const TRIES_TO_WIDEN: u32 = 10;
const TRIES_TO_NARROW: u32 = 5;
/// Ahead of time: whoever starts is not held up, and runners try again later.
const TRIES_TO_PREPARE: u32 = 1;

const TARGET: &str = "SELECT r.projection, p.name, r.epoch = $2 AND r.finished_at IS NULL, g.id \
    FROM everfold.rebuilds r JOIN everfold.projections p ON p.id = r.projection \
    LEFT JOIN everfold.generations g ON g.id = r.target AND g.status <> 'retired' WHERE r.id = $1";
const IS_SPARE: &str = "SELECT FROM everfold.generations WHERE id = $1 AND status = 'spare'";
/// Why it is not of use yet is over.
const SPARE_IS_SHOWN: &str = "UPDATE everfold.generations SET reason = NULL \
    WHERE id = $1 AND status = 'spare' AND reason IS NOT NULL";
const LIST_HOLDERS: &str = "SELECT format('process %s%s%s', l.pid, \
        coalesce(' of ' || a.usename, ''), \
        coalesce(' (' || nullif(a.application_name, '') || ')', '')) \
    FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() \
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d \
        WHERE d.datname = pg_catalog.current_database()) \
    AND l.relation = pg_catalog.to_regclass($1)";
/// What others may do with a view, as statements.
const LIST_GRANTS: &str = "SELECT format('GRANT %s ON %s TO %s%s', x.privilege_type, $1, \
        CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END, \
        CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) \
    FROM pg_catalog.pg_class c CROSS JOIN aclexplode(c.relacl) x \
    WHERE c.oid = to_regclass($1) AND x.grantee <> c.relowner";
const IS_THERE: &str = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
const HAS_SCHEMA: &str = "SELECT pg_catalog.to_regnamespace($1) IS NOT NULL";

/// Why views are changed.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Widen(RebuildLease),
    Narrow {
        projection: i32,
        generation: i32,
    },
    /// For a generation that is made ahead of time.
    Prepare {
        projection: i32,
        spare: i32,
    },
}

/// How narrowing went.
pub(super) enum Narrowed {
    Done,
    /// Whoever has read a view in a transaction that is still open, in words.
    Held(Vec<String>),
}

/// Lets the views show the rebuild's target as soon as it is the active generation.
pub(super) async fn widen(
    store: &PostgresStore,
    lease: RebuildLease,
) -> Result<(), ProjectionError> {
    match change_all(store, Purpose::Widen(lease), TRIES_TO_WIDEN).await? {
        Narrowed::Done => Ok(()),
        Narrowed::Held(holders) => {
            let message = format!(
                "a view that readers use cannot be changed, because transactions that read it stay \
                 open: {}; end them, or wait for them, and try again",
                holders.join(", ")
            );
            Err(StoreError::new(StoreErrorKind::Busy, message).into())
        }
    }
}

/// Takes a generation out of the views.
pub(super) async fn narrow(
    store: &PostgresStore,
    projection: i32,
    generation: i32,
) -> Result<Narrowed, ProjectionError> {
    change_all(store, Purpose::Narrow { projection, generation }, TRIES_TO_NARROW).await
}

/// Lets the views show a spare generation as soon as it is the active one.
pub(super) async fn prepare(
    store: &PostgresStore,
    projection: i32,
    spare: i32,
) -> Result<Narrowed, ProjectionError> {
    change_all(store, Purpose::Prepare { projection, spare }, TRIES_TO_PREPARE).await
}

/// Changes one view after the other until nothing is left to do.
async fn change_all(
    store: &PostgresStore,
    purpose: Purpose,
    tries: u32,
) -> Result<Narrowed, ProjectionError> {
    let mut changed: Vec<String> = Vec::new();
    let mut failed = 0;
    loop {
        let mut at = String::new();
        let error = match try_change(store, purpose, &mut at).await {
            // The same one again would be a mistake of ours, and no reason to go on for ever.
            Ok(true) if !changed.contains(&at) => {
                changed.push(at);
                failed = 0;
                continue;
            }
            Ok(_) => return Ok(Narrowed::Done),
            Err(ProjectionError::Store(error)) if error.kind() == StoreErrorKind::Busy => error,
            Err(error) => return Err(error),
        };
        failed += 1;
        tracing::debug!(%error, view = at, "a view is held, trying again");
        if failed >= tries {
            return Ok(Narrowed::Held(holders(store, &at).await?));
        }
        gates::pause().await;
    }
}

/// Makes the first change that is left; `false` if there is none. `at` is the view that it is about.
async fn try_change(
    store: &PostgresStore,
    purpose: Purpose,
    at: &mut String,
) -> Result<bool, ProjectionError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let outcome = change_in(&mut unit, purpose, at).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn change_in(
    unit: &mut PostgresUnit<'_>,
    purpose: Purpose,
    at: &mut String,
) -> Result<bool, ProjectionError> {
    let (projection, adding, removing) = match purpose {
        Purpose::Narrow { projection, generation } => {
            take_turn(unit, projection).await?;
            (projection, None, Some(generation))
        }
        Purpose::Prepare { projection, spare } => {
            take_turn(unit, projection).await?;
            if unit.ask(IS_SPARE, &[(&spare, Type::INT4)]).await?.is_empty() {
                return Ok(false);
            }
            (projection, Some(spare), None)
        }
        Purpose::Widen(lease) => {
            let projection = target(unit, lease).await?.0;
            take_turn(unit, projection).await?;
            // Again, behind whoever removes a generation.
            let (projection, target) = target(unit, lease).await?;
            (projection, target, None)
        }
    };
    let mut shown = read(unit, projection).await?;
    (shown.layout.adding, shown.layout.removing) = (adding, removing);
    let refuse = |message| ProjectionError::Refused { projection: shown.name.clone(), message };
    let changes = shown.layout.changes().map_err(refuse)?;
    let Some(change) = changes.first() else {
        if let Purpose::Prepare { spare, .. } = purpose {
            become_admin(unit).await?;
            unit.ask(SPARE_IS_SHOWN, &[(&spare, Type::INT4)]).await?;
        }
        return Ok(false);
    };
    *at = table(&readers(&shown.namespace), change.name());
    apply(unit, &shown, projection, change).await?;
    Ok(true)
}

/// The projection and the target of a rebuild, if the lease holds.
async fn target(
    unit: &mut PostgresUnit<'_>,
    lease: RebuildLease,
) -> Result<(i32, Option<i32>), ProjectionError> {
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    let rows = unit.ask(TARGET, &params).await?;
    match rows.first() {
        Some(row) if row.get(2) => Ok((row.get(0), row.get(3))),
        row => Err(lost(lease, row.map_or("", |row| row.get(1)))),
    }
}

/// Changes of a projection's views, and removals of its generations, take turns.
pub(super) async fn take_turn(
    unit: &mut PostgresUnit<'_>,
    projection: i32,
) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT pg_catalog.pg_advisory_xact_lock('everfold.rebuilds'::pg_catalog.regclass::oid::int, \
         {projection})"
    );
    unit.batch(&sql).await.map_err(QueryError::into_store_error)
}

async fn apply(
    unit: &mut PostgresUnit<'_>,
    shown: &Shown,
    projection: i32,
    change: &Change,
) -> Result<(), ProjectionError> {
    let roles = Roles::read(unit).await?;
    if roles.as_admin {
        unit.batch("SET LOCAL ROLE everfold_admin").await.map_err(QueryError::into_store_error)?;
    }
    let schema = readers(&shown.namespace);
    let name = table(&schema, change.name());
    let create = |view: &View| format!("VIEW {name} AS {}", shown.layout.query(view, projection));
    let sql = match change {
        Change::Replace(view) => vec![format!("CREATE OR REPLACE {}", create(view))],
        Change::Drop(_) => vec![format!("DROP VIEW {name}")],
        Change::Create(view) => {
            check_free(unit, shown, &schema, &name).await?;
            let mut sql = make_schema(unit, &shown.namespace, &schema, &roles).await?;
            sql.push(format!("CREATE {}", create(view)));
            if roles.has_read_models {
                sql.push(format!("GRANT SELECT ON {name} TO everfold_read_models"));
            }
            sql
        }
        Change::Renew(view) => {
            let grants = unit.ask(LIST_GRANTS, &[(&name, Type::TEXT)]).await?;
            let mut sql = vec![format!("DROP VIEW {name}"), format!("CREATE {}", create(view))];
            sql.extend(grants.iter().map(|row| row.get::<_, String>(0)));
            sql
        }
    };
    unit.batch(&sql.join("; ")).await.map_err(|error| refusal(error, shown, &name))
}

/// A view that others' objects depend on is not dropped.
fn refusal(error: QueryError, shown: &Shown, name: &str) -> ProjectionError {
    if let QueryError::Driver(error) = &error
        && let Some(database) = error.as_db_error()
        && database.code().code() == "2BP01"
    {
        let detail = database.detail().unwrap_or(database.message()).replace('\n', ", ");
        let message = format!(
            "shows in {name} what is no longer there, but {detail}; drop or change that first, then \
             try again"
        );
        return ProjectionError::Refused { projection: shown.name.clone(), message };
    }
    error.into_store_error().into()
}

async fn check_free(
    unit: &mut PostgresUnit<'_>,
    shown: &Shown,
    schema: &str,
    name: &str,
) -> Result<(), ProjectionError> {
    let rows = unit.ask(IS_THERE, &[(&name, Type::TEXT)]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    let message = format!(
        "cannot be shown to readers: there is something called {name} in the schema {schema} already, \
         which is not of this projection; rename it"
    );
    Err(ProjectionError::Refused { projection: shown.name.clone(), message })
}

async fn make_schema(
    unit: &mut PostgresUnit<'_>,
    namespace: &str,
    schema: &str,
    roles: &Roles,
) -> Result<Vec<String>, StoreError> {
    let rows = unit.ask(HAS_SCHEMA, &[(&quoted(schema), Type::TEXT)]).await?;
    if namespace.is_empty() || rows.first().is_some_and(|row| row.get(0)) {
        return Ok(Vec::new());
    }
    let schema = quoted(schema);
    let mut sql = vec![format!("CREATE SCHEMA {schema}")];
    if roles.has_read_models {
        sql.push(format!("GRANT USAGE ON SCHEMA {schema} TO everfold_read_models"));
    }
    Ok(sql)
}

/// Who holds a lock on a view, in words.
async fn holders(store: &PostgresStore, view: &str) -> Result<Vec<String>, StoreError> {
    if view.is_empty() {
        return Ok(vec!["somebody who changes views of the projection".to_owned()]);
    }
    let rows = store.engine.get().await?.query(LIST_HOLDERS, &[(&view, Type::TEXT)]).await?;
    match rows.is_empty() {
        true => Ok(vec![format!("somebody who was done with {view} by now")]),
        false => Ok(rows.iter().map(|row| row.get(0)).collect()),
    }
}
