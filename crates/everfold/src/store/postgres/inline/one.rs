//! An append of one event to documents: the short path, which most appends of such a handle take.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::append::{BEGIN_PIPELINED, EventCall};
use super::super::connect::{Connection, Param, QueryError};
use super::super::error::{code, store_error};
use super::super::types::{JsonString, Time};
use super::due::{Documents, Due};
use super::{Carries, failed, one_row, write};
use crate::append::{Appended, StreamAppend};
use crate::error::AppendError;
use crate::{NewEvent, Position, RecordedEvent, Version};

/// Refused without a transaction, like `APPEND_GROUP_PIPELINED`.
const APPEND: &str = "SELECT stored_position, stored_version, stored_at, stored_data, \
    stored_metadata, carried \
    FROM everfold.append_event_carrying($1, $2, $3, $4, $5, $6, $7, $8, \
        CASE pg_catalog.current_setting('idle_in_transaction_session_timeout') \
        WHEN '10007ms' THEN $9 END)";

/// `None` if more than this event is due: nothing is stored, and the transaction is to be ended.
pub(super) async fn append(
    carries: &Carries,
    connection: &Connection,
    append: &StreamAppend,
    event: &NewEvent,
    wait: bool,
) -> Result<Option<Appended>, AppendError> {
    let (call, ids, streams) =
        (EventCall::new(append, event), carries.ids(), vec![append.stream.as_str()]);
    let mut params: Vec<Param<'_>> = call.params(&wait);
    params.push((&ids, Type::INT4_ARRAY));
    let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
    let loads = carries.loads(&streams);
    // In the order in which they are sent: see `Carries::append_documents`.
    connection.prepare(APPEND, &types).await.map_err(|error| failed(error, append))?;
    loads.prepare(connection).await.map_err(|error| carries.not_loaded(error, append))?;
    let (begun, called, loaded) = tokio::join!(
        biased;
        connection.batch(BEGIN_PIPELINED),
        connection.try_query(APPEND, &params),
        loads.send(connection),
    );
    begun?;
    if let Err(QueryError::Driver(error)) = &called
        && error.code().is_some_and(|found| found.code() == code::MORE_IS_DUE)
    {
        return Ok(None);
    }
    let row = one_row(called, append)?;
    let loaded = loaded.map_err(|error| carries.not_loaded(error, append))?;
    let (appended, due) = due(carries, &row, loaded, append, event).map_err(store_error)?;
    write::commit(connection, &carries.fold(&due)?).await?;
    Ok(Some(appended))
}

/// What was stored, and what is ours to apply of it.
fn due(
    carries: &Carries,
    row: &Row,
    documents: Documents,
    append: &StreamAppend,
    event: &NewEvent,
) -> Result<(Appended, Due), tokio_postgres::Error> {
    let position = Position::from_stored(row.try_get(0)?);
    let version = Version::from_stored(row.try_get(1)?);
    let appended = Appended { first_position: position, last_position: position, version };
    let carried: Option<Vec<i32>> = row.try_get(5)?;
    let Some(generations) = carried.filter(|carried| !carried.is_empty()) else {
        return Ok((appended, Due::default()));
    };
    // As it is stored, which is what a rebuild will read: the database writes JSON in its own way.
    let stored = RecordedEvent {
        position,
        stream_id: append.stream.clone(),
        version,
        id: event.id,
        event_type: event.event_type.clone(),
        schema_version: event.schema_version,
        data: row.try_get::<_, JsonString>(3)?.0,
        metadata: row.try_get::<_, JsonString>(4)?.0,
        recorded_at: row.try_get::<_, Time>(2)?.0,
    };
    let positions: BTreeMap<i32, Vec<Position>> =
        generations.into_iter().map(|generation| (generation, vec![position])).collect();
    Ok((appended, Due::of_one(stored, positions, documents, &carries.upcasters)))
}
