//! What `everfold doctor` shows of a file.

mod file;
mod locks;
mod log;
mod read_models;
mod schema_state;

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
use locks::Lock;

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
        let mut findings = vec![
            file::place(&path),
            file::journal(connection, &path)?,
            file::durability(writing.synchronous),
            write_lock(&path, writing.lock),
            schema_state::finding(connection)?,
            log::order(sequence, highest),
            file::integrity(connection, &path)?,
        ];
        findings.extend(log::lost(connection, sequence, highest)?);
        findings.extend(log::clock(connection)?);
        findings.extend(read_models::findings(connection)?);
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

fn write_lock(path: &Path, lock: Result<(), String>) -> Finding {
    let Err(error) = lock else { return Finding::ok("writing", "the write lock can be had") };
    let message = format!("the write lock was not to be had within {LOCK_WAIT:?}: {error}");
    match locks::holders(path, Lock::Write).first() {
        Some(holder) => Finding::problem(
            "writing",
            format!("{message}; {holder} has it"),
            format!(
                "look again in a moment; if it still has it and should not, `kill {}` ends it and undoes its \
                 transaction",
                holder.pid
            ),
        ),
        None => Finding::problem(
            "writing",
            message,
            format!(
                "`fuser -v {}` names the programs that have it open; end the one that keeps a write \
                 transaction open",
                path.display()
            ),
        ),
    }
}
