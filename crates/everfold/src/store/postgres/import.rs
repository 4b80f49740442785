//! Storing a chunk of an import: COPY into the transaction's staging table, then one call that
//! appends it by the same rules as any append.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Connection, Connections, Param, QueryError};
use super::error::{Refusal, code, refused_by_projection, store_error};
use super::types::{JsonText, Time};
use super::wake::Wake;
use crate::error::{ImportError, StoreError};
use crate::import::{ImportChunk, ImportLine, ImportProgress, ImportedChunk};
use crate::options::StoreOptions;
use crate::store::{StagedImport, jitter};

const COLUMNS: [Type; 9] = [
    Type::INT8,
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
    Type::INT4,
    Type::JSONB,
    Type::JSONB,
    Type::UUID,
    Type::TIMESTAMPTZ,
];
const COPY: &str = "COPY pg_temp.everfold_import (line, stream_id, version, type, schema_version, \
    data, metadata, id, recorded_at) FROM STDIN (FORMAT binary)";
const IMPORT: &str = "SELECT stored, repeated FROM everfold.import_chunk($1, $2, $3, $4, $5, $6)";

pub(super) async fn progress(
    connections: &Connections,
    name: &str,
) -> Result<ImportProgress, StoreError> {
    let sql = "SELECT lines, bytes, last_line_hash FROM everfold.import_progress($1)";
    let connection = connections.get().await?;
    let row = connection.query_one(sql, &[(&name, Type::TEXT)]).await?;
    Ok(ImportProgress {
        lines: row.get::<_, i64>(0).unsigned_abs(),
        bytes: row.get::<_, i64>(1).unsigned_abs(),
        last_line_hash: row.get(2),
    })
}

/// A chunk in the staging table of a connection with an open transaction.
struct Staged {
    connections: Arc<Connections>,
    options: Arc<StoreOptions>,
    wake: Arc<Wake>,
    chunk: ImportChunk,
    outcome: Result<Connection, Failure>,
}

/// Stages a chunk. What goes wrong here comes out when it is to be stored.
pub(super) async fn stage(
    connections: Arc<Connections>,
    options: Arc<StoreOptions>,
    wake: Arc<Wake>,
    chunk: ImportChunk,
) -> Box<dyn StagedImport> {
    let outcome = try_stage(&connections, &chunk).await;
    Box::new(Staged { connections, options, wake, chunk, outcome })
}

impl StagedImport for Staged {
    fn store(self: Box<Self>) -> BoxFuture<'static, Result<ImportedChunk, ImportError>> {
        async move {
            let Staged { connections, options, wake, chunk, outcome } = *self;
            let imported = store(&connections, &options, &chunk, outcome).await?;
            wake.appended();
            Ok(imported)
        }
        .boxed()
    }
}

/// Why a try to store a chunk failed.
enum Failure {
    /// Some ids are known: look at each.
    Repeats,
    /// The import is no longer where this chunk begins.
    Moved,
    Transient(StoreError),
    Final(ImportError),
}

/// Stores a chunk: first without looking every id up; with, if some turn out to be known. A
/// transient failure is tried again: the progress row tells whether the chunk was stored after all.
async fn store(
    connections: &Connections,
    options: &StoreOptions,
    chunk: &ImportChunk,
    mut staged: Result<Connection, Failure>,
) -> Result<ImportedChunk, ImportError> {
    let mut careful = false;
    let mut tries = 0;
    loop {
        let outcome = match staged {
            Ok(connection) => try_import(connection, chunk, careful).await,
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(imported) => return Ok(imported),
            Err(Failure::Repeats) if !careful => careful = true,
            Err(Failure::Repeats) => return Err(under_way(chunk)),
            // An earlier try of ours whose answer was lost, or somebody else.
            Err(Failure::Moved) if was_stored(connections, chunk).await => {
                return Ok(ImportedChunk { stored: chunk.lines.len() as u64, repeated: 0 });
            }
            Err(Failure::Moved) => return Err(under_way(chunk)),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Transient(error)) if tries < options.append_retries_max => {
                tracing::debug!(%error, "import chunk failed, trying again");
                tokio::time::sleep(jitter(options.retry_delay * 2u32.pow(tries.min(6)))).await;
                tries += 1;
                if was_stored(connections, chunk).await {
                    let stored = chunk.lines.len() as u64;
                    return Ok(ImportedChunk { stored, repeated: 0 });
                }
            }
            Err(Failure::Transient(error)) => return Err(error.into()),
        }
        staged = try_stage(connections, chunk).await;
    }
}

/// After a lost connection: did the commit get through?
async fn was_stored(connections: &Connections, chunk: &ImportChunk) -> bool {
    matches!(progress(connections, &chunk.name).await, Ok(progress) if progress == chunk.to)
}

fn under_way(chunk: &ImportChunk) -> ImportError {
    ImportError::UnderWay { name: chunk.name.clone() }
}

/// Opens a transaction and copies the chunk into its staging table. Until that transaction has
/// ended, a connection that is dropped is closed: it must not go back to the pool with it.
async fn try_stage(connections: &Connections, chunk: &ImportChunk) -> Result<Connection, Failure> {
    let connection = connections.get().await.map_err(classify_store)?;
    connection.discard();
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT everfold.stage_import()";
    connection.batch(begin).await.map_err(classify_store)?;
    copy(&connection, &chunk.lines).await.map_err(|error| classify(error, chunk))?;
    Ok(connection)
}

/// Imports what is staged and commits.
async fn try_import(
    connection: Connection,
    chunk: &ImportChunk,
    careful: bool,
) -> Result<ImportedChunk, Failure> {
    let imported = import(&connection, chunk, careful).await;
    let end = if imported.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.batch(end).await;
    // After a request that was given up, its cancellation may still be on the way to this session.
    if ended.is_ok() && !matches!(imported, Err(Failure::Transient(_))) {
        connection.keep();
    }
    match (imported, ended) {
        (Ok(_), Err(error)) => Err(classify_store(error)),
        (imported, _) => imported,
    }
}

async fn import(
    connection: &Connection,
    chunk: &ImportChunk,
    careful: bool,
) -> Result<ImportedChunk, Failure> {
    let (from, to) = (stored_count(chunk.from_lines), stored_count(chunk.to.lines));
    let bytes = stored_count(chunk.to.bytes);
    let params: [Param<'_>; 6] = [
        (&chunk.name, Type::TEXT),
        (&from, Type::INT8),
        (&to, Type::INT8),
        (&bytes, Type::INT8),
        (&chunk.to.last_line_hash, Type::TEXT),
        (&careful, Type::BOOL),
    ];
    let rows =
        connection.try_query(IMPORT, &params).await.map_err(|error| classify(error, chunk))?;
    let row = rows.first().expect("the import function returns one row");
    let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
    Ok(ImportedChunk { stored: count(0), repeated: count(1) })
}

async fn copy(connection: &Connection, lines: &[ImportLine]) -> Result<(), QueryError> {
    connection
        .in_time(async {
            let sink = connection.client().copy_in(COPY).await?;
            let mut writer = pin!(BinaryCopyInWriter::new(sink, &COLUMNS));
            for line in lines {
                let version = line.version.map(stored_count);
                let schema_version = i32::try_from(line.schema_version).unwrap_or(i32::MAX);
                let recorded_at = line.recorded_at.map(Time);
                let row: [&(dyn ToSql + Sync); 9] = [
                    &stored_count(line.line),
                    &line.stream_id,
                    &version,
                    &line.event_type,
                    &schema_version,
                    &JsonText::new(&line.data),
                    &JsonText::new(&line.metadata),
                    &line.id,
                    &recorded_at,
                ];
                writer.as_mut().write(&row).await?;
            }
            writer.as_mut().finish().await
        })
        .await?;
    Ok(())
}

fn classify_store(error: StoreError) -> Failure {
    if error.is_transient() { Failure::Transient(error) } else { Failure::Final(error.into()) }
}

/// Reads the import's own errors, which name their line, out of the database's.
fn classify(error: QueryError, chunk: &ImportChunk) -> Failure {
    let QueryError::Driver(error) = error else { return classify_store(error.into_store_error()) };
    let Some(database) = error.as_db_error() else { return classify_store(store_error(error)) };
    if let Some(Refusal { projection, message }) = refused_by_projection(database) {
        let line = chunk.lines.first().map_or(0, |line| line.line);
        return Failure::Final(ImportError::Projection { projection, message, line });
    }
    let line = detail_line(database.detail()).or_else(|| copy_line(database.where_(), chunk));
    match (database.code().code(), line) {
        _ if database.constraint() == Some("events_id_key") => Failure::Repeats,
        (code::IMPORT_UNDER_WAY, _) => Failure::Moved,
        (code::ID_CONFLICT | code::VERSION_CONFLICT | code::INVALID, Some(line)) => {
            let said = database.message();
            let message = said.split_once(": ").map_or(said, |(_, message)| message).to_owned();
            let message = match database.hint() {
                Some(hint) => format!("{message} ({hint})"),
                None => message,
            };
            Failure::Final(ImportError::Line { line, message })
        }
        // Text that is JSON for us and not for the server.
        ("22P02" | "22P05" | "22003" | "54000", Some(line)) => {
            let message = database.message().to_owned();
            Failure::Final(ImportError::Line { line, message })
        }
        _ => classify_store(store_error(error)),
    }
}

fn detail_line(detail: Option<&str>) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(detail?).ok()?["line"].as_u64()
}

/// "COPY everfold_import, line 17, column data": the 17th row of the chunk.
fn copy_line(context: Option<&str>, chunk: &ImportChunk) -> Option<u64> {
    let number = context?.split_once(", line ")?.1;
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    let index: usize = digits.parse().ok()?;
    chunk.lines.get(index.checked_sub(1)?).map(|line| line.line)
}

fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
