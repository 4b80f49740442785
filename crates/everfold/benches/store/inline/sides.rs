//! The two sides of the comparison, each with a database of its own.

use std::sync::Arc;
use std::time::Duration;

use everfold::Projection;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::Bench;
use crate::drive::{Append, Places, StoreWriters, drive};
use crate::server::Database;
use crate::wire::Json;
use crate::workload::{APPENDED_TYPE, new_data};

const RAW_CALL: &str = "SELECT raw.append_and_project($1, $2, $3, $4, $5, $6, $7)";

struct RawWriters {
    writers: Vec<(Client, Statement)>,
    places: Places,
}

impl Append for RawWriters {
    fn events(&self) -> usize {
        1
    }

    async fn append(&self, writer: usize) -> anyhow::Result<()> {
        let (client, statement) = &self.writers[writer];
        let ((stream, version), data) = (self.places.take(writer), new_data());
        let params: [&(dyn ToSql + Sync); 7] = [
            &stream,
            &version.cast_signed(),
            &APPENDED_TYPE,
            &Json(&data),
            &Json("{}"),
            &Uuid::now_v7(),
            &1_i32,
        ];
        let row = client.query_one(statement, &params).await?;
        anyhow::ensure!(row.get::<_, i64>(0) > 0, "no position came back");
        Ok(())
    }
}

/// What one side has done.
struct Done<A> {
    appender: Arc<A>,
    writers: usize,
    stored: u64,
    latencies: Vec<Duration>,
}

impl<A: Append> Done<A> {
    async fn warm_up(bench: &Bench, appender: A, writers: usize) -> anyhow::Result<Done<A>> {
        let appender = Arc::new(appender);
        let stored = drive(&appender, writers, bench.arguments.warm_up()).await?.events;
        Ok(Done { appender, writers, stored, latencies: Vec::new() })
    }

    async fn run(&mut self, bench: &Bench) -> anyhow::Result<f64> {
        let run = drive(&self.appender, self.writers, bench.arguments.run_time()).await?;
        self.stored += run.events;
        let rate = run.events_per_second();
        self.latencies.extend(run.latencies);
        Ok(rate)
    }
}

/// The hand-written function, from a bare client.
pub(super) struct RawSide {
    database: Database,
    done: Done<RawWriters>,
}

impl RawSide {
    pub(super) async fn start(bench: &Bench, writers: usize) -> anyhow::Result<RawSide> {
        let database = bench.server().database().await?;
        let mut connected = Vec::new();
        for _ in 0..writers {
            let client = database.connect().await?;
            let statement = client.prepare(RAW_CALL).await?;
            connected.push((client, statement));
        }
        let raw = RawWriters { writers: connected, places: Places::new(writers) };
        Ok(RawSide { database, done: Done::warm_up(bench, raw, writers).await? })
    }

    pub(super) async fn run(&mut self, bench: &Bench) -> anyhow::Result<f64> {
        self.done.run(bench).await
    }

    pub(super) async fn finish(self) -> anyhow::Result<Vec<Duration>> {
        self.database.check_count("raw.events", self.done.stored).await?;
        self.database.check_sum("changes", "raw.carts", self.done.stored).await?;
        Ok(self.done.latencies)
    }
}

/// An inline projection, and the number of events in a row of its read model.
pub(super) struct Model {
    pub(super) projection: Projection,
    pub(super) changes: &'static str,
}

/// The library, with some inline projections.
pub(super) struct OurSide {
    database: Database,
    models: Vec<Model>,
    done: Done<StoreWriters>,
}

impl OurSide {
    pub(super) async fn start(
        bench: &Bench,
        writers: usize,
        group: bool,
        models: Vec<Model>,
    ) -> anyhow::Result<OurSide> {
        let database = bench.server().database().await?;
        let store = database
            .store(|options| {
                options.group_append = group;
                if !group {
                    options.pool_size = writers.max(2);
                }
            })
            .await?;
        for model in &models {
            store.register(model.projection.clone()).await?;
        }
        let ours = StoreWriters { store, places: Places::new(writers) };
        let done = Done::warm_up(bench, ours, writers).await?;
        Ok(OurSide { database, models, done })
    }

    pub(super) async fn run(&mut self, bench: &Bench) -> anyhow::Result<f64> {
        self.done.run(bench).await
    }

    /// Sees that every event is in every read model.
    pub(super) async fn finish(self) -> anyhow::Result<Vec<Duration>> {
        for Model { projection, changes } in &self.models {
            let table = format!("read_model.{}", projection.name());
            self.database.check_sum(changes, &table, self.done.stored).await?;
        }
        self.close().await
    }

    /// Sees that no event is in the read models.
    pub(super) async fn finish_without_rows(self) -> anyhow::Result<()> {
        for Model { projection, .. } in &self.models {
            let table = format!("read_model.{}", projection.name());
            self.database.check_count(&table, 0).await?;
        }
        self.close().await.map(drop)
    }

    async fn close(self) -> anyhow::Result<Vec<Duration>> {
        self.done.appender.store.close().await;
        self.database.check_count("everfold.events", self.done.stored).await?;
        Ok(self.done.latencies)
    }
}
