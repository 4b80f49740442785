//! Comparing a new generation with the one that readers see.
//!
//! At one moment, on a connection for reading. Where the source has events that the target has not yet,
//! the target is copied into a database of its own and brought to exactly what the source holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::types::Value as Stored;

use super::super::SqliteStore;
use super::super::projection::names::identifier;
use super::looking::{failed, holding, positions, read_pages, written_columns};
use super::scratch::{Scratch, refused};
use super::tables::{Side, Sides};
use crate::Position;
use crate::projection::generation::Generation;
use crate::projection::job::{Job, Task};
use crate::projection::projector::ApplyError;
use crate::rebuild::Comparison;
use crate::rebuild::compare::Lacks;
use crate::rebuild::holding::Trial;
use crate::store::{Comparing, jitter};

/// How long a source that is behind is waited for.
const BEHIND_MAX: Duration = Duration::from_secs(10);

const HAS_LEASE: &str = "SELECT EXISTS (SELECT 1 FROM everfold_rebuilds \
    WHERE id = ?1 AND epoch = ?2 AND finished_at IS NULL)";
/// What the source has left out of what the target has. Behind a dead letter it stays left out.
const LEFT_OUT: &str = "SELECT EXISTS (SELECT 1 FROM everfold_skips s \
    WHERE s.generation = ?1 AND s.position <= ?2 AND NOT EXISTS (\
        SELECT 1 FROM everfold_dead_letters d WHERE d.generation = ?1 AND d.key = s.key))";
const CHECKPOINTS: &str =
    "SELECT position FROM everfold_checkpoints WHERE generation = ?1 ORDER BY shard";

pub(super) async fn compare(
    store: &SqliteStore,
    comparing: Comparing,
) -> Result<Comparison, ApplyError> {
    let begun = Instant::now();
    let bytes_max = store.options.page_bytes_max;
    loop {
        let looked = comparing.clone();
        let look = move |connection: &Connection| look(connection, &looked, bytes_max);
        match store.at_one_moment(look).await? {
            Ok(comparison) => return Ok(comparison),
            Err(lacks) if begun.elapsed() >= BEHIND_MAX => {
                let told = lacks.told(&comparing.target, &comparing.source, BEHIND_MAX);
                return Err(refused(told));
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100) + jitter(Duration::from_millis(100))).await;
    }
}

/// What the source lacks, if it does not have all that the target has.
fn look(
    connection: &Connection,
    comparing: &Comparing,
    bytes_max: usize,
) -> Result<Result<Comparison, Lacks>, ApplyError> {
    let Comparing { lease, target, source, projector, upcasters, examples } = comparing;
    let has_lease = connection.query_row(HAS_LEASE, (lease.rebuild, lease.epoch), |row| row.get(0));
    if !has_lease.map_err(failed)? {
        return Err(ApplyError::LeaseLost);
    }
    let has: Vec<Position> = positions(connection, CHECKPOINTS, target.id).map_err(failed)?;
    let wanted = holding(connection, source).map_err(failed)?;
    let own = holding(connection, target).map_err(failed)?;
    let reached = has.iter().copied().max().unwrap_or_default();
    if wanted.lowest() < reached {
        return Ok(Err(Lacks::Events));
    }
    let left_out = (source.id, reached.to_stored());
    if connection.query_row(LEFT_OUT, left_out, |row| row.get(0)).map_err(failed)? {
        return Ok(Err(Lacks::Owed));
    }
    let scratch = Scratch::make(connection, target, projector, bytes_max)?;
    copy(connection, target, &scratch).map_err(failed)?;
    let job = |generation: &Arc<Generation>| {
        let (generation, upcasters) = (Arc::clone(generation), Arc::clone(upcasters));
        Job::new(generation, projector.clone(), upcasters, Task::Trial)
    };
    let (of_target, of_source) = (job(target), job(source));
    let in_scratch = job(&scratch.generation);
    let trial = Trial { job: &of_target, has: &has, wanted: &wanted, wanted_by: &of_source };
    let after = has.iter().copied().min().unwrap_or_default();
    read_pages(connection, target, (after, wanted.highest()), bytes_max, |events| {
        match trial.missing(events) {
            events if events.is_empty() => Ok(()),
            events => scratch.apply(&in_scratch, events),
        }
    })?;
    let sides = Sides {
        expected: Side { connection, home: &source.home },
        found: Side { connection: &scratch.connection, home: &scratch.generation.home },
        kind: target.kind,
        examples: *examples,
    };
    let mut comparison = sides.compare(None).map_err(failed)?;
    comparison.owed = wanted.owed.union(&own.owed).count() as u64;
    Ok(Ok(comparison))
}

/// Copies the rows of a read model.
fn copy(
    connection: &Connection,
    from: &Generation,
    scratch: &Scratch,
) -> Result<(), rusqlite::Error> {
    for name in &from.tables {
        let names = written_columns(connection, &format!("{}{name}", from.home))?;
        let table = identifier(&format!("{}{name}", from.home));
        let mut rows = connection.prepare(&format!("SELECT {} FROM {table}", names.join(", ")))?;
        let table = identifier(&format!("{}{name}", scratch.generation.home));
        // First rows that create.sql makes are among those that are copied.
        scratch.connection.execute(&format!("DELETE FROM {table}"), [])?;
        let places = vec!["?"; names.len()].join(", ");
        let insert = format!("INSERT INTO {table} ({}) VALUES ({places})", names.join(", "));
        let mut insert = scratch.connection.prepare(&insert)?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..names.len()).map(|column| row.get::<_, Stored>(column));
            insert.execute(rusqlite::params_from_iter(values.collect::<Result<Vec<_>, _>>()?))?;
        }
    }
    Ok(())
}
