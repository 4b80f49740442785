//! What is done to read models from time to time: copies and verifications, by whoever runs the first
//! shard of the one that readers see. When the last one was is in the database, so that several runners,
//! and one that is started again, keep to the same times.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::context::Context;
use crate::error::{ProjectionError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::rebuild::VerifyOptions;

/// The copies and verifications under way, one at a time.
pub(super) struct Schedule {
    context: Arc<Context>,
    under_way: HashMap<i32, JoinHandle<()>>,
}

impl Schedule {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Schedule { context, under_way: HashMap::new() }
    }

    /// Begins what is due for these generations, whose first shards are run here.
    pub(super) fn look(&mut self, generations: Vec<Arc<Generation>>) {
        self.under_way.retain(|_, task| !task.is_finished());
        for generation in generations {
            let settings = &generation.settings;
            let wanted = settings.snapshot_every.is_some() || settings.verify_every.is_some();
            if !wanted || !generation.is_active {
                continue;
            }
            // One at a time: each holds a connection for as long as it takes.
            if !self.under_way.is_empty() {
                return;
            }
            let (context, id) = (Arc::clone(&self.context), generation.id);
            let task = tokio::spawn(async move {
                let name = generation.name.clone();
                match look(&context, generation).await {
                    Ok(()) => {}
                    // The process ends; the next one sees to it.
                    Err(ProjectionError::Store(error))
                        if error.kind() == StoreErrorKind::HandleClosed => {}
                    Err(error) => {
                        tracing::warn!(projection = name, %error, "could not be copied or verified");
                    }
                }
            });
            self.under_way.insert(id, task);
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        for task in self.under_way.values() {
            task.abort();
        }
    }
}

async fn look(context: &Context, generation: Arc<Generation>) -> Result<(), ProjectionError> {
    let (store, actor) = (&context.store, &context.options.worker_name);
    let now = store.backend().heads().await?.now;
    let settings = &generation.settings;
    if let Some(every) = settings.snapshot_every {
        let snapshots = store.snapshots_of(&generation).await?;
        if is_due(now, every, snapshots.first().map(|snapshot| snapshot.taken_at)) {
            store.snapshot_as(Arc::clone(&generation), actor.clone()).await?;
        }
    }
    if let Some(every) = settings.verify_every {
        let last = store.last_verified(&generation).await?;
        if is_due(now, every, last) {
            let found = store
                .verify_as(Arc::clone(&generation), VerifyOptions::default(), actor.clone())
                .await?;
            if found.differences > 0 {
                tracing::error!(
                    projection = generation.name,
                    differences = found.differences,
                    "the read model is not as the log says; see `everfold verify`"
                );
            }
        }
    }
    Ok(())
}

/// By the database's clock, which wrote the last one too.
fn is_due(now: Timestamp, every: Duration, last: Option<Timestamp>) -> bool {
    last.is_none_or(|last| now.duration_since(last).as_secs_f64() >= every.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_done_is_due_and_then_after_its_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let every = Duration::from_secs(60);
        assert!(is_due(at(100), every, None));
        assert!(!is_due(at(100), every, Some(at(41))));
        assert!(is_due(at(100), every, Some(at(40))));
    }
}
