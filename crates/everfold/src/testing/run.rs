//! One run of a projection over events, on a store of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::compare::{Expectation, documents_differ, remove, rows_differ};
use super::history::Given;
use super::scratch::{Place, Scratch};
use super::variant::Variation;
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, Lease};
use crate::projection::job::{CAREFUL_EVENTS, Job, Task};
use crate::projection::projector::{ApplyError, Projector};
use crate::projection::{GenerationStatus, Projection};
use crate::store::{Registration, Tick};
use crate::{ExpectedVersion, Position, Store, StoreOptions, Upcasters, Uuid};

/// Longer than any test.
const LEASE_TTL: Duration = Duration::from_secs(600);

/// How events reach the projection.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    /// What differs from the first plan.
    pub(super) variation: Option<Variation>,
    pub(super) projection: Projection,
    pub(super) appends: Vec<Given>,
    /// Most events in a batch.
    pub(super) batch: usize,
    pub(super) crash: bool,
    pub(super) repeat: bool,
}

/// What every run of a test has in common.
pub(super) struct Setting<'a> {
    pub(super) place: &'a Place,
    pub(super) upcasters: &'a Arc<Upcasters>,
    pub(super) expectations: &'a [Expectation],
    /// Paths of fields of documents that are not compared.
    pub(super) ignored: &'a [String],
}

impl Plan {
    /// Runs it; the error says what went wrong or differs.
    pub(super) async fn run(&self, setting: &Setting<'_>) -> Result<(), String> {
        let scratch = Scratch::create(setting.place).await?;
        let outcome = self.run_at(&scratch, setting).await;
        scratch.remove().await?;
        outcome
    }

    async fn run_at(&self, scratch: &Scratch, setting: &Setting<'_>) -> Result<(), String> {
        let options = StoreOptions {
            migrate: Some(true),
            pool_size: 4,
            upcasters: Arc::clone(setting.upcasters),
            ..StoreOptions::default()
        };
        let store = Store::open_with(scratch.url(), options).await.map_err(text)?;
        let outcome = self.run_on(&store, scratch, setting).await;
        store.close().await;
        outcome
    }

    async fn run_on(
        &self,
        store: &Store,
        scratch: &Scratch,
        setting: &Setting<'_>,
    ) -> Result<(), String> {
        let registered = store.register_generation(self.projection.clone()).await;
        let Registration { generation, .. } = registered.map_err(text)?;
        let generation = Arc::new(generation);
        for _ in 0..=usize::from(self.repeat) {
            for Given { stream, events } in &self.appends {
                let appended = store.append(stream, ExpectedVersion::Any, events.clone()).await;
                appended.map_err(|error| format!("append to \"{stream}\": {error}"))?;
            }
            if self.projection.definition.lifecycle == Lifecycle::CatchUp {
                self.catch_up(store, &generation).await?;
            }
        }
        self.check(store, scratch, setting).await
    }

    async fn catch_up(&self, store: &Store, generation: &Arc<Generation>) -> Result<(), String> {
        let worker = Uuid::now_v7();
        let mark = store.high_water_mark().await.map_err(text)?;
        for lease in leases(store, generation, worker).await? {
            self.catch_up_shard(store, generation, lease, mark, worker).await?;
        }
        store.backend().leave(worker).await.map_err(text)
    }

    async fn catch_up_shard(
        &self,
        store: &Store,
        generation: &Arc<Generation>,
        mut lease: Lease,
        mark: Position,
        worker: Uuid,
    ) -> Result<(), String> {
        let projector = self.projection.projector.clone();
        while lease.position < mark {
            let events_max = self.batch;
            let batch = Task::Batch { lease: lease.clone(), mark, events_max, worker };
            if self.crash {
                let lease = lease.clone();
                let rehearsal = Task::Rehearsal { lease, mark, events_max, worker };
                match run(store, generation, &projector, rehearsal).await {
                    // Or the projection refuses: the real one says so too, and the policy decides.
                    Err(ApplyError::Refused { .. }) => {}
                    Err(error) => return Err(text_of(error)),
                    Ok(_) => return Err("a rehearsal was committed".to_owned()),
                }
            }
            let outcome = match run(store, generation, &projector, batch).await {
                Err(ApplyError::Refused { .. }) => {
                    let (lease, actor) = (lease.clone(), "test".to_owned());
                    let careful = Task::CarefulBatch {
                        lease,
                        mark,
                        events_max: CAREFUL_EVENTS,
                        worker,
                        actor,
                        attempts: 1,
                    };
                    run(store, generation, &projector, careful).await
                }
                outcome => outcome,
            };
            let outcome = outcome.map_err(text_of)?;
            if let Some(failure) = outcome.failure {
                let at = failure.position;
                return Err(format!("the event at position {at} was refused: {}", failure.message));
            }
            if outcome.position <= lease.position {
                return Err(format!("it stands still at position {}", outcome.position));
            }
            lease.position = outcome.position;
        }
        Ok(())
    }

    async fn check(
        &self,
        store: &Store,
        scratch: &Scratch,
        setting: &Setting<'_>,
    ) -> Result<(), String> {
        let name = &self.projection.definition.name;
        let generation = store.generation_of(name).await.map_err(text)?;
        if generation.status != GenerationStatus::Active {
            let reason = generation.reason.unwrap_or_default();
            return Err(format!("it is {}: {reason}", generation.status));
        }
        for expectation in setting.expectations {
            let difference = match expectation {
                Expectation::Documents(expected) => {
                    let found = store.documents::<Value>(name).collect().await.map_err(text)?;
                    let mut found: BTreeMap<String, Value> =
                        found.into_iter().map(|found| (found.key, found.document)).collect();
                    let mut expected = expected.clone();
                    for value in found.values_mut().chain(expected.values_mut()) {
                        setting.ignored.iter().for_each(|path| remove(value, path));
                    }
                    documents_differ(&expected, &found)
                }
                Expectation::Rows { sql, rows } => {
                    let found =
                        scratch.rows(sql).await.map_err(|error| format!("{sql}: {error}"))?;
                    rows_differ(sql, rows, &found)
                }
            };
            difference.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// All shards of the generation: nobody else wants them.
async fn leases(
    store: &Store,
    generation: &Generation,
    worker: Uuid,
) -> Result<Vec<Lease>, String> {
    let shards = generation.shards as usize;
    for _ in 0..=shards {
        let (name, carries) = ("test".to_owned(), vec![generation.id]);
        let tick = Tick { worker, name, carries, lease_ttl: LEASE_TTL, stuck: Vec::new() };
        let leases = store.backend().tick(tick).await.map_err(text)?;
        if leases.len() == shards {
            return Ok(leases);
        }
    }
    Err(format!("the {shards} shards could not be taken; does something else run on this store?"))
}

async fn run(
    store: &Store,
    generation: &Arc<Generation>,
    projector: &Projector,
    task: Task,
) -> Result<crate::projection::job::JobOutcome, ApplyError> {
    let (generation, projector) = (Arc::clone(generation), projector.clone());
    let upcasters = Arc::clone(&store.options().upcasters);
    store.backend().run(Job::new(generation, projector, upcasters, task)).await
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn text_of(error: ApplyError) -> String {
    match error {
        ApplyError::Refused { message, position: Some(at) } => {
            format!("the event at position {at} was refused: {message}")
        }
        ApplyError::Refused { message, position: None } | ApplyError::Broken { message } => message,
        ApplyError::Store(error) => error.to_string(),
        ApplyError::OutOfTime(error) => error.message,
        ApplyError::LeaseLost => "somebody else runs the projection on this store".to_owned(),
    }
}
