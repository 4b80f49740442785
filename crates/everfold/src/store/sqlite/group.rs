//! A group of appends in one transaction, each with its own outcome.

use std::time::Duration;

use rusqlite::Connection;

use super::append::{append_one, for_member};
use super::connection::in_transaction;
use super::error::store_error;
use super::projection::Projections;
use super::writer::Outcome;
use crate::append::StreamAppend;
use crate::error::{AppendError, StoreError, StoreErrorKind};

/// Appends all in one transaction; should that fail as a whole, each in one of its own.
pub(super) fn append_each(
    connection: &Connection,
    projections: &Projections,
    appends: &[StreamAppend],
    patience: Duration,
) -> Vec<Outcome> {
    match append_all(connection, projections, appends, patience) {
        Ok(outcomes) => outcomes,
        // The lock is not to be had: for none of them.
        Err(error) if appends.len() == 1 || error.kind() == StoreErrorKind::Busy => {
            appends.iter().map(|_| Err(for_member(&error))).collect()
        }
        Err(error) => {
            tracing::warn!(%error, "a group of appends failed, trying each by itself");
            let alone = |alone| append_each(connection, projections, alone, patience);
            appends.chunks(1).flat_map(alone).collect()
        }
    }
}

/// Appends all in one transaction, each with its own outcome, in their order.
pub(super) fn append_all(
    connection: &Connection,
    projections: &Projections,
    appends: &[StreamAppend],
    patience: Duration,
) -> Result<Vec<Outcome>, StoreError> {
    in_transaction(connection, patience, |connection| {
        let inline = projections.inline(connection).map_err(store_error)?;
        let mut outcomes = Vec::with_capacity(appends.len());
        for append in appends {
            let outcome = append_one(connection, append, &inline);
            // Whatever the member came to: without the transaction, those before it are not stored,
            // and those after it would be, one by one.
            if connection.is_autocommit() {
                return Err(rolled_back(outcome));
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    })
}

/// What the whole group fails with when a member's transaction is over before its end.
fn rolled_back(outcome: Outcome) -> StoreError {
    let why = match outcome {
        Err(AppendError::Store(error)) => return error,
        Err(error) => error.to_string(),
        Ok(_) => "what an inline projection did ended the transaction".to_owned(),
    };
    let message = format!("SQLite rolled the whole transaction back, nothing was stored: {why}");
    StoreError::new(StoreErrorKind::Other, message)
}
