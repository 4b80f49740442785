//! Reading pages of events.

use futures::TryStreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{Connections, Param};
use super::error::store_error;
use super::types::{JsonString, Time};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::{AllPage, DENSE, LogPage, Page, StreamPage};
use crate::{Position, RecordedEvent, StreamId, Version};

const STREAM_FORWARD: &str =
    include_str!("../../../sql/postgres/statements/read_stream_forward.sql");
const STREAM_BACKWARD: &str =
    include_str!("../../../sql/postgres/statements/read_stream_backward.sql");
const ALL: &str = include_str!("../../../sql/postgres/statements/read_all.sql");
const RANGE_OF_TYPES: &str =
    include_str!("../../../sql/postgres/statements/read_range_of_types.sql");
const ALL_OF_TYPES: &str = include_str!("../../../sql/postgres/statements/read_all_of_types.sql");

pub(super) async fn read_stream(
    connections: &Connections,
    page: StreamPage,
    options: &StoreOptions,
) -> Result<Page, StoreError> {
    let (sql, start) = match page.backward {
        true => (STREAM_BACKWARD, Version(u64::MAX)),
        false => (STREAM_FORWARD, Version(1)),
    };
    let from = page.from.unwrap_or(start).to_stored();
    let max = stored_max(page.max);
    let stream = page.stream.as_str();
    let params: [Param<'_>; 3] = [(&stream, Type::TEXT), (&from, Type::INT8), (&max, Type::INT8)];
    read_page(connections, sql, &params, page.max, options).await
}

/// Types that are a good part of the log are found by scanning it, a window of positions at a time;
/// rare ones over their index.
pub(super) async fn read_all(
    connections: &Connections,
    page: AllPage,
    options: &StoreOptions,
) -> Result<LogPage, StoreError> {
    let AllPage { after, mut up_to, types, max, dense } = page;
    let sql = match (&types, dense) {
        (None, _) => ALL,
        (Some(_), false) => ALL_OF_TYPES,
        (Some(_), true) => {
            up_to = up_to.min(Position(after.0.saturating_add(max as u64 * DENSE)));
            RANGE_OF_TYPES
        }
    };
    let bounds = (after.to_stored(), up_to.to_stored(), stored_max(max));
    let mut params: Vec<Param<'_>> =
        vec![(&bounds.0, Type::INT8), (&bounds.1, Type::INT8), (&bounds.2, Type::INT8)];
    if let Some(types) = &types {
        params.push((types, Type::TEXT_ARRAY));
    }
    let page = read_page(connections, sql, &params, max, options).await?;
    Ok(LogPage::new(page, after, up_to))
}

/// Reads rows until the page is full by number or by bytes. Rows that the server sent behind a
/// page that is full by bytes are dropped as they come in; the next page asks for them again.
async fn read_page(
    connections: &Connections,
    sql: &str,
    params: &[Param<'_>],
    max: usize,
    options: &StoreOptions,
) -> Result<Page, StoreError> {
    let connection = connections.get().await?;
    let reading = async {
        let rows = connection.query_stream(sql, params).await?;
        futures::pin_mut!(rows);
        let mut events = Vec::new();
        let mut bytes = 0;
        while let Some(row) = rows.try_next().await.map_err(store_error)? {
            let event = event(&row)?;
            bytes += event.data.len() + event.metadata.len();
            events.push(event);
            if bytes >= options.page_bytes_max {
                return Ok(Page { events, more: true });
            }
        }
        let more = events.len() == max;
        Ok(Page { events, more })
    };
    match tokio::time::timeout(options.request_timeout, reading).await {
        Ok(page) => page,
        Err(_) => {
            connection.unanswered();
            let message =
                format!("the server did not send a page within {:?}", options.request_timeout);
            Err(StoreError::new(StoreErrorKind::Closed, message))
        }
    }
}

/// An event from a row with the columns of these statements, in their order.
pub(super) fn event(row: &Row) -> Result<RecordedEvent, StoreError> {
    event_of(row).map_err(store_error)
}

/// Columns in the order of the statements.
fn event_of(row: &Row) -> Result<RecordedEvent, tokio_postgres::Error> {
    let schema_version: i32 = row.try_get(5)?;
    Ok(RecordedEvent {
        position: Position::from_stored(row.try_get(0)?),
        stream_id: StreamId::from(row.try_get::<_, &str>(1)?),
        version: Version::from_stored(row.try_get(2)?),
        id: row.try_get(3)?,
        event_type: row.try_get(4)?,
        schema_version: schema_version.unsigned_abs(),
        data: row.try_get::<_, JsonString>(6)?.0,
        metadata: row.try_get::<_, JsonString>(7)?.0,
        recorded_at: row.try_get::<_, Time>(8)?.0,
    })
}

pub(super) fn stored_max(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}
