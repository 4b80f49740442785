//! Settling by hand what an inline projection owes.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::ProjectionError;
use crate::projection::generation::{Generation, Lease};
use crate::projection::job::{Job, Task};
use crate::projection::operator::operator;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::{Store, Tick, jitter};

const LEASE_TTL: Duration = Duration::from_secs(15);
/// Most skips that are settled in one transaction.
const DRAIN_EVENTS: usize = 500;
/// How often it is looked whether somebody else is done with it.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn drain(store: &Store, name: &str) -> Result<u64, ProjectionError> {
    let generation = Arc::new(store.generation_of(name).await?);
    let Some(projector) = store.hub().projector_of(&generation) else {
        return Err(ProjectionError::Refused {
            projection: name.to_owned(),
            message: "is written in Rust, and this process does not have its code; a runner that \
                      has it settles what is owed by itself"
                .to_owned(),
        });
    };
    let worker = Uuid::now_v7();
    let settled = drain_as(store, &generation, projector, worker).await;
    store.backend().leave(worker).await?;
    store.hub().has_moved();
    settled
}

/// Settles what is owed, unless a runner holds the lease: then it does, and is waited for.
async fn drain_as(
    store: &Store,
    generation: &Arc<Generation>,
    projector: Projector,
    worker: Uuid,
) -> Result<u64, ProjectionError> {
    let mut settled = 0;
    loop {
        if store.backend().owing(vec![generation.id]).await?.is_empty() {
            return Ok(settled);
        }
        let tick = Tick {
            worker,
            name: operator(),
            carries: vec![generation.id],
            lease_ttl: LEASE_TTL,
            stuck: Vec::new(),
        };
        let leases = store.backend().tick(tick).await?;
        match leases.into_iter().next() {
            Some(lease) => {
                settled += drain_once(store, generation, projector.clone(), lease).await?;
            }
            None => tokio::time::sleep(jitter(LOOK)).await,
        }
    }
}

async fn drain_once(
    store: &Store,
    generation: &Arc<Generation>,
    projector: Projector,
    lease: Lease,
) -> Result<u64, ProjectionError> {
    let task = Task::Drain { lease, events_max: DRAIN_EVENTS, actor: operator() };
    let job = Job::new(Arc::clone(generation), projector, store.upcasters_shared(), task);
    let failed = |reason| ProjectionError::Failed { projection: generation.name.clone(), reason };
    match store.backend().run(job).await {
        // Keys that an append works on right now are left to it.
        Ok(outcome) if outcome.applied == 0 => {
            tokio::time::sleep(jitter(LOOK)).await;
            Ok(0)
        }
        Ok(outcome) => Ok(outcome.applied),
        Err(ApplyError::LeaseLost) => Ok(0),
        Err(ApplyError::Store(error)) if error.is_transient() => {
            tokio::time::sleep(jitter(LOOK)).await;
            Ok(0)
        }
        Err(ApplyError::Store(error)) => Err(error.into()),
        Err(ApplyError::Refused { message, .. } | ApplyError::Broken { message }) => {
            Err(failed(message))
        }
        Err(ApplyError::OutOfTime(late)) => Err(failed(late.message)),
    }
}
