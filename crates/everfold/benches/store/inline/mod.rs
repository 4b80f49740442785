//! Appends with an inline projection, against a hand-written function that checks the version, inserts
//! the event and upserts the row of the read model, in one call and one transaction.
//!
//! Streams have ten events each, so that nine rows of the read model in ten are updated.

mod sides;

use crate::Bench;
use crate::carts;
use crate::measure::{
    Comparison, compare, counted, latency, start_comparing, start_comparing_with, start_latencies,
};
use sides::{Model, OurSide, RawSide};

const SQL_TARGET: f64 = 0.75;
const DOCUMENT_TARGET: f64 = 0.5;
const GROUP_TARGET: f64 = 1.5;
const TASKS: usize = 32;
/// An append may cost so much more with a projection that does not want its event.
const GATE_TARGET: f64 = 0.9;

pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    start_comparing("inline: PostgreSQL, one event each, with its read model");
    for writers in [1, 8, 32] {
        alone(bench, writers).await?;
    }
    let latencies = grouped(bench).await?;
    println!();
    start_comparing_with(
        "inline: an append that no projection wants",
        "without a projection",
        "beside one inline",
    );
    for writers in [1, 8, 32] {
        unwanted(bench, writers).await?;
    }
    start_latencies();
    latencies.into_iter().for_each(|(name, latencies)| latency(name, latencies));
    Ok(())
}

fn rows() -> anyhow::Result<Model> {
    Ok(Model { projection: carts::rows("carts").inline().build()?, changes: "changes" })
}

fn documents() -> anyhow::Result<Model> {
    let projection = carts::documents("cart_documents").inline().build()?;
    Ok(Model { projection, changes: "(document->>'changes')::bigint" })
}

/// Each append a transaction of its own.
async fn alone(bench: &Bench, writers: usize) -> anyhow::Result<()> {
    let mut raw = RawSide::start(bench, writers).await?;
    let mut sql = OurSide::start(bench, writers, false, vec![rows()?]).await?;
    let mut document = OurSide::start(bench, writers, false, vec![documents()?]).await?;
    let mut both = OurSide::start(bench, writers, false, vec![rows()?, documents()?]).await?;
    let mut comparisons = [Comparison::default(), Comparison::default(), Comparison::default()];
    for _ in 0..bench.arguments.repeats {
        let limit = raw.run(bench).await?;
        for (ours, comparison) in
            [&mut sql, &mut document, &mut both].into_iter().zip(&mut comparisons)
        {
            comparison.push(limit, ours.run(bench).await?);
        }
    }
    let writers = counted(writers, "writer");
    let [by_sql, by_document, by_both] = comparisons;
    compare(&format!("{writers}, SQL"), &by_sql, Some(SQL_TARGET));
    compare(&format!("{writers}, document"), &by_document, Some(DOCUMENT_TARGET));
    compare(&format!("{writers}, SQL and document"), &by_both, None);
    raw.finish().await?;
    for ours in [sql, document, both] {
        ours.finish().await?;
    }
    Ok(())
}

type Named = (&'static str, Vec<std::time::Duration>);

/// Many tasks on one handle.
async fn grouped(bench: &Bench) -> anyhow::Result<Vec<Named>> {
    let mut raw = RawSide::start(bench, TASKS).await?;
    let mut sql = OurSide::start(bench, TASKS, true, vec![rows()?]).await?;
    let mut document = OurSide::start(bench, TASKS, true, vec![documents()?]).await?;
    let mut comparisons = [Comparison::default(), Comparison::default()];
    for _ in 0..bench.arguments.repeats {
        let limit = raw.run(bench).await?;
        for (ours, comparison) in [&mut sql, &mut document].into_iter().zip(&mut comparisons) {
            comparison.push(limit, ours.run(bench).await?);
        }
    }
    let [by_sql, by_document] = comparisons;
    compare("32 tasks, group append, SQL", &by_sql, Some(GROUP_TARGET));
    compare("32 tasks, group append, document", &by_document, Some(GROUP_TARGET));
    Ok(vec![
        ("32 writers, raw", raw.finish().await?),
        ("32 tasks, group append, inline SQL", sql.finish().await?),
        ("32 tasks, group append, inline document", document.finish().await?),
    ])
}

/// What an append costs beside an inline projection of other types.
async fn unwanted(bench: &Bench, writers: usize) -> anyhow::Result<()> {
    let other = carts::rows("carts").events(["SomethingElse"]).inline().build()?;
    let other = Model { projection: other, changes: "changes" };
    let mut none = OurSide::start(bench, writers, false, Vec::new()).await?;
    let mut beside = OurSide::start(bench, writers, false, vec![other]).await?;
    let mut comparison = Comparison::default();
    for _ in 0..bench.arguments.repeats {
        let limit = none.run(bench).await?;
        comparison.push(limit, beside.run(bench).await?);
    }
    compare(&counted(writers, "writer"), &comparison, Some(GATE_TARGET));
    none.finish().await?;
    beside.finish_without_rows().await
}
