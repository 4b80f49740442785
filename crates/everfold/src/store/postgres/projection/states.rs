//! Where projections and the log stand.

use jiff::Timestamp;
use serde::Deserialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::registry::{COLUMNS, generation};
use super::unit::statement;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{
    GenerationState, GenerationStatus, LastVerification, ShardState,
};
use crate::store::postgres::connect::{Connections, Param};
use crate::store::postgres::types::{JsonString, Time};
use crate::store::{Heads, Reach};

const READ_STATES: &str = statement!("read_states");
const REACH: &str =
    "SELECT position, owed, status, reason FROM everfold.projection_reach($1, $2, $3)";
const HEADS: &str = "SELECT everfold.high_water_mark(), \
    (SELECT coalesce(max(position), 0) FROM everfold.events), clock_timestamp()";

/// A shard as the statement gives it.
#[derive(Deserialize)]
struct StoredShard {
    shard: u32,
    position: i64,
    owner_name: Option<String>,
    owner_since: Option<Timestamp>,
    last_owner: Option<String>,
    expires_at: Option<Timestamp>,
    moved_at: Timestamp,
    attempts: u32,
    failure: Option<String>,
}

pub(in crate::store::postgres) async fn states(
    connections: &Connections,
) -> Result<Vec<GenerationState>, StoreError> {
    let rows = connections.get().await?.query(READ_STATES, &[]).await?;
    rows.iter().map(state).collect()
}

fn state(row: &Row) -> Result<GenerationState, StoreError> {
    let column = |number: usize| COLUMNS + number;
    let count = |number: usize| row.get::<_, i64>(column(number)).unsigned_abs();
    let time = |number: usize| row.get::<_, Option<Time>>(column(number)).map(|time| time.0);
    Ok(GenerationState {
        generation: generation(row)?,
        status_since: row.get::<_, Time>(column(0)).0,
        shards: shards(&row.get::<_, JsonString>(column(1)).0)?,
        open_skips: count(2),
        oldest_skip: time(3),
        dead_letters: count(4),
        held_events: count(5),
        oldest_dead_letter: time(6),
        behind_since: time(7),
        behind_events: count(8),
        recent_events: count(9),
        recent_seconds: row.get(column(10)),
        verified: time(11).map(|at| LastVerification {
            at,
            scope: row.get(column(12)),
            compared: count(13),
            differences: count(14),
        }),
    })
}

fn shards(json: &str) -> Result<Vec<ShardState>, StoreError> {
    let stored: Vec<StoredShard> = serde_json::from_str(json).map_err(|error| {
        let message = format!("the checkpoints of a projection cannot be read: {error}");
        StoreError::new(StoreErrorKind::Other, message)
    })?;
    let shard = |stored: StoredShard| ShardState {
        shard: stored.shard,
        position: Position::from_stored(stored.position),
        owner_name: stored.owner_name,
        owner_since: stored.owner_since,
        last_owner: stored.last_owner,
        expires_at: stored.expires_at,
        moved_at: stored.moved_at,
        attempts: stored.attempts,
        failure: stored.failure,
    };
    Ok(stored.into_iter().map(shard).collect())
}

/// How far a projection is; `None` if there is no such projection.
pub(in crate::store::postgres) async fn reach(
    connections: &Connections,
    namespace: &str,
    name: &str,
    position: Position,
) -> Result<Option<Reach>, StoreError> {
    let position = position.to_stored();
    let params: [Param<'_>; 3] =
        [(&name, Type::TEXT), (&namespace, Type::TEXT), (&position, Type::INT8)];
    let rows = connections.get().await?.query(REACH, &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let status: &str = row.get(2);
    Ok(Some(Reach {
        position: Position::from_stored(row.get(0)),
        owed: row.get::<_, i64>(1).unsigned_abs(),
        status: GenerationStatus::from_stored(status).unwrap_or(GenerationStatus::Retired),
        reason: row.get(3),
    }))
}

pub(in crate::store::postgres) async fn heads(
    connections: &Connections,
) -> Result<Heads, StoreError> {
    let row = connections.get().await?.query_one(HEADS, &[]).await?;
    let mark = Position::from_stored(row.get(0));
    // The statement's snapshot may be older than the mark.
    let highest = Position::from_stored(row.get(1)).max(mark);
    Ok(Heads { mark, highest, now: row.get::<_, Time>(2).0 })
}
