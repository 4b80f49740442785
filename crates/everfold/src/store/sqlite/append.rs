//! Appending in an open write transaction: ours, or a caller's.
//!
//! The order is the one of every append: is it a repeat, does the version hold, insert. While the
//! write lock is held nothing that is read here can change, so one look is enough. Whether ids are
//! known shows when they are inserted; only then, or when the version does not hold, are they
//! looked up.

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use uuid::Uuid;

use super::connection::run;
use super::error::{append_error, append_in_error, said, store_error};
use super::json::same_json;
use super::projection::{Arrived, Inline, Projections};
use crate::append::{Appended, StreamAppend};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::options::{Limits, StoreOptions};
use crate::{NewEvent, Position, StreamId, Version};

const INSERT_EVENT: &str = include_str!("../../../sql/sqlite/statements/insert_event.sql");
const TAKE_WRITE_LOCK: &str = include_str!("../../../sql/sqlite/statements/take_write_lock.sql");
const STREAM_VERSION: &str = include_str!("../../../sql/sqlite/statements/read_stream_version.sql");
const FIND_EVENT: &str = include_str!("../../../sql/sqlite/statements/find_event.sql");

/// Appends events to one stream inside a transaction of the caller's own, so that they are stored
/// together with whatever else it writes, or not at all.
///
/// The transaction should be begun with `BEGIN IMMEDIATE`, as below. One that has read before and
/// cannot be made a writing one, because others have written since, gets an error that is
/// transient ([`AppendError::is_transient`]): roll it back, begin it anew and try again.
///
/// Inline projections in SQL are applied in the same transaction. Those in Rust are not: what they
/// are owed is noted, and a [`Runner`](crate::Runner) that carries them applies it soon.
///
/// The bounds of [`Limits::default`] hold. An append that is refused changes nothing, and the
/// transaction can go on. Followers notice the events when they next look, within
/// [`StoreOptions::poll_max`](crate::StoreOptions::poll_max).
///
/// ```
/// use everfold::sqlite::{append_in, rusqlite};
/// use everfold::{ExpectedVersion, NewEvent, Store, StreamAppend};
/// use rusqlite::{Connection, TransactionBehavior};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let store = Store::open(&format!("sqlite:{}", path.display())).await?;
/// let mut connection = Connection::open(&path)?;
/// connection.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL)")?;
///
/// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// transaction.execute("INSERT INTO orders VALUES ('7', 'placed')", [])?;
/// let placed = NewEvent::from_json("OrderPlaced", r#"{"total":30}"#)?;
/// let append = StreamAppend::new("order-7", ExpectedVersion::NoStream, [placed]);
/// let appended = append_in(&transaction, &append)?;
/// transaction.commit()?;
///
/// assert_eq!(store.stream_version("order-7").await?, appended.version);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`Store::append`](crate::Store::append); and if the database has no everfold schema.
pub fn append_in(
    transaction: &Transaction<'_>,
    append: &StreamAppend,
) -> Result<Appended, AppendError> {
    append.check(&Limits::default())?;
    // Before the first read: a transaction that has not read yet waits here for its turn.
    run(transaction, TAKE_WRITE_LOCK).map_err(append_in_error)?;
    let projections = Projections::new(&StoreOptions::default());
    let inline = projections.inline(transaction).map_err(append_error)?;
    append_one(transaction, append, &inline).map_err(|error| append.blamed(error))
}

/// Appends to one stream, all events or none, and what inline projections make of them. The
/// transaction holds the write lock.
pub(super) fn append_one(
    connection: &Connection,
    append: &StreamAppend,
    inline: &Inline<'_>,
) -> Result<Appended, AppendError> {
    let actual = stream_version(connection, &append.stream).map_err(append_error)?;
    if !append.expected.accepts(actual) {
        return find_repeat(connection, append)?.ok_or_else(|| AppendError::VersionConflict {
            stream: append.stream.clone(),
            expected: append.expected,
            actual,
        });
    }
    let wanted = inline.wants(append.events.iter().map(|event| event.event_type.as_str()));
    let inserted = match append.events.as_slice() {
        // One statement stores its row or does not; it needs no savepoint.
        [event] if !wanted => {
            insert(connection, &append.stream, actual.next(), event).map_err(append_error)?
        }
        _ => in_savepoint(connection, || {
            let Some((appended, positions)) = insert_all(connection, append, actual)? else {
                return Ok(None);
            };
            if wanted {
                inline.apply(&arrived(append, &positions))?;
            }
            Ok(Some(appended))
        })?,
    };
    match inserted {
        Some(appended) => Ok(appended),
        None => find_repeat(connection, append)?.ok_or_else(|| id_twice(append)),
    }
}

fn arrived<'a>(append: &'a StreamAppend, positions: &[Position]) -> Vec<Arrived<'a>> {
    let stream_id = append.stream.as_str();
    let arrived = |(event, &position): (&'a NewEvent, &Position)| Arrived {
        position,
        stream_id,
        event_type: &event.event_type,
    };
    append.events.iter().zip(positions).map(arrived).collect()
}

/// The version of a stream, 0 if it does not exist.
pub(super) fn stream_version(
    connection: &Connection,
    stream: &StreamId,
) -> Result<Version, rusqlite::Error> {
    let version: Option<i64> = connection
        .prepare_cached(STREAM_VERSION)?
        .query_row([stream.as_str()], |row| row.get(0))?;
    Ok(version.map_or(Version::NONE, Version::from_stored))
}

/// Inserts every event and says where they stand; `None` as soon as one has an id that is known.
fn insert_all(
    connection: &Connection,
    append: &StreamAppend,
    actual: Version,
) -> Result<Option<(Appended, Vec<Position>)>, AppendError> {
    let mut positions = Vec::with_capacity(append.events.len());
    let mut whole: Option<Appended> = None;
    let mut version = actual;
    for event in &append.events {
        version = version.next();
        let one = insert(connection, &append.stream, version, event).map_err(append_error)?;
        let Some(one) = one else { return Ok(None) };
        positions.push(one.last_position);
        let first_position = whole.map_or(one.first_position, |whole| whole.first_position);
        whole = Some(Appended { first_position, ..one });
    }
    Ok(whole.map(|whole| (whole, positions)))
}

/// Inserts one event; `None` if its id is known.
fn insert(
    connection: &Connection,
    stream: &StreamId,
    version: Version,
    event: &NewEvent,
) -> Result<Option<Appended>, rusqlite::Error> {
    let metadata = event.metadata.to_json();
    let row = Row {
        stream_id: stream.as_str(),
        version,
        event_type: &event.event_type,
        schema_version: event.schema_version,
        data: &event.data,
        metadata: &metadata,
        id: event.id,
        recorded_at: None,
    };
    let position = insert_row(connection, &row)?;
    Ok(position.map(|position| Appended {
        first_position: position,
        last_position: position,
        version,
    }))
}

/// An event as the table takes it.
pub(super) struct Row<'a> {
    pub(super) stream_id: &'a str,
    pub(super) version: Version,
    pub(super) event_type: &'a str,
    pub(super) schema_version: u32,
    pub(super) data: &'a str,
    pub(super) metadata: &'a str,
    pub(super) id: Uuid,
    /// `None` for now.
    pub(super) recorded_at: Option<jiff::Timestamp>,
}

/// Inserts one row and returns its position; `None` if its id is known.
pub(super) fn insert_row(
    connection: &Connection,
    row: &Row<'_>,
) -> Result<Option<Position>, rusqlite::Error> {
    let recorded_at = row.recorded_at.unwrap_or_else(jiff::Timestamp::now);
    let mut id = Uuid::encode_buffer();
    let id: &str = row.id.as_hyphenated().encode_lower(&mut id);
    let changed = connection.prepare_cached(INSERT_EVENT)?.execute(params![
        row.stream_id,
        row.version.to_stored(),
        row.event_type,
        row.schema_version,
        row.data,
        row.metadata,
        id,
        format!("{recorded_at:.6}"),
    ])?;
    Ok((changed == 1).then(|| Position::from_stored(connection.last_insert_rowid())))
}

/// Runs the work of one append so that it stores all or nothing: anything but `Some` undoes it.
fn in_savepoint(
    connection: &Connection,
    work: impl FnOnce() -> Result<Option<Appended>, AppendError>,
) -> Result<Option<Appended>, AppendError> {
    run(connection, "SAVEPOINT everfold_append").map_err(append_error)?;
    let outcome = work();
    // An error may have ended the whole transaction, and the savepoint with it.
    if connection.is_autocommit() {
        return outcome;
    }
    let end = || {
        if !matches!(outcome, Ok(Some(_))) {
            run(connection, "ROLLBACK TO everfold_append")?;
        }
        run(connection, "RELEASE everfold_append")
    };
    if let Err(error) = end() {
        // A handler has ended the transaction and begun one of its own. Nobody may commit that: what
        // was appended before would count as stored.
        run(connection, "ROLLBACK").map_err(append_error)?;
        let message = format!(
            "an inline handler ended the transaction that it was given, nothing was stored ({}); let \
             it only read and write",
            said(&error)
        );
        return Err(StoreError::new(StoreErrorKind::Other, message).into());
    }
    outcome
}

/// What is stored under an id.
pub(super) struct Known {
    pub(super) position: Position,
    pub(super) stream_id: String,
    pub(super) version: Version,
    event_type: String,
    data: String,
}

impl Known {
    /// Whether it is the same event: an id names one for ever.
    pub(super) fn is(&self, stream_id: &str, event_type: &str, data: &str) -> bool {
        self.stream_id == stream_id && self.event_type == event_type && same_json(&self.data, data)
    }
}

/// Looks an id up.
pub(super) fn find_event(
    connection: &Connection,
    id: Uuid,
) -> Result<Option<Known>, rusqlite::Error> {
    connection
        .prepare_cached(FIND_EVENT)?
        .query_row([id.to_string()], |row| {
            Ok(Known {
                position: Position::from_stored(row.get(0)?),
                stream_id: row.get(1)?,
                version: Version::from_stored(row.get(2)?),
                event_type: row.get(3)?,
                data: row.get(4)?,
            })
        })
        .optional()
}

/// Was this append already stored? Its first result when every id is in this stream with the same
/// type and data, `None` when no id is known; anything between is refused.
fn find_repeat(
    connection: &Connection,
    append: &StreamAppend,
) -> Result<Option<Appended>, AppendError> {
    let known = find_known(connection, append).map_err(store_error)?;
    let same = known.iter().filter(|(_, _, same)| *same).count();
    let (Some(first), Some(last)) = (
        known.iter().map(|(_, event, _)| event.position).min(),
        known.iter().max_by_key(|(_, event, _)| event.position),
    ) else {
        return Ok(None);
    };
    if same < append.events.len() {
        return Err(id_conflict(append, &known, same));
    }
    Ok(Some(Appended {
        first_position: first,
        last_position: last.1.position,
        version: last.1.version,
    }))
}

/// The events of an append whose ids are known, with whether they are the same.
fn find_known(
    connection: &Connection,
    append: &StreamAppend,
) -> Result<Vec<(Uuid, Known, bool)>, rusqlite::Error> {
    let mut known = Vec::new();
    for event in &append.events {
        if let Some(found) = find_event(connection, event.id)? {
            let same = found.is(append.stream.as_str(), &event.event_type, &event.data);
            known.push((event.id, found, same));
        }
    }
    Ok(known)
}

fn id_conflict(append: &StreamAppend, known: &[(Uuid, Known, bool)], same: usize) -> AppendError {
    let (id, other, _) = known
        .iter()
        .min_by_key(|(_, event, same)| (*same, event.position))
        .expect("a conflict is about an id that is known");
    AppendError::IdConflict {
        message: format!(
            "event id {id} is already stored as version {} of stream \"{}\", and this append to \
             stream \"{}\" is not a repeat of that one ({} of {} ids known, {same} with the same \
             stream, type and data)",
            other.version,
            other.stream_id,
            append.stream,
            known.len(),
            append.events.len(),
        ),
    }
}

/// Only reached if the check before any database was left out.
fn id_twice(append: &StreamAppend) -> AppendError {
    AppendError::IdConflict {
        message: format!("append to stream \"{}\" uses an event id twice", append.stream),
    }
}

/// The error of a whole group as that of one of its members.
pub(super) fn for_member(error: &StoreError) -> AppendError {
    error.duplicate().into()
}
