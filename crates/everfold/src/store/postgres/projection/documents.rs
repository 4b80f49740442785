//! Documents: those of a batch, loaded and written as sets, and those that readers ask for.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::apply::broken_or_refused;
use super::names;
use super::unit::PostgresUnit;
use crate::Position;
use crate::error::StoreError;
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, DocumentChange};
use crate::store::postgres::connect::{Connections, Param, QueryError};
use crate::store::postgres::read::stored_max;
use crate::store::postgres::types::{JsonString, JsonText};
use crate::store::{DocumentQuery, StoredDocument};

/// Documents by key; keys without one are left out.
pub(in crate::store::postgres) async fn load(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    keys: &[String],
) -> Result<Vec<(String, String)>, ApplyError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let table = names::table(&generation.home, &generation.name);
    let sql = format!("SELECT key, document FROM {table} WHERE key = ANY ($1) ORDER BY key");
    let rows = ask(unit, &sql, &[(&keys, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, JsonString>(1).0)).collect())
}

/// Writes documents, sorted by key, so that writers who meet wait for each other and do not deadlock.
pub(in crate::store::postgres) async fn write(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    changes: &[DocumentChange],
) -> Result<(), ApplyError> {
    let table = names::table(&generation.home, &generation.name);
    let mut sorted: Vec<&DocumentChange> = changes.iter().collect();
    sorted.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let deleted: Vec<&str> =
        sorted.iter().filter(|c| c.document.is_none()).map(|c| c.key.as_str()).collect();
    if !deleted.is_empty() {
        let sql = format!("DELETE FROM {table} WHERE key = ANY ($1)");
        ask(unit, &sql, &[(&deleted, Type::TEXT_ARRAY)]).await?;
    }
    sorted.retain(|change| change.document.is_some());
    if sorted.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = sorted.iter().map(|c| c.key.as_str()).collect();
    let documents: Vec<JsonText<'_>> =
        sorted.iter().filter_map(|c| c.document.as_deref()).map(JsonText::new).collect();
    let positions: Vec<i64> = sorted.iter().map(|c| c.position.to_stored()).collect();
    let versions: Vec<i64> = sorted.iter().map(|c| c.stream_version.to_stored()).collect();
    let params: [Param<'_>; 4] = [
        (&keys, Type::TEXT_ARRAY),
        (&documents, Type::JSONB_ARRAY),
        (&positions, Type::INT8_ARRAY),
        (&versions, Type::INT8_ARRAY),
    ];
    ask(unit, &upsert(&table), &params).await.map(drop)
}

/// A statement that worked when the generation was made.
async fn ask(
    unit: &mut PostgresUnit<'_>,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, ApplyError> {
    // A plan for these keys: one that is made while the table is empty, and kept, would scan it later.
    unit.try_query_anew(sql, params).await.map_err(|error| match error {
        QueryError::Driver(error) => broken_or_refused(error),
        error => ApplyError::Store(error.into_store_error()),
    })
}

/// $1 keys text[], $2 documents jsonb[], $3 positions bigint[], $4 stream versions bigint[].
fn upsert(table: &str) -> String {
    format!(
        "INSERT INTO {table} (key, document, position, stream_version) \
         SELECT * FROM unnest($1::text[], $2::jsonb[], $3::bigint[], $4::bigint[]) \
         ON CONFLICT (key) DO UPDATE SET document = EXCLUDED.document, \
             position = EXCLUDED.position, stream_version = EXCLUDED.stream_version"
    )
}

/// Documents of the active generation, through the view that readers have.
pub(in crate::store::postgres) async fn find(
    connections: &Connections,
    query: &DocumentQuery,
) -> Result<Vec<StoredDocument>, StoreError> {
    let view = names::table(&names::readers(&query.namespace), &query.name);
    let values: Vec<String> = query.fields.iter().map(|(_, value)| value.to_string()).collect();
    let values: Vec<JsonText<'_>> = values.iter().map(|value| JsonText::new(value)).collect();
    let max = stored_max(query.max);
    let mut params: Vec<Param<'_>> = vec![(&max, Type::INT8)];
    let mut sql = format!("SELECT key, document, position FROM {view} WHERE true");
    if let Some(keys) = &query.keys {
        params.push((keys, Type::TEXT_ARRAY));
        sql.push_str(&format!(" AND key = ANY (${})", params.len()));
    }
    if let Some(after) = &query.after {
        params.push((after, Type::TEXT));
        sql.push_str(&format!(" AND key > ${}", params.len()));
    }
    for ((path, _), value) in query.fields.iter().zip(&values) {
        params.push((value, Type::JSONB));
        // The same expression as in the index.
        sql.push_str(&format!(" AND (document #> {}) = ${}", names::path(path), params.len()));
    }
    sql.push_str(" ORDER BY key LIMIT $1");
    let rows = connections.get().await?.query(&sql, &params).await?;
    let document = |row: &Row| StoredDocument {
        key: row.get(0),
        document: row.get::<_, JsonString>(1).0,
        position: Position::from_stored(row.get(2)),
    };
    Ok(rows.iter().map(document).collect())
}
