//! The record of verifications.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use rusqlite::{Connection, Row};
use serde_json::json;

use super::super::SqliteStore;
use super::super::projection::registry::json_or_null;
use super::super::projection::states::count;
use super::super::projection::unit::record;
use super::super::read;
use super::{snapshot, verify};
use crate::Position;
use crate::error::StoreError;
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::projector::ApplyError;
use crate::rebuild::{ReadModelSnapshot, Verification};
use crate::store::{Verified, VerifyBackend, Verifying};

const INSERT: &str = include_str!("../../../../sql/sqlite/statements/insert_verification.sql");
const LIST: &str = "SELECT v.id, p.name, coalesce(g.version, 0), v.scope, v.position, v.compared, \
    v.differences, v.examples, v.duration_ms, v.verified_by, v.verified_at \
    FROM everfold_verifications v JOIN everfold_projections p ON p.id = v.projection \
    LEFT JOIN everfold_generations g ON g.id = v.generation \
    WHERE p.namespace = ?1 AND p.name = ?2 ORDER BY v.id DESC LIMIT ?3";

impl VerifyBackend for SqliteStore {
    fn verify(&self, verifying: Verifying) -> BoxFuture<'_, Result<Verified, ApplyError>> {
        let bytes_max = self.options.page_bytes_max;
        self.at_one_moment(move |connection| verify::verify(connection, &verifying, bytes_max))
            .boxed()
    }

    fn record_verification(
        &self,
        generation: i32,
        verification: Verification,
        message: Option<SystemMessage>,
    ) -> BoxFuture<'_, Result<Verification, StoreError>> {
        self.change(move |connection| insert(connection, generation, verification, message))
    }

    fn verifications(
        &self,
        namespace: String,
        name: String,
        max: usize,
    ) -> BoxFuture<'_, Result<Vec<Verification>, StoreError>> {
        self.ask(move |connection| {
            let max = i64::try_from(max).unwrap_or(i64::MAX);
            let mut statement = connection.prepare_cached(LIST)?;
            statement.query_map((namespace, name, max), verification)?.collect()
        })
    }

    fn take_snapshot(
        &self,
        generation: Arc<Generation>,
        actor: String,
    ) -> BoxFuture<'_, Result<ReadModelSnapshot, StoreError>> {
        snapshot::take(self, generation, actor).boxed()
    }

    fn snapshots(
        &self,
        namespace: String,
        name: String,
    ) -> BoxFuture<'_, Result<Vec<ReadModelSnapshot>, StoreError>> {
        snapshot::list(self, namespace, name, None).boxed()
    }

    fn drop_snapshot(&self, snapshot: i32) -> BoxFuture<'_, Result<(), StoreError>> {
        snapshot::drop_snapshot(self, snapshot).boxed()
    }

    fn note(&self, message: SystemMessage) -> BoxFuture<'_, Result<(), StoreError>> {
        self.change(move |connection| record(connection, &message))
    }
}

fn insert(
    connection: &Connection,
    generation: i32,
    mut verification: Verification,
    message: Option<SystemMessage>,
) -> Result<Verification, rusqlite::Error> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let params = (
        generation,
        &verification.scope,
        verification.position.to_stored(),
        number(verification.compared),
        number(verification.differences),
        json!(verification.examples).to_string(),
        i64::try_from(verification.duration.as_millis()).unwrap_or(i64::MAX),
        &verification.verified_by,
    );
    let (id, verified_at) = connection
        .prepare_cached(INSERT)?
        .query_row(params, |row| Ok((row.get(0)?, read::parsed(row, 1)?)))?;
    if let Some(message) = message {
        record(connection, &message)?;
    }
    (verification.id, verification.verified_at) = (id, verified_at);
    Ok(verification)
}

fn verification(row: &Row<'_>) -> Result<Verification, rusqlite::Error> {
    Ok(Verification {
        id: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        scope: row.get(3)?,
        position: Position::from_stored(row.get(4)?),
        compared: count(row, 5)?,
        differences: count(row, 6)?,
        examples: json_or_null(row, 7)?.unwrap_or_default(),
        duration: Duration::from_millis(count(row, 8)?),
        verified_by: row.get(9)?,
        verified_at: read::parsed(row, 10)?,
    })
}
