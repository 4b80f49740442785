//! A part of a document projection: read, folded in memory, and written by COPY. If memory is short, the
//! upper half of the part's keys is left for another pass.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::SinkExt;
use tokio_postgres::types::Type;

use super::ahead;
use super::folder::{Aside, Manner, Progress, Report};
use super::late::end_late_holders;
use super::reader::{Folders, Reading, ended};
use super::{Part, TIMEOUTS, in_transaction, lock_lease, look_at_lease, pause};
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{DeadLetterRow, SystemMessage};
use crate::projection::projector::{ApplyError, FoldDocuments, Projector};
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::Param;
use crate::store::postgres::projection::apply::broken_or_refused;
use crate::store::postgres::projection::names::table;
use crate::store::postgres::projection::unit::PostgresUnit;
use crate::store::{Copied, Copying, Unit};

/// Rows that are put aside by one statement.
const ASIDE: usize = 2_000;

const LIST_PARTS: &str = "SELECT low, high, events FROM everfold.rebuild_parts \
    WHERE rebuild = $1 AND NOT done ORDER BY low";
const LOCK_PART: &str = "SELECT low FROM everfold.rebuild_parts \
    WHERE rebuild = $1 AND low = $2 AND high = $3 AND NOT done FOR UPDATE";
const PART_DONE: &str = "UPDATE everfold.rebuild_parts SET done = true, high = $3, events = $4 \
    WHERE rebuild = $1 AND low = $2";
const LEFT_FOR_LATER: &str =
    "INSERT INTO everfold.rebuild_parts (rebuild, low, high, events) VALUES ($1, $2, $3, $4)";

/// Copies a part. Where others are busy with all that are left, waits for them: one may leave more.
pub(in super::super) async fn copy_part(
    store: &PostgresStore,
    copying: &Copying,
) -> Result<Copied, ApplyError> {
    let Projector::Document(fold) = &copying.projection.projector else {
        let message = "the projection at hand does not fold documents, its generation does";
        return Err(ApplyError::Store(StoreError::new(StoreErrorKind::Other, message)));
    };
    loop {
        let parts = in_transaction(store, copying, TIMEOUTS, async |unit| {
            look_at_lease(unit, copying.lease).await?;
            let rows = unit.query(LIST_PARTS, &[(&copying.lease.rebuild, Type::INT4)]).await?;
            let part = |row: &tokio_postgres::Row| Part {
                low: row.get(0),
                high: row.get(1),
                events: row.get(2),
            };
            Ok(rows.iter().map(part).collect::<Vec<Part>>())
        })
        .await?;
        if parts.is_empty() {
            return Ok(Copied::NoneLeft);
        }
        let free = |part: &Part| Some((*part, store.claims.claim(copying, *part)?));
        match parts.iter().find_map(free) {
            None => pause(copying).await?,
            Some((part, _claim)) => {
                end_late_holders(store, copying, Some(part)).await?;
                return copy(store, copying, fold, part).await;
            }
        }
    }
}

async fn copy(
    store: &PostgresStore,
    copying: &Copying,
    fold: &Arc<dyn FoldDocuments>,
    part: Part,
) -> Result<Copied, ApplyError> {
    match fold_and_write(store, copying, fold, part).await {
        // The database does not take a document, or the projection fails where only a look at each
        // event tells which.
        Err(ApplyError::Refused { message, position: None }) => {
            Ok(Copied::InBatches { reason: message })
        }
        other => other,
    }
}

async fn fold_and_write(
    store: &PostgresStore,
    copying: &Copying,
    fold: &Arc<dyn FoldDocuments>,
    part: Part,
) -> Result<Copied, ApplyError> {
    let (low, high) = (part.low.unsigned_abs(), part.high.unsigned_abs());
    let manner = Manner {
        generation: Arc::clone(&copying.generation),
        fold: Arc::clone(fold),
        upcasters: Arc::clone(&copying.upcasters),
        hashes: low..high,
        only: None,
        without: Arc::default(),
        progress: Progress::new(&copying.events_done),
    };
    let mut folders = Folders::start(&manner, copying.memory_max);
    let reading = reading(copying, low, high, None);
    ahead::read_all(store, copying, &reading, &mut folders).await?;
    let report = passed(folders.report().await?)?;
    let done = Part { high: folders.high().cast_signed(), ..part };
    let manner = Manner { hashes: low..folders.high(), ..manner };
    in_transaction(store, copying, TIMEOUTS, async |unit| {
        lock_part(unit, copying, part).await?;
        let events = write(unit, copying, &manner, folders, report).await?;
        mark(unit, copying, part, done, events).await?;
        Ok(events)
    })
    .await
    .map(|events| {
        manner.progress.keep();
        Copied::Part { events }
    })
}

fn reading<'a>(
    copying: &'a Copying,
    low: u64,
    high: u64,
    only: Option<&'a [String]>,
) -> Reading<'a> {
    let Copying { generation, cutoff, pace, .. } = copying;
    Reading { generation, cutoff: *cutoff, pace, low, high, only }
}

/// An event that the policy does not let pass.
fn passed(report: Report) -> Result<Report, ApplyError> {
    match report.failure {
        Some((position, message)) => Err(ApplyError::Refused { message, position: Some(position) }),
        None => Ok(report),
    }
}

/// Somebody else may have copied it meanwhile, after this worker has lost the lease.
async fn lock_part(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    part: Part,
) -> Result<(), ApplyError> {
    look_at_lease(unit, copying.lease).await?;
    let params: [Param<'_>; 3] =
        [(&copying.lease.rebuild, Type::INT4), (&part.low, Type::INT8), (&part.high, Type::INT8)];
    match unit.query(LOCK_PART, &params).await?.is_empty() {
        true => Err(ApplyError::LeaseLost),
        false => Ok(()),
    }
}

/// Writes documents, and what was put aside. Returns the number of events.
async fn write(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    manner: &Manner,
    folders: Folders,
    report: Report,
) -> Result<u64, ApplyError> {
    let Report { mut aside, mut redo, events, .. } = report;
    redo.extend(write_documents(unit, copying, folders).await?);
    if !redo.is_empty() {
        // What was put aside of these is found again.
        let keys: HashSet<String> = redo.iter().cloned().collect();
        aside.retain(|aside| !keys.contains(&aside.key));
        aside.extend(fold_again(unit, copying, manner, keys, &redo).await?);
    }
    aside.sort_unstable_by_key(|aside| aside.position);
    let actor = lock_lease(unit, copying.lease).await?;
    for some in aside.chunks(ASIDE) {
        put_aside(unit, copying.generation.id, some, &actor).await?;
    }
    Ok(events)
}

/// Folds some keys again so that each document can be had back as it was before an event that fails,
/// which is slow.
async fn fold_again(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    manner: &Manner,
    keys: HashSet<String>,
    names: &[String],
) -> Result<Vec<Aside>, ApplyError> {
    let manner = Manner { only: Some(Arc::new(keys)), ..manner.clone() };
    let (low, high) = (manner.hashes.start, manner.hashes.end);
    let mut folders = Folders::start(&manner, usize::MAX);
    let reading = reading(copying, low, high, Some(names));
    for window in reading.windows() {
        reading.read(unit, window, &mut folders).await?;
    }
    let report = passed(folders.report().await?)?;
    match write_documents(unit, copying, folders).await?.is_empty() {
        true => Ok(report.aside),
        false => {
            let message =
                "a document cannot be written as JSON, though each event by itself went well";
            Err(ApplyError::Refused { message: message.to_owned(), position: None })
        }
    }
}

/// Writes all documents; returns the keys of those that cannot be written.
async fn write_documents(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    folders: Folders,
) -> Result<Vec<String>, ApplyError> {
    unit.settle_set_up().await?;
    let name = table(&copying.generation.home, &copying.generation.name);
    let sql =
        format!("COPY {name} (key, document, position, stream_version) FROM STDIN (FORMAT binary)");
    let (mut rows, unwritten) = folders.write().await?;
    let copying_in = async {
        let sink = unit.transaction().copy_in::<_, Bytes>(&sql).await?;
        futures::pin_mut!(sink);
        sink.feed(header()).await?;
        while let Some(piece) = rows.recv().await {
            sink.feed(piece).await?;
        }
        sink.feed(Bytes::from_static(&[0xff, 0xff])).await?;
        sink.as_mut().finish().await
    };
    if let Err(error) = copying_in.await {
        unit.note_abort();
        return Err(refused_by_the_database(error));
    }
    let mut keys = Vec::new();
    for from in unwritten {
        keys.extend(from.await.map_err(|_| ended())?);
    }
    Ok(keys)
}

/// No event is known to be to blame.
fn refused_by_the_database(error: tokio_postgres::Error) -> ApplyError {
    match broken_or_refused(error) {
        ApplyError::Refused { message, .. } => ApplyError::Refused { message, position: None },
        other => other,
    }
}

/// What a COPY begins with: the signature, no flags, no extension.
fn header() -> Bytes {
    let mut header = BytesMut::with_capacity(19);
    header.put_slice(b"PGCOPY\n\xff\r\n\0");
    header.put_i32(0);
    header.put_i32(0);
    header.freeze()
}

async fn put_aside(
    unit: &mut PostgresUnit<'_>,
    generation: i32,
    aside: &[Aside],
    actor: &str,
) -> Result<(), ApplyError> {
    let rows: Vec<DeadLetterRow> = aside.iter().filter_map(|aside| aside.row.clone()).collect();
    if !rows.is_empty() {
        unit.put_dead_letters(generation, &rows).await?;
    }
    let message = |aside: &Aside| {
        let (kind, message) = aside.message.clone()?;
        Some(SystemMessage {
            generation: Some(generation),
            kind,
            position: Some(aside.position),
            key: Some(aside.key.clone()),
            actor: actor.to_owned(),
            message,
        })
    };
    let messages: Vec<SystemMessage> = aside.iter().filter_map(message).collect();
    if messages.is_empty() { Ok(()) } else { unit.record(&messages).await }
}

/// Marks what was copied, and leaves the rest of the part for another pass.
async fn mark(
    unit: &mut PostgresUnit<'_>,
    copying: &Copying,
    part: Part,
    done: Part,
    events: u64,
) -> Result<(), ApplyError> {
    let events = i64::try_from(events).unwrap_or(i64::MAX);
    let rebuild: Param<'_> = (&copying.lease.rebuild, Type::INT4);
    let params: [Param<'_>; 4] =
        [rebuild.clone(), (&part.low, Type::INT8), (&done.high, Type::INT8), (&events, Type::INT8)];
    unit.query(PART_DONE, &params).await?;
    if done.high == part.high {
        return Ok(());
    }
    let left = part.events.saturating_sub(events).max(0);
    let params: [Param<'_>; 4] =
        [rebuild, (&done.high, Type::INT8), (&part.high, Type::INT8), (&left, Type::INT8)];
    unit.query(LEFT_FOR_LATER, &params).await.map(drop)
}
