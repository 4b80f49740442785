//! Reading pages of events.

use std::collections::BinaryHeap;

use rusqlite::{Connection, OptionalExtension, Params, Row, Rows};

use crate::store::{AllPage, DENSE, LogPage, Page, StreamPage};
use crate::{Position, RecordedEvent, StreamId, Version};

const STREAM_FORWARD: &str = include_str!("../../../sql/sqlite/statements/read_stream_forward.sql");
const STREAM_BACKWARD: &str =
    include_str!("../../../sql/sqlite/statements/read_stream_backward.sql");
const ALL: &str = include_str!("../../../sql/sqlite/statements/read_all.sql");
const RANGE_OF_TYPES: &str = include_str!("../../../sql/sqlite/statements/read_range_of_types.sql");
const POSITIONS_OF_TYPE: &str =
    include_str!("../../../sql/sqlite/statements/read_positions_of_type.sql");
const POSITIONS: &str = include_str!("../../../sql/sqlite/statements/read_positions.sql");
const EVENT: &str = include_str!("../../../sql/sqlite/statements/read_event.sql");
const HIGH_WATER_MARK: &str =
    include_str!("../../../sql/sqlite/statements/read_high_water_mark.sql");

pub(super) fn read_stream(
    connection: &Connection,
    page: &StreamPage,
    bytes_max: usize,
) -> Result<Page, rusqlite::Error> {
    let (sql, start) = match page.backward {
        true => (STREAM_BACKWARD, Version(u64::MAX)),
        false => (STREAM_FORWARD, Version(1)),
    };
    let from = page.from.unwrap_or(start).to_stored();
    let params = (page.stream.as_str(), from, stored_max(page.max));
    read_page(connection, sql, params, page.max, bytes_max)
}

/// Types that are a good part of the log are found by scanning it, a window of positions at a time;
/// rare ones over their index.
pub(super) fn read_all(
    connection: &Connection,
    page: &AllPage,
    bytes_max: usize,
) -> Result<LogPage, rusqlite::Error> {
    let (after, max) = (page.after, page.max);
    let mut up_to = page.up_to;
    let events = match &page.types {
        None => {
            let params = (after.to_stored(), up_to.to_stored(), stored_max(max));
            read_page(connection, ALL, params, max, bytes_max)?
        }
        Some(types) if page.dense => {
            up_to = up_to.min(Position(after.0.saturating_add(max as u64 * DENSE)));
            let types = serde_json::to_string(types).expect("a list of texts is JSON");
            let params = (after.to_stored(), up_to.to_stored(), stored_max(max), types);
            read_page(connection, RANGE_OF_TYPES, params, max, bytes_max)?
        }
        Some(types) => read_types(connection, page, types, bytes_max)?,
    };
    Ok(LogPage::new(events, after, up_to))
}

/// The highest position, or 0. Writers take turns, so nothing can still appear below it.
pub(super) fn high_water_mark(connection: &Connection) -> Result<Position, rusqlite::Error> {
    let position: Option<i64> =
        connection.prepare_cached(HIGH_WATER_MARK)?.query_row([], |row| row.get(0))?;
    Ok(position.map_or(Position::START, Position::from_stored))
}

/// Where the events of a page stand, rising.
pub(super) fn positions(
    connection: &Connection,
    page: &AllPage,
) -> Result<Vec<i64>, rusqlite::Error> {
    match &page.types {
        Some(types) => positions_of_types(connection, page, types),
        None => {
            let params = (page.after.to_stored(), page.up_to.to_stored(), stored_max(page.max));
            connection.prepare_cached(POSITIONS)?.query_map(params, |row| row.get(0))?.collect()
        }
    }
}

/// The events at these positions, in the order given; those that are not there are left out.
pub(super) fn read_at(
    connection: &Connection,
    positions: &[Position],
) -> Result<Vec<RecordedEvent>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(EVENT)?;
    let mut events = Vec::with_capacity(positions.len());
    for position in positions {
        events.extend(statement.query_row([position.to_stored()], event).optional()?);
    }
    Ok(events)
}

/// A page as it fills up, by number and by bytes.
struct Filling {
    events: Vec<RecordedEvent>,
    bytes: usize,
    bytes_max: usize,
}

impl Filling {
    fn new(bytes_max: usize) -> Self {
        Filling { events: Vec::new(), bytes: 0, bytes_max }
    }

    /// Takes one more event; false if it is too much. The first is never too much.
    fn push(&mut self, event: RecordedEvent) -> bool {
        let bytes = self.bytes + event.data.len() + event.metadata.len();
        if bytes > self.bytes_max && !self.events.is_empty() {
            return false;
        }
        self.bytes = bytes;
        self.events.push(event);
        true
    }
}

fn read_page(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    max: usize,
    bytes_max: usize,
) -> Result<Page, rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows: Rows<'_> = statement.query(params)?;
    let mut filling = Filling::new(bytes_max);
    while let Some(row) = rows.next()? {
        if !filling.push(event(row)?) {
            return Ok(Page { events: filling.events, more: true });
        }
    }
    let more = filling.events.len() == max;
    Ok(Page { events: filling.events, more })
}

/// Events of some types: first where they stand, over the index of types, then the events.
fn read_types(
    connection: &Connection,
    page: &AllPage,
    types: &[String],
    bytes_max: usize,
) -> Result<Page, rusqlite::Error> {
    // One look at the file for all statements, which also saves taking its locks for each.
    let _snapshot = match connection.is_autocommit() {
        true => Some(connection.unchecked_transaction()?),
        false => None,
    };
    let positions = positions_of_types(connection, page, types)?;
    let full = positions.len() == page.max;
    let mut filling = Filling::new(bytes_max);
    let mut statement = connection.prepare_cached(EVENT)?;
    for position in positions {
        let event = statement.query_row([position], event)?;
        if !filling.push(event) {
            return Ok(Page { events: filling.events, more: true });
        }
    }
    Ok(Page { events: filling.events, more: full })
}

/// The lowest `max` positions of all types together, rising. Each type is asked for no more than
/// can still be among them, so that many types cost little more than a few.
fn positions_of_types(
    connection: &Connection,
    page: &AllPage,
    types: &[String],
) -> Result<Vec<i64>, rusqlite::Error> {
    let mut types: Vec<&str> = types.iter().map(String::as_str).collect();
    types.sort_unstable();
    types.dedup();
    let mut statement = connection.prepare_cached(POSITIONS_OF_TYPE)?;
    let (after, mut up_to) = (page.after.to_stored(), page.up_to.to_stored());
    let mut lowest = BinaryHeap::new();
    for event_type in types {
        let mut rows = statement.query((event_type, after, up_to, stored_max(page.max)))?;
        while let Some(row) = rows.next()? {
            let position: i64 = row.get(0)?;
            if lowest.len() == page.max {
                if lowest.peek().is_some_and(|&highest| position > highest) {
                    break;
                }
                lowest.pop();
            }
            lowest.push(position);
        }
        if let Some(&highest) = lowest.peek().filter(|_| lowest.len() == page.max) {
            up_to = highest;
        }
    }
    Ok(lowest.into_sorted_vec())
}

/// Columns in the order of the statements.
fn event(row: &Row<'_>) -> Result<RecordedEvent, rusqlite::Error> {
    Ok(RecordedEvent {
        position: Position::from_stored(row.get(0)?),
        stream_id: StreamId::from(row.get_ref(1)?.as_str()?),
        version: Version::from_stored(row.get(2)?),
        id: parsed(row, 3)?,
        event_type: row.get(4)?,
        schema_version: row.get(5)?,
        data: row.get(6)?,
        metadata: row.get(7)?,
        recorded_at: parsed(row, 8)?,
    })
}

pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> Result<T, rusqlite::Error>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.get_ref(column)?.as_str()?.parse().map_err(|error: T::Err| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
    })
}

fn stored_max(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}
