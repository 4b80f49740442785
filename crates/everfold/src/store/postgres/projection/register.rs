//! Registering a projection: finding its generation, or making one, in one transaction. Whatever fails
//! undoes all of it, tables and functions included.
//!
//! Registrations take turns by a lock of their own. Appends notice one only if it is inline, and only
//! in its last moments: the gate is taken when everything else is done.

use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::registry::{LIST_GENERATIONS, generation};
use super::tables::{Indexes, Making, Roles, check_free};
use super::transaction::{begin, finish};
use super::unit::{PostgresUnit, statement};
use super::{gates, names};
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::projection::Projection;
use crate::projection::builder::check;
use crate::projection::definition::{Body, Definition, Lifecycle, ProjectionKind};
use crate::projection::differences;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::operator::operator;
use crate::projection::registry::{built_beside, needs_backfill};
use crate::store::postgres::connect::{Connections, Param, QueryError};
use crate::store::postgres::types::{JsonString, JsonText};
use crate::store::{Registration, StoreKind};

/// Making tables and indexes may take a while; waiting for others should not.
pub(in crate::store::postgres) const TIMEOUTS: &str = "SET LOCAL lock_timeout = '4s'; \
    SET LOCAL statement_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";
/// Registrations take turns.
pub(in crate::store::postgres) const TURN: &str =
    "SELECT pg_advisory_xact_lock('everfold.projections'::regclass::oid::int, 0)";
/// How often a turn is tried for: a registration before us may wait long for the gate.
const TURNS: u32 = 30;
/// How often a session may be lost: one that stalls with the gate in hand is ended by the server.
const SESSIONS: u32 = 3;

const LIST_VERSIONS: &str = statement!("list_versions");
const FIND_PROJECTION: &str =
    "SELECT id FROM everfold.projections WHERE namespace = $1 AND name = $2";
const INSERT_PROJECTION: &str =
    "INSERT INTO everfold.projections (namespace, name) VALUES ($1, $2) RETURNING id";
const INSERT_GENERATION: &str = statement!("insert_generation");
const COUNT_WANTED: &str = statement!("count_wanted_up_to");
const COMPLETE_GENERATION: &str = statement!("complete_generation");
/// Of all generations of the same version: a switch between them changes no settings.
const CHANGE_SETTINGS: &str = "WITH changed AS (UPDATE everfold.generations g \
        SET on_error = $2, definition = jsonb_set(g.definition, '{settings}', $3) \
        FROM everfold.generations found WHERE found.id = $1 AND g.projection = found.projection \
        AND g.version = found.version AND g.definition_hash = found.definition_hash \
        AND g.status <> 'retired') \
    INSERT INTO everfold.system_messages (generation, kind, actor, message) \
    VALUES ($1, 'settings', $5, $4)";

/// A generation of the projection that is registered.
struct Known {
    id: i32,
    version: u32,
    hash: String,
    definition: Value,
}

impl Known {
    fn of(row: &Row) -> Known {
        let definition: JsonString = row.get(3);
        Known {
            id: row.get(0),
            version: row.get::<_, i32>(1).unsigned_abs(),
            hash: row.get(2),
            definition: serde_json::from_str(&definition.0).unwrap_or_default(),
        }
    }
}

/// Finds the generation of a projection, or makes it.
pub(in crate::store::postgres) async fn register(
    connections: &Connections,
    options: &StoreOptions,
    projection: &Projection,
) -> Result<Registration, ProjectionError> {
    let definition = &projection.definition;
    check(definition).map_err(|message| ProjectionError::Invalid {
        projection: definition.name.clone(),
        message,
    })?;
    if let Some(found) = find_unchanged(connections, definition).await? {
        return Ok(found);
    }
    let mut turns = 0;
    loop {
        let error = match try_register(connections, options, projection).await {
            Err(ProjectionError::Store(error)) => error,
            outcome => return outcome,
        };
        wait_for_turn(error, &mut turns).await?;
    }
}

/// Waits before a registration that did not get through is tried again, if it is worth it.
pub(in crate::store::postgres) async fn wait_for_turn(
    error: StoreError,
    turns: &mut u32,
) -> Result<(), StoreError> {
    *turns += 1;
    let most = match error.kind() {
        StoreErrorKind::Busy => TURNS,
        StoreErrorKind::Closed => SESSIONS,
        _ => 0,
    };
    if *turns >= most {
        return Err(error);
    }
    tracing::debug!(%error, "a registration did not get through, trying again");
    // Appends that waited for it go first.
    gates::pause().await;
    Ok(())
}

/// What is there already is found without waiting for anybody, and needs no right to write.
async fn find_unchanged(
    connections: &Connections,
    definition: &Definition,
) -> Result<Option<Registration>, ProjectionError> {
    let connection = connections.get().await?;
    let rows = connection.query(LIST_VERSIONS, &names_of(definition)).await?;
    let known: Vec<Known> = rows.iter().map(Known::of).collect();
    let Some(same) = same_version(definition, &known)? else { return Ok(None) };
    if same.definition["settings"] != json!(definition.settings) {
        return Ok(None);
    }
    let rows = connection.query(LIST_GENERATIONS, &[]).await?;
    let found = rows.iter().find(|row| row.get::<_, i32>(0) == same.id);
    let Some(row) = found else { return Ok(None) };
    Ok(Some(Registration { generation: generation(row)?, created: false }))
}

fn names_of(definition: &Definition) -> [Param<'_>; 2] {
    [(&definition.namespace, Type::TEXT), (&definition.name, Type::TEXT)]
}

/// The generation of this version, which must have the same definition; `None` if this version is a
/// new one.
fn same_version<'k>(
    definition: &Definition,
    known: &'k [Known],
) -> Result<Option<&'k Known>, ProjectionError> {
    let (projection, version) = (definition.name.clone(), definition.version);
    if let Some(same) = known.iter().find(|known| known.version == version) {
        if same.hash == definition.hash(StoreKind::Postgres) {
            return Ok(Some(same));
        }
        let what = differences::between(&same.definition, &definition.content(StoreKind::Postgres));
        return Err(ProjectionError::Changed { projection, version, what });
    }
    match known.first().map(|newest| newest.version) {
        Some(registered) if registered > version => {
            Err(ProjectionError::Older { projection, version, registered })
        }
        _ => Ok(None),
    }
}

async fn try_register(
    connections: &Connections,
    options: &StoreOptions,
    projection: &Projection,
) -> Result<Registration, ProjectionError> {
    let mut connection = connections.get().await?;
    let mut unit = begin(&mut connection, options, TIMEOUTS).await?;
    let outcome = register_in(&mut unit, projection, options.backfill_events).await;
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome
}

async fn register_in(
    unit: &mut PostgresUnit<'_>,
    projection: &Projection,
    backfill_events: u64,
) -> Result<Registration, ProjectionError> {
    let definition = &projection.definition;
    let known = known_versions(unit, definition).await?;
    let (id, created) = match same_version(definition, &known)? {
        Some(same) => {
            change_settings(unit, definition, same).await?;
            (same.id, false)
        }
        None => (create(unit, projection, known.first(), backfill_events).await?, true),
    };
    Ok(Registration { generation: find(unit, id).await?, created })
}

/// Waits for its turn, and returns what is registered, the newest version first.
async fn known_versions(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
) -> Result<Vec<Known>, StoreError> {
    unit.batch(TURN).await.map_err(QueryError::into_store_error)?;
    let rows = unit.ask(LIST_VERSIONS, &names_of(definition)).await?;
    Ok(rows.iter().map(Known::of).collect())
}

/// Waits for its turn, and refuses a definition that is not the one registered under its version.
pub(in crate::store::postgres) async fn check_unchanged(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
) -> Result<(), ProjectionError> {
    let known = known_versions(unit, definition).await?;
    same_version(definition, &known).map(drop)
}

/// A generation as the registry has it.
pub(in crate::store::postgres) async fn find(
    unit: &mut PostgresUnit<'_>,
    id: i32,
) -> Result<Generation, StoreError> {
    let rows = unit.ask(LIST_GENERATIONS, &[]).await?;
    let row = rows.iter().find(|row| row.get::<_, i32>(0) == id).ok_or_else(|| {
        StoreError::new(StoreErrorKind::Other, format!("generation {id} is not in the registry"))
    })?;
    generation(row)
}

/// Takes over settings that differ.
async fn change_settings(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    known: &Known,
) -> Result<(), StoreError> {
    let settings = json!(definition.settings);
    if known.definition["settings"] == settings {
        return Ok(());
    }
    let on_error = definition.settings.on_error.as_str();
    let text = settings.to_string();
    let message = differences::between_settings(&known.definition["settings"], &settings);
    let stored = JsonText::new(&text);
    let params: [Param<'_>; 5] = [
        (&known.id, Type::INT4),
        (&on_error, Type::TEXT),
        (&stored, Type::JSONB),
        (&message, Type::TEXT),
        (&operator(), Type::TEXT),
    ];
    unit.ask(CHANGE_SETTINGS, &params).await.map(drop)
}

/// A new generation with its tables and functions, which nobody knows yet.
pub(in crate::store::postgres) struct Made {
    pub(in crate::store::postgres) id: i32,
    pub(in crate::store::postgres) home: String,
    pub(in crate::store::postgres) tables: Vec<String>,
    pub(in crate::store::postgres) roles: Roles,
}

/// Makes a generation with all that belongs to it, and returns its id.
async fn create(
    unit: &mut PostgresUnit<'_>,
    projection: &Projection,
    newest: Option<&Known>,
    backfill_events: u64,
) -> Result<i32, ProjectionError> {
    let definition = &projection.definition;
    let made = make(unit, projection, Indexes::Now).await?;
    let (status, reason) = first_status(unit, definition, newest, backfill_events).await?;
    if status == GenerationStatus::Active {
        let (home, roles) = (&made.home, &made.roles);
        let mut making = Making { unit, projection, home, roles, indexes: Indexes::Now };
        making.show(&made.tables).await?;
    }
    complete(unit, definition, &made, status, reason).await?;
    Ok(made.id)
}

/// Makes tables and functions of a new generation. All that others notice comes later, in
/// [`complete`].
pub(in crate::store::postgres) async fn make(
    unit: &mut PostgresUnit<'_>,
    projection: &Projection,
    indexes: Indexes,
) -> Result<Made, ProjectionError> {
    let definition = &projection.definition;
    let roles = Roles::read(unit).await?;
    if roles.as_admin {
        unit.batch("SET LOCAL ROLE everfold_admin").await.map_err(QueryError::into_store_error)?;
    }
    let projection_id = projection_id(unit, definition).await?;
    let id = insert(unit, definition, projection_id).await?;
    let home = names::home(id, &definition.name);
    let mut making = Making { unit, projection, home: &home, roles: &roles, indexes };
    let tables = making.create().await?;
    check_free(unit, definition, projection_id, &tables).await?;
    Ok(Made { id, home, tables, roles })
}

/// Enters a generation that was made: its status, its checkpoints, a record of it.
pub(in crate::store::postgres) async fn complete(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    made: &Made,
    status: GenerationStatus,
    reason: Option<String>,
) -> Result<(), StoreError> {
    let shards = match definition.lifecycle {
        Lifecycle::Inline => 1,
        Lifecycle::CatchUp => i32::try_from(definition.shards).unwrap_or(i32::MAX),
    };
    let message = format!("version {} is {status}", definition.version);
    let params: [Param<'_>; 8] = [
        (&made.id, Type::INT4),
        (&made.home, Type::TEXT),
        (&made.tables, Type::TEXT_ARRAY),
        (&status.as_str(), Type::TEXT),
        (&reason, Type::TEXT),
        (&shards, Type::INT4),
        (&message, Type::TEXT),
        (&operator(), Type::TEXT),
    ];
    unit.ask(COMPLETE_GENERATION, &params).await.map(drop)
}

async fn projection_id(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
) -> Result<i32, StoreError> {
    let found = unit.ask(FIND_PROJECTION, &names_of(definition)).await?;
    let rows = match found.is_empty() {
        true => unit.ask(INSERT_PROJECTION, &names_of(definition)).await?,
        false => found,
    };
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

async fn insert(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    projection_id: i32,
) -> Result<i32, StoreError> {
    let mut stored = definition.content(StoreKind::Postgres);
    stored["settings"] = json!(definition.settings);
    if let Body::Sql(scripts) = &definition.body {
        stored["apply_file"] = json!(scripts.postgres.apply.file_in_project());
    }
    let stored = stored.to_string();
    let stored = JsonText::new(&stored);
    let version = i32::try_from(definition.version).unwrap_or(i32::MAX);
    let shards = i32::try_from(definition.shards).unwrap_or(i32::MAX);
    let (kind, lifecycle) = (definition.kind().as_str(), definition.lifecycle.as_str());
    let (key, hash) = (definition.key.to_stored(), definition.hash(StoreKind::Postgres));
    let on_error = definition.settings.on_error.as_str();
    let params: [Param<'_>; 10] = [
        (&projection_id, Type::INT4),
        (&version, Type::INT4),
        (&kind, Type::TEXT),
        (&lifecycle, Type::TEXT),
        (&definition.event_types, Type::TEXT_ARRAY),
        (&key, Type::TEXT_ARRAY),
        (&shards, Type::INT4),
        (&on_error, Type::TEXT),
        (&hash, Type::TEXT),
        (&stored, Type::JSONB),
    ];
    let rows = unit.ask(INSERT_GENERATION, &params).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Whether readers see a version of it.
async fn is_read(unit: &mut PostgresUnit<'_>, definition: &Definition) -> Result<bool, StoreError> {
    let sql = "SELECT active_generation IS NOT NULL FROM everfold.projections \
        WHERE namespace = $1 AND name = $2";
    let rows = unit.ask(sql, &names_of(definition)).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Nothing is ever silently active: an inline generation has to begin with the log, and a later
/// version takes over by a promotion only. Where there is nothing to take over from, because no
/// version has ever been active, a catch-up one begins like that of a new projection: readers see it
/// from the start, unless it has many events before it.
///
/// For an inline one the registry gate is held from here to the end: every append that did not see
/// the generation has ended, and its events can be seen.
async fn first_status(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    newest: Option<&Known>,
    backfill_events: u64,
) -> Result<(GenerationStatus, Option<String>), StoreError> {
    let Definition { name, version, .. } = definition;
    let inline = definition.lifecycle == Lifecycle::Inline;
    if inline {
        gates::lock_registry_at_last(unit).await?;
    }
    if let Some(Known { version: newest, .. }) = newest
        && (inline || is_read(unit, definition).await?)
    {
        let reason = built_beside(name, *version, *newest);
        return Ok((GenerationStatus::Building, Some(reason)));
    }
    let (types, most) = match definition.lifecycle {
        Lifecycle::Inline => (None, 0),
        Lifecycle::CatchUp if definition.kind() == ProjectionKind::Handler => {
            return Ok((GenerationStatus::Active, None));
        }
        Lifecycle::CatchUp => (definition.event_types.as_ref(), backfill_events),
    };
    if !has_more_than(unit, types, most).await? {
        return Ok((GenerationStatus::Active, None));
    }
    Ok((GenerationStatus::Building, Some(needs_backfill(name))))
}

async fn has_more_than(
    unit: &mut PostgresUnit<'_>,
    types: Option<&Vec<String>>,
    most: u64,
) -> Result<bool, StoreError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX - 1);
    let params: [Param<'_>; 2] = [(&types, Type::TEXT_ARRAY), (&(most + 1), Type::INT8)];
    let rows = unit.ask(COUNT_WANTED, &params).await?;
    Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) > most))
}
