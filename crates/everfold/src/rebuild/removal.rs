//! Dropping what readers do not see any more: generations, and whole projections.

use super::request::refused;
use crate::error::ProjectionError;
use crate::projection::generation::Generation;
use crate::projection::operator::operator;
use crate::store::{Removed, Store};

/// What [`Store::retire`] or [`Store::remove_projection`] did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Retired {
    /// Versions of the generations that are gone, in order. An earlier build of the version that readers
    /// see may be among them.
    pub versions: Vec<u32>,
    /// Transactions that may still see one of them: it is dropped when they have ended, by a runner or
    /// by asking again.
    pub waits_for: Vec<String>,
}

impl Store {
    /// Drops every generation of a projection that readers do not see and nobody builds, with its tables:
    /// there is no way back to it. What somebody may still see is dropped later
    /// ([`Retired::waits_for`]). [`Store::rebuild`] has an example.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if there is
    /// nothing to drop.
    pub async fn retire(&self, name: &str) -> Result<Retired, ProjectionError> {
        let generations = self.generations_of(name).await?;
        let open = self.backend().rebuilds(true, usize::MAX).await?;
        let is_target = |id: i32| open.iter().any(|row| row.target == Some(id));
        let unseen: Vec<Generation> =
            generations.into_iter().filter(|g| !g.is_active && !is_target(g.id)).collect();
        let leftovers = self.leftovers_of(name).await?;
        if unseen.is_empty() && leftovers.is_empty() {
            let message = "has nothing to retire: readers see all there is of it".to_owned();
            return Err(refused(name, message));
        }
        self.remove(unseen.into_iter().chain(leftovers).collect(), &operator()).await
    }

    /// Removes a projection with all its generations, read models, checkpoints, dead letters and skips.
    /// Appends no longer apply it, and readers find nothing; the events stay. A process that still has
    /// it registers it anew, as a new one, when it starts next.
    ///
    /// Whoever calls it again goes on where it was stopped.
    ///
    /// # Errors
    /// If there is no such projection, or a rebuild of it is open.
    pub async fn remove_projection(&self, name: &str) -> Result<Retired, ProjectionError> {
        let generations = self.generations_of(name).await?;
        if let Some(open) = self.open_rebuild(name).await? {
            let message = format!(
                "is being rebuilt ({}); let that end, or give it up with `everfold rebuilds cancel {name}`",
                open.kind
            );
            return Err(refused(name, message));
        }
        let actor = operator();
        let snapshots = self.read_model_snapshots(name).await?;
        if let Some(active) = generations.iter().find(|generation| generation.is_active) {
            self.backend().withdraw(active.id, actor.clone()).await?;
        }
        let unseen = generations.into_iter().filter(|generation| !generation.is_active);
        let mut removed = self.remove(unseen.collect(), &actor).await?;
        let withdrawn = self.remove(self.leftovers_of(name).await?, &actor).await?;
        removed.versions.extend(withdrawn.versions);
        removed.versions.sort_unstable();
        removed.versions.dedup();
        removed.waits_for.extend(withdrawn.waits_for);
        for snapshot in snapshots {
            self.backend().drop_snapshot(snapshot.id).await?;
        }
        Ok(removed)
    }

    pub(crate) async fn leftovers_of(
        &self,
        name: &str,
    ) -> Result<Vec<Generation>, ProjectionError> {
        let mut left = self.backend().leftovers().await?;
        left.retain(|g| g.name == name && g.namespace == self.options().namespace);
        Ok(left)
    }

    async fn remove(
        &self,
        generations: Vec<Generation>,
        actor: &str,
    ) -> Result<Retired, ProjectionError> {
        let mut retired = Retired { versions: Vec::new(), waits_for: Vec::new() };
        for generation in generations {
            let projector = self.hub().projector_of(&generation);
            let actor = actor.to_owned();
            match self.backend().remove_generation(generation.id, projector, actor).await? {
                Removed::Done => retired.versions.push(generation.version),
                Removed::Seen(by) => retired.waits_for.extend(by),
            }
        }
        retired.versions.sort_unstable();
        retired.versions.dedup();
        self.hub().has_moved();
        Ok(retired)
    }

    /// Drops what is retired, as far as nobody sees it any more.
    pub(crate) async fn remove_retired(
        &self,
        name: &str,
        actor: &str,
    ) -> Result<(), ProjectionError> {
        let leftovers = self.leftovers_of(name).await?;
        self.remove(leftovers, actor).await.map(drop)
    }

    /// The same for all projections, those of other namespaces too.
    pub(crate) async fn remove_leftovers(&self, actor: &str) -> Result<(), ProjectionError> {
        let leftovers = self.backend().leftovers().await?;
        self.remove(leftovers, actor).await.map(drop)
    }
}
