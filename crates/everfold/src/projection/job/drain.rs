//! A drain: what an inline generation owes, in order within each key.

use std::collections::HashMap;

use super::apply::{Careful, End, held_row};
use super::page::Page;
use super::{Failure, Job, JobOutcome};
use crate::Position;
use crate::projection::generation::{Lease, SystemMessage};
use crate::projection::projector::ApplyError;
use crate::store::Unit;

/// Most skips that are looked at carefully in one transaction.
pub(crate) const CAREFUL_SKIPS: usize = 64;

impl Job {
    pub(super) async fn drain<U: Unit>(
        &self,
        unit: &mut U,
        lease: &Lease,
        events_max: usize,
    ) -> Result<JobOutcome, ApplyError> {
        let position = unit.lock_checkpoint(lease).await?;
        let taken = unit.take_skips(self.generation.id, events_max).await?;
        if taken.is_empty() {
            return Ok(JobOutcome { position, ..JobOutcome::default() });
        }
        let page = self.read_skips(unit, &taken).await?;
        self.apply(unit, &page, &page.all()).await?;
        let settled: Vec<SystemMessage> =
            taken.iter().map(|(position, key)| self.settled(*position, key)).collect();
        unit.record(&settled).await?;
        unit.advance(lease, position, position).await?;
        let (applied, more) = (taken.len() as u64, taken.len() >= events_max);
        Ok(JobOutcome { position, applied, more, ..JobOutcome::default() })
    }

    /// Shuts out appends, because a dead letter must not appear behind the back of one.
    pub(super) async fn careful_drain<U: Unit>(
        &self,
        unit: &mut U,
        lease: &Lease,
        events_max: usize,
        attempts: u32,
    ) -> Result<JobOutcome, ApplyError> {
        let generation = self.generation.id;
        let position = unit.lock_checkpoint(lease).await?;
        // Last, because appends wait for it: nobody waits for the row with the gate in hand.
        unit.lock_gate(generation).await?;
        unit.savepoint().await?;
        let taken = unit.take_skips(generation, events_max).await?;
        if taken.is_empty() {
            unit.release_savepoint().await?;
            return Ok(JobOutcome { position, ..JobOutcome::default() });
        }
        let page = self.read_skips(unit, &taken).await?;
        let places = places_of(&page, &taken);
        let mut careful = Careful::new(self.generation.on_error(), attempts, HashMap::new());
        match self.apply_carefully(unit, &page, &places, &mut careful).await? {
            End::Done => {}
            End::Failed { index, message } => {
                let place = places[index];
                let message = page.describe(place, &message);
                let failure = Failure { position: page.position(place), message };
                unit.rollback_to_savepoint().await?;
                let before = taken.iter().position(|(position, _)| *position == failure.position);
                return self.drain_before(unit, lease, before.unwrap_or(0), failure).await;
            }
            End::Full { .. } => {
                // What is left is still owed: too many fail to do it in one transaction.
                unit.rollback_to_savepoint().await?;
                return self.careful_drain_of_few(unit, lease, attempts).await;
            }
        }
        unit.release_savepoint().await?;
        self.settle_carefully(unit, &taken, &mut careful).await?;
        unit.advance(lease, position, position).await?;
        let (applied, more) = (careful.applied, true);
        Ok(JobOutcome { position, applied, more, ..JobOutcome::default() })
    }

    /// So few that all of them may fail.
    async fn careful_drain_of_few<U: Unit>(
        &self,
        unit: &mut U,
        lease: &Lease,
        attempts: u32,
    ) -> Result<JobOutcome, ApplyError> {
        let position = unit.lock_checkpoint(lease).await?;
        let taken = unit.take_skips(self.generation.id, 8).await?;
        let page = self.read_skips(unit, &taken).await?;
        let places = places_of(&page, &taken);
        let mut careful = Careful::new(self.generation.on_error(), attempts, HashMap::new());
        self.apply_carefully(unit, &page, &places, &mut careful).await?;
        self.settle_carefully(unit, &taken, &mut careful).await?;
        unit.advance(lease, position, position).await?;
        let (applied, more) = (careful.applied, true);
        Ok(JobOutcome { position, applied, more, ..JobOutcome::default() })
    }

    /// The first few that are owed go well; what comes behind them stops the projection.
    async fn drain_before<U: Unit>(
        &self,
        unit: &mut U,
        lease: &Lease,
        count: usize,
        failure: Failure,
    ) -> Result<JobOutcome, ApplyError> {
        let mut outcome = match count {
            0 => JobOutcome { position: lease.position, ..JobOutcome::default() },
            count => self.drain(unit, lease, count).await?,
        };
        unit.note_failure(lease, &failure.message).await?;
        outcome.failure = Some(failure);
        Ok(outcome)
    }

    /// Records what was settled, and lets everything else of a key that failed wait behind it.
    async fn settle_carefully<U: Unit>(
        &self,
        unit: &mut U,
        taken: &[(Position, String)],
        careful: &mut Careful,
    ) -> Result<(), ApplyError> {
        for (key, behind) in std::mem::take(&mut careful.failed_keys) {
            let later = unit.take_skips_of(self.generation.id, &key).await?;
            let rows = later.into_iter().map(|position| held_row(position, &key, behind));
            careful.rows.extend(rows);
        }
        let settled = taken.iter().map(|(position, key)| self.settled(*position, key));
        careful.messages.extend(settled);
        self.put_aside(unit, careful).await
    }

    async fn read_skips<U: Unit>(
        &self,
        unit: &mut U,
        taken: &[(Position, String)],
    ) -> Result<Page, ApplyError> {
        let mut positions: Vec<Position> = taken.iter().map(|(position, _)| *position).collect();
        positions.sort_unstable();
        let mut page = self.page(unit.read_events_at(&positions).await?, None);
        // The key that it is owed under is the one that orders it, whatever it would be today.
        for (position, key) in taken {
            if let Some(place) = page.place(*position) {
                page.keys[place].clone_from(key);
            }
        }
        Ok(page)
    }

    pub(super) fn settled(&self, position: Position, key: &str) -> SystemMessage {
        let message = format!("the event at position {position} is not owed any more");
        self.message("skip-settled", Some(position), Some(key.to_owned()), message)
    }
}

/// The places of the events in the order in which they were taken: key by key.
fn places_of(page: &Page, taken: &[(Position, String)]) -> Vec<usize> {
    taken.iter().filter_map(|(position, _)| page.place(*position)).collect()
}
