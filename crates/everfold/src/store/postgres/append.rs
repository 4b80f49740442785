//! Calls of the append functions: one event, several, many streams; and inside a caller's own
//! transaction.

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::connect::{Connection, Param, QueryError};
use super::error::{append_error, id_conflict, store_error, version_conflict};
use super::inline::Inline;
use super::types::{Bigints, JsonText};
use crate::append::{Appended, StreamAppend};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::options::Limits;
use crate::{NewEvent, Position, Version};

// Called for one value, not FROM the function: the server then needs no table for its result.
const APPEND_EVENT: &str = "SELECT everfold.append_event($1, $2, $3, $4, $5, $6, $7, $8)";
const APPEND: &str = "SELECT everfold.append($1, $2, $3, $4, $5, $6, $7, $8)";
const APPEND_GROUP: &str = "SELECT outcomes, first_positions, last_positions, versions, messages \
    FROM everfold.append_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const APPEND_GROUP_CARRYING: &str = append_group_carrying!("$11");
/// For a call that is sent without waiting until its transaction has begun: it is refused if there
/// is none. It would be committed alone, without what its caller is to write.
const APPEND_GROUP_PIPELINED: &str = append_group_carrying!(
    "CASE pg_catalog.current_setting('idle_in_transaction_session_timeout') \
     WHEN '10007ms' THEN $11 END"
);

/// Begins the transaction of such a call. Its time-out is there because a process that is paused in
/// it must not hold its streams, gates and the mark for ever; it is an odd number so that nobody
/// else sets it, and whoever finds it set knows that this transaction has begun.
pub(super) const BEGIN_PIPELINED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
    SET LOCAL idle_in_transaction_session_timeout = '10007ms'";

macro_rules! append_group_carrying {
    ($carries:literal) => {
        concat!(
            "SELECT outcomes, first_positions, last_positions, versions, messages, carried, \
             event_positions, event_streams, event_versions, event_types, event_schema_versions, \
             event_data, event_metadata, event_ids, event_times \
             FROM everfold.append_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, ",
            $carries,
            ")"
        )
    };
}
use append_group_carrying;

/// Appends inside the caller's own transaction: the events become visible, or vanish, with
/// everything else in it.
///
/// The transaction must be READ COMMITTED. It may append several times; transactions that append
/// to several streams in different orders can deadlock, which PostgreSQL ends with 40P01: retry
/// the whole transaction. Followers in other processes notice the events by polling, a little
/// later than those of [`Store::append`](crate::Store::append).
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use everfold::postgres::{append_in, connect};
/// use everfold::{ExpectedVersion, NewEvent, StreamAppend};
///
/// let mut client = connect("postgres://localhost/shop").await?;
/// let transaction = client.transaction().await?;
/// transaction.execute("INSERT INTO orders (id) VALUES (42)", &[]).await?;
/// let placed = NewEvent::from_json("OrderPlaced", r#"{"total": 1999}"#)?;
/// let append = StreamAppend::new("order-42", ExpectedVersion::NoStream, [placed]);
/// append_in(&transaction, &append).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`Store::append`](crate::Store::append). PostgreSQL aborts the transaction on an error: roll
/// it back, or to a savepoint set before.
pub async fn append_in(
    transaction: &impl GenericClient,
    append: &StreamAppend,
) -> Result<Appended, AppendError> {
    append.check(&Limits::default())?;
    let call = Call::new(append);
    let rows = transaction
        .query_typed(call.sql(), &call.params(&true))
        .await
        .map_err(|error| append.blamed(append_error(error, append)))?;
    appended(&rows)
}

/// One append, in a transaction of its own.
pub(super) async fn append(
    connection: &mut Connection,
    inline: &Inline,
    append: &StreamAppend,
    wait: bool,
) -> Result<Appended, AppendError> {
    while let Some(carries) = inline.carries() {
        let outcome = carries.append(connection, append, wait).await;
        if outcome.is_ok() || !inline.forgets(&carries, connection).await {
            return outcome;
        }
    }
    let call = Call::new(append);
    match connection.try_query(call.sql(), &call.params(&wait)).await {
        Ok(rows) => appended(&rows),
        Err(QueryError::Driver(error)) => Err(append_error(error, append)),
        Err(error) => Err(error.into_store_error().into()),
    }
}

fn appended(rows: &[Row]) -> Result<Appended, AppendError> {
    let [row] = rows else {
        let message = "the append function did not return one row";
        return Err(StoreError::new(StoreErrorKind::Other, message).into());
    };
    let Bigints([first, last, version]) =
        row.try_get(0).map_err(|error| AppendError::Store(store_error(error)))?;
    Ok(Appended {
        first_position: Position::from_stored(first),
        last_position: Position::from_stored(last),
        version: Version::from_stored(version),
    })
}

/// The parameters of an append of one event.
pub(super) struct EventCall<'a> {
    stream: &'a str,
    expected: Option<i64>,
    event_type: &'a str,
    data: JsonText<'a>,
    metadata: JsonText<'a>,
    id: Uuid,
    schema_version: i32,
}

impl<'a> EventCall<'a> {
    pub(super) fn new(append: &'a StreamAppend, event: &'a NewEvent) -> Self {
        EventCall {
            stream: append.stream.as_str(),
            expected: append.expected.to_stored(),
            event_type: &event.event_type,
            data: JsonText::new(&event.data),
            metadata: JsonText::metadata(&event.metadata),
            id: event.id,
            schema_version: stored_schema_version(event),
        }
    }

    pub(super) fn params<'p>(&'p self, wait: &'p bool) -> Vec<Param<'p>> {
        vec![
            (&self.stream, Type::TEXT),
            (&self.expected, Type::INT8),
            (&self.event_type, Type::TEXT),
            (&self.data, Type::JSONB),
            (&self.metadata, Type::JSONB),
            (&self.id, Type::UUID),
            (&self.schema_version, Type::INT4),
            (wait, Type::BOOL),
        ]
    }
}

/// The parameters of one append; a single event has a function of its own.
enum Call<'a> {
    One(EventCall<'a>),
    Several { stream: &'a str, expected: Option<i64>, events: Columns<'a> },
}

impl<'a> Call<'a> {
    fn new(append: &'a StreamAppend) -> Self {
        match append.events.as_slice() {
            [event] => Call::One(EventCall::new(append, event)),
            events => Call::Several {
                stream: append.stream.as_str(),
                expected: append.expected.to_stored(),
                events: Columns::new(events),
            },
        }
    }

    fn sql(&self) -> &'static str {
        match self {
            Call::One(_) => APPEND_EVENT,
            Call::Several { .. } => APPEND,
        }
    }

    fn params<'p>(&'p self, wait: &'p bool) -> Vec<Param<'p>> {
        match self {
            Call::One(call) => call.params(wait),
            Call::Several { stream, expected, events } => {
                let mut params: Vec<Param<'p>> = vec![(stream, Type::TEXT), (expected, Type::INT8)];
                params.extend(events.params());
                params.push((wait, Type::BOOL));
                params
            }
        }
    }
}

/// Events column by column, as the array parameters take them.
#[derive(Default)]
struct Columns<'a> {
    types: Vec<&'a str>,
    data: Vec<JsonText<'a>>,
    metadata: Vec<JsonText<'a>>,
    ids: Vec<Uuid>,
    schema_versions: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn new(events: &'a [NewEvent]) -> Self {
        let mut columns = Columns::default();
        columns.extend(events);
        columns
    }

    fn extend(&mut self, events: &'a [NewEvent]) {
        for event in events {
            self.types.push(&event.event_type);
            self.data.push(JsonText::new(&event.data));
            self.metadata.push(JsonText::metadata(&event.metadata));
            self.ids.push(event.id);
            self.schema_versions.push(stored_schema_version(event));
        }
    }

    fn params(&self) -> [Param<'_>; 5] {
        [
            (&self.types, Type::TEXT_ARRAY),
            (&self.data, Type::JSONB_ARRAY),
            (&self.metadata, Type::JSONB_ARRAY),
            (&self.ids, Type::UUID_ARRAY),
            (&self.schema_versions, Type::INT4_ARRAY),
        ]
    }
}

fn stored_schema_version(event: &NewEvent) -> i32 {
    i32::try_from(event.schema_version).expect("the schema version was checked")
}

/// What became of one member of a group.
pub(super) enum Outcome {
    Done(Result<Appended, AppendError>),
    /// Another transaction is appending to its stream; nothing was stored.
    Busy,
}

/// Many appends in one transaction, waiting for their streams. When the whole fails over one
/// member, no member is stored.
pub(super) async fn append_many(
    connection: &mut Connection,
    inline: &Inline,
    appends: &[StreamAppend],
) -> Result<Vec<Result<Appended, AppendError>>, AppendError> {
    let appends: Vec<&StreamAppend> = appends.iter().collect();
    let outcomes = append_group(connection, inline, &appends, true).await?;
    outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Done(result) => Ok(result),
            Outcome::Busy => {
                let message = "a stream was busy although the append waited";
                Err(StoreError::new(StoreErrorKind::Busy, message).into())
            }
        })
        .collect()
}

/// Many appends in one transaction, each with its own outcome.
pub(super) async fn append_group(
    connection: &mut Connection,
    inline: &Inline,
    appends: &[&StreamAppend],
    wait: bool,
) -> Result<Vec<Outcome>, AppendError> {
    while let Some(carries) = inline.carries() {
        let outcome = carries.append_group(connection, appends, wait).await;
        if outcome.is_ok() || !inline.forgets(&carries, connection).await {
            return outcome;
        }
    }
    let call = GroupCall::new(appends);
    let rows = match connection.try_query(APPEND_GROUP, &call.params(&wait)).await {
        Ok(rows) => rows,
        Err(QueryError::Driver(error)) => return Err(append_error(error, appends[0])),
        Err(error) => return Err(error.into_store_error().into()),
    };
    let [row] = rows.as_slice() else {
        let message = "the append function did not return one row";
        return Err(StoreError::new(StoreErrorKind::Other, message).into());
    };
    Ok(outcomes(row, appends))
}

/// The parameters of many appends.
pub(super) struct GroupCall<'a> {
    streams: Vec<&'a str>,
    member_streams: Vec<i32>,
    expected: Vec<Option<i64>>,
    sizes: Vec<i32>,
    events: Columns<'a>,
}

impl<'a> GroupCall<'a> {
    pub(super) fn new(appends: &[&'a StreamAppend]) -> Self {
        let mut streams: Vec<&str> = appends.iter().map(|append| append.stream.as_str()).collect();
        streams.sort_unstable();
        streams.dedup();
        let member_streams = appends
            .iter()
            .map(|append| {
                let index = streams.binary_search(&append.stream.as_str());
                i32::try_from(index.expect("every stream is in the list")).expect("few streams") + 1
            })
            .collect();
        let expected = appends.iter().map(|append| append.expected.to_stored()).collect();
        let sizes = appends
            .iter()
            .map(|append| i32::try_from(append.events.len()).expect("the size was checked"))
            .collect();
        let mut events = Columns::default();
        appends.iter().for_each(|append| events.extend(&append.events));
        GroupCall { streams, member_streams, expected, sizes, events }
    }

    fn params<'p>(&'p self, wait: &'p bool) -> Vec<Param<'p>> {
        let mut params: Vec<Param<'p>> = vec![
            (&self.streams, Type::TEXT_ARRAY),
            (&self.member_streams, Type::INT4_ARRAY),
            (&self.expected, Type::INT8_ARRAY),
            (&self.sizes, Type::INT4_ARRAY),
        ];
        params.extend(self.events.params());
        params.push((wait, Type::BOOL));
        params
    }

    /// The distinct streams.
    pub(super) fn streams(&self) -> &Vec<&'a str> {
        &self.streams
    }

    /// The call of a client that applies these generations itself.
    pub(super) fn carrying<'p>(
        &'p self,
        wait: &'p bool,
        carries: &'p Vec<i32>,
    ) -> (&'static str, Vec<Param<'p>>) {
        let mut params = self.params(wait);
        params.push((carries, Type::INT4_ARRAY));
        (APPEND_GROUP_CARRYING, params)
    }

    /// The same, sent together with [`BEGIN_PIPELINED`].
    pub(super) fn pipelined<'p>(
        &'p self,
        wait: &'p bool,
        carries: &'p Vec<i32>,
    ) -> (&'static str, Vec<Param<'p>>) {
        let (_, params) = self.carrying(wait, carries);
        (APPEND_GROUP_PIPELINED, params)
    }
}

/// What became of each member, from the first columns of the answer.
pub(super) fn outcomes(row: &Row, appends: &[&StreamAppend]) -> Vec<Outcome> {
    let outcomes: Vec<&str> = row.get(0);
    let first: Vec<Option<i64>> = row.get(1);
    let last: Vec<Option<i64>> = row.get(2);
    let versions: Vec<Option<i64>> = row.get(3);
    let messages: Vec<Option<&str>> = row.get(4);
    let number = |column: &[Option<i64>], member: usize| column[member].unwrap_or_default();
    let outcome = |(member, append): (usize, &&StreamAppend)| match outcomes[member] {
        "stored" | "repeat" => Outcome::Done(Ok(Appended {
            first_position: Position::from_stored(number(&first, member)),
            last_position: Position::from_stored(number(&last, member)),
            version: Version::from_stored(number(&versions, member)),
        })),
        "conflict" => {
            let actual = Version::from_stored(number(&versions, member));
            Outcome::Done(Err(version_conflict(append, append.expected, actual)))
        }
        "busy" => Outcome::Busy,
        _ => {
            let message = messages[member].unwrap_or("an event id is stored already").to_owned();
            Outcome::Done(Err(id_conflict(message)))
        }
    };
    appends.iter().enumerate().map(outcome).collect()
}
