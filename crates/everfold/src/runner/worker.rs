//! The worker: signs of life, leases, and a task for each shard it has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::{Context, Identity, Runnable};
use super::rebuilds::Rebuilds;
use super::schedule::Schedule;
use super::shard::{Bells, Ended, Place, RUNNING, Shard, is_drained};
use super::watchdog::Watchdog;
use crate::Position;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::document::panic_message;
use crate::projection::generation::{Generation, GenerationStatus, Lease, ShardId};
use crate::projection::registry::past_the_end;
use crate::rebuild::fill::unfilled;
use crate::store::{StatusChange, Tick, jitter};

/// How often old rows of the logs are deleted, and generations seen to.
const PRUNE_EVERY: Duration = Duration::from_secs(10 * 60);
/// Most dead letters that are tried again between two heartbeats.
const RETRIES_MAX: usize = 100;

pub(super) struct Worker {
    context: Arc<Context>,
    stop: CancellationToken,
    /// Generations whose code is here, by id.
    runnable: HashMap<i32, Runnable>,
    running: HashMap<ShardId, Running>,
    shards: JoinSet<(ShardId, i64, Ended)>,
    by_task: HashMap<Id, ShardId>,
    /// Rung for a generation that owes something.
    owing: HashMap<i32, Arc<Notify>>,
    watchdog: Watchdog,
    rebuilds: Rebuilds,
    schedule: Schedule,
    /// When old rows of the logs were deleted last, by this worker.
    pruned: Option<Instant>,
}

/// A shard's task.
struct Running {
    epoch: i64,
    stop: CancellationToken,
    place: Arc<Place>,
}

impl Worker {
    pub(super) fn new(context: Arc<Context>, stop: CancellationToken) -> Self {
        Worker {
            watchdog: Watchdog::new(Arc::clone(&context)),
            rebuilds: Rebuilds::new(Arc::clone(&context), stop.child_token()),
            schedule: Schedule::new(Arc::clone(&context)),
            context,
            stop,
            runnable: HashMap::new(),
            running: HashMap::new(),
            shards: JoinSet::new(),
            by_task: HashMap::new(),
            owing: HashMap::new(),
            pruned: None,
        }
    }

    /// Runs until it is told to stop, or the store is closed.
    pub(super) async fn run(mut self) {
        let mut seen = Position::START;
        let mut beat = Instant::now();
        let mut pause = Duration::ZERO;
        loop {
            let store = self.context.store.clone();
            let has_drained = self.has_drained();
            let look = Arc::clone(&self.context);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(ended) = self.shards.join_next_with_id(), if !self.shards.is_empty() => {
                    if self.ended(ended).await {
                        break;
                    }
                    continue;
                }
                () = look.look.notified() => {}
                () = tokio::time::sleep_until(beat + pause) => {}
                mark = store.mark_past(seen), if has_drained => {
                    match mark {
                        Ok(mark) => seen = mark,
                        Err(_) => tokio::time::sleep(jitter(Duration::from_millis(200))).await,
                    }
                    self.ring_owing().await;
                    continue;
                }
            }
            beat = Instant::now();
            match self.beat().await {
                Ok(()) => {
                    self.context.accepted(None);
                    pause = jitter(self.until_next());
                }
                Err(error) if error.kind() == StoreErrorKind::HandleClosed => break,
                Err(error) => {
                    if error.is_transient() {
                        tracing::warn!(%error, "the runner's heartbeat failed, trying again");
                    } else {
                        tracing::error!(%error, "the database refuses the runner's heartbeat");
                        self.context.refused(None, error.to_string());
                    }
                    pause = jitter(self.context.options.heartbeat / 4);
                }
            }
        }
        self.leave().await;
    }

    /// One sign of life: what exists, which shards are ours, what operators want.
    async fn beat(&mut self) -> Result<(), StoreError> {
        let context = Arc::clone(&self.context);
        let backend = context.store.backend();
        let generations = backend.generations().await?;
        let unfilled = self.unfilled_here(&generations);
        self.runnable = generations.into_iter().filter_map(|g| self.runnable_of(g)).collect();
        let mut carries: Vec<i32> = self.runnable.keys().copied().collect();
        carries.sort_unstable();
        self.look_for_stuck();
        let tick = Tick {
            worker: context.worker,
            name: context.options.worker_name.clone(),
            carries: carries.clone(),
            lease_ttl: context.options.lease_ttl,
            stuck: self.watchdog.generations(),
        };
        // Before the tick: no checkpoint that it finds can be behind one of these.
        let known = self.known_positions();
        let leases = backend.tick(tick).await?;
        let leases = self.without_those_past_the_end(leases).await?;
        for lease in &leases {
            if known.get(&lease.shard).is_some_and(|known| lease.position < *known)
                && let Some(running) = self.running.get(&lease.shard)
            {
                running.place.stepped_back.notify_one();
            }
        }
        self.take_up(leases);
        self.watchdog.tell();
        self.ring_owing().await;
        if !carries.is_empty() {
            self.retry_wanted(carries).await?;
        }
        self.rebuilds.look(unfilled).await?;
        self.schedule.look(self.led());
        // At once the first time: a runner that a scheduler starts does not live for long.
        if self.pruned.is_none_or(|pruned| pruned.elapsed() >= PRUNE_EVERY) {
            self.pruned = Some(Instant::now());
            self.prune();
        }
        Ok(())
    }

    /// Generations whose code is here that wait for a first fill.
    fn unfilled_here(&self, generations: &[Generation]) -> Vec<Generation> {
        let unfilled = unfilled(generations.iter());
        let waits = generations.iter().filter(|generation| unfilled.contains(&generation.id));
        let given =
            |generation: &&Generation| self.context.given.contains_key(&Identity::of(generation));
        waits.filter(given).cloned().collect()
    }

    /// Generations whose first shards are run here.
    fn led(&self) -> Vec<Arc<Generation>> {
        let first = self.running.keys().filter(|shard| shard.shard == 0);
        let runnable = first.filter_map(|shard| self.runnable.get(&shard.generation));
        runnable.map(|runnable| Arc::clone(&runnable.generation)).collect()
    }

    fn look_for_stuck(&mut self) {
        self.watchdog.forget_those_back();
        for (&shard, Running { epoch, place, .. }) in &self.running {
            let Some(runnable) = self.runnable.get(&shard.generation) else { continue };
            let lease = Lease { shard, epoch: *epoch, position: place.position() };
            self.watchdog.look(lease, runnable, place);
        }
    }

    fn known_positions(&self) -> HashMap<ShardId, Position> {
        self.running.iter().map(|(shard, running)| (*shard, running.place.position())).collect()
    }

    /// A checkpoint that the log has not reached is one of events that the log has lost, and other
    /// events get their positions: such a projection is stopped, whatever its policy.
    async fn without_those_past_the_end(
        &self,
        leases: Vec<Lease>,
    ) -> Result<Vec<Lease>, StoreError> {
        if leases.is_empty() {
            return Ok(leases);
        }
        // Later than the tick.
        let highest = self.context.store.backend().heads().await?.highest;
        let reason = |lease: &Lease| {
            let runnable = self.runnable.get(&lease.shard.generation)?;
            past_the_end(&runnable.generation, lease.position, highest)
        };
        let mut failed = HashSet::new();
        for lease in &leases {
            if let Some(reason) = reason(lease).filter(|_| failed.insert(lease.shard.generation)) {
                self.stop_as_failed(lease.shard.generation, reason).await?;
            }
        }
        Ok(leases.into_iter().filter(|lease| !failed.contains(&lease.shard.generation)).collect())
    }

    /// Deletes old rows of the logs and what is retired, and sees to spare generations, without keeping
    /// signs of life waiting.
    fn prune(&self) {
        let context = Arc::clone(&self.context);
        tokio::spawn(async move {
            let pruned = context.store.backend().prune(context.options.log_retention).await;
            match pruned {
                Ok(()) => {}
                // The process ends; the next one sees to it.
                Err(error) if error.kind() == StoreErrorKind::HandleClosed => return,
                Err(error) => {
                    tracing::warn!(%error, "old rows of the run log could not be deleted");
                }
            }
            context.store.prepare_spares().await;
            match context.store.remove_leftovers(&context.options.worker_name).await {
                Ok(()) => {}
                Err(ProjectionError::Store(error))
                    if error.kind() == StoreErrorKind::HandleClosed => {}
                Err(error) => {
                    tracing::warn!(%error, "generations that are retired could not be dropped");
                }
            }
        });
    }

    fn runnable_of(&self, generation: Generation) -> Option<(i32, Runnable)> {
        let projector = self.context.given.get(&Identity::of(&generation))?.clone();
        if is_drained(&generation) && !self.context.options.drain {
            return None;
        }
        let id = generation.id;
        Some((id, Runnable { generation: Arc::new(generation), projector }))
    }

    /// While others run some of what this worker could run, it looks more often.
    fn until_next(&self) -> Duration {
        let runs = |status| !matches!(status, GenerationStatus::Paused | GenerationStatus::Failed);
        let running = self.runnable.values().filter(|runnable| runs(runnable.generation.status));
        let shards: usize = running.map(|runnable| runnable.generation.shards as usize).sum();
        let options = &self.context.options;
        match self.running.len() < shards {
            true => options.standby_poll.min(options.heartbeat),
            false => options.heartbeat,
        }
    }

    /// Starts tasks for leases that are new, and ends those whose lease is gone.
    fn take_up(&mut self, leases: Vec<Lease>) {
        let epochs: HashMap<ShardId, i64> =
            leases.iter().map(|lease| (lease.shard, lease.epoch)).collect();
        self.running.retain(|shard, running| {
            let keep = epochs.get(shard) == Some(&running.epoch);
            if !keep {
                running.stop.cancel();
            } else if let Some(runnable) = self.runnable.get(&shard.generation) {
                running.place.set_generation(&runnable.generation);
            }
            keep
        });
        for lease in leases {
            if self.running.contains_key(&lease.shard) || self.watchdog.holds(lease.shard) {
                continue;
            }
            let Some(runnable) = self.runnable.get(&lease.shard.generation).cloned() else {
                continue;
            };
            self.context.runs_again(&runnable.generation);
            self.start(runnable, lease);
        }
    }

    fn start(&mut self, runnable: Runnable, lease: Lease) {
        let (shard, epoch) = (lease.shard, lease.epoch);
        let stop = self.stop.child_token();
        let owing = Arc::clone(self.owing.entry(shard.generation).or_default());
        let place = Arc::new(Place::new(lease.position, Arc::clone(&runnable.generation)));
        let bells = Bells { stop: stop.clone(), owing, place: Arc::clone(&place) };
        let task = Shard::new(Arc::clone(&self.context), runnable, lease, bells);
        let spawned = self.shards.spawn(async move { (shard, epoch, task.run().await) });
        self.by_task.insert(spawned.id(), shard);
        self.running.insert(shard, Running { epoch, stop, place });
    }

    fn has_drained(&self) -> bool {
        self.running.keys().any(|shard| self.is_drained(*shard))
    }

    fn is_drained(&self, shard: ShardId) -> bool {
        let runnable = self.runnable.get(&shard.generation);
        runnable.is_some_and(|runnable| is_drained(&runnable.generation))
    }

    /// Asks once for all inline projections that are drained here.
    async fn ring_owing(&self) {
        let drained = self.running.keys().filter(|shard| self.is_drained(**shard));
        let generations: Vec<i32> = drained.map(|shard| shard.generation).collect();
        if generations.is_empty() {
            return;
        }
        match self.context.store.backend().owing(generations).await {
            Ok(owing) => {
                for generation in owing {
                    if let Some(bell) = self.owing.get(&generation) {
                        bell.notify_one();
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "what is owed could not be read"),
        }
    }

    /// Tries dead letters again that an operator asked for.
    async fn retry_wanted(&self, carries: Vec<i32>) -> Result<(), StoreError> {
        let context = &self.context;
        let wanted = context.store.backend().wanted_retries(carries, RETRIES_MAX).await?;
        let runnable = self.runnable.clone();
        let (store, actor) = (context.store.clone(), context.options.worker_name.clone());
        let timeout = context.options.handler_limit();
        // One after the other, so that they leave connections to the others.
        tokio::spawn(async move {
            for (generation, position) in wanted {
                let Some(runnable) = runnable.get(&generation).cloned() else { continue };
                let (store, actor) = (store.clone(), actor.clone());
                let name = runnable.generation.name.clone();
                let runnable = (runnable.generation, runnable.projector);
                match store.retry_with(runnable, position, actor, timeout).await {
                    Ok(outcome) => {
                        tracing::info!(projection = name, %position, ?outcome, "retried")
                    }
                    Err(error) => tracing::warn!(projection = name, %error, "could not be retried"),
                }
            }
        });
        Ok(())
    }

    /// A shard's task has ended. Returns whether the runner is to end too.
    async fn ended(&mut self, ended: Result<(Id, (ShardId, i64, Ended)), JoinError>) -> bool {
        match ended {
            Ok((id, (shard, epoch, ended))) => {
                self.by_task.remove(&id);
                if self.running.get(&shard).is_some_and(|running| running.epoch == epoch) {
                    self.running.remove(&shard);
                    if ended == Ended::LeaseLost {
                        tracing::info!(?shard, "somebody else runs this shard now");
                        self.context.look.notify_one();
                    }
                }
                ended == Ended::Closed
            }
            Err(error) => {
                let shard = self.by_task.remove(&error.id());
                if let Some(shard) = shard {
                    self.running.remove(&shard);
                    self.panicked(shard, error).await;
                }
                false
            }
        }
    }

    /// What no job caught: the projection is stopped, the others go on.
    async fn panicked(&self, shard: ShardId, error: JoinError) {
        let Some(runnable) = self.runnable.get(&shard.generation) else { return };
        let Ok(panic) = error.try_into_panic() else { return };
        let reason = format!("it panicked: {}", panic_message(&*panic));
        if let Err(error) = self.stop_as_failed(shard.generation, reason.clone()).await {
            tracing::warn!(%error, "a projection's panic could not be noted");
            self.context.failed(&runnable.generation, reason);
        }
    }

    async fn stop_as_failed(&self, generation: i32, reason: String) -> Result<(), StoreError> {
        let change = StatusChange {
            generation,
            from: RUNNING.to_vec(),
            to: GenerationStatus::Failed,
            reason: Some(reason.clone()),
            actor: self.context.options.worker_name.clone(),
            rebuild: None,
        };
        self.context.store.backend().change_status(change).await?;
        if let Some(runnable) = self.runnable.get(&generation) {
            self.context.failed(&runnable.generation, reason);
        }
        self.context.store.hub().has_moved();
        Ok(())
    }

    /// Lets the batches in hand finish, then gives up all leases so that others go on at once.
    async fn leave(mut self) {
        self.stop.cancel();
        let finishing = async {
            while self.shards.join_next().await.is_some() {}
            self.rebuilds.finish().await;
        };
        let patience = self.context.options.stop_timeout;
        if tokio::time::timeout(patience, finishing).await.is_err() {
            tracing::warn!(?patience, "batches in hand did not finish in time, leaving them");
            self.shards.abort_all();
        }
        let leaving = self.context.store.backend().leave(self.context.worker);
        match tokio::time::timeout(patience, leaving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.kind() == StoreErrorKind::HandleClosed => {}
            Ok(Err(error)) => tracing::warn!(%error, "leases could not be given up; they run out"),
            Err(_) => tracing::warn!("leases could not be given up in time; they run out"),
        }
    }
}
