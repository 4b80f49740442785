//! One run of a projection over events, on a store of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::append::append;
use super::compare::{Expectation, documents_differ, remove, rows_differ};
use super::failure::Cause;
use super::history::Given;
use super::refused;
use super::scratch::Scratch;
use super::variant::Variation;
use crate::projection::definition::Lifecycle;
use crate::projection::generation::{Generation, Lease};
use crate::projection::job::{CAREFUL_EVENTS, Failure, Job, Task};
use crate::projection::projector::{ApplyError, Projector};
use crate::projection::{GenerationStatus, Projection};
use crate::store::{Registration, Tick};
use crate::{MessageQuery, Position, Store, StoreOptions, Upcasters, Uuid};

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
    pub(super) upcasters: &'a Arc<Upcasters>,
    pub(super) expectations: &'a [Expectation],
    /// Paths of fields of documents that are not compared.
    pub(super) ignored: &'a [String],
    /// What events that are refused say, each; `None`: nobody asks.
    pub(super) refused: Option<&'a [String]>,
}

/// How a run went on the way to the read model.
struct Course {
    /// What the projection said of events that it refused.
    refusals: Vec<String>,
    /// It stopped at one, as its policy says.
    stopped: bool,
    may_stop: bool,
}

impl Course {
    fn new(setting: &Setting<'_>) -> Course {
        let may_stop = setting.refused.is_some_and(|expected| !expected.is_empty());
        Course { refusals: Vec::new(), stopped: false, may_stop }
    }

    /// Takes note of an event at which the projection stops. What comes after it depends on when it
    /// is applied, so that nothing could be expected of that.
    fn stop(&mut self, said: String, is_last: bool) -> Result<(), Cause> {
        if !self.may_stop {
            return Err(Cause::differs(said));
        }
        if !is_last {
            return Err(Cause::differs(format!(
                "{said}\nThe projection stops there (on_error = \"stop\"), and events were given \
                 after it; let the one that is refused be the last"
            )));
        }
        self.refusals.push(said);
        self.stopped = true;
        Ok(())
    }
}

impl Plan {
    /// Runs it on an empty store; the error says what went wrong or differs.
    pub(super) async fn run(&self, scratch: &Scratch, setting: &Setting<'_>) -> Result<(), Cause> {
        let store = open(scratch, setting).await?;
        let outcome = self.run_on(&store, scratch, setting).await;
        store.close().await;
        outcome
    }

    async fn run_on(
        &self,
        store: &Store,
        scratch: &Scratch,
        setting: &Setting<'_>,
    ) -> Result<(), Cause> {
        let registered = store.register_generation(self.projection.clone()).await;
        let Registration { generation, .. } = registered.map_err(text)?;
        let generation = Arc::new(generation);
        let mut course = Course::new(setting);
        self.go(store, &generation, &mut course).await?;
        if self.repeat && !course.stopped {
            self.go(store, &generation, &mut course).await?;
        }
        // Where nobody asks, what is put aside by the projection's policy is its own affair.
        if let Some(expected) = setting.refused {
            self.add_put_aside(store, &mut course).await?;
            if let Some(cause) = refused::differ(expected, &course.refusals) {
                return Err(cause);
            }
        }
        self.check(store, scratch, setting, course.stopped).await
    }

    /// Appends all events, and applies them.
    async fn go(
        &self,
        store: &Store,
        generation: &Arc<Generation>,
        course: &mut Course,
    ) -> Result<(), Cause> {
        for (number, given) in (1..).zip(&self.appends) {
            if let Err(said) = append(store, given).await? {
                let said = format!("append to \"{}\": {said}", given.stream);
                course.stop(said, number == self.appends.len())?;
            }
        }
        match self.projection.definition.lifecycle {
            Lifecycle::CatchUp => self.catch_up(store, generation, course).await,
            Lifecycle::Inline => Ok(()),
        }
    }

    /// Adds what was put aside or left out, as the policy says.
    async fn add_put_aside(&self, store: &Store, course: &mut Course) -> Result<(), Cause> {
        let name = &self.projection.definition.name;
        let letters = store.dead_letters(name).await.map_err(text)?;
        let failed = letters.into_iter().filter(|letter| letter.behind.is_none());
        course.refusals.extend(failed.filter_map(|letter| letter.error));
        let kinds = vec!["skipped".to_owned()];
        let query = MessageQuery { projection: Some(name.clone()), kinds, limit: usize::MAX };
        let skipped = store.messages(&query).await.map_err(text)?;
        course.refusals.extend(skipped.into_iter().map(|message| message.message));
        Ok(())
    }

    async fn catch_up(
        &self,
        store: &Store,
        generation: &Arc<Generation>,
        course: &mut Course,
    ) -> Result<(), Cause> {
        let worker = Uuid::now_v7();
        let mark = store.high_water_mark().await.map_err(text)?;
        let last = store.last_position().await.map_err(text)?;
        for lease in leases(store, generation, worker).await? {
            let failed = self.catch_up_shard(store, generation, lease, mark, worker).await?;
            if let Some(Failure { position, message }) = failed {
                let said = format!("the event at position {position} was refused: {message}");
                course.stop(said, position == last)?;
            }
        }
        store.backend().leave(worker).await.map_err(text).map_err(Cause::from)
    }

    /// Applies what is there; the event that stopped it, if one did.
    async fn catch_up_shard(
        &self,
        store: &Store,
        generation: &Arc<Generation>,
        mut lease: Lease,
        mark: Position,
        worker: Uuid,
    ) -> Result<Option<Failure>, Cause> {
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
                    Err(error) => return Err(text_of(error).into()),
                    Ok(_) => return Err("a rehearsal was committed".to_owned().into()),
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
            if outcome.failure.is_some() {
                return Ok(outcome.failure);
            }
            if outcome.position <= lease.position {
                return Err(format!("it stands still at position {}", outcome.position).into());
            }
            lease.position = outcome.position;
        }
        Ok(None)
    }

    async fn check(
        &self,
        store: &Store,
        scratch: &Scratch,
        setting: &Setting<'_>,
        stopped: bool,
    ) -> Result<(), Cause> {
        let name = &self.projection.definition.name;
        let generation = store.generation_of(name).await.map_err(text)?;
        if generation.status != GenerationStatus::Active && !stopped {
            let reason = generation.reason.unwrap_or_default();
            return Err(Cause::differs(format!("it is {}: {reason}", generation.status)));
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
                    documents_differ(&expected, &found).map(Cause::differs)
                }
                Expectation::Rows { sql, rows } => {
                    let found =
                        scratch.rows(sql).await.map_err(|error| format!("{sql}: {error}"))?;
                    rows_differ(sql, rows, &found).map(Cause::differs)
                }
                Expectation::Table(rows) => {
                    let (table, columns) = (&rows.table, &rows.columns);
                    let found = scratch.table(table, columns).await;
                    rows.differ(found.map_err(|error| format!("table {table}: {error}"))?)
                }
            };
            difference.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// The tables that a projection makes, each with its columns.
pub(super) async fn tables(
    projection: &Projection,
    scratch: &Scratch,
    setting: &Setting<'_>,
) -> Result<Vec<(String, Vec<String>)>, Cause> {
    let store = open(scratch, setting).await?;
    let registered = store.register_generation(projection.clone()).await;
    store.close().await;
    let mut tables = Vec::new();
    for table in registered.map_err(text)?.generation.tables {
        let columns = scratch.columns(&table).await?;
        tables.push((table, columns));
    }
    Ok(tables)
}

async fn open(scratch: &Scratch, setting: &Setting<'_>) -> Result<Store, Cause> {
    let options = StoreOptions {
        migrate: Some(true),
        pool_size: 4,
        upcasters: Arc::clone(setting.upcasters),
        ..StoreOptions::default()
    };
    Ok(Store::open_with(scratch.url(), options).await.map_err(text)?)
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
