//! Steps that change which generations appends find in the registry, for a moment behind its gate: an
//! append that is under way has listed them already.

use super::super::Job;
use super::{Switch, Switched};
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::store::Unit;

impl Job {
    /// In place: the empty target takes the place of the source.
    pub(super) async fn swap_in<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<Switched, ApplyError> {
        let target = self.generation.id;
        match unit.status(target).await? {
            GenerationStatus::Building => {}
            GenerationStatus::Rebuilding => return Ok(Switched::Done { events: 0 }),
            status => return Err(self.cannot(status, "it cannot take the place of another")),
        }
        let gates = self.gates(switch);
        if !gates.is_empty() {
            unit.lock_gates(true, &gates, switch.limits.fence_timeout).await?;
        }
        let reason = Some("it is rebuilt in place");
        unit.write_status(target, GenerationStatus::Rebuilding, reason).await?;
        unit.show_generation(target).await?;
        if let Some(source) = &switch.source {
            unit.release_shards(source.id, None).await?;
            unit.write_status(source.id, GenerationStatus::Retired, None).await?;
        }
        let said = "readers see it while it is filled again".to_owned();
        unit.record(&[self.message("rebuild", None, None, said)]).await?;
        Ok(Switched::Done { events: 0 })
    }

    /// Back to a generation that was kept: appends enter its gate from now on.
    pub(super) async fn list_again<U: Unit>(
        &self,
        unit: &mut U,
        switch: &Switch,
    ) -> Result<Switched, ApplyError> {
        let target = self.generation.id;
        match unit.status(target).await? {
            GenerationStatus::Kept => {}
            GenerationStatus::Building | GenerationStatus::Rebuilding => {
                return Ok(Switched::Done { events: 0 });
            }
            status => return Err(self.cannot(status, "there is no way back to it")),
        }
        if self.is_inline() {
            unit.lock_gates(true, &[], switch.limits.fence_timeout).await?;
            unit.write_status(target, GenerationStatus::Building, None).await?;
        }
        Ok(Switched::Done { events: 0 })
    }
}
