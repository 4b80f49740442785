//! A batch: the next events of a shard, and its checkpoint, in one transaction.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use uuid::Uuid;

use super::apply::{Careful, End};
use super::page::Page;
use super::{CAREFUL_SKIPS, Failure, Job, JobOutcome};
use crate::Position;
use crate::projection::generation::{GenerationStatus, Lease, RunLogRow};
use crate::projection::projector::{ApplyError, Projector};
use crate::store::{RangeEnd, SqlEvents, Unit, Wanted};

/// Most events that are looked at carefully in one transaction.
pub(crate) const CAREFUL_EVENTS: usize = 256;

/// A batch of a shard under way.
pub(super) struct Batch<'a> {
    pub(super) lease: &'a Lease,
    pub(super) mark: Position,
    pub(super) events_max: usize,
    pub(super) worker: Uuid,
}

impl Job {
    pub(super) async fn batch<U: Unit>(
        &self,
        unit: &mut U,
        batch: Batch<'_>,
    ) -> Result<JobOutcome, ApplyError> {
        let started = Instant::now();
        let from = unit.lock_checkpoint(batch.lease).await?;
        if self.is_inline() {
            self.must_be_fed_behind(unit).await?;
            // What it owes at or below its checkpoint comes before everything above it.
            let outcome = self.drain(unit, batch.lease, batch.events_max).await?;
            if outcome.applied > 0 {
                return Ok(JobOutcome { more: true, ..outcome });
            }
        }
        if batch.mark <= from {
            return Ok(JobOutcome { position: from, ..JobOutcome::default() });
        }
        let (to, applied) = self.apply_next(unit, &batch, from).await?;
        self.advance(unit, &batch, from, to, applied, started).await?;
        Ok(JobOutcome { position: to, applied, more: to < batch.mark, ..JobOutcome::default() })
    }

    /// Whoever saw the generation before a switch may take it for one that batches feed: what appends
    /// have applied would be applied again. Then it is to look anew, as if the lease were lost.
    async fn must_be_fed_behind<U: Unit>(&self, unit: &mut U) -> Result<(), ApplyError> {
        use GenerationStatus::{Building, Kept, Rebuilding};
        match unit.status(self.generation.id).await? {
            Building | Rebuilding | Kept => Ok(()),
            _ => Err(ApplyError::LeaseLost),
        }
    }

    /// Applies the next events of a shard, all or none: how far it came, and how many there were.
    pub(super) async fn apply_next<U: Unit>(
        &self,
        unit: &mut U,
        batch: &Batch<'_>,
        from: Position,
    ) -> Result<(Position, u64), ApplyError> {
        let by_the_database = matches!(self.projector, Projector::Sql)
            && !unit.holds_keys(self.generation.id).await?;
        if by_the_database {
            return self.apply_range(unit, batch, from).await;
        }
        let page = unit.read_events(self.wanted(batch, from, batch.events_max)).await?;
        let (events, to) = (page.events, page.read_to);
        let page = self.page(events, Some(batch.lease.shard.shard));
        let held = self.held(unit, &page).await?;
        let mut careful = Careful::new(self.generation.on_error(), 0, held);
        let free = careful.free(&page, &page.all());
        self.apply(unit, &page, &free).await?;
        careful.hold(&page, &page.all());
        self.put_aside(unit, &careful).await?;
        Ok((to, free.len() as u64))
    }

    /// Which keys of these events wait, and behind which event.
    async fn held<U: Unit>(
        &self,
        unit: &mut U,
        page: &Page,
    ) -> Result<HashMap<String, Position>, ApplyError> {
        let keys: BTreeSet<&str> = page.keys.iter().map(String::as_str).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<&str> = keys.into_iter().collect();
        let held = unit.held_keys(self.generation.id, &keys).await?;
        Ok(held.into_iter().map(|held| (held.key, held.behind)).collect())
    }

    /// The database reads and applies by itself.
    async fn apply_range<U: Unit>(
        &self,
        unit: &mut U,
        batch: &Batch<'_>,
        from: Position,
    ) -> Result<(Position, u64), ApplyError> {
        let wanted = self.wanted(batch, from, batch.events_max);
        let RangeEnd { to, events } = unit.range_end(wanted).await?;
        if events > 0 {
            let shard = batch.lease.shard.shard;
            let events = SqlEvents::Range { after: from, up_to: to, shard };
            unit.apply_sql(&self.generation, events).await?;
        }
        // The database counts the events of all shards; those of one are about an even part.
        Ok((to, events.div_ceil(u64::from(self.generation.shards))))
    }

    pub(super) async fn careful_batch<U: Unit>(
        &self,
        unit: &mut U,
        batch: Batch<'_>,
        attempts: u32,
    ) -> Result<JobOutcome, ApplyError> {
        let started = Instant::now();
        let from = unit.lock_checkpoint(batch.lease).await?;
        if self.is_inline() {
            self.must_be_fed_behind(unit).await?;
        }
        if self.is_inline() && unit.owes(self.generation.id).await? {
            let events_max = batch.events_max.min(CAREFUL_SKIPS);
            return self.careful_drain(unit, batch.lease, events_max, attempts).await;
        }
        if batch.mark <= from {
            return Ok(JobOutcome { position: from, ..JobOutcome::default() });
        }
        let read = unit.read_events(self.wanted(&batch, from, batch.events_max)).await?;
        let (events, mut to) = (read.events, read.read_to);
        let page = self.page(events, Some(batch.lease.shard.shard));
        let places = page.all();
        let held = self.held(unit, &page).await?;
        let mut careful = Careful::new(self.generation.on_error(), attempts, held);
        let end = self.apply_carefully(unit, &page, &places, &mut careful).await?;
        let just_before = |index: usize| Position(page.position(places[index]).0 - 1);
        let mut failure = None;
        match end {
            End::Done => {}
            End::Full { index } => to = just_before(index),
            End::Failed { index, message } => {
                to = just_before(index);
                let position = page.position(places[index]);
                let message = page.describe(places[index], &message);
                failure = Some(Failure { position, message });
            }
        }
        self.put_aside(unit, &careful).await?;
        self.advance(unit, &batch, from, to, careful.applied, started).await?;
        if let Some(failure) = &failure {
            self.fail(unit, batch.lease, failure).await?;
        }
        let (applied, more) = (careful.applied, to < batch.mark);
        Ok(JobOutcome { position: to, applied, more, failure, ..JobOutcome::default() })
    }

    /// The projection has failed: nobody runs it until somebody resumes it. For an inline one that is
    /// written by whoever runs the job, where appends can be shut out.
    async fn fail<U: Unit>(
        &self,
        unit: &mut U,
        lease: &Lease,
        failure: &Failure,
    ) -> Result<(), ApplyError> {
        let reason = self.failed_reason(failure);
        unit.note_failure(lease, &failure.message).await?;
        if !self.is_inline() {
            unit.set_status(self.generation.id, GenerationStatus::Failed, Some(&reason)).await?;
        }
        let message = self.message("failure", Some(failure.position), None, reason);
        unit.record(&[message]).await
    }

    /// Writes what a careful application noted down.
    pub(super) async fn put_aside<U: Unit>(
        &self,
        unit: &mut U,
        careful: &Careful,
    ) -> Result<(), ApplyError> {
        if !careful.rows.is_empty() {
            unit.put_dead_letters(self.generation.id, &careful.rows).await?;
        }
        match careful.messages.is_empty() {
            true => Ok(()),
            false => unit.record(&careful.messages).await,
        }
    }

    fn wanted(&self, batch: &Batch<'_>, after: Position, events_max: usize) -> Wanted<'_> {
        Wanted { generation: &self.generation, after, up_to: batch.mark, events_max }
    }

    /// Moves the checkpoint, also over ranges without a match, and settles the skips that an inline
    /// generation has in the range. Only batches with events are logged.
    async fn advance<U: Unit>(
        &self,
        unit: &mut U,
        batch: &Batch<'_>,
        from: Position,
        to: Position,
        events: u64,
        started: Instant,
    ) -> Result<(), ApplyError> {
        unit.advance(batch.lease, from, to).await?;
        if self.is_inline() {
            let actor = batch.worker.to_string();
            unit.settle_skips(self.generation.id, from, to, &actor).await?;
        }
        if events == 0 {
            return Ok(());
        }
        let duration_ms = started.elapsed().as_secs_f32() * 1000.0;
        let (shard, owner) = (batch.lease.shard, batch.worker);
        unit.log_run(&RunLogRow { shard, from, to, events, duration_ms, owner }).await
    }
}
