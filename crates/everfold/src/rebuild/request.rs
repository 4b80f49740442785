//! Asking for rebuilds and switches, and steering them: the operators' side.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::driver::{Driver, Ended, Means};
use super::handle::Rebuild;
use super::options::RebuildOptions;
use super::progress::RebuildProgress;
use super::row::{RebuildKind, RebuildRequest, RebuildRow, StoredOptions, Wanted};
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::projection::Projection;
use crate::projection::definition::ProjectionKind;
use crate::projection::generation::{Generation, GenerationState, GenerationStatus};
use crate::projection::operator::operator;
use crate::store::{Store, jitter};

/// Rebuilds that have ended, of which so many are shown.
const ENDED_SHOWN: usize = 20;
/// How often somebody who watches looks whether a rebuild is free to be worked on.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Store {
    /// Builds a read model again from the log while appends and readers go on, and switches them over:
    /// the newest version that is registered, or the same one that readers see. If a rebuild of this
    /// projection is under way, it is joined.
    ///
    /// The generation that readers saw is kept and fed, so that [`Store::rollback`] can go back. Whoever is
    /// killed on the way is replaced: by the same call, or by a runner that has the code.
    ///
    /// ```
    /// use everfold::{GenerationStatus, Projection, RebuildOptions, RebuildPhase};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let version_2 = Projection::document("carts", 2, Carts).build()?;
    /// let registered = store.register(version_2).await?;
    /// assert_eq!(registered.status, GenerationStatus::Building);
    ///
    /// let done = store.rebuild("carts", RebuildOptions::default()).await?.finish().await?;
    /// assert_eq!(done.phase, RebuildPhase::Done);
    /// assert_eq!(store.projection("carts").await?.version, 2);
    ///
    /// // Back to what was, and forward again.
    /// store.rollback("carts", RebuildOptions::default()).await?.finish().await?;
    /// assert_eq!(store.projection("carts").await?.version, 1);
    /// store.promote("carts", RebuildOptions::default()).await?.finish().await?;
    ///
    /// // Once nobody wants to go back any more:
    /// assert_eq!(store.retire("carts").await?.versions, [1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if another
    /// kind of change of it is under way. How the rebuild itself ended is told by
    /// [`Rebuild::finish`].
    pub async fn rebuild(
        &self,
        name: &str,
        options: RebuildOptions,
    ) -> Result<Rebuild, ProjectionError> {
        let generations = self.generations_of(name).await?;
        let wanted = to_build(&generations);
        let kind = if options.in_place { RebuildKind::InPlace } else { RebuildKind::Beside };
        let target = match options.in_place || options.from_scratch {
            true => None,
            false => self.partly_built(wanted).await?,
        };
        // What is to go slowly goes in small steps.
        let by_batches =
            options.events_per_second.is_some() || options.commit_latency_max.is_some();
        let options = StoredOptions { options, by_batches, ..StoredOptions::default() };
        self.request(wanted.clone(), kind, target, options).await
    }

    /// Switches readers over to a generation that is built: one that a rebuild without a promotion has
    /// left, or a newer version that was rolled back from.
    ///
    /// ```
    /// use everfold::{Projection, RebuildOptions, RebuildPhase};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// store.register(Projection::document("carts", 2, Carts).build()?).await?;
    /// let mut options = RebuildOptions::default();
    /// options.promote = false; // to look at it first
    /// let built = store.rebuild("carts", options).await?.finish().await?;
    /// assert_eq!(built.phase, RebuildPhase::Built);
    /// assert_eq!(store.projection("carts").await?.version, 1);
    ///
    /// store.promote("carts", RebuildOptions::default()).await?.finish().await?;
    /// assert_eq!(store.projection("carts").await?.version, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if there is
    /// nothing to promote, or another kind of change of it is under way.
    pub async fn promote(
        &self,
        name: &str,
        options: RebuildOptions,
    ) -> Result<Rebuild, ProjectionError> {
        let target = self.to_promote(name).await?;
        self.switch_to(target, options).await
    }

    /// What [`Store::promote`] switches to.
    pub(super) async fn to_promote(&self, name: &str) -> Result<Generation, ProjectionError> {
        let generations = self.generations_of(name).await?;
        if let Some(target) = self.under_way(name, &generations).await? {
            return Ok(target);
        }
        let active = generations.iter().find(|generation| generation.is_active);
        let newer = |generation: &&Generation| match generation.status {
            GenerationStatus::Building => true,
            GenerationStatus::Kept => active.is_some_and(|a| generation.version > a.version),
            _ => false,
        };
        generations.iter().rev().find(newer).cloned().ok_or_else(|| {
            let message =
                format!("has nothing to promote; build it with `everfold rebuild {name}`");
            refused(name, message)
        })
    }

    /// Switches readers back to the generation that they saw before the last switch. It was fed all the
    /// time, so this takes moments. [`Store::rebuild`] has an example.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if no earlier
    /// generation was kept, or another kind of change of it is under way.
    pub async fn rollback(
        &self,
        name: &str,
        options: RebuildOptions,
    ) -> Result<Rebuild, ProjectionError> {
        let target = self.to_roll_back_to(name).await?;
        self.switch_to(target, options).await
    }

    /// What [`Store::rollback`] switches to.
    pub(super) async fn to_roll_back_to(&self, name: &str) -> Result<Generation, ProjectionError> {
        let generations = self.generations_of(name).await?;
        if let Some(target) = self.under_way(name, &generations).await? {
            return Ok(target);
        }
        let kept = |generation: &&Generation| generation.status == GenerationStatus::Kept;
        generations.iter().rev().find(kept).cloned().ok_or_else(|| {
            refused(name, "has nothing to go back to: no earlier generation is kept".to_owned())
        })
    }

    /// What an open switch goes to: one that was left in the middle is gone on with.
    async fn under_way(
        &self,
        name: &str,
        generations: &[Generation],
    ) -> Result<Option<Generation>, ProjectionError> {
        let open = self.open_rebuild(name).await?;
        let target = open.filter(|row| row.kind == RebuildKind::Switch).and_then(|row| row.target);
        let to = |target: i32| generations.iter().find(|generation| generation.id == target);
        Ok(target.and_then(to).cloned())
    }

    async fn switch_to(
        &self,
        target: Generation,
        options: RebuildOptions,
    ) -> Result<Rebuild, ProjectionError> {
        let id = target.id;
        let options = StoredOptions {
            options: RebuildOptions { promote: true, ..options },
            ..StoredOptions::default()
        };
        self.request(target, RebuildKind::Switch, Some(id), options).await
    }

    /// Rebuilds that are open, and then the last that have ended.
    ///
    /// ```
    /// use everfold::{RebuildKind, RebuildOptions};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// store.rebuild("carts", RebuildOptions::in_place()).await?.finish().await?;
    /// let rebuilds = store.rebuilds().await?;
    /// assert_eq!(rebuilds[0].kind, RebuildKind::InPlace);
    /// assert!(rebuilds[0].finished_at.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Store`] if the database refuses or cannot be reached.
    pub async fn rebuilds(&self) -> Result<Vec<RebuildProgress>, ProjectionError> {
        let mut rows = self.backend().rebuilds(true, usize::MAX).await?;
        let recent = self.backend().rebuilds(false, ENDED_SHOWN).await?;
        let ended = recent.into_iter().filter(|row| row.finished_at.is_some());
        rows.extend(ended);
        rows.retain(|row| row.namespace == self.options().namespace);
        Ok(rows.into_iter().map(RebuildProgress::of).collect())
    }

    /// The names of live workers that have the code for a rebuild, by its number, and so take it up
    /// when nobody works on it; none: somebody has to start a [`Runner`](crate::Runner) with it.
    ///
    /// # Errors
    /// [`ProjectionError::Store`] if the database refuses or cannot be reached.
    pub async fn rebuild_carriers(&self, rebuild: i32) -> Result<Vec<String>, ProjectionError> {
        Ok(self.backend().rebuild_carriers(rebuild).await?)
    }

    /// Lets a rebuild rest until [`Store::resume_rebuild`], whoever works on it; nothing is lost.
    ///
    /// # Errors
    /// [`ProjectionError::Refused`] if no rebuild of this projection is open.
    pub async fn pause_rebuild(&self, name: &str) -> Result<(), ProjectionError> {
        self.steer(name, Wanted::Pause).await
    }

    /// Goes on with a rebuild that was [paused](Store::pause_rebuild).
    ///
    /// # Errors
    /// [`ProjectionError::Refused`] if no rebuild of this projection is open.
    pub async fn resume_rebuild(&self, name: &str) -> Result<(), ProjectionError> {
        self.steer(name, Wanted::Run).await
    }

    /// Ends a rebuild that has not switched readers over yet, whoever works on it. What was built is
    /// dropped; readers go on to see what they see.
    ///
    /// # Errors
    /// [`ProjectionError::Refused`] if no rebuild of this projection is open, or there is no way back for it.
    pub async fn cancel_rebuild(&self, name: &str) -> Result<(), ProjectionError> {
        self.steer(name, Wanted::Cancel).await
    }

    async fn steer(&self, name: &str, wanted: Wanted) -> Result<(), ProjectionError> {
        let generations = self.generations_of(name).await?;
        let Some(row) = self.open_rebuild(name).await? else {
            return Err(refused(name, "is not being rebuilt".to_owned()));
        };
        let seen = |id: i32| generations.iter().any(|g| g.id == id && g.is_active);
        if wanted == Wanted::Cancel && row.target.is_some_and(seen) {
            let message = match row.kind {
                RebuildKind::InPlace => {
                    "is being rebuilt in place, and what it held is gone: let the rebuild end, or \
                     pause it"
                }
                _ => "has been switched over already; go back with `everfold rollback`",
            };
            return Err(refused(name, message.to_owned()));
        }
        match self.backend().steer_rebuild(row.id, wanted, operator()).await? {
            true => Ok(()),
            false => Err(refused(name, "is not being rebuilt any more".to_owned())),
        }
    }

    pub(super) async fn open_rebuild(&self, name: &str) -> Result<Option<RebuildRow>, StoreError> {
        let open = self.backend().rebuilds(true, usize::MAX).await?;
        let namespace = &self.options().namespace;
        Ok(open.into_iter().find(|row| row.name == name && row.namespace == *namespace))
    }

    pub(crate) async fn rebuild_row(&self, id: i32) -> Result<Option<RebuildRow>, StoreError> {
        let of_it = |rows: Vec<RebuildRow>| rows.into_iter().find(|row| row.id == id);
        match of_it(self.backend().rebuilds(true, usize::MAX).await?) {
            Some(row) => Ok(Some(row)),
            None => Ok(of_it(self.backend().rebuilds(false, 1_000).await?)),
        }
    }

    /// Puts the request down, or joins the one that is open, and works on it if the code is here.
    pub(crate) async fn request(
        &self,
        wanted: Generation,
        kind: RebuildKind,
        target: Option<i32>,
        options: StoredOptions,
    ) -> Result<Rebuild, ProjectionError> {
        self.check_somebody_can(&wanted, target, None).await?;
        let request = RebuildRequest::of(&wanted, kind, target, options);
        let (row, joined) = self.backend().request_rebuild(request).await?;
        if joined && (row.kind != kind || row.version != wanted.version) {
            let message = format!(
                "has another rebuild under way ({}, version {}, {}); wait for it, or `everfold rebuilds \
                 cancel {}`",
                row.kind, row.version, row.phase, row.name
            );
            return Err(refused(&row.name, message));
        }
        let stop = CancellationToken::new();
        let worker_name = format!("{}:{}", operator(), std::process::id());
        let work = self.means(&row).await?.map(|means| {
            let (store, row) = (self.clone(), row.clone());
            let stop = stop.child_token();
            tokio::spawn(store.work_on(row, means, worker_name, stop))
        });
        Ok(Rebuild::new(self.clone(), row, joined, stop, work))
    }

    /// Refuses what nobody could work on: its code is not here, registered or at hand, and no live
    /// process carries it.
    pub(super) async fn check_somebody_can(
        &self,
        wanted: &Generation,
        target: Option<i32>,
        at_hand: Option<&Projection>,
    ) -> Result<(), ProjectionError> {
        let Generation { namespace, name, version, .. } = wanted;
        let known = self.hub().definition(namespace, name, *version);
        let is_it =
            |known: &Projection| known.definition.hash(self.kind()) == wanted.definition_hash;
        let is_here = known.as_ref().is_some_and(is_it)
            || at_hand.is_some_and(is_it)
            || (target.is_some() && self.hub().projector_of(wanted).is_some());
        if is_here || self.open_rebuild(name).await?.is_some() {
            return Ok(());
        }
        let generations = self.generations_of(name).await?;
        let same = |id: i32| {
            let of_it = |other: &Generation| {
                other.id == id && other.definition_hash == wanted.definition_hash
            };
            generations.iter().any(of_it)
        };
        let facts = self.backend().generation_facts().await?;
        if facts.iter().any(|facts| facts.is_carried && same(facts.id)) {
            return Ok(());
        }
        let kept = generations
            .iter()
            .find(|other| other.status == GenerationStatus::Kept && other.version > wanted.version);
        let message = match (wanted.kind, kept) {
            (ProjectionKind::Sql, Some(kept)) if target.is_none() => format!(
                "was rolled back to version {version}, which readers see and which has no files here: \
                 `everfold promote {name}` goes forward to version {} again; to build version {version} \
                 anew, put its files back",
                kept.version
            ),
            (ProjectionKind::Sql, _) => format!(
                "has no files here for version {version}, and no live runner carries it; run this in \
                 the project that has it, or start `everfold run` there"
            ),
            _ => format!(
                "is written in Rust, and no live process carries version {version}; start one with a \
                 runner that was given it, then ask again"
            ),
        };
        Err(refused(name, message))
    }

    /// What is here to work on a rebuild with, if it is enough.
    pub(crate) async fn means(&self, row: &RebuildRow) -> Result<Option<Means>, StoreError> {
        let projection = self.hub().definition(&row.namespace, &row.name, row.version);
        let projection =
            projection.filter(|known| known.definition.hash(self.kind()) == row.definition_hash);
        if let Some(projection) = projection {
            let (projector, projection) = (projection.projector.clone(), Some(projection));
            return Ok(Some(Means { projector, projection }));
        }
        // To switch to a generation that is there, the database has the SQL.
        let Some(target) = row.target.filter(|_| row.kind == RebuildKind::Switch) else {
            return Ok(None);
        };
        let generations = self.backend().generations().await?;
        let target = generations.iter().find(|generation| generation.id == target);
        let projector = target.and_then(|target| self.hub().projector_of(target));
        Ok(projector.map(|projector| Means { projector, projection: None }))
    }

    /// Works on a rebuild whenever nobody else does, until it has ended.
    async fn work_on(
        self,
        row: RebuildRow,
        means: Means,
        worker_name: String,
        stop: CancellationToken,
    ) {
        loop {
            match self.try_work(row.id, means.clone(), worker_name.clone(), stop.clone()).await {
                Ok(Some(Ended::Finished)) => return,
                Ok(_) => {}
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, "a rebuild could not be taken up, trying again");
                }
                Err(error) => {
                    tracing::error!(%error, "a rebuild could not be taken up");
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(jitter(TRY_AGAIN)) => {}
            }
            match self.rebuild_row(row.id).await {
                Ok(Some(row)) if row.finished_at.is_none() => {}
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "a rebuild could not be looked at"),
            }
        }
    }

    /// Takes a rebuild if nobody works on it, and works on it; `None` if somebody does.
    pub(crate) async fn try_work(
        &self,
        rebuild: i32,
        means: Means,
        worker_name: String,
        stop: CancellationToken,
    ) -> Result<Option<Ended>, StoreError> {
        let worker = Uuid::now_v7();
        let Some(row) = self.rebuild_row(rebuild).await? else { return Ok(None) };
        let ttl = row.options.options.lease_ttl;
        let take = self.backend().take_rebuild(rebuild, worker, worker_name.clone(), ttl);
        let Some(lease) = take.await? else { return Ok(None) };
        // As it is now that it is ours.
        let Some(row) = self.rebuild_row(rebuild).await? else { return Ok(None) };
        let driver = Driver::new(self.clone(), row, lease, means, worker_name, stop.child_token());
        Ok(Some(driver.run().await))
    }

    /// A generation of this version that a runner has filled for the better part.
    async fn partly_built(&self, wanted: &Generation) -> Result<Option<i32>, ProjectionError> {
        let is_it = |generation: &Generation| {
            !generation.is_active
                && generation.status == GenerationStatus::Building
                && generation.namespace == wanted.namespace
                && generation.name == wanted.name
                && generation.definition_hash == wanted.definition_hash
        };
        // How far each of them is takes much longer to say.
        if !self.backend().generations().await?.iter().any(is_it) {
            return Ok(None);
        }
        let states = self.backend().states().await?;
        let mark = self.backend().heads().await?.mark;
        let lowest = |state: &GenerationState| {
            state.shards.iter().map(|shard| shard.position).min().unwrap_or(Position::START)
        };
        let goes_on =
            |state: &GenerationState| is_it(&state.generation) && lowest(state).0 > mark.0 / 2;
        Ok(states.iter().find(|state| goes_on(state)).map(|state| state.generation.id))
    }

    /// Settles everything that an inline projection owes, as far as no dead letter holds it, and tells how
    /// many events that were. Runners do it by themselves; this is for whoever has none, or will not wait.
    ///
    /// Each step is a transaction: dropped half-way, the rest is owed as before, and runners take it up
    /// when the lease that this had taken has run out (15 s).
    ///
    /// ```
    /// use everfold::{ExpectedVersion, NewEvent, Projection};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// store.register(Projection::document("carts", 1, Carts).inline().build()?).await?;
    /// store.pause("carts").await?; // as it is owed when old code appends
    /// let added = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
    /// store.append("cart-1", ExpectedVersion::Any, [added]).await?;
    /// assert_eq!(store.skips("carts").await?.len(), 1);
    ///
    /// store.resume("carts").await?;
    /// assert_eq!(store.drain("carts").await?, 1);
    /// assert!(store.skips("carts").await?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Refused`] if this
    /// process does not have its code: a runner that has it settles what is owed.
    pub async fn drain(&self, name: &str) -> Result<u64, ProjectionError> {
        super::drain::drain(self, name).await
    }
}

/// What is meant by rebuilding a projection: the newest version, unless it was rolled back from.
pub(super) fn to_build(generations: &[Generation]) -> &Generation {
    let active = generations.iter().find(|generation| generation.is_active);
    let newer = generations.iter().filter(|generation| {
        generation.status != GenerationStatus::Kept
            && active.is_none_or(|active| generation.version > active.version)
    });
    let newest = newer.max_by_key(|generation| (generation.version, generation.id));
    newest.or(active).unwrap_or(&generations[generations.len() - 1])
}

pub(super) fn refused(name: &str, message: String) -> ProjectionError {
    ProjectionError::Refused { projection: name.to_owned(), message }
}
