//! What rebuilds ask of the server, step by step, with a database for each test.

mod controls;
mod copy;
mod flip;
mod flip_without_fence;
mod layout;
mod lifecycles;
mod ownership;
mod parts;
mod prepared;
mod published;
mod queues;
mod removal;
mod scene;
mod views;

use std::sync::Arc;
use std::time::Duration;

use everfold_testkit::TestDatabase;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::options::StoreOptions;
use crate::projection::Projection;
use crate::projection::generation::Generation;
use crate::rebuild::RebuildKind;
use crate::rebuild::row::{RebuildLease, RebuildRequest, RebuildRow, StoredOptions};
use crate::store::{Backend, StoreKind};

const TTL: Duration = Duration::from_secs(15);
/// Longest wait for something that normally takes moments.
const LIMIT: Duration = Duration::from_secs(60);

/// A store, and a session beside it.
struct Bench {
    database: TestDatabase,
    store: Arc<dyn Backend>,
    session: Client,
}

impl Bench {
    async fn new() -> Bench {
        let database = TestDatabase::create().await;
        let store = open(&database.url(), Some(true)).await;
        let session = database.connect().await;
        Bench { database, store, session }
    }

    /// Registers a projection and returns its generation.
    async fn registered(&self, projection: Projection) -> Generation {
        self.store.register(projection).await.expect("it can be registered").generation
    }

    /// A rebuild of a projection, taken by a worker of its own.
    async fn taken(&self, projection: &Projection, kind: RebuildKind) -> RebuildLease {
        let (row, joined) = self.store.request_rebuild(request(projection, kind)).await.unwrap();
        assert!(!joined, "there was none");
        self.take(row.id).await.expect("nobody works on it")
    }

    async fn take(&self, rebuild: i32) -> Option<RebuildLease> {
        let worker = Uuid::now_v7();
        self.store.take_rebuild(rebuild, worker, "worker".to_owned(), TTL).await.unwrap()
    }

    /// The only rebuild there is.
    async fn row(&self) -> RebuildRow {
        let mut rows = self.store.rebuilds(false, 10).await.unwrap();
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }

    async fn run(&self, sql: &str) {
        run(&self.session, sql).await;
    }

    async fn number(&self, sql: &str) -> i64 {
        number(&self.session, sql).await
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.session.query(sql, &[]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// As the switch does: readers see this generation from now on.
    async fn flip(&self, lease: RebuildLease, to: i32, from: Option<i32>) {
        let mut sql = format!(
            "BEGIN; UPDATE everfold.generations SET status = 'active' WHERE id = {to}; \
             UPDATE everfold.projections p SET active_generation = {to} \
             FROM everfold.generations g WHERE g.id = {to} AND p.id = g.projection; \
             UPDATE everfold.rebuilds SET flipped_at = clock_timestamp() WHERE id = {};",
            lease.rebuild
        );
        if let Some(from) = from {
            sql += &format!("UPDATE everfold.generations SET status = 'kept' WHERE id = {from};");
        }
        self.run(&format!("{sql} COMMIT")).await;
    }
}

async fn open(url: &str, migrate: Option<bool>) -> Arc<dyn Backend> {
    let options = StoreOptions { migrate, ..StoreOptions::default() };
    super::super::open(url, Arc::new(options)).await.expect("the store opens")
}

async fn run(session: &Client, sql: &str) {
    session.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn number(session: &Client, sql: &str) -> i64 {
    let row = session.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    row.get(0)
}

fn request(projection: &Projection, kind: RebuildKind) -> RebuildRequest {
    let definition = &projection.definition;
    RebuildRequest {
        namespace: definition.namespace.clone(),
        name: definition.name.clone(),
        kind,
        version: definition.version,
        definition_hash: definition.hash(StoreKind::Postgres),
        target: None,
        options: StoredOptions::default(),
        first: false,
        requested_by: "ann".to_owned(),
    }
}

/// A projection with one table of the same name, made by these columns.
fn totals(version: u32, columns: &str) -> Projection {
    Projection::sql("totals", version)
        .create(format!("CREATE TABLE read_model.totals ({columns})"))
        .apply("DELETE FROM read_model.totals WHERE false AND EXISTS (SELECT FROM batch)")
        .build()
        .expect("the projection is a good one")
}

const COLUMNS: &str = "id TEXT PRIMARY KEY, n BIGINT NOT NULL";
