//! Reading a long history from PostgreSQL, against a bare client that streams the same rows.

use std::hint::black_box;
use std::time::Instant;

use everfold::{ReadAll, Store, event_types};
use futures::TryStreamExt;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use crate::Bench;
use crate::measure::{compare, grouped, interleave, start_comparing};
use crate::raw::copy;
use crate::server::Database;
use crate::wire::{JsonBytes, Microseconds};
use crate::workload::{Layout, RARE_EVERY, RARE_TYPE, ShopEvent, Workload};

const TARGET: f64 = 0.7;
/// The few rare events are read so often that it can be timed.
const RARE_READS: u64 = 100;
const ALL: &str = "SELECT position, stream_id, version, id, type, schema_version, data, metadata, \
    recorded_at FROM everfold.events ORDER BY position";
const OF_TYPE: &str = "SELECT position, stream_id, version, id, type, schema_version, data, \
    metadata, recorded_at FROM everfold.events WHERE type = $1 ORDER BY position";

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let events = bench.arguments.events(1_000_000, 200_000);
    let workload = Workload { events, layout: Layout::ComeAndGo };
    let database = bench.server().database().await?;
    load(&database, workload).await?;
    let client = database.connect().await?;
    let store = database.store(|_| ()).await?;
    let repeats = bench.arguments.repeats;

    let (all, of_type) = (client.prepare(ALL).await?, client.prepare(OF_TYPE).await?);
    let raw_all = async || raw(&client, &all, &[], events).await;

    start_comparing(&format!("read: PostgreSQL, {} events", grouped(events as f64)));
    raw_all().await?;
    typed(&store, events).await?;
    let comparison = interleave(
        repeats,
        async || rate(1, events, raw_all).await,
        async || rate(1, events, async || typed(&store, events).await).await,
    )
    .await?;
    compare("all, as typed events", &comparison, Some(TARGET));

    let comparison = interleave(
        repeats,
        async || rate(1, events, raw_all).await,
        async || rate(1, events, async || recorded(store.read_all(), events).await).await,
    )
    .await?;
    compare("all, as recorded events", &comparison, None);

    let types = event_types::<ShopEvent>();
    let by_type = async || recorded(store.read_all().types(types.iter().copied()), events).await;
    let comparison = interleave(
        repeats,
        async || rate(1, events, raw_all).await,
        async || rate(1, events, by_type).await,
    )
    .await?;
    compare("all, as recorded events, every type named", &comparison, None);

    let rare = workload.rare_events();
    let raw_rare = async || raw(&client, &of_type, &[RARE_TYPE], rare).await;
    let our_rare = async || recorded(store.read_all().types([RARE_TYPE]), rare).await;
    let comparison = interleave(
        repeats,
        async || rate(RARE_READS, rare, raw_rare).await,
        async || rate(RARE_READS, rare, our_rare).await,
    )
    .await?;
    compare(&format!("one type, 1 event in {}", grouped(RARE_EVERY as f64)), &comparison, None);
    store.close().await;
    Ok(())
}

/// Events per second of a read that is done some times over.
async fn rate(
    reads: u64,
    events: u64,
    read: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let start = Instant::now();
    for _ in 0..reads {
        read().await?;
    }
    Ok((reads * events) as f64 / start.elapsed().as_secs_f64())
}

async fn load(database: &Database, workload: Workload) -> anyhow::Result<()> {
    copy(&database.client, "everfold.events", workload.events()).await?;
    database.client.batch_execute("VACUUM ANALYZE everfold.events").await?;
    database.client.batch_execute("CHECKPOINT").await?;
    database.check_count("everfold.events", workload.events).await
}

/// Counts events and sees that their positions rise.
#[derive(Default)]
struct Seen {
    events: u64,
    last: u64,
}

impl Seen {
    fn event(&mut self, position: u64) -> anyhow::Result<()> {
        anyhow::ensure!(position > self.last, "position {position} came after {}", self.last);
        self.last = position;
        self.events += 1;
        Ok(())
    }

    fn check(&self, expected: u64) -> anyhow::Result<()> {
        anyhow::ensure!(self.events == expected, "{} events of {expected} came", self.events);
        Ok(())
    }
}

async fn raw(
    client: &Client,
    statement: &Statement,
    types: &[&str],
    expected: u64,
) -> anyhow::Result<()> {
    let mut rows = std::pin::pin!(client.query_raw(statement, types).await?);
    let mut seen = Seen::default();
    while let Some(row) = rows.try_next().await? {
        seen.event(touch(&row)?.unsigned_abs())?;
    }
    seen.check(expected)
}

/// Takes every column out of a row, with nothing copied or parsed, and returns the position.
fn touch(row: &Row) -> anyhow::Result<i64> {
    black_box(row.try_get::<_, &str>(1)?);
    black_box(row.try_get::<_, i64>(2)?);
    black_box(row.try_get::<_, Uuid>(3)?);
    black_box(row.try_get::<_, &str>(4)?);
    black_box(row.try_get::<_, i32>(5)?);
    black_box(row.try_get::<_, JsonBytes<'_>>(6)?.0.len());
    black_box(row.try_get::<_, JsonBytes<'_>>(7)?.0.len());
    black_box(row.try_get::<_, Microseconds>(8)?.0);
    Ok(row.try_get(0)?)
}

/// Reads everything as [`ShopEvent`]s.
pub(crate) async fn typed(store: &Store, expected: u64) -> anyhow::Result<()> {
    let mut events = store.read_all().typed::<ShopEvent>();
    let mut seen = Seen::default();
    while let Some(typed) = events.next().await? {
        black_box(&typed.event);
        seen.event(typed.recorded.position.0)?;
    }
    seen.check(expected)
}

async fn recorded(read: ReadAll, expected: u64) -> anyhow::Result<()> {
    let mut events = read.events();
    let mut seen = Seen::default();
    while let Some(recorded) = events.next().await? {
        seen.event(recorded.position.0)?;
        black_box(recorded);
    }
    seen.check(expected)
}
