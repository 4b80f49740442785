//! What `everfold doctor` shows of a file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::connection::{begin_immediate, run};
use super::pool::ReadPool;
use super::read::high_water_mark;
use super::schema;
use super::writer::Writer;
use crate::Position;
use crate::diagnosis::{Diagnosis, Finding};
use crate::error::StoreError;

/// Files up to this size are checked page by page; larger ones would take too long.
const CHECKED_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// A -wal file of this size means that something keeps it from being written back.
const WAL_BYTES_WARN: u64 = 256 * 1024 * 1024;

/// How long the write lock is tried.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// What is seen on the writing connection.
struct Writing {
    synchronous: i64,
    lock: Result<(), String>,
}

pub(super) async fn diagnose(
    path: &Path,
    writer: &Writer,
    pool: &Arc<ReadPool>,
) -> Result<Diagnosis, StoreError> {
    let writing = writer.run(look_at_writer).await?.map_err(super::error::store_error)?;
    let path = path.to_owned();
    pool.read(move |connection| {
        let (sequence, highest) = schema::sequence(connection)?;
        let findings = vec![
            file(&path),
            journal(connection, &path)?,
            durability(writing.synchronous),
            write_lock(writing.lock),
            schema_state(connection)?,
            order(sequence, highest),
            integrity(connection, &path)?,
        ];
        Ok(Diagnosis {
            version: format!("SQLite {}", rusqlite::version()),
            high_water_mark: Some(high_water_mark(connection)?),
            last_position: Position::from_stored(sequence),
            findings,
            holders: Vec::new(),
        })
    })
    .await
}

fn look_at_writer(connection: &Connection) -> Result<Writing, rusqlite::Error> {
    let synchronous = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    let lock = begin_immediate(connection, LOCK_WAIT)
        .and_then(|()| run(connection, "ROLLBACK"))
        .map_err(|error| error.to_string());
    Ok(Writing { synchronous, lock })
}

fn file(path: &Path) -> Finding {
    match std::fs::metadata(path) {
        Ok(file) => Finding::ok("file", format!("{}, {}", path.display(), mebibytes(file.len()))),
        Err(error) => Finding::problem(
            "file",
            format!("{} cannot be seen: {error}", path.display()),
            "the file was moved or removed while it is open; close the store before doing that",
        ),
    }
}

fn journal(connection: &Connection, path: &Path) -> Result<Finding, rusqlite::Error> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = std::fs::metadata(wal).map_or(0, |file| file.len());
    let message = format!("journal mode {mode}, write-ahead log of {}", mebibytes(bytes));
    Ok(if mode != "wal" {
        Finding::problem(
            "journal",
            message,
            "another program has changed the journal mode; open the store again",
        )
    } else if bytes > WAL_BYTES_WARN {
        Finding::warning(
            "journal",
            message,
            "a program keeps a read transaction open, so the log cannot be written back; end it",
        )
    } else {
        Finding::ok("journal", message)
    })
}

fn durability(synchronous: i64) -> Finding {
    match synchronous {
        0 => Finding::problem(
            "durability",
            "synchronous is OFF: a loss of power can damage the file",
            "open the store with durability full or normal",
        ),
        1 => Finding::warning(
            "durability",
            "synchronous is NORMAL: the last commits can be lost with the power",
            "open the store with durability full, unless that is wanted",
        ),
        _ => Finding::ok("durability", "synchronous is FULL: a commit survives a loss of power"),
    }
}

fn write_lock(lock: Result<(), String>) -> Finding {
    match lock {
        Ok(()) => Finding::ok("writing", "the write lock can be had"),
        Err(error) => Finding::problem(
            "writing",
            format!("the write lock was not to be had within {LOCK_WAIT:?}: {error}"),
            "find the program that keeps a write transaction open (fuser on the file), and end it",
        ),
    }
}

fn schema_state(connection: &Connection) -> Result<Finding, rusqlite::Error> {
    let revision = schema::revision(connection)?.unwrap_or(0);
    let needed = schema::newest_revision();
    if revision != needed {
        return Ok(Finding::problem(
            "schema",
            format!("revision {revision}, this everfold needs {needed}"),
            "run `everfold schema apply` with the newest everfold in use",
        ));
    }
    let differences = schema::differences(connection)?;
    Ok(match differences.as_slice() {
        [] => Finding::ok("schema", format!("revision {revision}, as it was made")),
        [first, ..] => Finding::warning(
            "schema",
            format!("revision {revision}, {} lines differ: {first}", differences.len()),
            "see `everfold schema assert`",
        ),
    })
}

fn order(sequence: i64, highest: i64) -> Finding {
    let message = format!("highest position {highest}, handed out {sequence}");
    if highest <= sequence {
        return Finding::ok("sequence", message);
    }
    Finding::problem(
        "sequence",
        message,
        "sqlite_sequence was changed by hand: set the row of everfold_events to the highest position",
    )
}

fn integrity(connection: &Connection, path: &Path) -> Result<Finding, rusqlite::Error> {
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    if bytes > CHECKED_BYTES_MAX {
        let message = format!(
            "not checked: the file has {}; run `PRAGMA quick_check` when there is time",
            mebibytes(bytes)
        );
        return Ok(Finding::ok("integrity", message));
    }
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(if said == "ok" {
        Finding::ok("integrity", "quick_check found nothing")
    } else {
        Finding::problem(
            "integrity",
            format!("the file is damaged: {said}"),
            "stop writing to it and restore a backup",
        )
    })
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
