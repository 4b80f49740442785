//! What a plan has to know of read models and of the log, asked for cheaply.

use rusqlite::Connection;
use serde_json::Value;

use crate::store::{Counted, GenerationFacts};

const READ_FACTS: &str =
    include_str!("../../../../sql/sqlite/statements/read_generation_facts.sql");
/// None where a generation has been removed: it has no prefix any more.
const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' \
    AND ?1 <> '' AND substr(name, 1, length(?1)) = ?1";
const COUNT_TYPES: &str = "SELECT COUNT(*) FROM (SELECT 1 FROM everfold_events \
    WHERE type IN (SELECT value FROM json_each(?1)) LIMIT ?2)";
const COUNT_ALL: &str = "SELECT COUNT(*) FROM (SELECT 1 FROM everfold_events LIMIT ?1)";
/// Events and rows are counted up to here, and estimated beyond.
const COUNTED_MAX: i64 = 1_000_000;
/// How often the log is looked into to estimate how many events have one of some types.
const SAMPLES: &str = "WITH RECURSIVE step(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM step WHERE n < 999), \
    sample AS (SELECT (SELECT type FROM everfold_events WHERE position >= 1 + n * ?2 / 1000 \
                        ORDER BY position LIMIT 1) AS type FROM step) \
    SELECT COUNT(*) FROM sample WHERE type IN (SELECT value FROM json_each(?1))";

pub(super) fn generation_facts(
    connection: &Connection,
) -> Result<Vec<GenerationFacts>, rusqlite::Error> {
    let snapshot = connection.unchecked_transaction()?;
    let mut statement = snapshot.prepare_cached(READ_FACTS)?;
    let mut listed = statement
        .query_map([], |row| {
            let definition: Option<String> = row.get(5)?;
            let definition = definition.and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let facts = GenerationFacts {
                id: row.get(0)?,
                namespace: row.get(1)?,
                name: row.get(2)?,
                version: row.get(3)?,
                is_retired: row.get::<_, String>(4)? == "retired",
                definition: definition.unwrap_or_default(),
                is_carried: row.get(6)?,
                rows: None,
                bytes: None,
            };
            Ok((facts, row.get::<_, String>(7)?))
        })?
        .collect::<Result<Vec<_>, _>>()?;
    for (facts, home) in &mut listed {
        let tables: Vec<String> = snapshot
            .prepare_cached(TABLES)?
            .query_map([&*home], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        if !tables.is_empty() {
            facts.rows = count_rows(&snapshot, &tables)?;
        }
    }
    let is_there = |facts: &GenerationFacts| !facts.is_retired || facts.rows.is_some();
    Ok(listed.into_iter().map(|(facts, _)| facts).filter(is_there).collect())
}

/// `None` if there are too many to count them.
fn count_rows(connection: &Connection, tables: &[String]) -> Result<Option<u64>, rusqlite::Error> {
    let mut rows = 0;
    for table in tables {
        let table = table.replace('"', "\"\"");
        let sql = format!("SELECT COUNT(*) FROM (SELECT 1 FROM \"{table}\" LIMIT {COUNTED_MAX})");
        let counted: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
        if counted == COUNTED_MAX {
            return Ok(None);
        }
        rows += counted.unsigned_abs();
    }
    Ok(Some(rows))
}

/// How many events of these types there are: counted where they are few, otherwise from a thousand
/// places of the log.
pub(super) fn count_events(
    connection: &Connection,
    types: Option<&[String]>,
) -> Result<Counted, rusqlite::Error> {
    let snapshot = connection.unchecked_transaction()?;
    let types = types.map(|types| serde_json::to_string(types).expect("a list of texts is JSON"));
    let counted: i64 = match &types {
        None => snapshot.query_row(COUNT_ALL, [COUNTED_MAX], |row| row.get(0))?,
        Some(types) => snapshot.query_row(COUNT_TYPES, (types, COUNTED_MAX), |row| row.get(0))?,
    };
    if counted < COUNTED_MAX {
        return Ok(Counted { number: counted.unsigned_abs(), exact: true });
    }
    let last = "SELECT MAX(position) FROM everfold_events";
    let last: i64 = snapshot.query_row(last, [], |row| row.get(0))?;
    let number = match &types {
        None => last,
        Some(types) => {
            let hits: i64 = snapshot.query_row(SAMPLES, (types, last), |row| row.get(0))?;
            last / 1000 * hits
        }
    };
    Ok(Counted { number: number.max(counted).unsigned_abs(), exact: false })
}
