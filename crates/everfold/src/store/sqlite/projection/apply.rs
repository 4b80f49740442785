//! Applying events: by the statements of a SQL projection, or by a handler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode};

use super::plan::{Plan, Planned};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::document::panic_message;
use crate::projection::handler::{HandlerError, SqliteHandler};
use crate::projection::projector::{ApplyError, Projector};
use crate::store::SqlEvents;
use crate::store::sqlite::error::{said, store_error};

/// Runs every statement of a SQL projection over some events.
pub(super) fn apply_sql(
    connection: &Connection,
    plan: &Plan,
    events: &SqlEvents,
) -> Result<(), ApplyError> {
    let positions = match events {
        SqlEvents::Positions(positions) => Some(positions_json(positions)),
        SqlEvents::Range { .. } => None,
    };
    for planned in &plan.statements {
        let (sql, run) = match events {
            SqlEvents::Range { after, up_to, shard } => {
                let numbers = [after.to_stored(), up_to.to_stored(), i64::from(*shard)];
                (&planned.of_range, run_with(connection, &planned.of_range, &numbers))
            }
            SqlEvents::Positions(_) => {
                (&planned.of_positions, run_with(connection, &planned.of_positions, &[&positions]))
            }
        };
        run.map_err(|error| located(connection, plan, planned, sql, error))?;
    }
    Ok(())
}

fn positions_json(positions: &[Position]) -> String {
    let numbers: Vec<i64> = positions.iter().map(|position| position.to_stored()).collect();
    serde_json::to_string(&numbers).expect("a list of numbers is JSON")
}

/// Runs a statement with as many of the parameters as it takes: one that does not look at `batch`
/// takes none.
fn run_with(
    connection: &Connection,
    sql: &str,
    parameters: &[impl rusqlite::ToSql],
) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let taken = statement.parameter_count();
    for (parameter, number) in parameters.iter().zip(1..=taken) {
        statement.raw_bind_parameter(number, parameter)?;
    }
    let mut rows = statement.raw_query();
    while rows.next()?.is_some() {}
    Ok(())
}

fn located(
    connection: &Connection,
    plan: &Plan,
    planned: &Planned,
    sent: &str,
    error: rusqlite::Error,
) -> ApplyError {
    let line = planned.line(sent, offset(&error));
    match broken_or_refused(connection, error) {
        ApplyError::Refused { message, position } => {
            let message = plan.in_words_of_the_file(&message);
            ApplyError::Refused { message: format!("{}:{line}: {message}", plan.file), position }
        }
        ApplyError::Broken { message } => {
            let message = plan.in_words_of_the_file(&message);
            ApplyError::Broken { message: format!("{}:{line}: {message}", plan.file) }
        }
        other => other,
    }
}

/// Where in the text that was sent an error is.
pub(super) fn offset(error: &rusqlite::Error) -> Option<usize> {
    match error {
        rusqlite::Error::SqlInputError { offset, .. } => usize::try_from(*offset).ok(),
        _ => None,
    }
}

/// Whose fault an error of a projection's own statement is: the store's if the file, the disk or
/// the whole transaction failed, and otherwise the projection's.
fn refused(connection: &Connection, error: rusqlite::Error) -> ApplyError {
    if connection.is_autocommit() || is_the_stores(&error) {
        return ApplyError::Store(store_error(error));
    }
    ApplyError::Refused { message: said(&error), position: None }
}

/// The same for statements that worked when the generation was made: one that cannot even be
/// prepared now is not for want of a better event. What a handler sends may differ from event to
/// event.
pub(super) fn broken_or_refused(connection: &Connection, error: rusqlite::Error) -> ApplyError {
    let broken = is_broken(&error);
    match refused(connection, error) {
        ApplyError::Refused { message, .. } if broken => ApplyError::Broken { message },
        other => other,
    }
}

/// A statement that was prepared before says it when it is run, in words only.
fn is_broken(error: &rusqlite::Error) -> bool {
    let message = said(error);
    matches!(error, rusqlite::Error::SqlInputError { .. })
        || message.starts_with("no such table")
        || message.starts_with("no such column")
        || message.contains(" has no column named ")
}

fn is_the_stores(error: &rusqlite::Error) -> bool {
    use ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
        OperationInterrupted, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    matches!(
        error.sqlite_error_code(),
        Some(
            CannotOpen
                | DatabaseBusy
                | DatabaseCorrupt
                | DatabaseLocked
                | DiskFull
                | NotADatabase
                | OperationInterrupted
                | OutOfMemory
                | PermissionDenied
                | ReadOnly
                | SystemIoFailure
        )
    )
}

pub(super) fn sqlite_handler(projector: &Projector) -> Result<&dyn SqliteHandler, ApplyError> {
    match projector {
        Projector::SqliteHandler(handler) => Ok(handler.as_ref()),
        other => Err(ApplyError::Refused {
            message: format!("{other:?} is not a handler that runs on SQLite; give it one"),
            position: None,
        }),
    }
}

/// Calls a handler's code. Its panics and its errors are the projection's.
pub(in crate::store::sqlite) fn guarded(
    connection: &Connection,
    call: impl FnOnce() -> Result<(), HandlerError>,
) -> Result<(), ApplyError> {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    if connection.is_autocommit() {
        let message =
            "the handler ended the transaction that it was given; let it only read and write";
        return Err(ApplyError::Store(StoreError::new(StoreErrorKind::Other, message)));
    }
    let message = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => match error.downcast::<rusqlite::Error>() {
            Ok(error) => return Err(refused(connection, *error)),
            Err(error) => with_causes(error.as_ref()),
        },
        Err(panic) => format!("the handler panicked: {}", panic_message(panic.as_ref())),
    };
    Err(ApplyError::Refused { message, position: None })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    message
}
