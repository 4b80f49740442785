//! What a plan has to know of read models and of the log, asked for cheaply.

use serde_json::Value;
use tokio_postgres::types::Type;

use super::super::connect::{Connections, Param};
use super::super::types::JsonString;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::GenerationStatus;
use crate::store::{Counted, GenerationFacts};

const READ_FACTS: &str =
    include_str!("../../../../sql/postgres/statements/read_generation_facts.sql");
const COUNT_EVENTS: &str =
    include_str!("../../../../sql/postgres/statements/count_events_up_to.sql");
const TABLES: &str = "SELECT c.relname FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN everfold.generations g ON g.home = n.nspname \
    WHERE g.id = $1 AND c.relkind IN ('r', 'm')";
const HOME: &str = "SELECT home FROM everfold.generations WHERE id = $1";
/// Events are counted up to here, and estimated beyond.
const COUNTED_MAX: i64 = 100_000;
/// Rows of read models up to this size are counted; of larger ones the statistics tell.
const COUNTED_BYTES_MAX: u64 = 8 << 20;

pub(super) async fn generation_facts(
    connections: &Connections,
) -> Result<Vec<GenerationFacts>, StoreError> {
    let rows = connections.get().await?.query(READ_FACTS, &[]).await?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let (status, definition): (&str, JsonString) = (row.get(4), row.get(5));
        let definition: Value = serde_json::from_str(&definition.0).unwrap_or_default();
        let mut facts = GenerationFacts {
            id: row.get(0),
            namespace: row.get(1),
            name: row.get(2),
            version: row.get::<_, i32>(3).unsigned_abs(),
            is_retired: GenerationStatus::from_stored(status) == Some(GenerationStatus::Retired),
            definition,
            is_carried: row.get(6),
            rows: row.get::<_, Option<i64>>(7).map(i64::unsigned_abs),
            bytes: Some(row.get::<_, i64>(8).unsigned_abs()),
        };
        if facts.bytes.is_some_and(|bytes| bytes <= COUNTED_BYTES_MAX) {
            // Whoever may not read the tables still gets what the statistics know.
            facts.rows = count_rows(connections, facts.id).await.ok().or(facts.rows);
        }
        all.push(facts);
    }
    Ok(all)
}

async fn count_rows(connections: &Connections, generation: i32) -> Result<u64, StoreError> {
    let connection = connections.get().await?;
    let id: [Param<'_>; 1] = [(&generation, Type::INT4)];
    let home = connection.query(HOME, &id).await?;
    let Some(home) = home.first().map(|row| row.get::<_, String>(0)) else { return Ok(0) };
    let mut rows = 0;
    for table in connection.query(TABLES, &id).await? {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let (schema, table) = (quoted(&home), quoted(table.get(0)));
        let count = format!("SELECT count(*) FROM {schema}.{table}");
        let counted = connection.query(&count, &[]).await?;
        rows += counted.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs());
    }
    Ok(rows)
}

/// How many events of these types there are: counted where they are few, otherwise what the planner
/// expects.
pub(super) async fn count_events(
    connections: &Connections,
    types: Option<Vec<String>>,
) -> Result<Counted, StoreError> {
    let connection = connections.get().await?;
    let params: [Param<'_>; 2] = [(&types, Type::TEXT_ARRAY), (&COUNTED_MAX, Type::INT8)];
    let rows = connection.query(COUNT_EVENTS, &params).await?;
    let counted = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    if counted < COUNTED_MAX {
        return Ok(Counted { number: counted.unsigned_abs(), exact: true });
    }
    let wanted = match &types {
        None => String::new(),
        Some(types) => {
            let types: Vec<String> = types.iter().map(|name| literal(name)).collect();
            format!(" WHERE type IN ({})", types.join(", "))
        }
    };
    let sql = format!("EXPLAIN (FORMAT JSON) SELECT FROM everfold.events{wanted}");
    let rows = connection.query(&sql, &[]).await?;
    let plan: String = rows.first().map(|row| row.get::<_, JsonString>(0).0).unwrap_or_default();
    let plan: Value = serde_json::from_str(&plan).map_err(|error| {
        StoreError::new(StoreErrorKind::Other, format!("the server's plan is no JSON: {error}"))
    })?;
    let expected = plan[0]["Plan"]["Plan Rows"].as_u64().unwrap_or(0);
    Ok(Counted { number: expected.max(counted.unsigned_abs()), exact: false })
}

/// A text, whatever is in it and however the server reads backslashes.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
