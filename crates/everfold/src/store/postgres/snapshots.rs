//! Stream snapshots.

use tokio_postgres::types::Type;

use super::connect::Connections;
use super::types::{JsonString, JsonText};
use crate::error::StoreError;
use crate::snapshot::StoredSnapshot;
use crate::{StreamId, Version};

pub(super) async fn load(
    connections: &Connections,
    stream: &StreamId,
    name: &str,
) -> Result<Option<StoredSnapshot>, StoreError> {
    let sql = "SELECT version, state_version, state FROM everfold.stream_snapshots \
               WHERE stream_id = $1 AND name = $2";
    let connection = connections.get().await?;
    let rows =
        connection.query(sql, &[(&stream.as_str(), Type::TEXT), (&name, Type::TEXT)]).await?;
    Ok(rows.first().map(|row| StoredSnapshot {
        version: Version::from_stored(row.get(0)),
        state_version: row.get::<_, i32>(1).unsigned_abs(),
        state: row.get::<_, JsonString>(2).0,
    }))
}

pub(super) async fn save(
    connections: &Connections,
    stream: &StreamId,
    name: &str,
    snapshot: &StoredSnapshot,
) -> Result<(), StoreError> {
    let sql = "SELECT everfold.save_stream_snapshot($1, $2, $3, $4, $5)";
    let version = snapshot.version.to_stored();
    let state_version = i32::try_from(snapshot.state_version).unwrap_or(i32::MAX);
    let state = JsonText::new(&snapshot.state);
    let connection = connections.get().await?;
    connection
        .query(
            sql,
            &[
                (&stream.as_str(), Type::TEXT),
                (&name, Type::TEXT),
                (&version, Type::INT8),
                (&state_version, Type::INT4),
                (&state, Type::JSONB),
            ],
        )
        .await?;
    Ok(())
}
