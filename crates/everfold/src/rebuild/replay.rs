//! Replays: building a read model again from a snapshot, or as it was at a position.

use super::handle::Rebuild;
use super::options::RebuildOptions;
use super::row::{RebuildKind, StoredOptions};
use super::snapshot::ReadModelSnapshot;
use crate::Position;
use crate::error::ProjectionError;
use crate::projection::generation::{Generation, SystemMessage};
use crate::projection::operator::operator;
use crate::store::Store;

/// What is replayed. The default: all of the log, up to its end.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Events behind this position are applied anew, and some before it: the replay begins with the
    /// newest [snapshot](Store::snapshot_read_model) of this version at or before it, or else with the
    /// beginning of the log.
    pub from: Option<Position>,
    /// The last event to apply. Readers are not switched then: the read model as it was is shown beside
    /// what they see, under names that end in `_at_<position>`, until [`Store::retire`].
    pub to: Option<Position>,
    /// How it is done.
    pub rebuild: RebuildOptions,
}

impl Store {
    /// Builds a read model again beside the one that readers see, beginning with a snapshot, and switches
    /// them over; or builds it as it was at a position, for a look.
    ///
    /// ```
    /// use everfold::{Position, ReplayOptions};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let snapshot = store.snapshot_read_model("carts").await?;
    ///
    /// // Again from the snapshot, and what came since.
    /// let mut options = ReplayOptions::default();
    /// options.from = Some(snapshot.position);
    /// store.replay("carts", options).await?.finish().await?;
    ///
    /// // As it was after the first event: in the table `read_model_carts_at_1`.
    /// let mut options = ReplayOptions::default();
    /// options.to = Some(Position(1));
    /// store.replay("carts", options).await?.finish().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Store::rebuild`]; and [`ProjectionError::Refused`] if `to` is past the end of the log.
    pub async fn replay(
        &self,
        name: &str,
        options: ReplayOptions,
    ) -> Result<Rebuild, ProjectionError> {
        let Start { generation, kind, snapshot } = self.start_of_replay(name, &options).await?;
        let ReplayOptions { from, to, rebuild } = options;
        let from_where = match &snapshot {
            Some(snapshot) => format!("snapshot {} at position {}", snapshot.id, snapshot.position),
            None => "the beginning of the log, because no snapshot fits".to_owned(),
        };
        tracing::info!(projection = name, from = from_where, "replaying");
        let options = StoredOptions {
            options: RebuildOptions { promote: to.is_none(), in_place: false, ..rebuild },
            snapshot: snapshot.as_ref().map(|snapshot| snapshot.id),
            up_to: to.map(|to| to.0),
            by_batches: snapshot.is_some() || to.is_some(),
        };
        let message = SystemMessage {
            generation: Some(generation.id),
            kind: "rebuild",
            position: to.or(from),
            key: None,
            actor: operator(),
            message: format!("a replay begins with {from_where}"),
        };
        let replay = self.request(generation, kind, None, options).await?;
        if !replay.joined() {
            self.backend().note(message).await?;
        }
        Ok(replay)
    }

    /// What a replay would begin with.
    pub(super) async fn start_of_replay(
        &self,
        name: &str,
        options: &ReplayOptions,
    ) -> Result<Start, ProjectionError> {
        let generation = self.generation_of(name).await?;
        let mark = self.high_water_mark().await?;
        if let Some(to) = options.to.filter(|to| *to > mark) {
            let message = format!("cannot be as of position {to}: the log ends at {mark}");
            return Err(ProjectionError::Refused { projection: name.to_owned(), message });
        }
        if let Some(from) = options.from.filter(|from| *from > mark) {
            let message =
                format!("cannot be replayed from position {from}: the log ends at {mark}");
            return Err(ProjectionError::Refused { projection: name.to_owned(), message });
        }
        let wanted = match (options.from, options.to) {
            (Some(from), Some(to)) => Some(from.min(to)),
            (None, Some(to)) => Some(to),
            (from, None) => from,
        };
        let fits = |snapshot: &ReadModelSnapshot| {
            snapshot.version == generation.version
                && snapshot.definition_hash == generation.definition_hash
                && wanted.is_some_and(|wanted| snapshot.reaches <= wanted)
        };
        let snapshot = self.read_model_snapshots(name).await?.into_iter().find(fits);
        let kind = if options.to.is_some() { RebuildKind::AsOf } else { RebuildKind::Replay };
        Ok(Start { generation, kind, snapshot })
    }
}

/// What a replay begins with: without a snapshot that fits, with the first event.
pub(super) struct Start {
    pub(super) generation: Generation,
    pub(super) kind: RebuildKind,
    pub(super) snapshot: Option<ReadModelSnapshot>,
}

/// Why a generation that shows what was is not fed.
pub(crate) fn as_of_reason(position: Position) -> String {
    format!("{AS_OF} {position}, for a look")
}

/// Whether a generation shows what was, so that it is never fed: by the reason of its status.
pub(crate) fn is_as_of(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.starts_with(AS_OF))
}

const AS_OF: &str = "as of position";
