//! From SQLite's errors to ours: one place that knows result codes and constraint names.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::{AppendError, InvalidAppend, StoreError, StoreErrorKind};

/// SQLite's answer to a transaction that has read and cannot be made a writing one.
const BUSY_SNAPSHOT: i32 = rusqlite::ffi::SQLITE_BUSY_SNAPSHOT;

/// An error of a statement.
pub(super) fn store_error(error: rusqlite::Error) -> StoreError {
    let (kind, advice) = kind_and_advice(&error);
    let said = said(&error);
    let message = if advice.is_empty() { said } else { format!("{said}; {advice}") };
    with_origin(StoreError::new(kind, message), error)
}

/// An error while a file is opened, with what the file system has to say about it.
pub(super) fn open_error(error: rusqlite::Error, path: &Path) -> StoreError {
    let shown = path.display();
    let cannot_open = error.sqlite_error_code() == Some(ErrorCode::CannotOpen);
    let (kind, reason) = match path.parent() {
        _ if !cannot_open => {
            let (kind, advice) = kind_and_advice(&error);
            let said = said(&error);
            (kind, if advice.is_empty() { said } else { format!("{said}; {advice}") })
        }
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            (StoreErrorKind::Missing, format!("the folder {} does not exist", folder.display()))
        }
        _ if path.is_dir() => (StoreErrorKind::NotAStore, "it is a folder, not a file".to_owned()),
        _ if !path.exists() => {
            (StoreErrorKind::Missing, "the file does not exist and could not be created".to_owned())
        }
        _ => {
            let reason = "this user may not open it; check the permissions of file and folder";
            (StoreErrorKind::Privilege, reason.to_owned())
        }
    };
    with_origin(StoreError::new(kind, format!("cannot open {shown}: {reason}")), error)
}

/// A file that can be read and not written.
pub(super) fn read_only(path: &Path) -> StoreError {
    let message = format!(
        "cannot write {}: the file is read-only for this user; allow writing the file and its \
         folder, where SQLite keeps a -wal and a -shm file beside it",
        path.display()
    );
    StoreError::new(StoreErrorKind::ReadOnly, message)
}

/// An error of an append, in a transaction of ours or of a caller's.
pub(super) fn append_error(error: rusqlite::Error) -> AppendError {
    match refused_by_constraint(&error) {
        Some(refused) => refused.into(),
        None => store_error(error).into(),
    }
}

/// The error of a caller's transaction that cannot take the write lock.
pub(super) fn append_in_error(error: rusqlite::Error) -> AppendError {
    if error.sqlite_error_code() != Some(ErrorCode::DatabaseBusy) {
        return append_error(error);
    }
    let message = match extended_code(&error) {
        Some(BUSY_SNAPSHOT) => {
            "the transaction read before it appended, and others have written since: roll it back, \
             begin it with BEGIN IMMEDIATE, and try again"
        }
        _ => {
            "another writer holds the file: roll the transaction back, begin it with BEGIN \
             IMMEDIATE, which waits for its turn, and try again"
        }
    };
    with_origin(StoreError::new(StoreErrorKind::Busy, message), error).into()
}

/// The name of the constraint of the table `everfold_events` that refused a row.
pub(super) fn constraint(error: &rusqlite::Error) -> Option<&str> {
    let rusqlite::Error::SqliteFailure(_, Some(message)) = error else {
        return None;
    };
    message.strip_prefix("CHECK constraint failed: ")
}

/// Constraints of the table `everfold_events`, as rules.
pub(super) fn rule(constraint: &str) -> Option<&'static str> {
    Some(match constraint {
        "events_stream_id_length" => "a stream id has 1 to 512 bytes",
        "events_type_length" => "an event type has 1 to 256 bytes",
        "events_data_size" => "the data of an event has at most 16 MiB",
        "events_metadata_size" | "events_metadata_object" => {
            "metadata is a JSON object of at most 1 MiB"
        }
        "events_schema_version_positive" => "a schema version is from 1 to 2147483647",
        "events_recorded_at_utc" => "recorded_at is in the years 0000 to 9999",
        _ => return None,
    })
}

fn refused_by_constraint(error: &rusqlite::Error) -> Option<InvalidAppend> {
    let constraint = constraint(error)?;
    if constraint == "events_data_json" {
        let message = "SQLite does not take it (nested more than 1,000 deep?)".to_owned();
        return Some(InvalidAppend::Json { message });
    }
    rule(constraint).map(|rule| InvalidAppend::Other { message: rule.to_owned() })
}

fn kind_and_advice(error: &rusqlite::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Busy, Exhausted, Missing, NotAStore, Other, Privilege, ReadOnly};
    if said(error).contains("no such table: everfold_") {
        return (
            Missing,
            "the file has no everfold schema: run `everfold schema apply`, or open it once with `Store::open`",
        );
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Busy, "another process or transaction holds the file: try again when it has ended")
        }
        Some(ErrorCode::ReadOnly) => {
            (ReadOnly, "allow writing the file and its folder for this user")
        }
        Some(ErrorCode::DiskFull) => (Exhausted, "free space on the disk, then try again"),
        Some(ErrorCode::OutOfMemory) => (Exhausted, "the process is out of memory"),
        Some(ErrorCode::NotADatabase) => {
            (NotAStore, "the file is not a SQLite database; check the path")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (Other, "the file is damaged: stop writing to it and restore a backup")
        }
        Some(ErrorCode::SystemIoFailure) => {
            (Other, "the disk failed; whether it was stored is unknown")
        }
        Some(ErrorCode::PermissionDenied) => {
            (Privilege, "check the permissions of file and folder")
        }
        Some(ErrorCode::CannotOpen) => (Missing, "is the file still there?"),
        _ => (Other, ""),
    }
}

/// SQLite's own words, without the number that rusqlite puts around some of them.
pub(super) fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}

fn with_origin(store_error: StoreError, error: rusqlite::Error) -> StoreError {
    match extended_code(&error) {
        Some(code) => store_error.with_code(code.to_string()).with_source(error),
        None => store_error.with_source(error),
    }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
