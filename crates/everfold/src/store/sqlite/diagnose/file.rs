//! The file itself: where it is, its write-ahead log, whether commits last, whether it is damaged.

use std::path::Path;

use rusqlite::Connection;

use super::locks::{self, Lock};
use crate::diagnosis::Finding;

/// Files up to this size are checked page by page; larger ones would take too long.
const CHECKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A -wal file is cut to 64 MiB when it has been larger; one of this size could not be.
const WAL_BYTES_WARN: u64 = 96 * 1024 * 1024;

pub(super) fn place(path: &Path) -> Finding {
    match std::fs::metadata(path) {
        Ok(file) => Finding::ok("file", format!("{}, {}", path.display(), mebibytes(file.len()))),
        Err(error) => Finding::problem(
            "file",
            format!("{} cannot be seen: {error}", path.display()),
            "the file was moved or removed while it is open; close the store before doing that",
        ),
    }
}

pub(super) fn journal(connection: &Connection, path: &Path) -> Result<Finding, rusqlite::Error> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let bytes = std::fs::metadata(locks::beside(path, "-wal")).map_or(0, |file| file.len());
    let message = format!("journal mode {mode}, write-ahead log of {}", mebibytes(bytes));
    Ok(if mode != "wal" {
        Finding::problem(
            "journal",
            message,
            "another program has changed the journal mode; open the store again",
        )
    } else if bytes > WAL_BYTES_WARN {
        large_log(path, message)
    } else {
        Finding::ok("journal", message)
    })
}

/// A log that grows: whoever reads for long keeps it from being written back.
fn large_log(path: &Path, message: String) -> Finding {
    match locks::holders(path, Lock::Read).first() {
        Some(reader) => Finding::warning(
            "journal",
            format!(
                "{message}: {reader} keeps a read transaction open, so it cannot be written back"
            ),
            format!("end that transaction; `kill {}` ends the program", reader.pid),
        ),
        None => Finding::warning(
            "journal",
            message,
            format!(
                "nobody reads just now: `sqlite3 {} 'PRAGMA wal_checkpoint(TRUNCATE)'` writes it back",
                path.display()
            ),
        ),
    }
}

pub(super) fn durability(synchronous: i64) -> Finding {
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

pub(super) fn integrity(connection: &Connection, path: &Path) -> Result<Finding, rusqlite::Error> {
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    if bytes > CHECKED_BYTES_MAX {
        let message = format!(
            "not checked: the file has {}; `sqlite3 {} 'PRAGMA quick_check'` when there is time",
            mebibytes(bytes),
            path.display()
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
            "stop all programs that write to it and restore a backup",
        )
    })
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
