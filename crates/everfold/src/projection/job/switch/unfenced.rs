//! Switching without holding appends up, for those whose transactions outlast the fence. Nobody takes a
//! gate exclusively here; between the steps whoever works on the rebuild waits for the transactions
//! that held the gates (docs/design.md, Rebuilds).

use super::super::Job;
use super::{Rows, Switch, Switched};
use crate::Position;
use crate::projection::definition::Lifecycle;
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::store::Unit;

impl Job {
    /// Appends that look at the target's status from now on record skips for it.
    pub(super) async fn record_skips<U: Unit>(&self, unit: &mut U) -> Result<Switched, ApplyError> {
        let target = self.generation.id;
        match unit.status(target).await? {
            GenerationStatus::Building => {
                let reason = Some("readers are being switched to it");
                unit.write_status(target, GenerationStatus::Rebuilding, reason).await?;
            }
            GenerationStatus::Rebuilding => {}
            status => return Err(self.cannot(status, "readers cannot be switched to it")),
        }
        Ok(Switched::Done { events: 0 })
    }

    /// Every wanted event is applied to the target by now, or owed: what was visible when the last
    /// append that did not record skips had ended is at or below `past`.
    pub(super) async fn flip_unfenced<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        rows: &Rows,
        past: Position,
    ) -> Result<Switched, ApplyError> {
        if let Some(refused) = self.not_ready(unit, switch).await? {
            return Ok(refused);
        }
        let target = self.generation.id;
        let status = unit.status(target).await?;
        if status != GenerationStatus::Rebuilding {
            return Err(self.cannot(status, "appends record no skips for it"));
        }
        let from = rows.lowest_of_target();
        if from < past {
            return Ok(Switched::Behind { by: past.0 - from.0 });
        }
        if let Some(source) = switch.source.as_deref() {
            let status = match (switch.limits.keep_source, source.lifecycle) {
                (false, _) => GenerationStatus::Retired,
                (true, Lifecycle::CatchUp) => GenerationStatus::Kept,
                // Appends under way apply to it or do not, so no position says yet what it holds.
                (true, Lifecycle::Inline) => GenerationStatus::Paused,
            };
            if source.lifecycle == Lifecycle::Inline || status == GenerationStatus::Retired {
                unit.release_shards(source.id, None).await?;
            }
            let reason = (status == GenerationStatus::Paused)
                .then_some("readers were switched to another generation");
            unit.write_status(source.id, status, reason).await?;
        }
        self.show(unit, switch).await?;
        Ok(Switched::Done { events: 0 })
    }

    /// Every wanted event up to the mark is applied to the source by now, or owed, and none after it is
    /// applied: it can be fed from there.
    pub(super) async fn keep_source<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
        mark: Position,
    ) -> Result<Switched, ApplyError> {
        let Some(source) = switch.source.as_deref() else {
            return Ok(Switched::Done { events: 0 });
        };
        if source.lifecycle == Lifecycle::Inline
            && unit.status(source.id).await? == GenerationStatus::Paused
        {
            unit.hold_skips(source.id, mark).await?;
            unit.release_shards(source.id, Some(mark)).await?;
            unit.write_status(source.id, GenerationStatus::Kept, None).await?;
        }
        Ok(Switched::Done { events: 0 })
    }
}
