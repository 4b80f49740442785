//! Connections to the file: how they are opened, and the one way to begin a write transaction.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::{open_error, read_only, store_error};
use crate::error::{OpenError, StoreError, StoreErrorKind};
use crate::options::Durability;

/// More statements than one connection runs, unless there are very many projections.
const STATEMENTS_MAX: usize = 256;

/// How long SQLite itself waits for the write lock before [`begin_immediate`] asks again. Its own
/// waits grow to 100 ms, in which a busy neighbour commits many times; short ones get a turn.
const LOCK_TRY: Duration = Duration::from_millis(5);

/// Memory for pages of the writing connection, in KiB.
const WRITER_CACHE_KIB: i64 = 16 * 1024;

/// The -wal file is cut to this size when it has been larger.
const WAL_BYTES_MAX: i64 = 64 * 1024 * 1024;

/// The path from the root, so that a later change of the working folder opens no other file.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Opens for reading and writing; makes the file only if `create`.
pub(super) fn open_writable(
    path: &Path,
    create: bool,
    patience: Duration,
) -> Result<Connection, StoreError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
    if !create && !path.exists() {
        return Err(missing(path));
    }
    let connection = open(path, flags, patience)?;
    // SQLite opens a file that may not be written for reading instead of refusing it.
    match connection.is_readonly("main") {
        Ok(true) => Err(read_only(path)),
        Ok(false) => look_inside(connection, path),
        Err(error) => Err(open_error(error, path)),
    }
}

/// Opens for reading only.
pub(super) fn open_readable(path: &Path, patience: Duration) -> Result<Connection, StoreError> {
    if !path.exists() {
        return Err(missing(path));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    look_inside(open(path, flags, patience)?, path)
}

fn open(path: &Path, flags: OpenFlags, patience: Duration) -> Result<Connection, StoreError> {
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| open_error(error, path))?;
    connection.busy_timeout(patience).map_err(|error| open_error(error, path))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// SQLite does not look at the file itself before the first statement.
fn look_inside(connection: Connection, path: &Path) -> Result<Connection, StoreError> {
    connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
        .map_err(|error| open_error(error, path))?;
    Ok(connection)
}

fn missing(path: &Path) -> StoreError {
    let message = format!(
        "cannot open {}: the file does not exist; check the path, or create the store with \
         `everfold schema apply`",
        path.display()
    );
    StoreError::new(StoreErrorKind::Missing, message)
}

/// Settings of the connection that writes.
pub(super) fn prepare_writer(
    connection: &Connection,
    durability: Durability,
    patience: Duration,
) -> Result<(), OpenError> {
    switch_to_wal(connection, patience)?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    let settings = format!(
        "PRAGMA synchronous = {synchronous};
         PRAGMA cache_size = -{WRITER_CACHE_KIB};
         PRAGMA journal_size_limit = {WAL_BYTES_MAX};"
    );
    connection.execute_batch(&settings).map_err(store_error)?;
    connection.busy_timeout(LOCK_TRY.min(patience)).map_err(store_error)?;
    Ok(())
}

/// Readers and a writer side by side need the write-ahead log. The file remembers it.
fn switch_to_wal(connection: &Connection, patience: Duration) -> Result<(), OpenError> {
    let switch =
        || connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
    // SQLite does not wait by itself when several switch at once.
    let mode = retry_busy(patience, switch).map_err(store_error)?;
    if mode == "wal" {
        return Ok(());
    }
    Err(OpenError::Unsafe {
        message: format!(
            "the file cannot have a write-ahead log (its journal mode stays \"{mode}\")"
        ),
        hint: "put the file on a local disk; network file systems cannot share it".to_owned(),
    })
}

/// Begins a transaction that holds the write lock, waiting for it as long as `patience`.
pub(super) fn begin_immediate(
    connection: &Connection,
    patience: Duration,
) -> Result<(), rusqlite::Error> {
    retry_busy(patience, || run(connection, "BEGIN IMMEDIATE"))
}

/// Runs `work` in one transaction that holds the write lock; an error undoes all of it.
pub(super) fn in_transaction<T, E: From<StoreError>>(
    connection: &Connection,
    patience: Duration,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    begin_immediate(connection, patience).map_err(store_error)?;
    let outcome = match work(connection) {
        // SQLite ends a transaction by itself when the disk is full or fails.
        Ok(_) if connection.is_autocommit() => {
            let message = "SQLite rolled the transaction back: the disk is full or failed";
            Err(StoreError::new(StoreErrorKind::Exhausted, message).into())
        }
        Ok(done) => run(connection, "COMMIT").map(|()| done).map_err(|e| store_error(e).into()),
        Err(error) => Err(error),
    };
    if outcome.is_err() && !connection.is_autocommit() {
        run(connection, "ROLLBACK").map_err(store_error)?;
    }
    outcome
}

/// Runs a statement without parameters and results, prepared once.
pub(super) fn run(connection: &Connection, sql: &str) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn retry_busy<T>(
    patience: Duration,
    mut work: impl FnMut() -> Result<T, rusqlite::Error>,
) -> Result<T, rusqlite::Error> {
    let deadline = Instant::now() + patience;
    loop {
        match work() {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
