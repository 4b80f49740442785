//! What an append writes beside its events, and the end of its transaction.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use super::super::connect::{Connection, Param, QueryError};
use super::super::error::store_error;
use super::super::projection::said;
use super::super::types::JsonText;
use super::fold::{GivenUp, Why};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::projection::projector::DocumentChange;

const GIVE_UP: &str = "SELECT everfold.give_up_inline($1, $2, $3, $4, $5, $6)";

/// Whatever runs a statement inside the append's transaction.
pub(super) trait Run: Sync {
    fn run<'a>(
        &'a self,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, QueryError>>;
}

impl Run for Connection {
    fn run<'a>(
        &'a self,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, QueryError>> {
        self.try_query(sql, params).boxed()
    }
}

/// A transaction that handlers take part in.
pub(super) struct InTransaction<'a> {
    pub(super) transaction: &'a Transaction<'a>,
    pub(super) timeout: Duration,
    /// Whether a handler was stopped in the middle of it.
    pub(super) abandoned: &'a AtomicBool,
}

impl InTransaction<'_> {
    pub(super) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        match tokio::time::timeout(self.timeout, self.transaction.batch_execute(sql)).await {
            Ok(outcome) => outcome.map_err(store_error),
            Err(_) => Err(QueryError::NoAnswer(self.timeout).into_store_error()),
        }
    }
}

impl Run for InTransaction<'_> {
    fn run<'a>(
        &'a self,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, QueryError>> {
        let answer = self.transaction.query_typed(sql, params);
        async move {
            match tokio::time::timeout(self.timeout, answer).await {
                Ok(outcome) => outcome.map_err(QueryError::Driver),
                Err(_) => Err(QueryError::NoAnswer(self.timeout)),
            }
        }
        .boxed()
    }
}

/// One statement with its parameters.
pub(super) enum Write {
    Documents { projection: String, sql: String, rows: Documents },
    Deleted { projection: String, sql: String, keys: Vec<String> },
    GivenUp(Vec<GivenUp>),
}

/// Documents column by column.
#[derive(Default)]
pub(super) struct Documents {
    keys: Vec<String>,
    documents: Vec<String>,
    positions: Vec<i64>,
    stream_versions: Vec<i64>,
}

impl Documents {
    /// The types of the parameters: lists, unless there is just one document.
    fn types(&self) -> [Type; 4] {
        match self.keys.len() {
            1 => [Type::TEXT, Type::JSONB, Type::INT8, Type::INT8],
            _ => [Type::TEXT_ARRAY, Type::JSONB_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY],
        }
    }
}

impl Write {
    /// Documents that changed, sorted by key, and those that are gone.
    pub(super) fn documents(generation: &Generation, changes: Vec<DocumentChange>) -> Vec<Write> {
        let (mut rows, mut deleted) = (Documents::default(), Vec::new());
        for change in changes {
            let DocumentChange { key, document, position, stream_version } = change;
            let Some(document) = document else {
                deleted.push(key);
                continue;
            };
            rows.keys.push(key);
            rows.documents.push(document);
            rows.positions.push(position.to_stored());
            rows.stream_versions.push(stream_version.to_stored());
        }
        let table = table(generation);
        let mut writes = Vec::new();
        if !rows.keys.is_empty() {
            let values = match rows.keys.len() {
                1 => "VALUES ($1, $2, $3, $4)",
                _ => "SELECT * FROM unnest($1::text[], $2::jsonb[], $3::bigint[], $4::bigint[])",
            };
            let sql = format!(
                "INSERT INTO {table} AS d (key, document, position, stream_version) {values} \
                 ON CONFLICT (key) DO UPDATE SET document = EXCLUDED.document, \
                 position = EXCLUDED.position, stream_version = EXCLUDED.stream_version"
            );
            let projection = generation.name.clone();
            writes.push(Write::Documents { projection, sql, rows });
        }
        if !deleted.is_empty() {
            let sql = format!("DELETE FROM {table} WHERE key = ANY ($1::text[])");
            let projection = generation.name.clone();
            writes.push(Write::Deleted { projection, sql, keys: deleted });
        }
        writes
    }

    pub(super) fn given_up(given_up: Vec<GivenUp>) -> Option<Write> {
        (!given_up.is_empty()).then_some(Write::GivenUp(given_up))
    }

    /// Sends the statement as soon as it is polled, if it was prepared before.
    pub(super) async fn send(&self, session: &impl Run) -> Result<(), QueryError> {
        match self {
            Write::Documents { sql, rows, .. } => {
                let documents: Vec<JsonText<'_>> =
                    rows.documents.iter().map(|json| JsonText::new(json)).collect();
                let [a, b, c, d] = rows.types();
                let params: [Param<'_>; 4] = match documents.as_slice() {
                    [document] => [
                        (&rows.keys[0], a),
                        (document, b),
                        (&rows.positions[0], c),
                        (&rows.stream_versions[0], d),
                    ],
                    _ => [
                        (&rows.keys, a),
                        (&documents, b),
                        (&rows.positions, c),
                        (&rows.stream_versions, d),
                    ],
                };
                session.run(sql, &params).await.map(drop)
            }
            Write::Deleted { sql, keys, .. } => {
                session.run(sql, &[(keys, Type::TEXT_ARRAY)]).await.map(drop)
            }
            Write::GivenUp(given_up) => send_given_up(session, given_up).await,
        }
    }

    /// Its error, with the projection whose documents could not be written.
    pub(super) fn failed(&self, error: QueryError) -> AppendError {
        match self {
            Write::Documents { projection, .. } | Write::Deleted { projection, .. } => {
                failed_for(projection, error)
            }
            Write::GivenUp(_) => error.into_store_error().into(),
        }
    }

    /// The statement, with the types of its parameters.
    fn statement(&self) -> (&str, Vec<Type>) {
        match self {
            Write::Documents { sql, rows, .. } => (sql, rows.types().to_vec()),
            Write::Deleted { sql, .. } => (sql, vec![Type::TEXT_ARRAY]),
            Write::GivenUp(_) => (GIVE_UP, GIVEN_UP_TYPES.to_vec()),
        }
    }
}

const GIVEN_UP_TYPES: [Type; 6] = [
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
];

async fn send_given_up(session: &impl Run, given_up: &[GivenUp]) -> Result<(), QueryError> {
    let generations: Vec<i32> = given_up.iter().map(|event| event.generation).collect();
    let positions: Vec<i64> = given_up.iter().map(|event| event.position.to_stored()).collect();
    let keys: Vec<&str> = given_up.iter().map(|event| event.key.as_str()).collect();
    let behind = |event: &GivenUp| match event.why {
        Why::Behind(failed) => Some(failed.to_stored()),
        _ => None,
    };
    let error = |event: &GivenUp| match &event.why {
        Why::Failed(message) | Why::LeftOut(message) => Some(message.clone()),
        Why::Behind(_) => None,
    };
    let behind: Vec<Option<i64>> = given_up.iter().map(behind).collect();
    let errors: Vec<Option<String>> = given_up.iter().map(error).collect();
    let left_out: Vec<bool> =
        given_up.iter().map(|event| matches!(event.why, Why::LeftOut(_))).collect();
    let [a, b, c, d, e, f] = GIVEN_UP_TYPES;
    let params: [Param<'_>; 6] = [
        (&generations, a),
        (&positions, b),
        (&keys, c),
        (&behind, d),
        (&errors, e),
        (&left_out, f),
    ];
    session.run(GIVE_UP, &params).await.map(drop)
}

/// The error of a statement about a projection's documents. The database's own trouble is not the
/// projection's.
pub(super) fn failed_for(projection: &str, error: QueryError) -> AppendError {
    use StoreErrorKind::{Missing, Other, Privilege};
    let said = match &error {
        QueryError::Driver(error) => error.as_db_error().map(said),
        _ => None,
    };
    let error = error.into_store_error();
    match said {
        Some(message) if matches!(error.kind(), Missing | Other | Privilege) => {
            AppendError::Projection { projection: projection.to_owned(), message }
        }
        _ => error.into(),
    }
}

/// So many writes are sent without waiting for the answers.
const PIPELINED_MAX: usize = 16;

/// Writes and commits, without waiting in between. A write that fails makes the COMMIT a rollback.
pub(super) async fn commit(connection: &Connection, writes: &[Write]) -> Result<(), AppendError> {
    let (first, last) = writes.split_at(writes.len().saturating_sub(PIPELINED_MAX));
    for write in first {
        write.send(connection).await.map_err(|error| write.failed(error))?;
    }
    // A statement that is not prepared yet would be sent behind the COMMIT.
    for write in last {
        let (sql, types) = write.statement();
        connection.prepare(sql, &types).await.map_err(|error| write.failed(error))?;
    }
    let writing = join_all(last.iter().map(|write| write.send(connection)));
    let (written, committed) = tokio::join!(biased; writing, connection.batch("COMMIT"));
    for (write, written) in last.iter().zip(written) {
        written.map_err(|error| write.failed(error))?;
    }
    Ok(committed?)
}

pub(super) fn table(generation: &Generation) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let name = generation.tables.first().map_or(generation.name.as_str(), String::as_str);
    format!("{}.{}", quoted(&generation.home), quoted(name))
}
