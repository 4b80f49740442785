//! Applying events: by the functions of a SQL generation, or by a handler.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, ErrorPosition, SqlState};
use tokio_postgres::types::Type;

use super::functions::file_in;
use super::names::quoted;
use super::unit::{PostgresUnit, failed, stored_positions};
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::document::panic_message;
use crate::projection::generation::Generation;
use crate::projection::handler::{HandlerBatch, HandlerError, PostgresHandler};
use crate::projection::projector::{ApplyError, OutOfTime, Projector};
use crate::store::SqlEvents;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::error::store_error;
use crate::{Position, RecordedEvent};

/// Calls the generation's own function, whose plans the server keeps.
pub(in crate::store::postgres) async fn apply_sql(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    events: &SqlEvents,
) -> Result<(), ApplyError> {
    let home = quoted(&generation.home);
    let outcome = match events {
        SqlEvents::Range { after, up_to, shard } => {
            let (after, up_to) = (after.to_stored(), up_to.to_stored());
            let shard = i32::try_from(*shard).unwrap_or(i32::MAX);
            let params: [Param<'_>; 3] =
                [(&after, Type::INT8), (&up_to, Type::INT8), (&shard, Type::INT4)];
            unit.try_query(&format!("SELECT {home}.apply_range($1, $2, $3)"), &params).await
        }
        SqlEvents::Positions(positions) => {
            let positions = stored_positions(positions);
            let params: [Param<'_>; 1] = [(&positions, Type::INT8_ARRAY)];
            unit.try_query(&format!("SELECT {home}.apply($1)"), &params).await
        }
    };
    match outcome {
        Ok(_) => Ok(()),
        Err(QueryError::Driver(error)) => Err(broken_or_refused(error)),
        Err(error) => Err(ApplyError::Store(error.into_store_error())),
    }
}

/// Whose fault an error of a projection's own statement is: the store's if trying again or another
/// server may help, and otherwise the projection's.
fn refused(error: tokio_postgres::Error) -> ApplyError {
    let Some(database) = error.as_db_error() else { return failed(error) };
    let (message, position) = (said(database), position_in(database));
    let error = store_error(error);
    match error.is_transient() || error.kind() == StoreErrorKind::ReadOnly {
        true => ApplyError::Store(error),
        false => ApplyError::Refused { message, position },
    }
}

/// The same for statements that worked when the generation was made: a name that is unknown now, or
/// a right that is missing, is not for want of a better event. What a handler sends may differ from
/// event to event.
pub(in crate::store::postgres) fn broken_or_refused(error: tokio_postgres::Error) -> ApplyError {
    let broken = error.code().is_some_and(|code| is_broken(code.code()));
    match refused(error) {
        ApplyError::Refused { message, .. } if broken => ApplyError::Broken { message },
        other => other,
    }
}

/// The same as everfold.is_broken of the database: see there for what is left out.
fn is_broken(code: &str) -> bool {
    let of_the_session = matches!(code, "42P03" | "42P05");
    (code.starts_with("42") && !of_the_session) || code == "3F000"
}

/// What the server said, with file and line where it is about a statement of the projection.
pub(in crate::store::postgres) fn said(database: &DbError) -> String {
    let message = match database.detail() {
        Some(detail) if !detail.starts_with('{') => format!("{} ({detail})", database.message()),
        _ => database.message().to_owned(),
    };
    match place_in(database) {
        Some((file, line)) => format!("{file}:{line}: {message}"),
        None => message,
    }
}

/// File and line of the statement that failed. The statement is in the server's context; where the
/// server knows the very place in it, it is told apart, with the place.
fn place_in(database: &DbError) -> Option<(&str, u32)> {
    let context = database.where_()?;
    let line = line_in(context)?;
    match database.position() {
        Some(ErrorPosition::Internal { position, query }) => {
            let before = query.chars().take(position.saturating_sub(1) as usize);
            let lines = u32::try_from(before.filter(|c| *c == '\n').count()).unwrap_or(0);
            // A query of somebody else has no file, and its lines are not ours.
            match file_in(query) {
                Some(file) => Some((file, line + lines)),
                None => Some((file_in(context).unwrap_or("apply.sql"), line)),
            }
        }
        _ => Some((file_in(context).unwrap_or("apply.sql"), line)),
    }
}

/// The line of apply.sql in the server's context, one of whose lines is
/// "PL/pgSQL function everfold_7_carts.apply(bigint[]) line 12 at SQL statement". The lines of the
/// functions are those of the file.
fn line_in(context: &str) -> Option<u32> {
    let ours = context.lines().find(|line| {
        line.starts_with("PL/pgSQL function everfold_")
            && [".apply(", ".apply_event(", ".apply_range(", ".apply_part("]
                .iter()
                .any(|name| line.contains(name))
    })?;
    let number = ours.split_once(") line ")?.1;
    number.split(' ').next()?.parse().ok()
}

/// The event that an error names.
fn position_in(database: &DbError) -> Option<Position> {
    let detail: serde_json::Value = serde_json::from_str(database.detail()?).ok()?;
    detail["position"].as_i64().map(Position::from_stored)
}

/// Runs a handler over events, in their order.
pub(in crate::store::postgres) async fn run_handler(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    projector: &Projector,
    events: &[RecordedEvent],
    limit: Duration,
) -> Result<(), ApplyError> {
    let handler = handler_of(projector)?;
    unit.settle_set_up().await?;
    let batch = HandlerBatch { events, home: &generation.home, replayed: !generation.is_active };
    let left = limit.saturating_sub(unit.handlers_took);
    let begun = Instant::now();
    let running = async { handler.apply(batch, unit.transaction()).await };
    let outcome = timeout(left, AssertUnwindSafe(running).catch_unwind()).await;
    after_handler(unit, outcome, begun, |alone| OutOfTime::new(generation, events, limit, alone))
        .await
}

/// Tells a handler that an event was given up.
pub(in crate::store::postgres) async fn tell_skipped(
    unit: &mut PostgresUnit<'_>,
    generation: &Generation,
    projector: &Projector,
    event: &RecordedEvent,
    limit: Duration,
) -> Result<(), ApplyError> {
    let Ok(handler) = handler_of(projector) else { return Ok(()) };
    unit.settle_set_up().await?;
    let left = limit.saturating_sub(unit.handlers_took);
    let begun = Instant::now();
    let running = async { handler.skipped(event, unit.transaction()).await };
    let outcome = timeout(left, AssertUnwindSafe(running).catch_unwind()).await;
    let events = std::slice::from_ref(event);
    after_handler(unit, outcome, begun, |alone| OutOfTime::new(generation, events, limit, alone))
        .await
}

/// Asks a handler to remove what it made outside its schema.
pub(in crate::store::postgres) async fn tear_down(
    unit: &mut PostgresUnit<'_>,
    name: &str,
    home: &str,
    projector: &Projector,
    limit: Duration,
) -> Result<(), ApplyError> {
    let handler = handler_of(projector)?;
    unit.settle_set_up().await?;
    let begun = Instant::now();
    let running = async { handler.tear_down(home, unit.transaction()).await };
    let outcome = timeout(limit, AssertUnwindSafe(running).catch_unwind()).await;
    let late = |had_all_the_time| OutOfTime {
        message: format!("the handler of projection \"{name}\" was not done within {limit:?}"),
        first: Position::default(),
        last: Position::default(),
        had_all_the_time,
    };
    after_handler(unit, outcome, begun, late).await
}

fn handler_of(projector: &Projector) -> Result<&dyn PostgresHandler, ApplyError> {
    match projector {
        Projector::PostgresHandler(handler) => Ok(handler.as_ref()),
        other => {
            let message = format!("{other:?} is not a handler for PostgreSQL");
            Err(ApplyError::Store(StoreError::new(StoreErrorKind::Other, message)))
        }
    }
}

type Caught = Result<Result<(), HandlerError>, Box<dyn std::any::Any + Send>>;

async fn after_handler(
    unit: &mut PostgresUnit<'_>,
    outcome: Result<Caught, Elapsed>,
    begun: Instant,
    late: impl FnOnce(bool) -> OutOfTime,
) -> Result<(), ApplyError> {
    let had_all_the_time = unit.handlers_took.is_zero();
    unit.handlers_took += begun.elapsed();
    let Ok(outcome) = outcome else {
        // Nobody knows what the server is doing: no statement can follow.
        unit.abandoned = true;
        return Err(ApplyError::OutOfTime(late(had_all_the_time)));
    };
    let error = match outcome {
        Ok(Ok(())) => return still_open(unit).await,
        Ok(Err(error)) => error,
        Err(panic) => {
            unit.note_abort();
            let message = format!("the handler panicked: {}", panic_message(&*panic));
            return Err(ApplyError::Refused { message, position: None });
        }
    };
    // Whatever it was, the transaction may be over.
    unit.note_abort();
    match error.downcast::<tokio_postgres::Error>() {
        Ok(error) => Err(refused(*error)),
        Err(error) => Err(ApplyError::Refused { message: chain(&*error), position: None }),
    }
}

/// Whether a handler that is content left the transaction as it should be: a statement of its own may
/// have failed, and then nothing it did can be kept; or it ended the transaction.
async fn still_open(unit: &mut PostgresUnit<'_>) -> Result<(), ApplyError> {
    let looked = unit.batch("SAVEPOINT everfold_handler; RELEASE SAVEPOINT everfold_handler").await;
    let error = match looked {
        Ok(()) => return Ok(()),
        Err(QueryError::Driver(error)) => error,
        Err(error) => return Err(ApplyError::Store(error.into_store_error())),
    };
    match error.code().map(SqlState::code) {
        Some("25P02") => Err(ApplyError::Refused {
            message: "a statement of the handler failed and it went on without saying so, which leaves \
                      nothing that could be kept; let it return the error, or put a savepoint before \
                      what may fail (the server's log has the error itself)"
                .to_owned(),
            position: None,
        }),
        Some("25P01") => {
            unit.abandoned = true;
            let message =
                "the handler ended the transaction that it was given; let it only read and write";
            Err(ApplyError::Store(StoreError::new(StoreErrorKind::Other, message)))
        }
        _ => Err(failed(error)),
    }
}

/// An error with what caused it.
pub(in crate::store::postgres) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_message = cause.to_string();
        if !message.contains(&cause_message) {
            message = format!("{message}: {cause_message}");
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_file_is_found_in_the_context() {
        let context = "SQL function \"f\" statement 1\n\
            PL/pgSQL function everfold_7_carts.apply(bigint[]) line 12 at SQL statement\n\
            SQL statement \"SELECT everfold_7_carts.apply($1)\"\n\
            PL/pgSQL function everfold.apply_inline(integer[],bigint[]) line 9 at EXECUTE";
        assert_eq!(line_in(context), Some(12));
        let range = "PL/pgSQL function everfold_7_a.apply_range(bigint,bigint,integer) line 3 at SQL statement";
        assert_eq!(line_in(range), Some(3));
        let one =
            "PL/pgSQL function everfold_7_a.apply_event(everfold.events) line 5 at SQL statement";
        assert_eq!(line_in(one), Some(5));
        assert_eq!(line_in("PL/pgSQL function mine.apply(bigint[]) line 3 at RAISE"), None);
    }
}
