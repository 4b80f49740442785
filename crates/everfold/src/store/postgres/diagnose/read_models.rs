//! The tables that readers see: whether they are there, and whether a row can be in them twice.

use crate::diagnosis::{Finding, ReadModelTable, read_model_findings};
use crate::error::StoreError;
use crate::store::postgres::connect::Connection;

const TABLES: &str = statement!("list_read_model_tables");

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(TABLES, &[]).await?;
    let table = |row: &tokio_postgres::Row| ReadModelTable {
        projection: row.get(0),
        table: row.get(1),
        exists: row.get(2),
        is_shown: row.get(3),
        has_key: row.get(4),
    };
    let tables: Vec<ReadModelTable> = rows.iter().map(table).collect();
    Ok(read_model_findings(&tables))
}
