//! Rebuilds that a runner works on: asked for by somebody whose process has not the code, or left by
//! one that died.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::context::{Context, Identity};
use crate::error::StoreError;
use crate::projection::generation::Generation;
use crate::rebuild::row::{RebuildRow, Wanted};

/// Rebuilds under way in this runner.
pub(super) struct Rebuilds {
    context: Arc<Context>,
    stop: CancellationToken,
    tasks: JoinSet<i32>,
    ids: HashSet<i32>,
}

impl Rebuilds {
    pub(super) fn new(context: Arc<Context>, stop: CancellationToken) -> Self {
        Rebuilds { context, stop, tasks: JoinSet::new(), ids: HashSet::new() }
    }

    /// Asks for the first fills of projections that wait for one, and takes up what nobody works on,
    /// as far as the code is here and there is room.
    pub(super) async fn look(&mut self, unfilled: Vec<Generation>) -> Result<(), StoreError> {
        for generation in unfilled {
            let left_alone = self.context.store.ask_for_fill(&generation).await?;
            if let Some(left_alone) = left_alone.filter(|left_alone| left_alone.failed) {
                self.context.failed(&generation, left_alone.reason);
            }
        }
        while let Some(ended) = self.tasks.try_join_next() {
            match ended {
                Ok(id) => drop(self.ids.remove(&id)),
                // A panic says nothing of which one it was.
                Err(_) if self.tasks.is_empty() => self.ids.clear(),
                Err(_) => {}
            }
        }
        for row in open_here(&self.context).await? {
            if self.ids.len() >= self.context.options.rebuilds {
                return Ok(());
            }
            if row.is_owned || row.wanted == Wanted::Pause || self.ids.contains(&row.id) {
                continue;
            }
            let Some(means) = self.context.store.means(&row).await? else { continue };
            let (context, stop) = (Arc::clone(&self.context), self.stop.clone());
            self.ids.insert(row.id);
            self.tasks.spawn(async move {
                let name = context.options.worker_name.clone();
                let worked = context.store.try_work(row.id, means, name, stop).await;
                if let Err(error) = worked {
                    tracing::warn!(%error, projection = row.name, "a rebuild was not taken up");
                }
                context.look.notify_one();
                row.id
            });
        }
        Ok(())
    }

    /// Waits until all have been left in an orderly way.
    pub(super) async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Open rebuilds of projections whose code is here.
pub(super) async fn open_here(context: &Context) -> Result<Vec<RebuildRow>, StoreError> {
    let mut open = context.store.backend().rebuilds(true, usize::MAX).await?;
    open.retain(|row| context.given.contains_key(&Identity::of_rebuild(row)));
    Ok(open)
}
