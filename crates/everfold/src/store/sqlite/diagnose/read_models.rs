//! The tables that readers see: whether they are there, and whether a row can be in them twice.

use rusqlite::{Connection, Row};

use crate::diagnosis::{Finding, ReadModelTable, read_model_findings};

const TABLES: &str = include_str!("../../../../sql/sqlite/statements/list_read_model_tables.sql");

pub(super) fn findings(connection: &Connection) -> Result<Vec<Finding>, rusqlite::Error> {
    let table = |row: &Row<'_>| {
        Ok(ReadModelTable {
            projection: row.get(0)?,
            table: row.get(1)?,
            exists: row.get(2)?,
            is_shown: row.get(3)?,
            has_key: row.get(4)?,
        })
    };
    let mut statement = connection.prepare(TABLES)?;
    let tables: Vec<ReadModelTable> = statement.query_map([], table)?.collect::<Result<_, _>>()?;
    Ok(read_model_findings(&tables))
}
