//! The flip: behind the gates for inline projections, behind the checkpoints for catch-up ones.

use std::time::{Duration, Instant};

use super::super::Job;
use super::super::batch::Batch;
use super::{Rows, Switch, Switched};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::projector::ApplyError;
use crate::store::{FENCE_HELD_TIMES, Unit, Wanted};

impl Job {
    pub(super) async fn flip<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        rows: &Rows,
    ) -> Result<Switched, ApplyError> {
        if let Some(refused) = self.not_ready(unit, switch).await? {
            return Ok(refused);
        }
        match self.is_inline() {
            true => self.flip_behind_gates(unit, switch, rows).await,
            false => self.flip_behind_checkpoints(unit, switch, rows).await,
        }
    }

    /// What speaks against it, whatever is still to be applied. With the target's checkpoint rows
    /// locked this stays so.
    pub(super) async fn not_ready<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<Option<Switched>, ApplyError> {
        let target = self.generation.id;
        match unit.status(target).await? {
            GenerationStatus::Building | GenerationStatus::Rebuilding => {}
            GenerationStatus::Kept if !self.is_inline() => {}
            status => return Err(self.cannot(status, "readers cannot be switched to it")),
        }
        if unit.owes(target).await? {
            return Ok(Some(Switched::Behind { by: 1 }));
        }
        // What is filled in place has no other to be compared with, and no way back.
        if switch.limits.allow_dead_letters || self.generation.is_active {
            return Ok(None);
        }
        let source = switch.source.as_deref().map(|source| source.id);
        let new = unit.new_dead_letters(target, source).await?;
        Ok(new.map(|new| Switched::DeadLetters { new: new.count, first: new.first }))
    }

    /// Everything that is left is applied while no append that either generation wants is under way.
    /// Appends that wait for the gates look at the statuses afterwards.
    async fn flip_behind_gates<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        rows: &Rows,
    ) -> Result<Switched, ApplyError> {
        let (from, most) = (rows.lowest_of_target(), switch.limits.fence_events);
        // Before anybody has to wait for it.
        let highest = unit.highest_position().await?;
        let events = self.count(unit, from, highest, most).await?;
        if events > most as u64 {
            return Ok(Switched::TailTooLong { events });
        }
        let timeout = switch.limits.fence_timeout;
        unit.lock_gates(false, &self.gates(switch), timeout).await?;
        let fence = Fence { since: Instant::now(), most: timeout * FENCE_HELD_TIMES };
        // Wanted events draw their positions behind the gates, so all there are up to here are seen.
        let highest = unit.highest_position().await?.max(from);
        let events = self.count(unit, from, highest, most).await?;
        if events > most as u64 {
            return Ok(Switched::TailTooLong { events });
        }
        let events = self.apply_tail(unit, switch, rows, highest).await?;
        unit.settle_skips(self.generation.id, from, highest, self.task.actor()).await?;
        self.put_source_aside(unit, switch, highest, switch.limits.keep_source).await?;
        self.show(unit, switch).await?;
        fence.check()?;
        Ok(Switched::Done { events })
    }

    /// Readers must not go back in time, so the source stands still while both are compared. What the
    /// target lacks is applied on the way if it is little.
    async fn flip_behind_checkpoints<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        rows: &Rows,
    ) -> Result<Switched, ApplyError> {
        let (from, gates) = (rows.lowest_of_target(), self.gates(switch));
        let (mut reached, mut keep) = (rows.highest_of_source(), switch.limits.keep_source);
        let mut fence = None;
        if !gates.is_empty() {
            // The source is inline, and has all there is.
            let highest = unit.highest_position().await?;
            if let Some(refused) = self.too_far_behind(unit, switch, from, highest).await? {
                return Ok(refused);
            }
            let timeout = switch.limits.fence_timeout;
            unit.lock_gates(false, &gates, timeout).await?;
            fence = Some(Fence { since: Instant::now(), most: timeout * FENCE_HELD_TIMES });
            reached = unit.highest_position().await?;
        } else if from < reached {
            let highest = unit.highest_position().await?;
            if reached > highest {
                // The source holds events that the log has lost: nobody should go back to it.
                (reached, keep) = (highest, false);
            }
        }
        if let Some(refused) = self.too_far_behind(unit, switch, from, reached).await? {
            return Ok(refused);
        }
        let mut events = 0;
        if self.count(unit, from, reached, switch.limits.fence_events).await? > switch.limits.within
        {
            // A catch-up source has passed the mark of then, so all of it can be seen. Beside an inline
            // one an append may be in flight that only the target wants, and that enters no gate.
            if fence.is_some() && unit.high_water_mark().await? < reached {
                return Ok(Switched::Behind { by: reached.0 - from.0 });
            }
            events = self.apply_tail(unit, switch, rows, reached).await?;
        }
        self.put_source_aside(unit, switch, reached, keep).await?;
        self.show(unit, switch).await?;
        fence.map_or(Ok(()), |fence| fence.check())?;
        Ok(Switched::Done { events })
    }

    /// The target lacks more than it may, and more than can be applied in the switch.
    async fn too_far_behind<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        from: Position,
        reached: Position,
    ) -> Result<Option<Switched>, ApplyError> {
        let within = usize::try_from(switch.limits.within).unwrap_or(usize::MAX);
        let most = switch.limits.fence_events.max(within);
        let behind = self.count(unit, from, reached, most).await?;
        Ok((behind > most as u64).then(|| Switched::Behind { by: reached.0 - from.0 }))
    }

    /// How many events there are to apply, counted up to one more than `most`.
    async fn count<U: Unit>(
        &self,
        unit: &mut U,
        after: Position,
        up_to: Position,
        most: usize,
    ) -> Result<u64, ApplyError> {
        if up_to <= after {
            return Ok(0);
        }
        let (generation, events_max) = (&*self.generation, most.saturating_add(1));
        let wanted = Wanted { generation, after, up_to, events_max };
        Ok(unit.range_end(wanted).await?.events)
    }

    /// Applies what is left, all or none, and moves the checkpoints there.
    async fn apply_tail<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        rows: &Rows,
        highest: Position,
    ) -> Result<u64, ApplyError> {
        // A handler has no more time than anybody else while appends wait.
        let limit = switch.limits.fence_timeout * FENCE_HELD_TIMES;
        let job = Job { handler_timeout: self.handler_timeout.min(limit), ..self.clone() };
        let (events_max, worker) = (switch.limits.fence_events.max(1), switch.rebuild.worker);
        let mut events = 0;
        for (lease, &from) in switch.leases.iter().zip(&rows.target) {
            let batch = Batch { lease, mark: highest, events_max, worker };
            let mut at = from;
            while at < highest {
                let (to, applied) = job.apply_next(unit, &batch, at).await?;
                (at, events) = (to, events + applied);
            }
            unit.advance(lease, from, at).await?;
        }
        Ok(events)
    }

    /// The source is kept, fed from `highest` on, up to which it has or owes everything; or retired.
    async fn put_source_aside<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        highest: Position,
        keep: bool,
    ) -> Result<(), ApplyError> {
        let Some(source) = switch.source.as_deref() else { return Ok(()) };
        // One that a rebuild in place has left half filled is nothing to go back to.
        let half = unit.status(source.id).await? == GenerationStatus::Rebuilding;
        if !keep || half {
            unit.release_shards(source.id, None).await?;
            return unit.write_status(source.id, GenerationStatus::Retired, None).await;
        }
        if source.lifecycle == Lifecycle::Inline {
            unit.hold_skips(source.id, highest).await?;
            unit.release_shards(source.id, Some(highest)).await?;
        }
        unit.write_status(source.id, GenerationStatus::Kept, None).await
    }

    /// The target is what readers see and appends feed.
    pub(super) async fn show<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<(), ApplyError> {
        let Generation { id, version, .. } = *self.generation;
        unit.write_status(id, GenerationStatus::Active, None).await?;
        unit.show_generation(id).await?;
        unit.note_flip(&switch.rebuild).await?;
        let said = match switch.source.as_deref() {
            Some(source) => format!(
                "readers see version {version}, generation {id}, instead of version {}, generation {}{}",
                source.version,
                source.id,
                if source.status == GenerationStatus::Paused { ", which was paused" } else { "" }
            ),
            None => format!("readers see version {version}, generation {id}"),
        };
        unit.record(&[self.message("rebuild", None, None, said)]).await
    }

    /// The gates of those generations that have one, in their order.
    pub(super) fn gates(&self, switch: &Switch) -> Vec<i32> {
        let both = [Some(&*self.generation), switch.source.as_deref()].into_iter().flatten();
        let inline = both.filter(|generation| generation.lifecycle == Lifecycle::Inline);
        let mut gates: Vec<i32> = inline.map(|generation| generation.id).collect();
        gates.sort_unstable();
        gates
    }
}

/// Gates in hand: each statement is bounded by the server, all of them together here.
struct Fence {
    since: Instant,
    most: Duration,
}

impl Fence {
    fn check(&self) -> Result<(), ApplyError> {
        let held = self.since.elapsed();
        if held <= self.most {
            return Ok(());
        }
        let message = format!(
            "appends had to wait for {held:?}, and may for {:?}, so the switch was undone",
            self.most
        );
        Err(StoreError::new(StoreErrorKind::Busy, message).into())
    }
}
