//! Registering a projection: finding its generation, or making one, in one transaction that holds
//! the write lock. Whatever fails undoes all of it, tables included.

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use super::names::{home, view};
use super::registry::{self, json_or_null};
use super::tables;
use super::unit::record;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::builder::check;
use crate::projection::definition::{Body, Definition, Lifecycle, ProjectionKind};
use crate::projection::differences;
use crate::projection::generation::{Generation, GenerationStatus, SystemMessage};
use crate::projection::operator::operator;
use crate::projection::registry::{built_beside, needs_backfill};
use crate::store::sqlite::error::store_error;
use crate::store::{Registration, StoreKind};

const FIND_PROJECTION: &str =
    "SELECT id FROM everfold_projections WHERE namespace = ?1 AND name = ?2";
const INSERT_PROJECTION: &str =
    "INSERT INTO everfold_projections (namespace, name) VALUES (?1, ?2) RETURNING id";
/// Of several generations of a version the one that readers see is the first, then the newest.
const LIST_VERSIONS: &str = "SELECT g.id, g.version, g.definition_hash, g.definition \
    FROM everfold_generations g JOIN everfold_projections p ON p.id = g.projection \
    WHERE p.id = ?1 AND g.status <> 'retired' \
    ORDER BY g.version DESC, g.id IS p.active_generation DESC, g.id DESC";
const INSERT_GENERATION: &str =
    include_str!("../../../../sql/sqlite/statements/insert_generation.sql");
const NAME_HOME: &str = "UPDATE everfold_generations SET home = ?2, tables = ?3 WHERE id = ?1";
const ACTIVATE: &str = "UPDATE everfold_projections SET active_generation = ?2 WHERE id = ?1";
const CHANGE_SETTINGS: &str = "UPDATE everfold_generations \
    SET on_error = ?2, definition = json_set(definition, '$.settings', json(?3)) WHERE id = ?1";
const INSERT_CHECKPOINT: &str =
    "INSERT INTO everfold_checkpoints (generation, shard) VALUES (?1, ?2)";
/// Both count up to a bound; types are found by their index.
const COUNT_ALL: &str =
    "SELECT count(*) FROM (SELECT 1 FROM everfold_events WHERE ?1 IS NULL LIMIT ?2)";
const COUNT_TYPES: &str = "SELECT count(*) FROM (SELECT 1 FROM everfold_events \
    WHERE type IN (SELECT value FROM json_each(?1)) LIMIT ?2)";
const LIST_TABLES: &str = "SELECT p.namespace, p.name, t.value \
    FROM everfold_generations g JOIN everfold_projections p ON p.id = g.projection, \
    json_each(g.tables) t WHERE g.status <> 'retired' AND p.id <> ?1";

/// A generation of the projection that is registered.
struct Known {
    id: i32,
    version: u32,
    hash: String,
    definition: Value,
}

/// Finds the generation of a projection, or makes it. The transaction holds the write lock.
pub(in crate::store::sqlite) fn register(
    connection: &Connection,
    projection: &Projection,
    backfill_events: u64,
) -> Result<Registration, ProjectionError> {
    let definition = &projection.definition;
    check_rules(definition)?;
    let id = projection_id(connection, definition).map_err(store_error)?;
    let known = known(connection, id).map_err(store_error)?;
    if let Some(same) = known.iter().find(|known| known.version == definition.version) {
        check_same(definition, same)?;
        return found(connection, definition, same);
    }
    let newest = known.first().map(|newest| newest.version);
    if let Some(registered) = newest.filter(|newest| *newest > definition.version) {
        let (projection, version) = (definition.name.clone(), definition.version);
        return Err(ProjectionError::Older { projection, version, registered });
    }
    let (status, reason) =
        first_status(connection, definition, newest, backfill_events).map_err(store_error)?;
    let generation = create(connection, projection, id, status, reason.as_deref())?;
    Ok(Registration { generation: reread(connection, generation)?, created: true })
}

/// Makes one more generation of a projection, to be filled by a rebuild. Its version may be there
/// already, and must be the same then. The transaction holds the write lock.
pub(in crate::store::sqlite) fn make_another(
    connection: &Connection,
    projection: &Projection,
    reason: &str,
) -> Result<Generation, ProjectionError> {
    let definition = &projection.definition;
    check_rules(definition)?;
    let id = projection_id(connection, definition).map_err(store_error)?;
    let known = known(connection, id).map_err(store_error)?;
    for same in known.iter().filter(|known| known.version == definition.version) {
        check_same(definition, same)?;
    }
    let building = GenerationStatus::Building;
    let generation = create(connection, projection, id, building, Some(reason))?;
    Ok(reread(connection, generation)?)
}

fn check_rules(definition: &Definition) -> Result<(), ProjectionError> {
    check(definition).map_err(|message| ProjectionError::Invalid {
        projection: definition.name.clone(),
        message,
    })
}

fn projection_id(connection: &Connection, definition: &Definition) -> Result<i32, rusqlite::Error> {
    let names = (&definition.namespace, &definition.name);
    let found = connection
        .prepare_cached(FIND_PROJECTION)?
        .query_row(names, |row| row.get(0))
        .optional()?;
    match found {
        Some(id) => Ok(id),
        None => connection.prepare_cached(INSERT_PROJECTION)?.query_row(names, |row| row.get(0)),
    }
}

/// The newest version first.
fn known(connection: &Connection, projection: i32) -> Result<Vec<Known>, rusqlite::Error> {
    let known = |row: &rusqlite::Row<'_>| {
        Ok(Known {
            id: row.get(0)?,
            version: row.get(1)?,
            hash: row.get(2)?,
            definition: json_or_null(row, 3)?.unwrap_or_default(),
        })
    };
    connection.prepare_cached(LIST_VERSIONS)?.query_map([projection], known)?.collect()
}

/// The version is there already: it must be the same one.
fn check_same(definition: &Definition, known: &Known) -> Result<(), ProjectionError> {
    if known.hash == definition.hash(StoreKind::Sqlite) {
        return Ok(());
    }
    Err(ProjectionError::Changed {
        projection: definition.name.clone(),
        version: definition.version,
        what: differences::between(&known.definition, &definition.content(StoreKind::Sqlite)),
    })
}

/// The same version is there already. Settings may differ, and are taken over.
fn found(
    connection: &Connection,
    definition: &Definition,
    known: &Known,
) -> Result<Registration, ProjectionError> {
    let settings = json!(definition.settings);
    if known.definition["settings"] != settings {
        change_settings(connection, definition, known, &settings).map_err(store_error)?;
    }
    Ok(Registration { generation: reread(connection, known.id)?, created: false })
}

fn change_settings(
    connection: &Connection,
    definition: &Definition,
    known: &Known,
    settings: &Value,
) -> Result<(), rusqlite::Error> {
    let on_error = definition.settings.on_error.as_str();
    connection.prepare_cached(CHANGE_SETTINGS)?.execute((
        known.id,
        on_error,
        settings.to_string(),
    ))?;
    let message = differences::between_settings(&known.definition["settings"], settings);
    record(connection, &message_of(known.id, "settings", message))
}

/// Makes a generation with all that belongs to it, and returns its id.
fn create(
    connection: &Connection,
    projection: &Projection,
    projection_id: i32,
    status: GenerationStatus,
    reason: Option<&str>,
) -> Result<i32, ProjectionError> {
    let definition = &projection.definition;
    let id = insert(connection, definition, projection_id, status, reason).map_err(store_error)?;
    let home = home(id);
    tables::check_prefix(connection, definition, &home)?;
    let tables = tables::create(connection, projection, &home)?;
    check_free(connection, definition, projection_id, &tables)?;
    let finish = || -> Result<(), rusqlite::Error> {
        let list = json!(tables).to_string();
        connection.prepare_cached(NAME_HOME)?.execute((id, &home, list))?;
        let shards = match definition.lifecycle {
            Lifecycle::Inline => 1,
            Lifecycle::CatchUp => definition.shards,
        };
        for shard in 0..shards {
            connection.prepare_cached(INSERT_CHECKPOINT)?.execute((id, shard))?;
        }
        if status == GenerationStatus::Active {
            connection.prepare_cached(ACTIVATE)?.execute((projection_id, id))?;
        }
        let message = format!("version {} is {status}", definition.version);
        record(connection, &message_of(id, "registered", message))
    };
    finish().map_err(store_error)?;
    if status == GenerationStatus::Active {
        tables::show(connection, definition, &home, &tables)?;
    }
    Ok(id)
}

/// Whether readers see a version of it.
fn is_read(connection: &Connection, definition: &Definition) -> Result<bool, rusqlite::Error> {
    let sql = "SELECT active_generation IS NOT NULL FROM everfold_projections \
        WHERE namespace = ?1 AND name = ?2";
    let names = (&definition.namespace, &definition.name);
    connection.prepare_cached(sql)?.query_row(names, |row| row.get(0))
}

/// Nothing is ever silently active: an inline generation has to begin with the log, and a later
/// version takes over by a promotion only. Where there is nothing to take over from, because no
/// version has ever been active, a catch-up one begins like that of a new projection: readers see it
/// from the start, unless it has many events before it.
fn first_status(
    connection: &Connection,
    definition: &Definition,
    newest: Option<u32>,
    backfill_events: u64,
) -> Result<(GenerationStatus, Option<String>), rusqlite::Error> {
    let Definition { name, version, .. } = definition;
    let inline = definition.lifecycle == Lifecycle::Inline;
    if let Some(newest) = newest
        && (inline || is_read(connection, definition)?)
    {
        let reason = built_beside(name, *version, newest);
        return Ok((GenerationStatus::Building, Some(reason)));
    }
    let (types, most) = match definition.lifecycle {
        Lifecycle::Inline => (None, 0),
        Lifecycle::CatchUp if definition.kind() == ProjectionKind::Handler => {
            return Ok((GenerationStatus::Active, None));
        }
        Lifecycle::CatchUp => (definition.event_types.as_deref(), backfill_events),
    };
    if !has_more_than(connection, types, most)? {
        return Ok((GenerationStatus::Active, None));
    }
    Ok((GenerationStatus::Building, Some(needs_backfill(name))))
}

/// Whether there are more events of these types; no more than that are looked at.
fn has_more_than(
    connection: &Connection,
    types: Option<&[String]>,
    most: u64,
) -> Result<bool, rusqlite::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX - 1);
    let types = types.map(|types| json!(types).to_string());
    let sql = if types.is_some() { COUNT_TYPES } else { COUNT_ALL };
    let found: i64 =
        connection.prepare_cached(sql)?.query_row((types, most + 1), |row| row.get(0))?;
    Ok(found > most)
}

fn insert(
    connection: &Connection,
    definition: &Definition,
    projection_id: i32,
    status: GenerationStatus,
    reason: Option<&str>,
) -> Result<i32, rusqlite::Error> {
    let mut stored = definition.content(StoreKind::Sqlite);
    stored["settings"] = json!(definition.settings);
    if let Body::Sql(scripts) = &definition.body {
        stored["apply_file"] = json!(scripts.sqlite.apply.file_in_project());
    }
    connection.prepare_cached(INSERT_GENERATION)?.query_row(
        rusqlite::params![
            projection_id,
            definition.version,
            definition.kind().as_str(),
            definition.lifecycle.as_str(),
            definition.event_types.as_ref().map(|types| json!(types).to_string()),
            definition.key.to_stored().map(|fields| json!(fields).to_string()),
            definition.shards,
            definition.settings.on_error.as_str(),
            definition.hash(StoreKind::Sqlite),
            stored.to_string(),
            status.as_str(),
            reason,
        ],
        |row| row.get(0),
    )
}

/// Refuses tables that readers would take for those of another projection.
fn check_free(
    connection: &Connection,
    definition: &Definition,
    projection_id: i32,
    tables: &[String],
) -> Result<(), ProjectionError> {
    let list = || -> Result<Vec<(String, String, String)>, rusqlite::Error> {
        let columns = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        connection.prepare_cached(LIST_TABLES)?.query_map([projection_id], columns)?.collect()
    };
    let taken = list().map_err(store_error)?;
    for table in tables {
        let wanted = view(&definition.namespace, table);
        let owner = taken
            .iter()
            .find(|(namespace, _, other)| view(namespace, other).eq_ignore_ascii_case(&wanted));
        if let Some((namespace, owner, _)) = owner {
            let owner = match namespace.as_str() {
                "" => owner.clone(),
                namespace => format!("{namespace}/{owner}"),
            };
            let (projection, table) = (definition.name.clone(), table.clone());
            return Err(ProjectionError::TableTaken { projection, table, owner });
        }
    }
    Ok(())
}

fn message_of(generation: i32, kind: &'static str, message: String) -> SystemMessage {
    let actor = operator();
    SystemMessage { generation: Some(generation), kind, position: None, key: None, actor, message }
}

fn reread(connection: &Connection, id: i32) -> Result<Generation, StoreError> {
    let found = registry::find(connection, id).map_err(store_error)?;
    found.ok_or_else(|| {
        StoreError::new(StoreErrorKind::Other, format!("generation {id} is not in the registry"))
    })
}
