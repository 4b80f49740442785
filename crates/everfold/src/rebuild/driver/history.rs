//! Copying history in large parts, several at once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;

use super::desk::{Halt, Step};
use super::{Driver, Target};
use crate::Position;
use crate::projection::definition::ProjectionKind;
use crate::rebuild::row::{RebuildKind, RebuildPhase};
use crate::store::{Copied, Copying};

/// How often somebody who finds no part left looks whether the others are done.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Why parts are not copied on.
enum Parts {
    Done,
    InBatches(String),
}

impl Driver {
    /// Copies history up to a fixed position, if there is a fast way to. Where an event fails, what was
    /// copied is thrown away, and all of it is done in batches later.
    pub(super) async fn copy_history(&mut self, target: Arc<Target>) -> Step<Arc<Target>> {
        let in_parts = matches!(self.row.kind, RebuildKind::Beside | RebuildKind::InPlace);
        if !in_parts {
            return Ok(target);
        }
        let at_the_start = |leases: &[crate::projection::generation::Lease]| {
            leases.iter().all(|lease| lease.position == Position::START)
        };
        if !at_the_start(&self.leases().await?) {
            return Ok(target);
        }
        let Some(copying) = self.copying(&target) else {
            // Parts may be copied already, and indexes still be missing.
            return Err(Halt::Failed(
                "its definition is not known here; rebuild it from where it is defined".to_owned(),
            ));
        };
        self.desk.look_around().await;
        let backend = self.desk.store.backend();
        let plan = self.desk.patiently(|| backend.plan_copy(copying.clone())).await?;
        if plan.cutoff == Position::START {
            return Ok(target);
        }
        self.desk.enter(RebuildPhase::Copying);
        self.desk.expect(plan.events);
        let copying = Copying { cutoff: plan.cutoff, ..copying };
        if let Parts::InBatches(reason) = self.copy_parts(&copying).await? {
            return self.begin_again(target, reason).await;
        }
        self.desk.enter(RebuildPhase::Indexing);
        self.desk.patiently(|| backend.finish_copy(copying.clone())).await?;
        Ok(target)
    }

    fn copying(&self, target: &Target) -> Option<Copying> {
        let options = &self.row.options.options;
        // Signs of life, and whoever else works here, need connections too.
        let connections = self.desk.store.options().runner_pool_size.saturating_sub(2).max(1);
        Some(Copying {
            lease: self.desk.lease,
            generation: Arc::clone(&target.generation),
            projection: self.means.projection.clone()?,
            upcasters: self.desk.store.upcasters_shared(),
            cutoff: Position::START,
            memory_max: options.memory_max,
            at_once: options.parallel.clamp(1, connections),
            events_done: Arc::clone(&self.desk.done),
            pace: Arc::clone(&self.desk.pace),
            cancel: self.desk.gone.child_token(),
            part_done: Arc::default(),
        })
    }

    async fn copy_parts(&self, copying: &Copying) -> Step<Parts> {
        // A part of documents is read by as many as may work at once; when many appends come in, one
        // part after the other leaves them room.
        let by_parts = copying.generation.kind == ProjectionKind::Sql;
        let at_once = match by_parts && !self.desk.pace.is_crowded() {
            true => copying.at_once,
            false => 1,
        };
        let ended = try_join_all((0..at_once).map(|_| self.copy_some(copying))).await?;
        let in_batches = ended.into_iter().find(|ended| matches!(ended, Parts::InBatches(_)));
        Ok(in_batches.unwrap_or(Parts::Done))
    }

    /// Copies parts until all are copied, by whomever.
    async fn copy_some(&self, copying: &Copying) -> Step<Parts> {
        let backend = self.desk.store.backend();
        loop {
            // A part can take long: an operator's wish ends it in the middle.
            let copied = tokio::select! {
                copied = self.desk.patiently(|| backend.copy_part(copying.clone())) => copied?,
                halt = self.ended() => {
                    copying.cancel.cancel();
                    return Err(halt);
                }
            };
            match copied {
                Copied::Part { .. } => copying.part_done.notify_waiters(),
                Copied::InBatches { reason } => return Ok(Parts::InBatches(reason)),
                Copied::NoneLeft => {
                    let left = self.desk.patiently(|| backend.plan_copy(copying.clone())).await?;
                    if left.parts == 0 {
                        copying.part_done.notify_waiters();
                        return Ok(Parts::Done);
                    }
                    self.desk.pause(LOOK_AGAIN).await?;
                }
            }
        }
    }

    /// Resolves when the work is to end.
    async fn ended(&self) -> Halt {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            if let Err(halt) = self.desk.go_on().await {
                return halt;
            }
        }
    }

    async fn begin_again(&mut self, target: Arc<Target>, reason: String) -> Step<Arc<Target>> {
        tracing::info!(projection = self.row.name, reason, "history is applied in batches");
        let (backend, lease) = (self.desk.store.backend(), self.desk.lease);
        self.desk.patiently(|| backend.discard_target(lease)).await?;
        drop(target);
        (self.row.target, self.row.options.by_batches) = (None, true);
        self.desk.done.store(0, std::sync::atomic::Ordering::Relaxed);
        let target = self.target().await?;
        self.swap_in(target).await
    }
}
