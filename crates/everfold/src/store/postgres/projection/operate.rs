//! What operators and runners ask for: leases, changes of status, dead letters, skips, messages,
//! retention.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::gates;
use super::steps::dead_letter;
use super::transaction::{begin, finish};
use super::unit::{PostgresUnit, TIMEOUTS, statement};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::projection::generation::{DeadLetterInfo, Lease, MessageInfo, ShardId, SkipInfo};
use crate::rebuild::row::RebuildLease;
use crate::store::postgres::connect::{Connections, Param, QueryError};
use crate::store::postgres::read::stored_max;
use crate::store::postgres::types::Time;
use crate::store::{MessagesAbout, StatusChange, Tick};
use crate::{Position, StreamId};

const TICK: &str =
    "SELECT generation, shard, epoch, position FROM everfold.tick($1, $2, $3, $4, $5)";
const OWING: &str = "SELECT g FROM unnest($1::integer[]) g WHERE EXISTS (\
    SELECT FROM everfold.skips s WHERE s.generation = g AND s.position <= everfold.owed_up_to(g) \
    AND NOT EXISTS (\
        SELECT FROM everfold.dead_letters d WHERE d.generation = g AND d.key = s.key)) ORDER BY 1";
const LIFECYCLE: &str = "SELECT lifecycle FROM everfold.generations WHERE id = $1";
/// One that readers do not see is not set going again while a rebuild has to do with it: only the
/// rebuild knows from where. What readers see, and what is being built, is not retired.
const CHANGE_STATUS: &str = "UPDATE everfold.generations \
    SET status = $2, reason = $3, status_since = clock_timestamp() \
    WHERE id = $1 AND status = ANY ($4) AND NOT ($2 IN ('kept', 'building') AND EXISTS (\
        SELECT FROM everfold.rebuilds r WHERE r.finished_at IS NULL AND $1 IN (r.source, r.target))) \
    AND NOT ($2 = 'retired' AND (EXISTS (\
        SELECT FROM everfold.rebuilds r WHERE r.finished_at IS NULL AND $1 = r.target) \
        OR EXISTS (SELECT FROM everfold.projections p WHERE p.active_generation = $1))) \
    RETURNING id";
const OWN_REBUILD: &str = "SELECT FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL FOR UPDATE";
const LOCK_CHECKPOINTS: &str =
    "SELECT FROM everfold.checkpoints WHERE generation = $1 ORDER BY shard FOR UPDATE";
const CLEAR_FAILURES: &str = "UPDATE everfold.checkpoints \
    SET attempts = 0, failure = NULL, epoch = epoch + 1, owner = NULL, expires_at = NULL \
    WHERE generation = $1";
const RECORD_STATUS: &str = "INSERT INTO everfold.system_messages \
    (generation, kind, actor, message) VALUES ($1, 'status', $2, $3)";
const LIST_DEAD_LETTERS: &str = statement!("list_dead_letters");
const LIST_SKIPS: &str = "SELECT position, key, reason, skipped_at FROM everfold.skips \
    WHERE generation = $1 ORDER BY position LIMIT $2";
const LIST_MESSAGES: &str = "SELECT m.recorded_at, p.name, m.kind, m.position, m.key, m.actor, \
        m.message, m.id, g.version \
    FROM everfold.system_messages m JOIN everfold.generations g ON g.id = m.generation \
    JOIN everfold.projections p ON p.id = g.projection \
    WHERE p.namespace = $1 AND ($2 IS NULL OR p.name = $2) AND ($3 IS NULL OR m.kind = ANY ($3)) \
    ORDER BY m.id DESC LIMIT $4";
const WANT_RETRY: &str = "UPDATE everfold.dead_letters SET retry_wanted = true \
    WHERE generation = $1 AND behind IS NULL AND ($2::bigint IS NULL OR position = $2) \
    RETURNING position";
const WANTED_RETRIES: &str = "SELECT generation, position FROM everfold.dead_letters \
    WHERE retry_wanted AND generation = ANY ($1) ORDER BY position LIMIT $2";
/// Rows that one statement of the retention deletes.
const PRUNE_MAX: i64 = 10_000;

/// A worker's sign of life; the leases it has now.
pub(in crate::store::postgres) async fn tick(
    connections: &Connections,
    tick: &Tick,
) -> Result<Vec<Lease>, StoreError> {
    let ttl = i32::try_from(tick.lease_ttl.as_millis()).unwrap_or(i32::MAX);
    let params: [Param<'_>; 5] = [
        (&tick.worker, Type::UUID),
        (&tick.name, Type::TEXT),
        (&tick.carries, Type::INT4_ARRAY),
        (&ttl, Type::INT4),
        (&tick.stuck, Type::INT4_ARRAY),
    ];
    let rows = connections.get().await?.query(TICK, &params).await?;
    let lease = |row: &Row| Lease {
        shard: ShardId { generation: row.get(0), shard: row.get::<_, i32>(1).unsigned_abs() },
        epoch: row.get(2),
        position: Position::from_stored(row.get(3)),
    };
    Ok(rows.iter().map(lease).collect())
}

pub(in crate::store::postgres) async fn leave(
    connections: &Connections,
    worker: Uuid,
) -> Result<(), StoreError> {
    let sql = "SELECT everfold.leave($1)";
    connections.get().await?.query(sql, &[(&worker, Type::UUID)]).await.map(drop)
}

/// Which of these generations owe open skips that no dead letter holds.
pub(in crate::store::postgres) async fn owing(
    connections: &Connections,
    generations: &[i32],
) -> Result<Vec<i32>, StoreError> {
    let rows = connections.get().await?.query(OWING, &[(&generations, Type::INT4_ARRAY)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Changes a status. That of an inline generation under the gates, in short tries: whatever such a
/// try waits for, appends wait too.
pub(in crate::store::postgres) async fn change_status(
    connections: &Connections,
    options: &StoreOptions,
    change: &StatusChange,
) -> Result<bool, StoreError> {
    let id: [Param<'_>; 1] = [(&change.generation, Type::INT4)];
    let rows = connections.get().await?.query(LIFECYCLE, &id).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let inline = row.get::<_, &str>(0) == "inline";
    let set_up = if inline { gates::TIMEOUTS } else { TIMEOUTS };
    let mut tries = 0;
    loop {
        let mut connection = connections.get().await?;
        let mut unit = begin(&mut connection, options, set_up).await?;
        let outcome = change_status_in(&mut unit, inline, change).await;
        let (outcome, end) = finish(unit, outcome).await;
        end.settle(&connection);
        tries += 1;
        match outcome {
            Err(error) if error.kind() == StoreErrorKind::Busy && tries < gates::TRIES => {
                drop(connection);
                gates::pause().await;
            }
            outcome => return outcome,
        }
    }
}

/// Changes a status in a transaction, behind the gates if it is one that appends look at.
pub(in crate::store::postgres) async fn change_status_in(
    unit: &mut PostgresUnit<'_>,
    inline: bool,
    change: &StatusChange,
) -> Result<bool, StoreError> {
    let id: Param<'_> = (&change.generation, Type::INT4);
    if let Some(RebuildLease { rebuild, epoch, .. }) = &change.rebuild {
        // Before everything else, as the steps of a switch do.
        let params: [Param<'_>; 2] = [(rebuild, Type::INT4), (epoch, Type::INT8)];
        if unit.ask(OWN_REBUILD, &params).await?.is_empty() {
            return Ok(false);
        }
    }
    if inline {
        // In the order of drains and retries: whoever waits for one of these holds no append up.
        unit.ask(LOCK_CHECKPOINTS, std::slice::from_ref(&id)).await?;
        let gates = gates::all_for(change.generation);
        unit.batch(&gates).await.map_err(QueryError::into_store_error)?;
    }
    let (to, from) = (change.to.as_str(), change.from.iter().map(|status| status.as_str()));
    let from: Vec<&str> = from.collect();
    let params: [Param<'_>; 4] =
        [id.clone(), (&to, Type::TEXT), (&change.reason, Type::TEXT), (&from, Type::TEXT_ARRAY)];
    if unit.ask(CHANGE_STATUS, &params).await?.is_empty() {
        return Ok(false);
    }
    unit.ask(CLEAR_FAILURES, std::slice::from_ref(&id)).await?;
    let message = match &change.reason {
        Some(reason) => format!("{}: {reason}", change.to),
        None => change.to.to_string(),
    };
    let params: [Param<'_>; 3] = [id, (&change.actor, Type::TEXT), (&message, Type::TEXT)];
    unit.ask(RECORD_STATUS, &params).await?;
    Ok(true)
}

pub(in crate::store::postgres) async fn list_dead_letters(
    connections: &Connections,
    generation: i32,
    max: usize,
) -> Result<Vec<DeadLetterInfo>, StoreError> {
    let max = stored_max(max);
    let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&max, Type::INT8)];
    let rows = connections.get().await?.query(LIST_DEAD_LETTERS, &params).await?;
    let info = |row: &Row| DeadLetterInfo {
        row: dead_letter(row),
        stream_id: StreamId::from(row.get::<_, &str>(5)),
        event_type: row.get(6),
        created_at: row.get::<_, Time>(7).0,
        tried_at: row.get::<_, Option<Time>>(8).map(|time| time.0),
        retry_wanted: row.get(9),
    };
    Ok(rows.iter().map(info).collect())
}

pub(in crate::store::postgres) async fn list_skips(
    connections: &Connections,
    generation: i32,
    max: usize,
) -> Result<Vec<SkipInfo>, StoreError> {
    let max = stored_max(max);
    let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&max, Type::INT8)];
    let rows = connections.get().await?.query(LIST_SKIPS, &params).await?;
    let info = |row: &Row| SkipInfo {
        position: Position::from_stored(row.get(0)),
        key: row.get(1),
        reason: row.get(2),
        skipped_at: row.get::<_, Time>(3).0,
    };
    Ok(rows.iter().map(info).collect())
}

pub(in crate::store::postgres) async fn list_messages(
    connections: &Connections,
    about: &MessagesAbout,
) -> Result<Vec<MessageInfo>, StoreError> {
    let max = stored_max(about.max);
    let params: [Param<'_>; 4] = [
        (&about.namespace, Type::TEXT),
        (&about.projection, Type::TEXT),
        (&about.kinds, Type::TEXT_ARRAY),
        (&max, Type::INT8),
    ];
    let rows = connections.get().await?.query(LIST_MESSAGES, &params).await?;
    let info = |row: &Row| MessageInfo {
        id: row.get(7),
        projection: row.get(1),
        version: row.get::<_, i32>(8).unsigned_abs(),
        recorded_at: row.get::<_, Time>(0).0,
        kind: row.get(2),
        position: row.get::<_, Option<i64>>(3).map(Position::from_stored),
        key: row.get(4),
        actor: row.get(5),
        message: row.get(6),
    };
    Ok(rows.iter().map(info).collect())
}

/// Asks for a retry of one dead letter or of all; how many there were.
pub(in crate::store::postgres) async fn want_retry(
    connections: &Connections,
    generation: i32,
    position: Option<Position>,
) -> Result<u64, StoreError> {
    let position = position.map(Position::to_stored);
    let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&position, Type::INT8)];
    Ok(connections.get().await?.query(WANT_RETRY, &params).await?.len() as u64)
}

pub(in crate::store::postgres) async fn wanted_retries(
    connections: &Connections,
    generations: &[i32],
    max: usize,
) -> Result<Vec<(i32, Position)>, StoreError> {
    let max = stored_max(max);
    let params: [Param<'_>; 2] = [(&generations, Type::INT4_ARRAY), (&max, Type::INT8)];
    let rows = connections.get().await?.query(WANTED_RETRIES, &params).await?;
    Ok(rows.iter().map(|row| (row.get(0), Position::from_stored(row.get(1)))).collect())
}

/// Deletes what is older, some rows at a time: both tables are in the order of their ids.
pub(in crate::store::postgres) async fn prune(
    connections: &Connections,
    older_than: Duration,
) -> Result<(), StoreError> {
    let seconds = older_than.as_secs_f64();
    for table in ["run_log", "system_messages"] {
        let sql = format!(
            "WITH oldest AS (SELECT id, recorded_at FROM everfold.{table} ORDER BY id LIMIT $2) \
             DELETE FROM everfold.{table} t USING oldest o WHERE t.id = o.id \
             AND o.recorded_at < clock_timestamp() - make_interval(secs => $1) RETURNING 1"
        );
        loop {
            let params: [Param<'_>; 2] = [(&seconds, Type::FLOAT8), (&PRUNE_MAX, Type::INT8)];
            let deleted = connections.get().await?.query(&sql, &params).await?.len();
            if i64::try_from(deleted).unwrap_or(i64::MAX) < PRUNE_MAX {
                break;
            }
        }
    }
    Ok(())
}
