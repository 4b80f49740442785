//! Importing a chunk of lines: one transaction that stores them and moves the import's progress.

use std::collections::HashMap;

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::append::{Row, find_event, insert_row, stream_version};
use super::error::{constraint, rule, store_error};
use super::projection::{Arrived, Inline, InlineError};
use super::read::high_water_mark;
use crate::error::{ImportError, StoreError};
use crate::import::{ImportChunk, ImportLine, ImportProgress, ImportedChunk};
use crate::{Position, StreamId, Version};

const READ: &str = include_str!("../../../sql/sqlite/statements/read_import.sql");
const START: &str = include_str!("../../../sql/sqlite/statements/start_import.sql");
const ADVANCE: &str = include_str!("../../../sql/sqlite/statements/advance_import.sql");

/// How far an import has come.
pub(super) fn progress(
    connection: &Connection,
    name: &str,
) -> Result<ImportProgress, rusqlite::Error> {
    let found = connection
        .prepare_cached(READ)?
        .query_row([name], |row| {
            Ok(ImportProgress {
                lines: row.get::<_, i64>(0)?.unsigned_abs(),
                bytes: row.get::<_, i64>(1)?.unsigned_abs(),
                last_line_hash: row.get(2)?,
            })
        })
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// Stores the lines of a chunk in their order. The transaction holds the write lock, and is undone
/// by its owner if this fails.
pub(super) fn import_chunk(
    connection: &Connection,
    chunk: &ImportChunk,
    inline: &Inline<'_>,
) -> Result<ImportedChunk, ImportError> {
    advance(connection, chunk)?;
    let mut importing = Importing {
        connection,
        before: high_water_mark(connection).map_err(store_error)?,
        versions: HashMap::new(),
        done: ImportedChunk { stored: 0, repeated: 0 },
    };
    let mut arrived = Vec::new();
    for line in &chunk.lines {
        if let Some(position) = importing.store(line)? {
            let (stream_id, event_type) = (line.stream_id.as_str(), line.event_type.as_str());
            arrived.push(Arrived { position, stream_id, event_type });
        }
    }
    inline.apply(&arrived).map_err(|error| refused(chunk, error))?;
    Ok(importing.done)
}

/// A chunk that an inline projection refuses is not stored.
fn refused(chunk: &ImportChunk, error: InlineError) -> ImportError {
    match error {
        InlineError::Store(error) => error.into(),
        InlineError::Refused { projection, message } => {
            let line = chunk.lines.first().map_or(0, |line| line.line);
            ImportError::Projection { projection, message, line }
        }
    }
}

/// Moves the progress, if it still stands where this import thinks.
fn advance(connection: &Connection, chunk: &ImportChunk) -> Result<(), ImportError> {
    let moved = || -> Result<usize, rusqlite::Error> {
        connection.prepare_cached(START)?.execute([&chunk.name])?;
        connection.prepare_cached(ADVANCE)?.execute(params![
            chunk.name,
            stored(chunk.from_lines),
            stored(chunk.to.lines),
            stored(chunk.to.bytes),
            chunk.to.last_line_hash,
        ])
    };
    match moved().map_err(store_error)? {
        0 => Err(ImportError::UnderWay { name: chunk.name.clone() }),
        _ => Ok(()),
    }
}

fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A chunk under way.
struct Importing<'a> {
    connection: &'a Connection,
    /// The highest position before this chunk.
    before: Position,
    /// The versions of the streams seen so far.
    versions: HashMap<String, Version>,
    done: ImportedChunk,
}

impl Importing<'_> {
    /// Stores a line and says where; `None` if it was stored before.
    fn store(&mut self, line: &ImportLine) -> Result<Option<Position>, ImportError> {
        let version = self.version(line)?.next();
        let row = Row {
            stream_id: &line.stream_id,
            version,
            event_type: &line.event_type,
            schema_version: line.schema_version,
            data: &line.data,
            metadata: &line.metadata,
            id: line.id,
            recorded_at: line.recorded_at,
        };
        match insert_row(self.connection, &row) {
            Ok(Some(position)) => self.stored(line, version).map(|()| Some(position)),
            Ok(None) => self.repeated(line).map(|()| None),
            Err(error) => Err(line_error(line, error)),
        }
    }

    /// The version of the line's stream so far.
    fn version(&mut self, line: &ImportLine) -> Result<Version, StoreError> {
        if let Some(&version) = self.versions.get(&line.stream_id) {
            return Ok(version);
        }
        let stream = StreamId::from(line.stream_id.as_str());
        let version = stream_version(self.connection, &stream).map_err(store_error)?;
        self.versions.insert(line.stream_id.clone(), version);
        Ok(version)
    }

    fn stored(&mut self, line: &ImportLine, version: Version) -> Result<(), ImportError> {
        if let Some(named) = line.version.filter(|&named| named != version.0) {
            let message = format!(
                "it names version {named}, and the next version of stream \"{}\" in this store is \
                 {version}; import whole streams into a store that does not have them, or renumber",
                line.stream_id
            );
            return Err(refuse(line, message));
        }
        *self.versions.get_mut(&line.stream_id).expect("looked up before the insert") = version;
        self.done.stored += 1;
        Ok(())
    }

    /// A line whose id is known: stored by an earlier run, or not the same event.
    fn repeated(&mut self, line: &ImportLine) -> Result<(), ImportError> {
        let known = find_event(self.connection, line.id).map_err(store_error)?;
        let known = known.expect("an id that was refused is stored");
        if known.position > self.before {
            let message = format!("event id {} stands in an earlier line too", line.id);
            return Err(refuse(line, message));
        }
        if !known.is(&line.stream_id, &line.event_type, &line.data) {
            let message = format!(
                "event id {} is already stored as version {} of stream \"{}\", with other content",
                line.id, known.version, known.stream_id
            );
            return Err(refuse(line, message));
        }
        self.done.repeated += 1;
        Ok(())
    }
}

fn refuse(line: &ImportLine, message: impl Into<String>) -> ImportError {
    ImportError::Line { line: line.line, message: message.into() }
}

/// What the table refuses is the line's fault, anything else the store's.
fn line_error(line: &ImportLine, error: rusqlite::Error) -> ImportError {
    match constraint(&error) {
        Some("events_data_json") => refuse(line, "SQLite does not take its \"data\" as JSON"),
        Some(name) => refuse(line, rule(name).unwrap_or(name)),
        None if error.sqlite_error_code() == Some(ErrorCode::TooBig) => {
            refuse(line, "it is too large for SQLite")
        }
        None => store_error(error).into(),
    }
}
