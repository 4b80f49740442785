//! Events of an append, applied in its own transaction by the process that appends.

use std::collections::HashMap;

use super::apply::{Careful, End};
use super::{Job, JobOutcome};
use crate::Position;
use crate::projection::definition::OnError;
use crate::projection::projector::ApplyError;
use crate::store::Unit;

impl Job {
    /// Applies the events at these positions, rising, whose keys wait for nothing. A refusal is an
    /// error where the policy is to stop; otherwise the events that fail are put aside.
    pub(super) async fn inline<U: Unit>(
        &self,
        unit: &mut U,
        positions: &[Position],
    ) -> Result<JobOutcome, ApplyError> {
        let page = self.page(unit.read_events_at(positions).await?, None);
        let places = page.all();
        let on_error = self.generation.on_error();
        if on_error == OnError::Stop {
            self.apply(unit, &page, &places).await?;
            return Ok(JobOutcome { applied: places.len() as u64, ..JobOutcome::default() });
        }
        let (mut rest, mut held, mut applied) = (&places[..], HashMap::new(), 0);
        loop {
            let mut careful = Careful::new(on_error, 1, held);
            let end = self.apply_carefully(unit, &page, rest, &mut careful).await?;
            self.put_aside(unit, &careful).await?;
            applied += careful.applied;
            match end {
                End::Full { index } => rest = &rest[index..],
                End::Done | End::Failed { .. } => break,
            }
            held = careful.held;
        }
        Ok(JobOutcome { applied, ..JobOutcome::default() })
    }
}
