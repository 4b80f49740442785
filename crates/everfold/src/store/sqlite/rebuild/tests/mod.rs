//! Rebuilds on a file in memory, step by step.

mod ownership;
mod removal;
mod switching;

use super::*;
use crate::error::StoreErrorKind;
use crate::projection::generation::GenerationStatus;
use crate::rebuild::row::{RebuildKind, RebuildPhase, StoredOptions};
use crate::store::sqlite::projection::unit::owed_to;
use crate::store::sqlite::projection::{lease as shards, register, register_functions, views};
use crate::store::sqlite::schema;
use crate::store::{StoreKind, Tick};

const TTL: Duration = Duration::from_secs(15);

fn fresh() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    schema::migrate(&connection, Duration::from_secs(1)).unwrap();
    register_functions(&connection).unwrap();
    connection
}

fn totals(version: u32, create: &str) -> Projection {
    Projection::sql("totals", version)
        .create(create)
        .apply("INSERT INTO read_model.totals (stream) SELECT DISTINCT stream_id FROM batch")
        .shards(2)
        .events(["Added"])
        .build()
        .unwrap()
}

fn plain(version: u32) -> Projection {
    totals(version, "CREATE TABLE read_model.totals (stream text)")
}

fn known(connection: &Connection, projection: &Projection) -> Generation {
    let register = |connection: &Connection| register::register(connection, projection, u64::MAX);
    in_transaction(connection, TTL, register).unwrap().generation
}

fn request(projection: &Projection) -> RebuildRequest {
    let definition = &projection.definition;
    RebuildRequest {
        namespace: definition.namespace.clone(),
        name: definition.name.clone(),
        kind: RebuildKind::Beside,
        version: definition.version,
        definition_hash: definition.hash(StoreKind::Sqlite),
        target: None,
        options: StoredOptions::default(),
        first: false,
        requested_by: "somebody".to_owned(),
    }
}

fn asked(connection: &Connection, projection: &Projection) -> (RebuildRow, bool) {
    rows::request(connection, &request(projection)).unwrap()
}

fn taken(connection: &Connection, rebuild: i32, worker: u128, ttl: Duration) -> RebuildLease {
    let worker = Uuid::from_u128(worker);
    lease::take(connection, rebuild, worker, "worker", ttl).unwrap().expect("it is free")
}

fn tick(connection: &Connection, worker: u128, carries: &[i32]) -> Vec<i32> {
    let tick = Tick {
        worker: Uuid::from_u128(worker),
        name: "runner".to_owned(),
        carries: carries.to_vec(),
        lease_ttl: TTL,
        stuck: Vec::new(),
    };
    let leases = shards::tick(connection, &tick).unwrap();
    leases.iter().map(|lease| lease.shard.generation).collect()
}
