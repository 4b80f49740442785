//! What a plan has to know of read models and of the log, asked for cheaply.

use serde_json::Value;
use tokio_postgres::types::Type;

use super::super::connect::{Connections, Param};
use super::super::types::JsonString;
use crate::error::StoreError;
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

/// Many are so many in a second.
const MANY_APPENDS: i64 = 200;
const RECENT_APPENDS: &str = "SELECT count(*) FROM (SELECT recorded_at FROM everfold.events \
    ORDER BY position DESC LIMIT $1) e WHERE recorded_at > clock_timestamp() - interval '1 second'";

/// Whether many events came in lately.
pub(super) async fn is_crowded(connections: &Connections) -> Result<bool, StoreError> {
    let params: [Param<'_>; 1] = [(&MANY_APPENDS, Type::INT8)];
    let rows = connections.get().await?.query(RECENT_APPENDS, &params).await?;
    Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) == MANY_APPENDS))
}

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
    let expected = expected_rows(connections, &format!("everfold.events{wanted}")).await?;
    Ok(Counted { number: expected.max(counted.unsigned_abs()), exact: false })
}

/// What the planner expects a relation to have.
async fn expected_rows(connections: &Connections, from: &str) -> Result<u64, StoreError> {
    let sql = format!("EXPLAIN SELECT FROM {from}");
    let rows = connections.get().await?.query(&sql, &[]).await?;
    let plan: &str = rows.first().map_or("", |row| row.get(0));
    Ok(planned_rows(plan))
}

/// The rows in the first line of a plan: `Seq Scan on events  (cost=0.00..1.10 rows=10 width=0)`.
fn planned_rows(line: &str) -> u64 {
    let number = line.split_once("rows=").map_or("", |(_, behind)| behind);
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// A text, whatever is in it and however the server reads backslashes.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use everfold_testkit::TestDatabase;

    use super::*;
    use crate::store::Store;

    #[test]
    fn rows_of_a_plan_are_read() {
        let line = "Seq Scan on events  (cost=0.00..1.10 rows=1234 width=0)";
        assert_eq!(planned_rows(line), 1234);
        assert_eq!(planned_rows(""), 0);
    }

    #[tokio::test]
    async fn events_beyond_the_bound_are_estimated() {
        let database = TestDatabase::create().await;
        let options = crate::StoreOptions { migrate: Some(true), ..crate::StoreOptions::default() };
        let store = Store::open_with(&database.url(), options).await.unwrap();
        let client = database.connect().await;
        let many = format!(
            "INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
             SELECT 's', n, 'Counted', 1, '{{}}', '{{}}', gen_random_uuid()
               FROM generate_series(1, {}) AS n; ANALYZE everfold.events",
            COUNTED_MAX + 10
        );
        client.batch_execute(&many).await.unwrap();
        for types in [None, Some(vec!["Counted".to_owned()])] {
            let counted = store.backend().count_events(types).await.unwrap();
            assert!(!counted.exact && counted.number >= COUNTED_MAX.unsigned_abs(), "{counted:?}");
        }
    }
}
