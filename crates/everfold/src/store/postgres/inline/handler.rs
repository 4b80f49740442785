//! Appends of a handle that carries handlers: they get the append's open transaction.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_postgres::{IsolationLevel, Transaction};

use super::super::append::{GroupCall, Outcome, outcomes};
use super::super::connect::{Connection, QueryError};
use super::super::error::{store_error, transient_trouble};
use super::due::Due;
use super::fold::{GivenUp, Why};
use super::write::{InTransaction, Run, Write};
use super::{Carries, one_row, refused};
use crate::append::StreamAppend;
use crate::error::AppendError;
use crate::projection::definition::OnError;
use crate::projection::document::panic_message;
use crate::projection::generation::Generation;
use crate::projection::handler::{HandlerBatch, HandlerError, PostgresHandler};
use crate::projection::projector::{ApplyError, OutOfTime, Projector};
use crate::{Position, RecordedEvent};

const SAVEPOINT: &str = "SAVEPOINT everfold_inline";
const RELEASE: &str = "RELEASE SAVEPOINT everfold_inline";
const UNDO: &str = "ROLLBACK TO SAVEPOINT everfold_inline; RELEASE SAVEPOINT everfold_inline";

/// Many appends in one transaction that handlers take part in. The connection is closed when it is
/// dropped, unless the transaction was ended.
pub(super) async fn append_group(
    carries: &Carries,
    connection: &mut Connection,
    appends: &[&StreamAppend],
    wait: bool,
) -> Result<Vec<Outcome>, AppendError> {
    let timeout = connection.request_timeout();
    let begin = connection.client_mut().build_transaction();
    let begin = begin.isolation_level(IsolationLevel::ReadCommitted).start();
    let transaction = match tokio::time::timeout(timeout, begin).await {
        Ok(begun) => begun.map_err(store_error)?,
        Err(_) => return Err(QueryError::NoAnswer(timeout).into_store_error().into()),
    };
    let abandoned = AtomicBool::new(false);
    let session = InTransaction { transaction: &transaction, timeout, abandoned: &abandoned };
    let outcome = append_and_apply(carries, &session, appends, wait).await;
    if abandoned.load(Ordering::Relaxed) {
        drop(transaction);
        connection.give_up();
        return outcome;
    }
    let ended = match &outcome {
        // Nobody knows what the server is doing: it finds the connection closed.
        Err(AppendError::Store(error)) if error.is_closed() => return outcome,
        Err(_) => transaction.rollback().await,
        Ok(_) => transaction.commit().await,
    };
    match ended {
        Ok(()) => connection.keep(),
        Err(error) if outcome.is_ok() => return Err(store_error(error).into()),
        Err(_) => {}
    }
    outcome
}

async fn append_and_apply(
    carries: &Carries,
    session: &InTransaction<'_>,
    appends: &[&StreamAppend],
    wait: bool,
) -> Result<Vec<Outcome>, AppendError> {
    let (call, ids) = (GroupCall::new(appends), carries.ids());
    let (sql, params) = call.carrying(&wait, &ids);
    // A process that is paused must not hold its streams, gates and the mark for ever. In this order,
    // and without waiting in between: if the first fails, so does the second.
    let limit = format!(
        "SET LOCAL idle_in_transaction_session_timeout = {}",
        session.timeout.as_millis().clamp(1, i32::MAX as u128)
    );
    let (limited, called) = tokio::join!(biased; session.batch(&limit), session.run(sql, &params));
    limited?;
    let row = one_row(called, appends[0])?;
    let loaded = carries.loads(call.streams()).send(session).await;
    let due = carries.due(&row, loaded.map_err(|error| carries.not_loaded(error, appends[0]))?)?;
    let mut writes = carries.fold(&due)?;
    for (generation, positions) in &due.positions {
        let Some(carried) = carries.carried.get(generation) else { continue };
        let Projector::PostgresHandler(handler) = &carried.projector else { continue };
        let handling = Handling { generation: &carried.generation, handler, session };
        let given_up = handling
            .apply(&due, positions)
            .await
            .map_err(|error| refused(&carried.generation, error))?;
        writes.extend(Write::given_up(given_up));
    }
    for write in &writes {
        write.send(session).await.map_err(|error| write.failed(error))?;
    }
    // A handler may have gone on after an error of its own. Such a transaction can only be rolled
    // back, and its COMMIT would do that without a word.
    session.run("SELECT 1", &[]).await.map_err(QueryError::into_store_error)?;
    Ok(outcomes(&row, appends))
}

/// A handler in the open transaction.
struct Handling<'a> {
    generation: &'a Generation,
    handler: &'a Arc<dyn PostgresHandler>,
    session: &'a InTransaction<'a>,
}

impl Handling<'_> {
    async fn apply(&self, due: &Due, positions: &[Position]) -> Result<Vec<GivenUp>, ApplyError> {
        let events: Vec<RecordedEvent> =
            positions.iter().map(|&position| due.at(position).event.clone()).collect();
        let refused = |position: &Position| {
            let message = due.at(*position).refused.clone()?;
            Some(ApplyError::Refused { message, position: Some(*position) })
        };
        let refused = positions.iter().find_map(refused);
        if self.generation.on_error() == OnError::Stop {
            return match refused {
                Some(error) => Err(error),
                None => self.run(&events).await.map(|()| Vec::new()),
            };
        }
        if refused.is_none() && self.try_run(&events).await?.is_ok() {
            return Ok(Vec::new());
        }
        self.one_by_one(due, &events).await
    }

    /// Applies what can be applied; the policy decides what becomes of the rest.
    async fn one_by_one(
        &self,
        due: &Due,
        events: &[RecordedEvent],
    ) -> Result<Vec<GivenUp>, ApplyError> {
        let mut held: HashMap<&str, Position> = HashMap::new();
        let mut given_up = Vec::new();
        for event in events {
            let why = match held.get(event.stream_id.as_str()) {
                Some(&failed) => Why::Behind(failed),
                None => {
                    let outcome = match &due.at(event.position).refused {
                        Some(message) => Err(message.clone()),
                        None => self.try_run(std::slice::from_ref(event)).await?,
                    };
                    let Err(message) = outcome else { continue };
                    let mut behind = None;
                    let why = GivenUp::why(self.generation, message, event.position, &mut behind);
                    held.extend(behind.map(|failed| (event.stream_id.as_str(), failed)));
                    self.tell(why, event).await?
                }
            };
            given_up.push(GivenUp::new(self.generation, event, why));
        }
        Ok(given_up)
    }

    /// Tells the handler of an event that is left out for good.
    async fn tell(&self, why: Why, event: &RecordedEvent) -> Result<Why, ApplyError> {
        let Why::LeftOut(mut message) = why else { return Ok(why) };
        let hook = async { self.handler.skipped(event, self.session.transaction).await };
        if let Err(error) =
            self.undoing(self.in_time(std::slice::from_ref(event), Box::pin(hook))).await?
        {
            message.push_str("; its hook for skipped events failed too: ");
            message.push_str(&error);
        }
        Ok(Why::LeftOut(message))
    }

    /// Applies events and leaves no trace if that is refused.
    async fn try_run(&self, events: &[RecordedEvent]) -> Result<Result<(), String>, ApplyError> {
        self.undoing(self.run(events)).await
    }

    async fn undoing(
        &self,
        work: impl Future<Output = Result<(), ApplyError>>,
    ) -> Result<Result<(), String>, ApplyError> {
        self.session.batch(SAVEPOINT).await?;
        let outcome = match work.await {
            // Fails if the handler went on after an error.
            Ok(()) => self.session.batch(RELEASE).await.map_err(|error| error.to_string()),
            Err(ApplyError::Refused { message, .. }) => Err(message),
            Err(error) => return Err(error),
        };
        if outcome.is_err() {
            self.session.batch(UNDO).await?;
        }
        Ok(outcome)
    }

    async fn run(&self, events: &[RecordedEvent]) -> Result<(), ApplyError> {
        let transaction: &Transaction<'_> = self.session.transaction;
        let work = async {
            let batch = HandlerBatch { events, home: &self.generation.home, replayed: false };
            self.handler.apply(batch, transaction).await
        };
        self.in_time(events, Box::pin(work)).await
    }

    /// Waits for a handler as long as for an answer of the server, and catches its panics. After one
    /// that does not come back, nobody knows what the server is doing.
    async fn in_time(
        &self,
        events: &[RecordedEvent],
        work: BoxFuture<'_, Result<(), HandlerError>>,
    ) -> Result<(), ApplyError> {
        let timeout = self.session.timeout;
        let refused = |message: String| ApplyError::Refused { message, position: None };
        match tokio::time::timeout(timeout, AssertUnwindSafe(work).catch_unwind()).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => match transient_trouble(&*error) {
                Some(trouble) => Err(ApplyError::Store(trouble)),
                None => Err(refused(error.to_string())),
            },
            Ok(Err(panic)) => Err(refused(format!("it panicked: {}", panic_message(&*panic)))),
            Err(_) => {
                self.session.abandoned.store(true, Ordering::Relaxed);
                let mut late = OutOfTime::new(self.generation, events, timeout, true);
                late.message = format!(
                    "its handler was not done within {timeout:?}, as long as a request may take; what \
                     it waits for needs a time limit of its own"
                );
                Err(ApplyError::OutOfTime(late))
            }
        }
    }
}
