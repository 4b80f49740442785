//! First fills: of projections that readers have not seen in any version, on a store that has events.
//!
//! Such a generation stands for its projection in the registry, empty, and nobody feeds it: a rebuild
//! fills another one beside it, readers are switched to that, and this one is retired. A runner asks for
//! it without being told to, since there is nobody who could be disturbed; but not again after one that
//! did not end well: then an operator decides.

use std::collections::HashSet;

use super::row::{RebuildKind, RebuildPhase, RebuildRequest, RebuildRow, StoredOptions, Wanted};
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::operator::operator;
use crate::store::Store;

/// So many of the last rebuilds are looked at.
const LOOKED_AT: usize = 1_000;

/// The generations that wait for a first fill or are filled by one, by id.
pub(crate) fn unfilled<'g>(all: impl Iterator<Item = &'g Generation> + Clone) -> HashSet<i32> {
    let read: HashSet<(&str, &str)> =
        all.clone().filter(|generation| generation.is_active).map(projection_of).collect();
    let waits = |generation: &&Generation| {
        generation.status == GenerationStatus::Building
            && !read.contains(&projection_of(generation))
    };
    all.filter(waits).map(|generation| generation.id).collect()
}

fn projection_of(generation: &Generation) -> (&str, &str) {
    (&generation.namespace, &generation.name)
}

fn is_of(row: &RebuildRow, generation: &Generation) -> bool {
    (row.namespace.as_str(), row.name.as_str()) == projection_of(generation)
}

fn builds(row: &RebuildRow, generation: &Generation) -> bool {
    is_of(row, generation)
        && row.version == generation.version
        && row.definition_hash == generation.definition_hash
}

/// The last rebuilds, to find out what became of first fills.
pub(crate) struct Fills(Vec<RebuildRow>);

/// Why a first fill is not asked for without an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftAlone {
    pub(crate) reason: String,
    /// Something is wrong; otherwise somebody wants it so.
    pub(crate) failed: bool,
}

impl Fills {
    /// What became of the last one of a generation, if that is left to an operator.
    pub(crate) fn left_alone(&self, generation: &Generation) -> Option<LeftAlone> {
        // The newest are first.
        let row = self.0.iter().find(|row| builds(row, generation))?;
        let name = &generation.name;
        let reason = match row.phase {
            RebuildPhase::Failed => format!(
                "it could not be filled: {}; mend that, then `everfold rebuild {name}` tries again",
                row.message.as_deref().unwrap_or("no reason was given")
            ),
            RebuildPhase::Cancelled => {
                format!("filling it was cancelled; `everfold rebuild {name}` fills it")
            }
            RebuildPhase::Built => match &row.message {
                Some(message) => message.clone(),
                None => {
                    format!("it is built; `everfold promote {name}` shows it to readers")
                }
            },
            _ => return None,
        };
        Some(LeftAlone { reason, failed: row.phase == RebuildPhase::Failed })
    }
}

impl Store {
    pub(crate) async fn fills(&self) -> Result<Fills, StoreError> {
        Ok(Fills(self.backend().rebuilds(false, LOOKED_AT).await?))
    }

    /// Asks for the first fill of a generation that waits for one, unless it is under way, or so is that
    /// of another version, or an operator has to decide: then it is said why.
    pub(crate) async fn ask_for_fill(
        &self,
        generation: &Generation,
    ) -> Result<Option<LeftAlone>, StoreError> {
        let open = self.backend().rebuilds(true, usize::MAX).await?;
        let open = open.iter().find(|row| is_of(row, generation));
        // Whoever has the code of an older version cannot register it any more.
        let is_dead = |row: &RebuildRow| !row.is_owned && row.version < generation.version;
        if open.is_some_and(|row| !is_dead(row)) {
            return Ok(None);
        }
        let left_alone = self.fills().await?.left_alone(generation);
        if left_alone.is_some() {
            return Ok(left_alone);
        }
        if let Some(dead) = open {
            self.backend().steer_rebuild(dead.id, Wanted::Cancel, operator()).await?;
        }
        let (kind, options) = (RebuildKind::Beside, StoredOptions::default());
        let request = RebuildRequest::of(generation, kind, None, options);
        match self.backend().request_rebuild(RebuildRequest { first: true, ..request }).await {
            // Somebody else's has been, and readers see it by now.
            Err(error) if error.kind() == StoreErrorKind::Missing => Ok(None),
            outcome => outcome.map(|_| None),
        }
    }
}
