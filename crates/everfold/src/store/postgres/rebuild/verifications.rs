//! The record of verifications.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::PostgresStore;
use super::super::connect::{Connections, Param};
use super::super::projection::transaction::{begin, finish};
use super::super::projection::unit::{TIMEOUTS, statement};
use super::super::read::stored_max;
use super::super::types::{JsonString, JsonText, Time};
use super::{snapshot, verify};
use crate::Position;
use crate::error::StoreError;
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::projector::ApplyError;
use crate::rebuild::{ReadModelSnapshot, Verification};
use crate::store::{Unit, Verified, VerifyBackend, Verifying};

const INSERT: &str = statement!("insert_verification");
const LIST: &str = "SELECT v.id, p.name, coalesce(g.version, 0), v.scope, v.position, v.compared, \
    v.differences, v.examples, v.duration_ms, v.verified_by, v.verified_at \
    FROM everfold.verifications v JOIN everfold.projections p ON p.id = v.projection \
    LEFT JOIN everfold.generations g ON g.id = v.generation \
    WHERE p.namespace = $1 AND p.name = $2 ORDER BY v.id DESC LIMIT $3";

impl VerifyBackend for PostgresStore {
    fn verify(&self, verifying: Verifying) -> BoxFuture<'_, Result<Verified, ApplyError>> {
        async move { verify::verify(self, &verifying).await }.boxed()
    }

    fn record_verification(
        &self,
        generation: i32,
        verification: Verification,
        message: Option<SystemMessage>,
    ) -> BoxFuture<'_, Result<Verification, StoreError>> {
        record(self, generation, verification, message).boxed()
    }

    fn verifications(
        &self,
        namespace: String,
        name: String,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<Verification>, StoreError>> {
        async move { list(&self.engine, &namespace, &name, max).await }.boxed()
    }

    fn take_snapshot(
        &self,
        generation: Arc<Generation>,
        actor: String,
    ) -> BoxFuture<'_, Result<ReadModelSnapshot, StoreError>> {
        async move { snapshot::take(self, &generation, &actor).await }.boxed()
    }

    fn snapshots(
        &self,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Vec<ReadModelSnapshot>, StoreError>> {
        async move { snapshot::list(self, &namespace, &name, None).await }.boxed()
    }

    fn drop_snapshot(&self, snapshot: i32) -> BoxFuture<'_, Result<(), StoreError>> {
        snapshot::drop_snapshot(self, snapshot).boxed()
    }

    fn note(&self, message: SystemMessage) -> BoxFuture<'_, Result<(), StoreError>> {
        snapshot::note(self, message).boxed()
    }
}

async fn record(
    store: &PostgresStore,
    generation: i32,
    verification: Verification,
    message: Option<SystemMessage>,
) -> Result<Verification, StoreError> {
    let mut connection = store.engine.get().await?;
    let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
    let insert = async {
        let examples = json!(verification.examples).to_string();
        let examples = JsonText::new(&examples);
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let numbers = [verification.compared, verification.differences].map(number);
        let duration = i64::try_from(verification.duration.as_millis()).unwrap_or(i64::MAX);
        let position = verification.position.to_stored();
        let params: [Param<'_>; 8] = [
            (&generation, Type::INT4),
            (&verification.scope, Type::TEXT),
            (&position, Type::INT8),
            (&numbers[0], Type::INT8),
            (&numbers[1], Type::INT8),
            (&examples, Type::JSONB),
            (&duration, Type::INT8),
            (&verification.verified_by, Type::TEXT),
        ];
        let rows = unit.query(INSERT, &params).await?;
        let row = rows.first().ok_or(ApplyError::LeaseLost)?;
        let (id, verified_at) = (row.get(0), row.get::<_, Time>(1).0);
        unit.record(message.as_slice()).await?;
        Ok::<_, ApplyError>((id, verified_at))
    };
    let outcome = match insert.await {
        Ok(recorded) => Ok(recorded),
        Err(ApplyError::Store(error)) => Err(error),
        Err(_) => Ok((0, jiff::Timestamp::UNIX_EPOCH)),
    };
    let (outcome, end) = finish(unit, outcome).await;
    end.settle(&connection);
    outcome.map(|(id, verified_at)| Verification { id, verified_at, ..verification })
}

async fn list(
    connections: &Connections,
    namespace: &str,
    name: &str,
    max: usize,
) -> Result<Vec<Verification>, StoreError> {
    let max = stored_max(max);
    let params: [Param<'_>; 3] =
        [(&namespace, Type::TEXT), (&name, Type::TEXT), (&max, Type::INT8)];
    let rows = connections.get().await?.query(LIST, &params).await?;
    Ok(rows.iter().map(verification).collect())
}

fn verification(row: &Row) -> Verification {
    let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
    Verification {
        id: row.get(0),
        name: row.get(1),
        version: row.get::<_, i32>(2).unsigned_abs(),
        scope: row.get(3),
        position: Position::from_stored(row.get(4)),
        compared: count(5),
        differences: count(6),
        examples: serde_json::from_str(&row.get::<_, JsonString>(7).0).unwrap_or_default(),
        duration: Duration::from_millis(count(8)),
        verified_by: row.get(9),
        verified_at: row.get::<_, Time>(10).0,
    }
}
