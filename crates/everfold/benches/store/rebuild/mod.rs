//! Rebuilding a read model from a long log, against what a bare client does with the same events: one
//! statement for rows; reading, one map and COPY for documents. Then what it costs those who append
//! meanwhile, and how long verifying takes beside it.

mod under_load;
mod verify;

use std::collections::HashMap;
use std::pin::pin;
use std::time::Instant;

use everfold::{Projection, RebuildOptions, Store};
use futures::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;

use crate::Bench;
use crate::carts::{self, Cart};
use crate::catch_up::decode;
use crate::measure::{compare, grouped, interleave, start_comparing};
use crate::memory;
use crate::raw::copy;
use crate::server::Database;
use crate::wire::{Json, JsonBytes};
use crate::workload::{Layout, Workload};

const DOCUMENT_TARGET: f64 = 0.7;
/// At a million events; at ten million 0.4.
const SQL_TARGET: f64 = 0.6;
const SQL_TARGET_OF_MANY: f64 = 0.4;
const MANY: u64 = 5_000_000;
const CHANGES: &str = "(document->>'changes')::bigint";
const EVENTS: &str =
    "SELECT position, stream_id, version, type, data FROM everfold.events ORDER BY position";

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let events = bench.arguments.events(1_000_000, 100_000);
    start_comparing(&format!("rebuild: PostgreSQL, {} events", grouped(events as f64)));
    let mut peak_mb = 0.0;
    for (layout, name) in
        [(Layout::ComeAndGo, "streams come and go"), (Layout::AllAtOnce, "all streams take turns")]
    {
        let log = Log::load(bench, Workload { events, layout }).await?;
        log.measure_documents(bench.arguments.repeats, name).await?;
        log.measure_rows(bench.arguments.repeats, name).await?;
        log.store.close().await;
        peak_mb = memory::of_a_rebuild(log.database.url(), events)?;
    }
    println!(
        "\nA process that rebuilds documents has at most {peak_mb:.0} MB resident (target: < 512).\n"
    );
    verify::run(bench, events).await?;
    println!();
    under_load::run(bench, events).await
}

/// A database with the log in it.
struct Log {
    database: Database,
    store: Store,
    events: u64,
}

impl Log {
    async fn load(bench: &Bench, workload: Workload) -> anyhow::Result<Log> {
        let database = bench.server().database().await?;
        copy(&database.client, "everfold.events", workload.events()).await?;
        database.client.batch_execute("VACUUM ANALYZE everfold.events").await?;
        database.client.batch_execute("CHECKPOINT").await?;
        let store = database.store(|_| ()).await?;
        Ok(Log { database, store, events: workload.events })
    }

    async fn measure_rows(&self, repeats: usize, layout: &str) -> anyhow::Result<()> {
        let client = self.database.connect().await?;
        let (mut by_hand, mut run) = (0, 0);
        let comparison = interleave(
            repeats,
            async || {
                by_hand += 1;
                let table = format!("raw.rebuilt_rows_{by_hand}");
                let start = Instant::now();
                client.batch_execute(&rows_by_hand(&table)).await?;
                self.rate(start, "changes", &table).await
            },
            async || {
                run += 1;
                let projection = carts::rows(&format!("rows_{run}")).build()?;
                self.rebuild(projection, "changes").await
            },
        )
        .await?;
        let target = if self.events >= MANY { SQL_TARGET_OF_MANY } else { SQL_TARGET };
        compare(&format!("SQL, {layout}"), &comparison, Some(target));
        Ok(())
    }

    async fn measure_documents(&self, repeats: usize, layout: &str) -> anyhow::Result<()> {
        let (reader, writer) = (self.database.connect().await?, self.database.connect().await?);
        let (mut by_hand, mut run) = (0, 0);
        let comparison = interleave(
            repeats,
            async || {
                by_hand += 1;
                let table = format!("raw.rebuilt_documents_{by_hand}");
                let start = Instant::now();
                documents_by_hand(&reader, &writer, &table).await?;
                self.rate(start, CHANGES, &table).await
            },
            async || {
                run += 1;
                let projection = carts::documents(&format!("documents_{run}")).build()?;
                self.rebuild(projection, CHANGES).await
            },
        )
        .await?;
        compare(&format!("documents, {layout}"), &comparison, Some(DOCUMENT_TARGET));
        Ok(())
    }

    /// From the request to the switch.
    async fn rebuild(&self, projection: Projection, changes: &str) -> anyhow::Result<f64> {
        let name = projection.name().to_owned();
        self.store.register(projection).await?;
        let start = Instant::now();
        let rebuild = self.store.rebuild(&name, RebuildOptions::default()).await?;
        rebuild.finish().await?;
        self.rate(start, changes, &format!("read_model.{name}")).await
    }

    /// Events per second since the start, if all of them are in the read model.
    async fn rate(&self, start: Instant, changes: &str, table: &str) -> anyhow::Result<f64> {
        let elapsed = start.elapsed();
        self.database.check_sum(changes, table, self.events).await?;
        Ok(self.events as f64 / elapsed.as_secs_f64())
    }
}

/// The statement of the SQL projection, without what is only for batches.
fn rows_by_hand(table: &str) -> String {
    let apply = carts::apply(table);
    let insert = apply.split_once("ON CONFLICT").map_or(apply.as_str(), |(insert, _)| insert);
    let insert = insert.replace("FROM batch", "FROM everfold.events");
    format!("CREATE TABLE {table} ({}); {insert}", carts::COLUMNS)
}

async fn documents_by_hand(reader: &Client, writer: &Client, table: &str) -> anyhow::Result<()> {
    let no_parameters: [&str; 0] = [];
    let mut rows = pin!(reader.query_raw(EVENTS, no_parameters).await?);
    let mut carts: HashMap<String, (Cart, i64, i64)> = HashMap::new();
    while let Some(row) = rows.try_next().await? {
        let event = decode(row.try_get(3)?, row.try_get::<_, JsonBytes<'_>>(4)?.json())?;
        let (position, version): (i64, i64) = (row.try_get(0)?, row.try_get(2)?);
        let stream: &str = row.try_get(1)?;
        match carts.get_mut(stream) {
            Some((cart, at, at_version)) => {
                *cart = Cart::after(Some(std::mem::take(cart)), &event);
                (*at, *at_version) = (position, version);
            }
            None => {
                carts.insert(stream.to_owned(), (Cart::after(None, &event), position, version));
            }
        }
    }
    let create = format!(
        "CREATE TABLE {table} (key text COLLATE \"C\" NOT NULL, document jsonb NOT NULL, \
         position bigint NOT NULL, stream_version bigint NOT NULL)"
    );
    writer.batch_execute(&create).await?;
    let sink = writer.copy_in(&format!("COPY {table} FROM STDIN (FORMAT binary)")).await?;
    let types = [Type::TEXT, Type::JSONB, Type::INT8, Type::INT8];
    let mut copy = pin!(BinaryCopyInWriter::new(sink, &types));
    for (key, (cart, position, version)) in &carts {
        let json = serde_json::to_string(cart)?;
        copy.as_mut().write(&[key, &Json(&json), position, version]).await?;
    }
    copy.finish().await?;
    writer.batch_execute(&format!("ALTER TABLE {table} ADD PRIMARY KEY (key)")).await?;
    Ok(())
}
