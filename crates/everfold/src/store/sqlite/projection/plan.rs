//! The statements of a SQL projection, made ready for one generation: its tables under their own
//! names, and the relation `batch` in front.
//!
//! A generation's SQL never changes, so a plan is made once for each handle and kept.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use serde_json::Value;

use super::names::{identifier, literal};
use super::registry::{json_or_null, unknown};
use super::unit::failed;
use crate::projection::key::Key;
use crate::projection::projector::ApplyError;
use crate::projection::script::{Script, ScriptError, SqlUpcaster, Statement};

const READ: &str = "SELECT definition, home, event_types, key_fields, shards \
    FROM everfold_generations WHERE id = ?1";

/// Plans of generations, by id. The hash is compared too: the id of a registration that was rolled
/// back is given to another one.
#[derive(Default)]
pub(in crate::store::sqlite) struct Plans(Mutex<HashMap<i32, (String, Arc<Plan>)>>);

impl Plans {
    /// The plan of a generation, from its row in the registry.
    pub(super) fn of(
        &self,
        connection: &Connection,
        generation: i32,
        hash: &str,
    ) -> Result<Arc<Plan>, ApplyError> {
        let mut plans = self.0.lock().expect("nothing panics while plans are looked up");
        if let Some((_, plan)) = plans.get(&generation).filter(|(known, _)| known == hash) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(read(connection, generation).map_err(failed)?);
        plans.insert(generation, (hash.to_owned(), Arc::clone(&plan)));
        Ok(plan)
    }
}

/// What of a generation decides how its statements look.
#[derive(Debug, Clone)]
pub(super) struct Frame<'a> {
    pub(super) home: &'a str,
    pub(super) event_types: Option<&'a [String]>,
    pub(super) key: &'a Key,
    pub(super) shards: u32,
}

/// The statements of `apply.sql`.
#[derive(Debug)]
pub(super) struct Plan {
    /// For messages.
    pub(super) file: String,
    home: String,
    pub(super) statements: Vec<Planned>,
}

impl Plan {
    /// What SQLite said, with the tables under the names that the files have for them.
    pub(super) fn in_words_of_the_file(&self, said: &str) -> String {
        said.replace(&self.home, "read_model.")
    }
}

/// One statement, in both forms.
#[derive(Debug)]
pub(super) struct Planned {
    /// As the file has it, to find lines.
    statement: Statement,
    /// `?1` after, `?2` up to, `?3` the shard.
    pub(super) of_range: String,
    /// `?1` a JSON array of positions.
    pub(super) of_positions: String,
}

impl Planned {
    /// The line of the file for a byte of what was sent; where the statement begins if it is unknown.
    pub(super) fn line(&self, sent: &str, offset: Option<usize>) -> u32 {
        match offset {
            Some(offset) => self.statement.line_at_byte(sent, offset.min(sent.len())),
            None => self.statement.line,
        }
    }
}

/// Makes the statements ready.
pub(super) fn plan(
    apply: &Script,
    upcasters: &[SqlUpcaster],
    frame: &Frame<'_>,
) -> Result<Plan, ScriptError> {
    let range = batch("position > ?1 AND position <= ?2", true, upcasters, frame);
    let positions = batch("position IN (SELECT value FROM json_each(?1))", false, upcasters, frame);
    let mut statements = Vec::new();
    for statement in apply.statements()? {
        let of_range = sent(&statement, &range, frame.home)?;
        let of_positions = sent(&statement, &positions, frame.home)?;
        statements.push(Planned { statement, of_range, of_positions });
    }
    let (file, home) = (apply.file.display().to_string(), frame.home.to_owned());
    Ok(Plan { file, home, statements })
}

fn sent(statement: &Statement, batch: &str, home: &str) -> Result<String, ScriptError> {
    let script = Script { file: PathBuf::new(), text: statement.with_batch(batch) };
    let renamed = script
        .statements()?
        .iter()
        .map(|statement| statement.rename_tables(|table| physical(home, table)))
        .collect::<Vec<_>>();
    Ok(renamed.join(";"))
}

/// A table or an index of a generation, in quotes.
pub(super) fn physical(home: &str, name: &str) -> String {
    identifier(&format!("{home}{name}"))
}

/// The query behind the relation `batch`.
fn batch(condition: &str, one_shard: bool, upcasters: &[SqlUpcaster], frame: &Frame<'_>) -> String {
    let mut sql = format!(
        "SELECT position, stream_id, version, type, schema_version, data, metadata, id, recorded_at \
         FROM everfold_events WHERE {condition}"
    );
    if let Some(types) = frame.event_types {
        let types: Vec<String> = types.iter().map(|name| literal(name)).collect();
        // Positions are found by themselves; the plus keeps the index of types out.
        let column = if one_shard { "type" } else { "+type" };
        sql.push_str(&format!(" AND {column} IN ({})", types.join(", ")));
    }
    // A key of fields is looked at also where there is one shard: it may be missing.
    if one_shard && (frame.shards > 1 || matches!(frame.key, Key::Fields(_))) {
        let fields = match frame.key.to_stored() {
            Some(fields) => literal(&serde_json::json!(fields).to_string()),
            None => "NULL".to_owned(),
        };
        sql.push_str(&format!(
            " AND everfold_in_shard({fields}, {}, ?3, position, stream_id, type, data, metadata)",
            frame.shards
        ));
    }
    let mut steps: BTreeMap<u32, Vec<&SqlUpcaster>> = BTreeMap::new();
    for upcaster in upcasters {
        steps.entry(upcaster.schema_version).or_default().push(upcaster);
    }
    for (version, upcasters) in steps {
        sql = upcast(&sql, version, &upcasters);
    }
    sql.push_str(" ORDER BY position");
    sql
}

/// One more layer: events of these types at one schema version come out at the next.
fn upcast(inner: &str, version: u32, upcasters: &[&SqlUpcaster]) -> String {
    let cases: String = upcasters
        .iter()
        .map(|upcaster| {
            let event_type = literal(&upcaster.event_type);
            let expression = &upcaster.expression.text;
            // The expression may end in a comment.
            format!(
                " WHEN type = {event_type} AND schema_version = {version} THEN ({expression}\n)"
            )
        })
        .collect();
    let types: Vec<String> = upcasters.iter().map(|step| literal(&step.event_type)).collect();
    let types = types.join(", ");
    format!(
        "SELECT position, stream_id, version, type, \
         CASE WHEN type IN ({types}) AND schema_version = {version} THEN {} ELSE schema_version END \
         AS schema_version, CASE{cases} ELSE data END AS data, metadata, id, recorded_at \
         FROM ({inner})",
        version + 1
    )
}

fn read(connection: &Connection, generation: i32) -> Result<Plan, rusqlite::Error> {
    connection.prepare_cached(READ)?.query_row([generation], |row| {
        let definition: Value = json_or_null(row, 0)?.unwrap_or_default();
        let (apply, upcasters) = stored_scripts(&definition)
            .ok_or_else(|| unknown(0, "the definition holds no SQL for SQLite"))?;
        let home: String = row.get(1)?;
        let event_types: Option<Vec<String>> = json_or_null(row, 2)?;
        let key_fields: Option<Vec<String>> = json_or_null(row, 3)?;
        let key = Key::from_stored(key_fields.as_deref()).map_err(|error| unknown(3, error))?;
        let shards = row.get(4)?;
        let frame = Frame { home: &home, event_types: event_types.as_deref(), key: &key, shards };
        plan(&apply, &upcasters, &frame).map_err(|error| unknown(0, error))
    })
}

/// The scripts inside `everfold_generations.definition`.
fn stored_scripts(definition: &Value) -> Option<(Script, Vec<SqlUpcaster>)> {
    let body = &definition["body"];
    let file = definition["apply_file"].as_str().unwrap_or("apply.sql");
    let apply = Script { file: file.into(), text: body["apply"].as_str()?.to_owned() };
    let upcasters = body["upcasters"].as_array()?.iter().map(|step| {
        Some(SqlUpcaster {
            event_type: step[0].as_str()?.to_owned(),
            schema_version: step[1].as_u64()?.try_into().ok()?,
            expression: Script { file: PathBuf::new(), text: step[2].as_str()?.to_owned() },
        })
    });
    Some((apply, upcasters.collect::<Option<_>>()?))
}
