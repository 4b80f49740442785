//! How long it would take: from rebuilds that were, else from rates that small machines reach.

use super::PlannedChange;
use crate::projection::definition::ProjectionKind;
use crate::rebuild::row::{RebuildKind, RebuildRow};
use crate::store::{Counted, StoreKind};

/// A rebuild of fewer events says little about the next one.
const EVENTS_MIN: u64 = 1_000;

/// Rates of earlier rebuilds, the newest first.
pub(super) struct Rates(Vec<(String, f64)>);

impl Rates {
    pub(super) fn of(rebuilds: &[RebuildRow]) -> Rates {
        let rate = |row: &RebuildRow| {
            let copies = matches!(row.kind, RebuildKind::Beside | RebuildKind::InPlace);
            let ended = row.flipped_at.or(row.finished_at)?;
            let seconds = ended.duration_since(row.requested_at).as_secs_f64();
            (copies && row.events_done >= EVENTS_MIN && seconds > 0.0)
                .then(|| (row.name.clone(), row.events_done as f64 / seconds))
        };
        Rates(rebuilds.iter().filter_map(rate).collect())
    }

    /// Puts figures to a change that applies these events.
    pub(super) fn estimate(
        &self,
        change: &mut PlannedChange,
        events: Counted,
        kind: ProjectionKind,
        store: StoreKind,
    ) {
        let measured = self.0.iter().find(|(name, _)| *name == change.name).map(|(_, rate)| *rate);
        let rate = measured.unwrap_or_else(|| assumed(kind, store));
        change.events = Some(events.number);
        change.events_exact = events.exact;
        change.seconds = Some(events.number as f64 / rate);
        change.events_per_second = Some(rate);
        change.rate_measured = measured.is_some();
    }
}

/// Events a second on two cores with nothing else to do, rounded down.
fn assumed(kind: ProjectionKind, store: StoreKind) -> f64 {
    match (kind, store) {
        (ProjectionKind::Sql | ProjectionKind::Document, StoreKind::Postgres) => 100_000.0,
        (ProjectionKind::Handler, _) => 10_000.0,
        _ => 50_000.0,
    }
}
