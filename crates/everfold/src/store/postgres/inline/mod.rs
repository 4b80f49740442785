//! Inline projections in Rust: applied by this client, in the append's own transaction.
//!
//! ```text
//!   BEGIN, append_group(…, carries) ──> what is ours to apply: events as stored
//!          SELECT documents         ──> the documents of these streams, as they are
//!   fold documents, run handlers
//!   write documents, COMMIT
//! ```
//!
//! Each line is one round trip. Whatever happens before the COMMIT leaves nothing behind; whether a
//! COMMIT whose answer was lost got through is found out by appending the same ids again.

mod due;
mod fold;
mod handler;
mod load;
mod one;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::append::{BEGIN_PIPELINED, GroupCall, Outcome, outcomes};
use super::connect::{Connection, Param, QueryError};
use super::error::{append_error, code};
use crate::append::{Appended, StreamAppend};
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::Carried;
use crate::upcast::Upcasters;

use due::{Documents, Due};
use load::Loads;
use write::Write;

/// The inline projections in Rust that appends through this handle apply.
pub(super) struct Inline {
    carried: RwLock<Arc<BTreeMap<i32, Carried>>>,
    upcasters: Arc<Upcasters>,
    /// So many appends do not try the short path, because more than their own event was due lately.
    long_way: Arc<AtomicU32>,
}

/// How many of them, after one that tried in vain.
const LONG_WAY: u32 = 100;

const FED_BY_APPENDS: &str = "SELECT id FROM everfold.generations \
    WHERE id = ANY ($1) AND status <> ALL ('{kept,retired,spare}')";

impl Inline {
    pub(super) fn new(upcasters: Arc<Upcasters>) -> Self {
        Inline { carried: RwLock::default(), upcasters, long_way: Arc::default() }
    }

    pub(super) fn carry(&self, carried: Carried) {
        // What cannot run here is left to whoever can: its events are recorded as skips.
        if !matches!(carried.projector, Projector::Document(_) | Projector::PostgresHandler(_)) {
            return;
        }
        let mut place = self.carried.write().expect("nothing panics with this locked");
        Arc::make_mut(&mut place).insert(carried.generation.id, carried);
    }

    pub(super) fn stop_carrying(&self, generation: i32) {
        let mut place = self.carried.write().expect("nothing panics with this locked");
        Arc::make_mut(&mut place).remove(&generation);
    }

    /// What an append that begins now applies; `None` if there is nothing.
    pub(super) fn carries(&self) -> Option<Carries> {
        let carried = self.carried.read().expect("nothing panics with this locked");
        let carried = (!carried.is_empty()).then(|| Arc::clone(&carried))?;
        let (upcasters, long_way) = (Arc::clone(&self.upcasters), Arc::clone(&self.long_way));
        Some(Carries { carried, upcasters, long_way, missed: AtomicBool::new(false) })
    }

    /// After an append that did not find the documents of a generation: whether one of its generations
    /// was removed meanwhile, which no append applies from now on. This append is done again.
    pub(super) async fn forgets(&self, carries: &Carries, connection: &Connection) -> bool {
        if !carries.missed.load(Ordering::Relaxed) {
            return false;
        }
        let ids = carries.ids();
        let params: [Param<'_>; 1] = [(&ids, Type::INT4_ARRAY)];
        let Ok(rows) = connection.query(FED_BY_APPENDS, &params).await else { return false };
        let fed: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        let removed: Vec<i32> = ids.into_iter().filter(|id| !fed.contains(id)).collect();
        removed.iter().for_each(|id| self.stop_carrying(*id));
        !removed.is_empty()
    }
}

/// What one append applies.
pub(super) struct Carries {
    carried: Arc<BTreeMap<i32, Carried>>,
    upcasters: Arc<Upcasters>,
    long_way: Arc<AtomicU32>,
    /// Whether a table of documents was not there.
    missed: AtomicBool,
}

impl Carries {
    /// One append, in a transaction of its own.
    pub(super) async fn append(
        &self,
        connection: &mut Connection,
        append: &StreamAppend,
        wait: bool,
    ) -> Result<Appended, AppendError> {
        if let [event] = append.events.as_slice()
            && !self.has_handlers()
            && !self.goes_the_long_way()
        {
            connection.discard();
            let outcome = one::append(self, connection, append, event, wait).await;
            let more_is_due = matches!(outcome, Ok(None));
            let outcome = Self::ended(connection, outcome, more_is_due).await?;
            if let Some(appended) = outcome {
                return Ok(appended);
            }
            self.long_way.store(LONG_WAY, Ordering::Relaxed);
        }
        let mut outcomes = self.append_group(connection, &[append], wait).await?;
        match outcomes.pop() {
            Some(Outcome::Done(result)) => result,
            _ => {
                let message =
                    format!("another transaction is appending to stream \"{}\"", append.stream);
                let busy = StoreError::new(StoreErrorKind::Busy, message);
                Err(busy.with_code(code::STREAM_BUSY).into())
            }
        }
    }

    /// Many appends in one transaction, each with its own outcome.
    pub(super) async fn append_group(
        &self,
        connection: &mut Connection,
        appends: &[&StreamAppend],
        wait: bool,
    ) -> Result<Vec<Outcome>, AppendError> {
        // Until its transaction has ended, a connection that is dropped is closed.
        connection.discard();
        if self.has_handlers() {
            return handler::append_group(self, connection, appends, wait).await;
        }
        let outcome = self.append_documents(connection, appends, wait).await;
        Self::ended(connection, outcome, false).await
    }

    /// Ends a transaction that is still open, and keeps the connection if its state is known. The next
    /// one of a group goes on with this connection, also behind one that is to be tried again.
    async fn ended<T>(
        connection: &mut Connection,
        outcome: Result<T, AppendError>,
        open: bool,
    ) -> Result<T, AppendError> {
        match &outcome {
            Err(AppendError::Store(error)) if error.is_closed() => {}
            Ok(_) if !open => connection.keep(),
            _ => {
                if connection.batch("ROLLBACK").await.is_ok() {
                    connection.keep();
                }
            }
        }
        outcome
    }

    fn goes_the_long_way(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.long_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn has_handlers(&self) -> bool {
        self.carried.values().any(|carried| !matches!(carried.projector, Projector::Document(_)))
    }

    fn ids(&self) -> Vec<i32> {
        self.carried.keys().copied().collect()
    }

    /// Without handlers nobody but us speaks to the server, so that requests need not wait for each
    /// other's answers.
    async fn append_documents(
        &self,
        connection: &Connection,
        appends: &[&StreamAppend],
        wait: bool,
    ) -> Result<Vec<Outcome>, AppendError> {
        let (call, carries) = (GroupCall::new(appends), self.ids());
        let (sql, params) = call.pipelined(&wait, &carries);
        let loads = self.loads(call.streams());
        // All of them first: behind one that is not prepared yet the next would be sent before it,
        // and documents that were read before the append are those of somebody else's past.
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        connection.prepare(sql, &types).await.map_err(|error| failed(error, appends[0]))?;
        loads.prepare(connection).await.map_err(|error| self.not_loaded(error, appends[0]))?;
        // In this order: each is sent as soon as it is first polled.
        let (begun, called, loaded) = tokio::join!(
            biased;
            connection.batch(BEGIN_PIPELINED),
            connection.try_query(sql, &params),
            loads.send(connection),
        );
        begun?;
        let row = one_row(called, appends[0])?;
        let loaded = loaded.map_err(|error| self.not_loaded(error, appends[0]))?;
        let due = self.due(&row, loaded)?;
        let writes = self.fold(&due)?;
        write::commit(connection, &writes).await?;
        Ok(outcomes(&row, appends))
    }

    fn loads<'a>(&self, streams: &'a Vec<&'a str>) -> Loads<'a> {
        let documents = |carried: &&Carried| matches!(carried.projector, Projector::Document(_));
        let generations = self.carried.values().filter(documents);
        Loads::new(generations.map(|carried| carried.generation.as_ref()), streams)
    }

    fn not_loaded(&self, error: QueryError, append: &StreamAppend) -> AppendError {
        let code = match &error {
            QueryError::Driver(error) => error.code().map(|code| code.code()),
            QueryError::NoAnswer(_) => None,
        };
        if matches!(code, Some("42P01" | "3F000")) {
            self.missed.store(true, Ordering::Relaxed);
        }
        failed(error, append)
    }

    fn due(&self, row: &Row, documents: Documents) -> Result<Due, AppendError> {
        Ok(Due::read(row, documents, &self.upcasters).map_err(super::error::store_error)?)
    }

    /// Folds all documents that are due.
    fn fold(&self, due: &Due) -> Result<Vec<Write>, AppendError> {
        let (mut writes, mut given_up) = (Vec::new(), Vec::new());
        for (generation, positions) in &due.positions {
            let Some(carried) = self.carried.get(generation) else { continue };
            let Projector::Document(fold) = &carried.projector else { continue };
            let generation = &carried.generation;
            let folded = fold::fold(generation, fold.as_ref(), due, positions)
                .map_err(|error| refused(generation, error))?;
            given_up.extend(folded.given_up);
            writes.extend(Write::documents(generation, folded.changes));
        }
        writes.extend(Write::given_up(given_up));
        Ok(writes)
    }
}

/// The error of an append that a projection refused.
fn refused(generation: &Generation, error: ApplyError) -> AppendError {
    match error {
        ApplyError::Refused { message, .. } | ApplyError::Broken { message } => {
            AppendError::Projection { projection: generation.name.clone(), message }
        }
        ApplyError::OutOfTime(error) => {
            AppendError::Projection { projection: generation.name.clone(), message: error.message }
        }
        ApplyError::Store(error) => error.into(),
        ApplyError::LeaseLost => {
            StoreError::new(StoreErrorKind::Other, "an append has no lease").into()
        }
    }
}

fn failed(error: QueryError, append: &StreamAppend) -> AppendError {
    match error {
        QueryError::Driver(error) => append_error(error, append),
        error => error.into_store_error().into(),
    }
}

fn one_row(rows: Result<Vec<Row>, QueryError>, append: &StreamAppend) -> Result<Row, AppendError> {
    let mut rows = rows.map_err(|error| failed(error, append))?;
    match (rows.pop(), rows.is_empty()) {
        (Some(row), true) => Ok(row),
        _ => {
            let message = "the append function did not return one row";
            Err(StoreError::new(StoreErrorKind::Other, message).into())
        }
    }
}
