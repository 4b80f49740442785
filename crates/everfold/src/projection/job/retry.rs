//! A dead letter is tried again or given up, and what waits behind it follows in its order.

use std::collections::HashMap;

use super::apply::{Careful, End};
use super::page::{SHARD_KEY_OF_NONE, no_key};
use super::{Failure, Job, JobOutcome};
use crate::projection::definition::{Lifecycle, OnError};
use crate::projection::generation::DeadLetterRow;
use crate::projection::projector::ApplyError;
use crate::store::Unit;
use crate::{Position, RecordedEvent};

/// Most events of a key that are applied in one transaction.
pub(crate) const RETRY_EVENTS: usize = 500;

/// What stands at the head of those that did not fit into one transaction.
const NOT_TRIED: &str = "not tried yet: the events before it came first";

/// A dead letter of a key and all that waits behind it.
struct Waiting {
    failed: DeadLetterRow,
    /// In rising order.
    behind: Vec<DeadLetterRow>,
    /// Those of `behind` that were owed, not held.
    owed: Vec<Position>,
}

impl Job {
    pub(super) async fn retry<U: Unit>(
        &self,
        unit: &mut U,
        position: Position,
        discard: Option<&str>,
    ) -> Result<JobOutcome, ApplyError> {
        let inline = self.generation.lifecycle == Lifecycle::Inline;
        let found = unit.read_events_at(&[position]).await?;
        let Some(event) = found.into_iter().next() else { return Ok(missing()) };
        let Some(key) = self.lock_shard_of(unit, &event).await? else { return Ok(missing()) };
        if inline {
            // Last, because appends wait for it: nobody waits for the row with the gate in hand.
            unit.lock_gate(self.generation.id).await?;
        }
        let Some(waiting) = self.waiting(unit, position, &key, inline).await? else {
            return Ok(missing());
        };
        let mut rows = waiting.behind;
        match discard {
            None => rows.insert(0, waiting.failed),
            Some(reason) => self.discard(unit, event, &key, reason).await?,
        }
        self.apply_waiting(unit, rows, &waiting.owed).await
    }

    /// Locks the shard that has the dead letter of an event, and returns the key it is kept under.
    async fn lock_shard_of<U: Unit>(
        &self,
        unit: &mut U,
        event: &RecordedEvent,
    ) -> Result<Option<String>, ApplyError> {
        let page = self.page(vec![event.clone()], None);
        let none = no_key(event.position);
        let today = page.keys.into_iter().next().unwrap_or_else(|| none.clone());
        // One that had no key, or none that could be found out, may have one by now.
        for key in [today.as_str(), none.as_str()] {
            let rows = unit.dead_letters(self.generation.id, Some(key)).await?;
            if rows.iter().any(|row| row.position == event.position) {
                let shard_key = |key| if key == none { SHARD_KEY_OF_NONE } else { key };
                let shards = [today.as_str(), key].map(|key| self.shard_of(shard_key(key)));
                let mut shards = shards.to_vec();
                shards.sort_unstable();
                shards.dedup();
                for shard in shards {
                    unit.lock_shard(self.generation.id, shard).await?;
                }
                return Ok(Some(key.to_owned()));
            }
        }
        Ok(None)
    }

    /// The dead letter and what waits behind it, now that the shard is locked; `None` if somebody
    /// else was faster.
    async fn waiting<U: Unit>(
        &self,
        unit: &mut U,
        position: Position,
        key: &str,
        inline: bool,
    ) -> Result<Option<Waiting>, ApplyError> {
        let mut behind = unit.dead_letters(self.generation.id, Some(key)).await?;
        let failed = |row: &DeadLetterRow| row.position == position && row.behind.is_none();
        let Some(index) = behind.iter().position(failed) else { return Ok(None) };
        let failed = behind.remove(index);
        behind.retain(|row| row.behind == Some(position));
        let mut owed = Vec::new();
        if inline {
            owed = unit.take_skips_of(self.generation.id, key).await?;
            let row = |&owed: &Position| super::apply::held_row(owed, key, position);
            behind.extend(owed.iter().map(row));
            behind.sort_unstable_by_key(|row| row.position);
        }
        Ok(Some(Waiting { failed, behind, owed }))
    }

    async fn discard<U: Unit>(
        &self,
        unit: &mut U,
        event: RecordedEvent,
        key: &str,
        reason: &str,
    ) -> Result<(), ApplyError> {
        let position = event.position;
        let page = self.page(vec![event], None);
        let mut said = reason.to_owned();
        if let Some(event) = page.events.first()
            && let Err(error) = self.tell_skipped(unit, event).await?
        {
            said.push_str("; the projection's hook for skipped events failed: ");
            said.push_str(&error);
        }
        unit.delete_dead_letters(self.generation.id, &[position]).await?;
        let key = Some(key.to_owned());
        unit.record(&[self.message("dead-letter-discarded", Some(position), key, said)]).await
    }

    /// Applies rows of one key in their order. One that fails is the dead letter then, and the rest
    /// wait behind it.
    async fn apply_waiting<U: Unit>(
        &self,
        unit: &mut U,
        rows: Vec<DeadLetterRow>,
        owed: &[Position],
    ) -> Result<JobOutcome, ApplyError> {
        let events_max = self.task.events_max();
        let now: Vec<Position> = rows.iter().take(events_max).map(|row| row.position).collect();
        let page = self.page(unit.read_events_at(&now).await?, None);
        let mut careful = Careful::new(OnError::Stop, 0, HashMap::new());
        let end = self.apply_carefully(unit, &page, &page.all(), &mut careful).await?;
        let (stopped_at, error) = match end {
            End::Failed { index, message } => (Some(page.position(index)), message),
            End::Full { index } => (Some(page.position(index)), NOT_TRIED.to_owned()),
            End::Done => (rows.get(now.len()).map(|row| row.position), NOT_TRIED.to_owned()),
        };
        let tried = error != NOT_TRIED;
        let (done, left): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| stopped_at.is_none_or(|at| row.position < at));
        self.settle(unit, &done, owed).await?;
        let Some(position) = stopped_at else {
            return Ok(JobOutcome { applied: careful.applied, ..JobOutcome::default() });
        };
        let held = left.iter().any(|row| row.position == position && row.behind.is_some());
        let key = left.first().map(|row| row.key.clone());
        self.wait_behind(unit, left, position, &error, tried).await?;
        let message = match tried {
            true => page.place(position).map_or(error.clone(), |at| page.describe(at, &error)),
            false => error,
        };
        if tried {
            let (kind, said) = match held {
                true => ("dead-letter", message.clone()),
                false => ("dead-letter-retried", format!("failed again: {message}")),
            };
            unit.record(&[self.message(kind, Some(position), key, said)]).await?;
        }
        let failure = Some(Failure { position, message });
        let (applied, more) = (careful.applied, !tried);
        Ok(JobOutcome {
            position: Position::START,
            applied,
            more,
            failure,
            ..JobOutcome::default()
        })
    }

    /// Takes away what is applied, with a record of it.
    async fn settle<U: Unit>(
        &self,
        unit: &mut U,
        done: &[DeadLetterRow],
        owed: &[Position],
    ) -> Result<(), ApplyError> {
        if done.is_empty() {
            return Ok(());
        }
        let mut messages = Vec::new();
        for row in done {
            let (position, key) = (row.position, row.key.clone());
            if owed.contains(&position) {
                messages.push(self.settled(position, &key));
            } else if row.behind.is_none() {
                let said = "applied when it was tried again".to_owned();
                messages.push(self.message("dead-letter-retried", Some(position), Some(key), said));
            }
        }
        let positions: Vec<Position> = done.iter().map(|row| row.position).collect();
        unit.delete_dead_letters(self.generation.id, &positions).await?;
        match messages.is_empty() {
            true => Ok(()),
            false => unit.record(&messages).await,
        }
    }

    /// The first of these is the dead letter, the others wait behind it.
    async fn wait_behind<U: Unit>(
        &self,
        unit: &mut U,
        mut left: Vec<DeadLetterRow>,
        position: Position,
        error: &str,
        tried: bool,
    ) -> Result<(), ApplyError> {
        for row in &mut left {
            if row.position == position {
                row.behind = None;
                row.error = Some(error.to_owned());
                row.attempts += u32::from(tried);
            } else {
                (row.behind, row.error) = (Some(position), None);
            }
        }
        unit.put_dead_letters(self.generation.id, &left).await
    }
}

/// There is no such dead letter any more.
fn missing() -> JobOutcome {
    JobOutcome { missing: true, ..JobOutcome::default() }
}
