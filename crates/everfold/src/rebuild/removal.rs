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
        let generations = match self.generations_of(name).await {
            Err(ProjectionError::Unknown { .. }) if self.is_being_removed(name).await? => {
                Vec::new()
            }
            found => found?,
        };
        if let Some(open) = self.open_rebuild(name).await? {
            let message = format!(
                "is being rebuilt ({}); let that end, or give it up with `everfold rebuilds cancel {name}`",
                open.kind
            );
            return Err(refused(name, message));
        }
        let actor = operator();
        if let Some(generation) = generations.first() {
            self.backend().withdraw(generation.id, actor.clone()).await?;
        }
        let namespace = self.options().namespace.clone();
        for snapshot in self.backend().snapshots(namespace, name.to_owned()).await? {
            self.backend().drop_snapshot(snapshot.id).await?;
        }
        self.remove(self.leftovers_of(name).await?, &actor).await
    }

    /// Whether something is left of a projection that was removed: somebody could still see it, or whoever
    /// removed it was stopped. [`Store::remove_projection`] goes on with it, and so does a runner.
    ///
    /// # Errors
    /// If the database refuses or cannot be reached.
    pub async fn is_being_removed(&self, name: &str) -> Result<bool, ProjectionError> {
        let all = self.backend().generations().await?;
        let namespace = self.options().namespace.clone();
        if all.iter().any(|generation| generation.name == name && generation.namespace == namespace)
        {
            return Ok(false);
        }
        let snapshots = self.backend().snapshots(namespace, name.to_owned()).await?;
        Ok(!snapshots.is_empty() || !self.leftovers_of(name).await?.is_empty())
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
        let mut failed = None;
        for leftover in self.backend().leftovers().await? {
            // One that is held by something does not keep the others.
            if let Err(error) = self.remove(vec![leftover], actor).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
