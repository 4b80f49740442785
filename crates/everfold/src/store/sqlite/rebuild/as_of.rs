//! Showing a read model as it was at a position, beside what readers see.

use rusqlite::Connection;

use super::super::projection::names::{identifier, view};
use super::super::projection::registry;
use super::lease;
use crate::Position;
use crate::rebuild::replay::as_of_reason;
use crate::rebuild::row::RebuildLease;

/// Nobody feeds it from now on, and appends do not list it.
const STOP: &str = "UPDATE everfold_generations SET lifecycle = 'catch-up', status = 'paused', \
    reason = ?2, status_since = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z' WHERE id = ?1";

/// `false` if the lease is lost. The transaction holds the write lock.
pub(super) fn show(
    connection: &Connection,
    lease: RebuildLease,
    position: Position,
) -> Result<bool, rusqlite::Error> {
    let Some(row) = lease::held(connection, lease)? else { return Ok(false) };
    let target = row.target.map(|target| registry::find(connection, target)).transpose()?.flatten();
    let Some(target) = target else { return Ok(false) };
    connection.prepare_cached(STOP)?.execute((target.id, as_of_reason(position)))?;
    for table in &target.tables {
        let name = identifier(&format!("{}_at_{position}", view(&target.namespace, table)));
        let table = identifier(&format!("{}{table}", target.home));
        let sql =
            format!("DROP VIEW IF EXISTS {name}; CREATE VIEW {name} AS SELECT * FROM {table}");
        connection.execute_batch(&sql)?;
    }
    Ok(true)
}
