//! Works on one rebuild from wherever it stands to its end.
//!
//! ```text
//!   target ──> history: parts, parallel ──> catch up: batches ──> compare ──> switch ──> tidy up
//!      (in place: swapped in first)            feed.rs                        switch.rs
//! ```
//!
//! Nothing is remembered here that matters: the row, the generations and the checkpoints say where it
//! stands, and whoever takes the lease next begins with them.

mod desk;
mod feed;
mod history;
mod holders;
mod switch;

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

use super::row::{RebuildFigures, RebuildKind, RebuildLease, RebuildPhase, RebuildRow};
use crate::Position;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::definition::{Lifecycle, ProjectionKind};
use crate::projection::generation::{Generation, GenerationStatus, Lease};
use crate::projection::job::{Job, Task};
use crate::projection::projector::{ApplyError, Projector};
use crate::store::{Comparing, StatusChange, Store};
use desk::{Desk, Halt, Step};
use feed::Feed;

/// Pauses before the end of a rebuild is written down again.
const TROUBLE_PAUSE: Duration = Duration::from_millis(250);
const BUSY_PAUSE: Duration = Duration::from_millis(900);
/// Differences that are named in the message.
const EXAMPLES: usize = 20;

/// What works on a rebuild needs of the projection: the code, and to make a generation its definition.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(crate) projector: Projector,
    pub(crate) projection: Option<Projection>,
}

/// The generation that is built or switched to.
struct Target {
    generation: Arc<Generation>,
    projector: Projector,
    actor: String,
}

impl Target {
    fn job(&self, desk: &Desk, task: Task) -> Job {
        let (generation, projector) = (Arc::clone(&self.generation), self.projector.clone());
        Job::new(generation, projector, desk.store.upcasters_shared(), task)
    }

    fn is_inline(&self) -> bool {
        self.generation.lifecycle == Lifecycle::Inline
    }
}

/// How work on a rebuild ended here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has ended, one way or another; its row says how.
    Finished,
    /// Somebody else works on it, or may go on.
    Left,
}

/// Works on a rebuild whose lease is ours.
pub(crate) struct Driver {
    desk: Arc<Desk>,
    row: RebuildRow,
    means: Means,
    actor: String,
}

impl Driver {
    pub(crate) fn new(
        store: Store,
        row: RebuildRow,
        lease: RebuildLease,
        means: Means,
        actor: String,
        stop: CancellationToken,
    ) -> Self {
        Driver { desk: Arc::new(Desk::new(store, lease, &row, stop)), row, means, actor }
    }

    /// Works until the end, or until somebody else is to go on.
    pub(crate) async fn run(mut self) -> Ended {
        let desk = Arc::clone(&self.desk);
        let alive = Arc::clone(&desk);
        let alive = tokio::spawn(async move { alive.keep_alive().await });
        let outcome = self.work().await;
        let ended = self.end(outcome).await;
        desk.gone.cancel();
        // The last sign of life is not to come after the end.
        let _ = alive.await;
        desk.store.hub().has_moved();
        ended
    }

    async fn work(&mut self) -> Step {
        if self.row.flipped_at.is_some() || self.is_swapped_in().await {
            self.desk.cannot_be_cancelled();
        }
        self.wait_for_a_place().await?;
        let target = self.target().await?;
        if self.row.flipped_at.is_some() {
            self.desk.cannot_be_cancelled();
            return self.settle(&target).await;
        }
        let target = self.swap_in(target).await?;
        let target = self.build(target).await?;
        if self.row.kind == RebuildKind::AsOf {
            let position = Position(self.row.options.up_to.unwrap_or_default());
            let lease = self.desk.lease;
            let backend = self.desk.store.backend();
            return self.desk.patiently(|| backend.show_as_of(lease, position)).await;
        }
        self.compare(&target).await?;
        if !self.row.options.options.promote && self.row.kind != RebuildKind::InPlace {
            return Ok(());
        }
        let target = self.switch(target).await?;
        self.settle(&target).await
    }

    /// Waits while as many others are under way as may be.
    async fn wait_for_a_place(&self) -> Step {
        let Some(most) = self.row.options.options.at_most else { return Ok(()) };
        loop {
            let backend = self.desk.store.backend();
            let open = self.desk.patiently(|| backend.rebuilds(true, usize::MAX)).await?;
            let earlier = |row: &&RebuildRow| row.is_owned && row.id < self.row.id;
            if open.iter().filter(earlier).count() < most.max(1) as usize {
                return Ok(());
            }
            self.desk.say(Some(format!("waiting: {most} rebuilds may run at once")));
            self.desk.pause(Duration::from_millis(500)).await?;
        }
    }

    /// The generation to build or to switch to, made if there is none yet.
    async fn target(&mut self) -> Step<Arc<Target>> {
        let backend = self.desk.store.backend();
        let lease = self.desk.lease;
        let generation = match self.row.target {
            Some(target) => self.generation(target).await?,
            None => {
                let Some(projection) = self.means.projection.clone() else {
                    return Err(Halt::Failed(
                        "its definition is not known here; rebuild it from where it is defined"
                            .to_owned(),
                    ));
                };
                let making = self.desk.patiently(|| backend.make_target(lease, projection.clone()));
                let made = self.naming_holders(making).await?;
                self.row.target = Some(made.id);
                made
            }
        };
        // Whoever made it may have been stopped before it was filled.
        if let (Some(snapshot), None) = (self.row.options.snapshot, self.row.flipped_at) {
            self.desk.patiently(|| backend.restore_snapshot(lease, snapshot)).await?;
        }
        Ok(self.target_of(generation))
    }

    fn target_of(&self, generation: Generation) -> Arc<Target> {
        let (projector, actor) = (self.means.projector.clone(), self.actor.clone());
        Arc::new(Target { generation: Arc::new(generation), projector, actor })
    }

    async fn generation(&self, id: i32) -> Step<Generation> {
        let backend = self.desk.store.backend();
        let generations = self.desk.patiently(|| backend.generations()).await?;
        generations.into_iter().find(|generation| generation.id == id).ok_or_else(|| {
            Halt::Failed("the generation that was being built has been removed".to_owned())
        })
    }

    /// The target as it is now.
    async fn reload(&self, target: &Target) -> Step<Arc<Target>> {
        Ok(self.target_of(self.generation(target.generation.id).await?))
    }

    /// What readers see now, if that is not the target.
    async fn source(&self, target: &Target) -> Step<Option<Arc<Generation>>> {
        let backend = self.desk.store.backend();
        let generations = self.desk.patiently(|| backend.generations()).await?;
        let Generation { id, namespace, name, .. } = &*target.generation;
        let source = generations.into_iter().find(|other| {
            other.is_active
                && other.id != *id
                && (&other.namespace, &other.name) == (namespace, name)
        });
        Ok(source.map(Arc::new))
    }

    /// The leases of all the target's shards, before the switch.
    async fn leases(&self) -> Step<Vec<Lease>> {
        let (backend, lease) = (self.desk.store.backend(), self.desk.lease);
        let leases = self.desk.patiently(|| backend.target_leases(lease)).await?;
        if leases.is_empty() {
            // Somebody has taken them away. Whoever takes the rebuild next gets them again.
            return Err(Halt::Stopped);
        }
        Ok(leases)
    }

    /// In place: whether what readers saw at the beginning is gone, so that there is no way back.
    async fn is_swapped_in(&self) -> bool {
        if self.row.kind != RebuildKind::InPlace {
            return false;
        }
        let generations = self.desk.store.backend().generations().await.unwrap_or_default();
        let active = generations.iter().find(|generation| {
            generation.is_active
                && (&generation.namespace, &generation.name)
                    == (&self.row.namespace, &self.row.name)
        });
        active.map(|active| active.id) != self.row.source
    }

    /// Fills the target with history, and brings it close to the end of the log.
    async fn build(&mut self, target: Arc<Target>) -> Step<Arc<Target>> {
        if !feed::is_fed(target.generation.status) && self.row.kind != RebuildKind::AsOf {
            let status = target.generation.status;
            let reason = target.generation.reason.clone().unwrap_or_default();
            return Err(Halt::Failed(format!("the generation to build is {status}: {reason}")));
        }
        let copied = self.copy_history(target).await?;
        self.desk.enter(RebuildPhase::CatchingUp);
        let target = self.list_again(copied).await?;
        self.settle_owed(&target).await?;
        self.catch_up(&target).await?;
        Ok(target)
    }

    /// Applies what is there until little comes in during a pass. Returns the last mark.
    async fn catch_up(&self, target: &Arc<Target>) -> Step<Position> {
        let up_to = self.row.options.up_to.map(Position);
        let mut feeds = self.feeds(target).await?;
        loop {
            let store = &self.desk.store;
            let mark = self.desk.patiently(|| store.high_water_mark()).await?;
            let mark = up_to.map_or(mark, |up_to| mark.min(up_to));
            let lowest = feeds.iter().map(|feed| feed.position).min().unwrap_or(mark);
            let done = self.desk.figures().events_done;
            self.desk.expect(done + mark.0.saturating_sub(lowest.0));
            let fed = try_join_all(feeds.iter_mut().map(|feed| feed.feed_to(mark))).await?;
            if up_to.is_some_and(|up_to| mark >= up_to) {
                return Ok(mark);
            }
            // What comes in during such a pass fits into the switch.
            if fed.iter().sum::<u64>() <= self.row.options.options.fence_events as u64 / 2 {
                self.desk.expect(self.desk.figures().events_done);
                return Ok(mark);
            }
        }
    }

    async fn feeds(&self, target: &Arc<Target>) -> Step<Vec<Feed>> {
        let leases = self.leases().await?;
        let feed = |lease| Feed::new(Arc::clone(&self.desk), Arc::clone(target), lease);
        Ok(leases.into_iter().map(feed).collect())
    }

    /// Compares a new version with what readers see, if that is wanted.
    async fn compare(&self, target: &Arc<Target>) -> Step {
        let options = &self.row.options.options;
        let Some(source) = self.source(target).await? else { return Ok(()) };
        let differs = source.definition_hash != target.generation.definition_hash;
        if !options.compare || !differs || self.row.kind == RebuildKind::Switch {
            return Ok(());
        }
        self.desk.enter(RebuildPhase::Comparing);
        let comparing = Comparing {
            lease: self.desk.lease,
            target: Arc::clone(&target.generation),
            source,
            projector: target.projector.clone(),
            upcasters: self.desk.store.upcasters_shared(),
            examples: EXAMPLES,
        };
        let backend = self.desk.store.backend();
        let found = match backend.compare(comparing.clone()).await {
            // Nobody feeds the old one: that is no reason to keep readers on it, unless somebody wants to
            // know what differs before they are switched.
            Err(ApplyError::Refused { message, .. }) if options.max_differences.is_none() => {
                self.desk.say(Some(format!("not compared: {message}")));
                return Ok(());
            }
            Err(ApplyError::Refused { message, .. }) => {
                return Err(Halt::NotPromoted(format!("not promoted: {message}")));
            }
            Ok(found) => found,
            Err(_) => self.desk.patiently(|| backend.compare(comparing.clone())).await?,
        };
        self.desk.compared(&found);
        match options.max_differences {
            Some(most) if found.differences > most => Err(Halt::NotPromoted(format!(
                "not promoted: {} of {} rows differ from what readers see, and at most {most} may; \
                 look at them with `everfold rebuilds`, then `everfold promote {}`",
                found.differences, found.compared, self.row.name
            ))),
            _ => Ok(()),
        }
    }

    /// Writes down how it ended, and removes what nobody needs any more.
    async fn end(&self, outcome: Step) -> Ended {
        let options = &self.row.options.options;
        let (phase, message) = match outcome {
            Ok(()) if options.promote && self.row.kind != RebuildKind::AsOf => {
                (RebuildPhase::Done, self.last_words())
            }
            Ok(()) => (RebuildPhase::Built, self.desk.figures().message),
            Err(Halt::NotPromoted(message)) => (RebuildPhase::Built, Some(message)),
            Err(Halt::Cancelled) => (RebuildPhase::Cancelled, None),
            Err(Halt::Failed(message)) if self.row.flipped_at.is_some() => {
                self.retire_paused_source().await;
                (RebuildPhase::Done, Some(format!("switched, but not tidied up: {message}")))
            }
            Err(Halt::Failed(message)) => (RebuildPhase::Failed, Some(message)),
            Err(Halt::Lost) => return Ended::Left,
            Err(Halt::Stopped) => {
                if let Err(error) = self.desk.store.backend().leave_rebuild(self.desk.lease).await {
                    tracing::warn!(%error, "a rebuild could not be left; its lease runs out");
                }
                return Ended::Left;
            }
        };
        self.desk.close();
        // Whoever hears of the end may begin another one at once.
        self.prepare_spare().await;
        let figures = RebuildFigures { phase: Some(phase), message, ..self.desk.figures() };
        let given_up = match phase {
            RebuildPhase::Done => None,
            _ => self.given_up(phase).await,
        };
        let ended = self.write_end(figures, given_up).await;
        self.remove_leftovers();
        ended
    }

    /// What is to be said of one that went well.
    fn last_words(&self) -> Option<String> {
        let name = &self.row.name;
        let resumed = format!(
            "it was paused, and is fed again since the switch; `everfold pause {name}` pauses what readers \
             see now"
        );
        let resumed = self.desk.has_ended_pause().then_some(resumed);
        let words: Vec<String> = self.desk.figures().message.into_iter().chain(resumed).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    async fn write_end(&self, figures: RebuildFigures, given_up: Option<StatusChange>) -> Ended {
        let mut troubles = 0;
        loop {
            let (backend, lease) = (self.desk.store.backend(), self.desk.lease);
            let last = RebuildFigures { phase: None, ..figures.clone() };
            if let Ok(None) = backend.beat_rebuild(lease, self.desk.lease_ttl, last).await {
                return Ended::Left;
            }
            let (figures, actor) = (figures.clone(), self.actor.clone());
            match backend.end_rebuild(lease, figures, actor, given_up.clone()).await {
                Ok(true) => break,
                Ok(false) => return Ended::Left,
                Err(error) if error.is_transient() && troubles < 20 => {
                    troubles += 1;
                    // Appends may have waited for a try that was made behind gates.
                    let busy = error.kind() == StoreErrorKind::Busy;
                    let pause = if busy { BUSY_PAUSE } else { TROUBLE_PAUSE };
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the end of a rebuild could not be noted");
                    return Ended::Left;
                }
            }
        }
        if self.row.flipped_at.is_none() {
            self.prepare_spare().await;
        }
        Ended::Finished
    }

    /// What becomes of a target that is not switched to: one that is built waits for a promotion, one
    /// that this rebuild made is retired, one that was there is what it was.
    async fn given_up(&self, phase: RebuildPhase) -> Option<StatusChange> {
        let id = self.row.target?;
        let generation = self.generation(id).await.ok()?;
        let source = self.row.source;
        let (to, reason) = match (self.row.kind, phase) {
            // It is what readers see, and half filled.
            _ if generation.is_active => {
                let name = &self.row.name;
                let reason = format!(
                    "its rebuild in place did not end; fill it with `everfold rebuild {name}`"
                );
                (GenerationStatus::Rebuilding, Some(reason))
            }
            (RebuildKind::AsOf, RebuildPhase::Built) => return None,
            (_, RebuildPhase::Built) => (GenerationStatus::Building, generation.reason.clone()),
            (RebuildKind::Switch, _) if source.is_some_and(|source| id < source) => {
                (GenerationStatus::Kept, None)
            }
            (RebuildKind::Switch, _) => (GenerationStatus::Building, generation.reason.clone()),
            _ => (GenerationStatus::Retired, None),
        };
        if to == GenerationStatus::Building && generation.status == to {
            return None;
        }
        let from = [
            GenerationStatus::Building,
            GenerationStatus::Rebuilding,
            GenerationStatus::Failed,
            GenerationStatus::Paused,
        ];
        let (from, actor, rebuild) = (from.to_vec(), self.actor.clone(), None);
        Some(StatusChange { generation: id, from, to, reason, actor, rebuild })
    }

    /// A source that the switch has paused, and that could not be made one that is kept, would be fed
    /// from nobody knows where if it were resumed.
    async fn retire_paused_source(&self) {
        let Some(generation) = self.row.source else { return };
        let change = StatusChange {
            generation,
            from: vec![GenerationStatus::Paused],
            to: GenerationStatus::Retired,
            reason: None,
            actor: self.actor.clone(),
            rebuild: Some(self.desk.lease),
        };
        if let Err(error) = self.desk.store.backend().change_status(change).await {
            tracing::warn!(%error, "the generation that was switched from could not be retired");
        }
    }

    /// Makes what the next rebuild of it begins with; not while this one may still switch.
    async fn prepare_spare(&self) {
        if let Some(projection) = self.means.projection.clone() {
            self.desk.store.prepare_spare(projection).await;
        }
    }

    /// Drops what is retired, as far as nobody sees it any more, without waiting for it; runners try
    /// again later.
    fn remove_leftovers(&self) {
        let (store, name, actor) =
            (self.desk.store.clone(), self.row.name.clone(), self.actor.clone());
        tokio::spawn(async move {
            match store.remove_retired(&name, &actor).await {
                Err(ProjectionError::Store(error)) if is_closed(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, projection = name, "retired generations were not dropped");
                }
                Ok(()) => {}
            }
        });
    }

    /// Whether clients apply it in their appends, and have to learn of a new generation first.
    fn is_carried(target: &Target) -> bool {
        target.is_inline() && target.generation.kind != ProjectionKind::Sql
    }
}

fn is_closed(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::HandleClosed
}
