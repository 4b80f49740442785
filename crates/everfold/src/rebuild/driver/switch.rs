//! Switching readers and appends over: behind the fence, or without it where callers' transactions
//! outlast it. docs/design.md, Rebuilds, has the protocol; each step is one job of projection/job.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::desk::{Halt, Step};
use super::holders::Waiting;
use super::{Driver, Target};
use crate::Position;
use crate::error::StoreErrorKind;
use crate::projection::generation::{Generation, GenerationStatus, Lease};
use crate::projection::job::{JobOutcome, Switch, SwitchLimits, SwitchStep, Switched, Task};
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildKind, RebuildPhase};
use crate::runner::backoff::Backoff;
use crate::store::{GateHolder, StatusChange, jitter};

/// How long handles that carry an inline projection need at most to learn of a new generation.
const CARRIERS_LEARN: Duration = Duration::from_millis(1_500);
/// How often it is looked who still holds a gate.
const LOOK: Duration = Duration::from_millis(20);
/// Most skips that are settled in one transaction.
const DRAIN_EVENTS: usize = 500;
/// Skips that are counted to know how many there are.
const SKIPS_COUNTED: usize = 100_000;
/// Holders that are named.
const NAMED: usize = 3;
/// How often it is looked who holds the registry gate while that is waited for.
const NAME_EVERY: Duration = Duration::from_secs(1);
/// The registry gate, where gates are named by generations.
const REGISTRY: i32 = 0;

impl Driver {
    /// In place: puts the empty target in, before anything else.
    pub(super) async fn swap_in(&self, target: Arc<Target>) -> Step<Arc<Target>> {
        if self.row.kind != RebuildKind::InPlace {
            return Ok(target);
        }
        if !target.generation.is_active {
            self.widen().await?;
            let source = self.source(&target).await?;
            self.behind_the_gates(&target, source.clone(), SwitchStep::SwapIn).await?;
            self.desk.switched_from(source.as_deref());
            self.remove_leftovers();
        }
        self.desk.cannot_be_cancelled();
        self.reload(&target).await
    }

    /// A kept inline generation is one that appends do not list: they have to, before anything else.
    pub(super) async fn list_again(&self, target: Arc<Target>) -> Step<Arc<Target>> {
        if !target.is_inline() || target.generation.status != GenerationStatus::Kept {
            return Ok(target);
        }
        self.behind_the_gates(&target, None, SwitchStep::ListAgain).await?;
        self.reload(&target).await
    }

    /// What a generation owes from before it was built on, in order, before anything else.
    pub(super) async fn settle_owed(&self, target: &Arc<Target>) -> Step {
        let status = target.generation.status;
        if target.is_inline() && status == GenerationStatus::Building {
            self.drain(target, Owed::All).await?;
        }
        Ok(())
    }

    async fn widen(&self) -> Step {
        let (backend, lease) = (self.desk.store.backend(), self.desk.lease);
        self.desk.patiently(|| backend.widen_views(lease)).await
    }

    /// Switches readers over, and appends where it is inline.
    pub(super) async fn switch(&mut self, target: Arc<Target>) -> Step<Arc<Target>> {
        self.desk.enter(RebuildPhase::Switching);
        self.widen().await?;
        if Driver::is_carried(&target) {
            self.desk.pause(CARRIERS_LEARN).await?;
        }
        let in_place = target.generation.is_active;
        if target.generation.status == GenerationStatus::Rebuilding && !in_place {
            return self.switch_without_fence(target).await;
        }
        let tries = self.row.options.options.fence_tries;
        let mut busy = 0;
        loop {
            self.catch_up(&target).await?;
            let source = self.source(&target).await?;
            let begun = Instant::now();
            match self.step(&target, source.clone(), SwitchStep::Flip).await? {
                Stepped::Done => {
                    self.desk.switched_from(source.as_deref());
                    if target.is_inline() {
                        self.desk.held(begun.elapsed());
                    }
                    return self.switched(&target).await;
                }
                Stepped::TryAgain => {}
                Stepped::Busy => {
                    busy += 1;
                    if busy >= tries && target.is_inline() {
                        return self.switch_without_fence(target).await;
                    }
                    self.let_appends_through(&target, false).await?;
                }
            }
        }
    }

    /// Without the fence: from now on appends record what they leave out for the target too.
    async fn switch_without_fence(&mut self, target: Arc<Target>) -> Step<Arc<Target>> {
        let mut target = target;
        if target.generation.status == GenerationStatus::Building {
            self.step_through(&target, SwitchStep::Record).await?;
            target = self.reload(&target).await?;
        }
        // Whoever read the status before holds the gate until he is done.
        self.wait_for_holders(&[target.generation.id]).await?;
        let past = self.highest().await?;
        loop {
            let reached = self.catch_up(&target).await?;
            if reached < past {
                self.desk.say(Some("waiting for the mark to pass appends in flight".to_owned()));
                self.desk.pause(LOOK).await?;
                continue;
            }
            let source = self.source(&target).await?;
            let flip = SwitchStep::FlipUnfenced { past };
            match self.step(&target, source.clone(), flip).await? {
                Stepped::Done => {
                    self.desk.switched_from(source.as_deref());
                    return self.switched(&target).await;
                }
                Stepped::TryAgain | Stepped::Busy => self.desk.pause(LOOK).await?,
            }
        }
    }

    async fn switched(&mut self, target: &Target) -> Step<Arc<Target>> {
        self.desk.cannot_be_cancelled();
        self.desk.enter(RebuildPhase::Draining);
        self.row.flipped_at = Some(jiff::Timestamp::now());
        self.desk.store.hub().has_moved();
        self.reload(target).await
    }

    /// After the switch: settles what appends recorded on the way, and keeps or retires the rest.
    pub(super) async fn settle(&self, target: &Arc<Target>) -> Step {
        self.desk.enter(RebuildPhase::Draining);
        let source = match self.row.source.filter(|source| *source != target.generation.id) {
            Some(source) => self.try_generation(source).await?,
            None => None,
        };
        if target.is_inline() {
            let paused = source.as_ref().filter(|s| s.status == GenerationStatus::Paused);
            if let Some(source) = paused {
                self.wait_for_holders(&[target.generation.id, source.id]).await?;
                self.keep_source(target, source).await?;
            }
            self.drain(target, Owed::Now).await?;
        }
        self.retire_older(target, source.as_ref()).await
    }

    async fn try_generation(&self, id: i32) -> Step<Option<Generation>> {
        let backend = self.desk.store.backend();
        let generations = self.desk.patiently(|| backend.generations()).await?;
        Ok(generations.into_iter().find(|generation| generation.id == id))
    }

    /// The source was paused by the switch: from a mark on that has passed all that can be seen now it
    /// is fed like any that is kept.
    async fn keep_source(&self, target: &Arc<Target>, source: &Generation) -> Step {
        let highest = self.highest().await?;
        let store = &self.desk.store;
        loop {
            let mark = self.desk.patiently(|| store.high_water_mark()).await?;
            if mark >= highest {
                let source = Some(Arc::new(source.clone()));
                let step = SwitchStep::KeepSource { mark };
                match self.step(target, source, step).await? {
                    Stepped::Done => return Ok(()),
                    Stepped::TryAgain | Stepped::Busy => {}
                }
            }
            self.desk.pause(LOOK).await?;
        }
    }

    /// One earlier generation is kept to go back to, if that is wanted.
    async fn retire_older(&self, target: &Target, source: Option<&Generation>) -> Step {
        let backend = self.desk.store.backend();
        let generations = self.desk.patiently(|| backend.generations()).await?;
        let Generation { id, namespace, name, .. } = &*target.generation;
        for generation in generations {
            let of_it = (&generation.namespace, &generation.name) == (namespace, name);
            let is_source = source.is_some_and(|source| source.id == generation.id);
            let keep = is_source && self.row.options.options.keep_old;
            // A newer version that is being built is nobody's past.
            let is_newer = generation.version > target.generation.version && !is_source;
            if !of_it || generation.id == *id || generation.is_active || keep || is_newer {
                continue;
            }
            let change = StatusChange {
                generation: generation.id,
                from: vec![
                    GenerationStatus::Building,
                    GenerationStatus::Kept,
                    GenerationStatus::Paused,
                    GenerationStatus::Failed,
                    GenerationStatus::Rebuilding,
                ],
                to: GenerationStatus::Retired,
                reason: None,
                actor: self.actor.clone(),
                rebuild: Some(self.desk.lease),
            };
            self.desk.patiently(|| backend.change_status(change.clone())).await?;
        }
        Ok(())
    }

    /// Settles what the target owes: all of it, or, where appends go on to add to it, as much as there
    /// is now. After the switch a runner may have taken that on.
    async fn drain(&self, target: &Arc<Target>, owed: Owed) -> Step {
        let (backend, lease) = (self.desk.store.backend(), self.desk.lease);
        let enough = match owed {
            Owed::All => u64::MAX,
            Owed::Now => self.open_skips(target).await?,
        };
        let mut settled = 0;
        loop {
            self.desk.go_on().await?;
            let before = settled;
            let outcome = match backend.target_leases(lease).await {
                // A runner has them, and settles it.
                Ok(leases) if leases.is_empty() && self.row.flipped_at.is_some() => return Ok(()),
                Ok(leases) => self.drain_shards(target, leases, &mut settled).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) if settled >= enough => return Ok(()),
                Ok(()) if settled > before => {}
                Ok(()) => {
                    if self.owes_nothing(target).await? {
                        return Ok(());
                    }
                }
                // A runner settles it.
                Err(ApplyError::LeaseLost) if self.row.flipped_at.is_some() => return Ok(()),
                Err(error) => {
                    let mut troubles = Backoff::new(LOOK, Duration::from_secs(1));
                    self.desk.wait_out(error.into(), &mut troubles).await?;
                }
            }
        }
    }

    async fn open_skips(&self, target: &Target) -> Step<u64> {
        let (backend, id) = (self.desk.store.backend(), target.generation.id);
        Ok(self.desk.patiently(|| backend.list_skips(id, SKIPS_COUNTED)).await?.len() as u64)
    }

    /// Whether all is settled that no dead letter holds; otherwise there is a pause.
    async fn owes_nothing(&self, target: &Target) -> Step<bool> {
        let backend = self.desk.store.backend();
        let owing = || backend.owing(vec![target.generation.id]);
        let nothing = self.desk.patiently(owing).await?.is_empty();
        if !nothing {
            self.desk.pause(LOOK).await?;
        }
        Ok(nothing)
    }

    async fn drain_shards(
        &self,
        target: &Arc<Target>,
        leases: Vec<Lease>,
        settled: &mut u64,
    ) -> Result<(), ApplyError> {
        for lease in leases {
            let task = Task::Drain { lease, events_max: DRAIN_EVENTS, actor: self.actor.clone() };
            let job = target.job(&self.desk, task);
            *settled += self.desk.store.backend().run(job).await?.applied;
        }
        Ok(())
    }

    async fn highest(&self) -> Step<Position> {
        let backend = self.desk.store.backend();
        Ok(self.desk.patiently(|| backend.heads()).await?.highest)
    }

    /// Waits until everybody who holds one of these gates now has let go of it. Nobody queues.
    async fn wait_for_holders(&self, generations: &[i32]) -> Step {
        let backend = self.desk.store.backend();
        let look = || backend.gate_holders(generations.to_vec());
        let mut waiting = Waiting::for_all(&self.desk.patiently(look).await?);
        while !waiting.is_over() {
            self.desk.pause(LOOK).await?;
            let holders = self.desk.patiently(look).await?;
            waiting.look(&holders);
            let named: Vec<&GateHolder> =
                holders.iter().filter(|holder| waiting.is_for(holder)).collect();
            if !named.is_empty() {
                self.desk.say(Some(format!("waiting for {}", descriptions(named))));
            }
        }
        self.desk.say(None);
        Ok(())
    }

    /// Does what waits for appends to end by itself, and says meanwhile who stays in the way.
    pub(super) async fn naming_holders<T>(&self, what: impl Future<Output = Step<T>>) -> Step<T> {
        let done = tokio::select! {
            biased;
            done = what => done?,
            never = self.name_holders() => match never {},
        };
        self.desk.say(None);
        Ok(done)
    }

    /// Those who hold the registry gate at two looks are no appends that are over at once.
    async fn name_holders(&self) -> Infallible {
        let mut before: Vec<GateHolder> = Vec::new();
        loop {
            tokio::time::sleep(NAME_EVERY).await;
            let looked = self.desk.store.backend().gate_holders(vec![REGISTRY]).await;
            let holders = looked.unwrap_or_default();
            let stays = |holder: &&GateHolder| {
                before.iter().any(|earlier| earlier.transaction == holder.transaction)
            };
            let named: Vec<&GateHolder> = holders.iter().filter(stays).collect();
            if !named.is_empty() {
                self.desk.say(Some(format!("waiting for {}", descriptions(named))));
            }
            before = holders;
        }
    }

    /// Says who is in the way, and leaves nine times as long to appends as they were held up.
    async fn let_appends_through(&self, target: &Target, registry: bool) -> Step {
        let source = self.source(target).await?;
        let mut generations = vec![target.generation.id];
        generations.extend(registry.then_some(REGISTRY));
        generations.extend(source.map(|source| source.id));
        let backend = self.desk.store.backend();
        let holders = self.desk.patiently(|| backend.gate_holders(generations.clone())).await?;
        if !holders.is_empty() {
            self.desk.say(Some(format!("held up by {}", descriptions(&holders))));
        }
        let held = self.row.options.options.fence_timeout;
        self.desk.pause(held * 9 + jitter(held * 2)).await
    }

    /// A step that has to go through, however often it is tried.
    async fn step_through(&self, target: &Arc<Target>, step: SwitchStep) -> Step {
        self.behind_the_gates(target, None, step).await
    }

    async fn behind_the_gates(
        &self,
        target: &Arc<Target>,
        source: Option<Arc<Generation>>,
        step: SwitchStep,
    ) -> Step {
        let registry = matches!(step, SwitchStep::SwapIn | SwitchStep::ListAgain);
        loop {
            match self.step(target, source.clone(), step.clone()).await? {
                Stepped::Done => return Ok(()),
                Stepped::TryAgain => {}
                Stepped::Busy => self.let_appends_through(target, registry).await?,
            }
        }
    }

    async fn step(
        &self,
        target: &Arc<Target>,
        source: Option<Arc<Generation>>,
        step: SwitchStep,
    ) -> Step<Stepped> {
        self.desk.go_on().await?;
        let options = &self.row.options.options;
        // After the switch a runner may have the target's shards.
        let leases = match step {
            SwitchStep::KeepSource { .. } => Vec::new(),
            _ => self.leases().await?,
        };
        let switch = Switch {
            rebuild: self.desk.lease,
            leases,
            source,
            step,
            limits: SwitchLimits {
                fence_timeout: options.fence_timeout,
                fence_events: options.fence_events,
                within: options.within,
                allow_dead_letters: options.allow_dead_letters,
                keep_source: options.keep_old,
            },
            actor: self.actor.clone(),
        };
        let job = target.job(&self.desk, Task::Switch(Box::new(switch)));
        match self.desk.store.backend().run(job).await {
            Ok(JobOutcome { switched: Some(switched), .. }) => self.stepped(switched).await,
            Ok(_) => Ok(Stepped::TryAgain),
            Err(ApplyError::Store(error)) if error.kind() == StoreErrorKind::Busy => {
                Ok(Stepped::Busy)
            }
            // Batches find out which event it is, and what the policy makes of it.
            Err(ApplyError::Refused { message, .. }) => {
                self.desk.say(Some(format!("trying again: {message}")));
                Ok(Stepped::Busy)
            }
            Err(ApplyError::Store(error)) if error.is_transient() => {
                self.desk.say(Some(format!("trying again: {error}")));
                self.desk.pause(jitter(Duration::from_millis(200))).await?;
                Ok(Stepped::TryAgain)
            }
            Err(error) => {
                let mut troubles = Backoff::new(LOOK, LOOK);
                self.desk.wait_out(error.into(), &mut troubles).await?;
                Ok(Stepped::TryAgain)
            }
        }
    }

    async fn stepped(&self, switched: Switched) -> Step<Stepped> {
        match switched {
            Switched::Done { events } => {
                self.desk.count(events);
                self.desk.say(None);
                Ok(Stepped::Done)
            }
            Switched::TailTooLong { .. } => Ok(Stepped::TryAgain),
            Switched::Behind { by } => {
                self.desk.say(Some(format!("{by} positions behind what readers see")));
                self.desk.pause(LOOK).await?;
                Ok(Stepped::TryAgain)
            }
            Switched::DeadLetters { new, first } => {
                let name = &self.row.name;
                let were = match new {
                    1 => "1 event was".to_owned(),
                    new => format!("{new} events were"),
                };
                Err(Halt::NotPromoted(format!(
                    "not promoted: {were} put aside by it that what readers see has applied or given up, \
                     the first at position {first}; look with `everfold messages {name}`, then `everfold promote {name} \
                     --allow-dead-letters`, or mend the projection"
                )))
            }
            Switched::Cancelled => Err(Halt::Cancelled),
        }
    }
}

/// The first of those who are in the way, in words.
fn descriptions<'h>(holders: impl IntoIterator<Item = &'h GateHolder>) -> String {
    let first = holders.into_iter().take(NAMED).map(|holder| holder.description.as_str());
    first.collect::<Vec<_>>().join("; ")
}

/// How much of what is owed is settled.
#[derive(Clone, Copy)]
enum Owed {
    All,
    Now,
}

/// How a step ended, as far as trying again goes.
enum Stepped {
    Done,
    /// At once, after catching up.
    TryAgain,
    /// When appends have been let through.
    Busy,
}
