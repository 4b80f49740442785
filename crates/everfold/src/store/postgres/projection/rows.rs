//! A look at the rows of a read model, through the views that readers have.

use serde_json::value::RawValue;
use tokio_postgres::types::Type;

use super::names;
use crate::error::{StoreError, StoreErrorKind};
use crate::read::ReadModelRows;
use crate::store::RowQuery;
use crate::store::postgres::connect::{Connections, Param};
use crate::store::postgres::read::stored_max;

/// $1, $2: names of views, the better one first. Its name, and its columns in their order.
const COLUMNS: &str = "SELECT v.name, (SELECT array_agg(a.attname::text ORDER BY a.attnum) \
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = to_regclass(v.name) AND a.attnum > 0 \
        AND NOT a.attisdropped) \
    FROM (VALUES ($1, 1), ($2, 2)) v (name, place) WHERE to_regclass(v.name) IS NOT NULL \
    ORDER BY v.place LIMIT 1";

pub(super) async fn find(
    connections: &Connections,
    query: &RowQuery,
) -> Result<ReadModelRows, StoreError> {
    let RowQuery { namespace, table, version, .. } = query;
    let schema = names::readers(namespace);
    // A version with other columns has a name of its own.
    let own = names::table(&schema, &format!("{table}_v{version}"));
    let shared = names::table(&schema, table);
    let connection = connections.get().await?;
    let views: [Param<'_>; 2] = [(&own, Type::TEXT), (&shared, Type::TEXT)];
    let found = connection.query(COLUMNS, &views).await?;
    let Some(found) = found.first() else {
        let message = format!("{schema}.{table} does not exist");
        return Err(StoreError::new(StoreErrorKind::Missing, message));
    };
    let (view, columns): (String, Vec<String>) = (found.get(0), found.get(1));
    let mut rows =
        ReadModelRows { table: view.replace('"', ""), rows: Vec::new(), more: false, columns };
    if query.equal.iter().any(|(column, _)| !rows.columns.contains(column)) {
        return Ok(rows);
    }
    let max = stored_max(query.max);
    let mut params: Vec<Param<'_>> = vec![(&max, Type::INT8)];
    let mut sql = format!("SELECT row_to_json(t)::text FROM (SELECT * FROM {view} WHERE true");
    for (column, value) in &query.equal {
        params.push((value, Type::TEXT));
        sql.push_str(&format!(" AND {}::text = ${}", names::quoted(column), params.len()));
    }
    sql.push_str(" ORDER BY 1 LIMIT $1) t");
    for row in connection.query(&sql, &params).await? {
        let text: String = row.get(0);
        let row = RawValue::from_string(text);
        rows.rows.push(row.map_err(|error| {
            StoreError::new(StoreErrorKind::Other, format!("a row is not JSON: {error}"))
        })?);
    }
    Ok(rows)
}
