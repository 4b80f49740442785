//! Stream snapshots: only ever a shortcut, so a lost one costs time and nothing else.

use rusqlite::{Connection, OptionalExtension, params};

use crate::snapshot::StoredSnapshot;
use crate::{StreamId, Version};

const LOAD: &str = include_str!("../../../sql/sqlite/statements/load_snapshot.sql");
const SAVE: &str = include_str!("../../../sql/sqlite/statements/save_snapshot.sql");

pub(super) fn load(
    connection: &Connection,
    stream: &StreamId,
    name: &str,
) -> Result<Option<StoredSnapshot>, rusqlite::Error> {
    connection
        .prepare_cached(LOAD)?
        .query_row([stream.as_str(), name], |row| {
            Ok(StoredSnapshot {
                version: Version::from_stored(row.get(0)?),
                state_version: row.get(1)?,
                state: row.get(2)?,
            })
        })
        .optional()
}

pub(super) fn save(
    connection: &Connection,
    stream: &StreamId,
    name: &str,
    snapshot: &StoredSnapshot,
) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(SAVE)?.execute(params![
        stream.as_str(),
        name,
        snapshot.version.to_stored(),
        snapshot.state_version,
        snapshot.state,
    ])?;
    Ok(())
}
