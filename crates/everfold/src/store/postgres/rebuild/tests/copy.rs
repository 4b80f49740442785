//! Copying history: the same as batches give, whatever is in the log and however it is cut into parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everfold_testkit::Seed;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Bench, request};
use crate::projection::definition::OnError;
use crate::projection::generation::Generation;
use crate::projection::job::{Job, Task};
use crate::projection::projector::ApplyError;
use crate::projection::{DocumentProjection, Projection};
use crate::rebuild::pace::Pace;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase};
use crate::rebuild::{RebuildKind, RebuildOptions};
use crate::store::{Copied, Copying};
use crate::upcast::Upcasters;
use crate::{Position, RecordedEvent};

const EVENTS: usize = 3_000;

#[derive(Deserialize)]
enum Event {
    Added { n: i64 },
    Named { first: String },
    Cleared,
    Exploded,
    Spoiled,
}

#[derive(Default, Serialize, Deserialize)]
struct Document {
    sum: i64,
    names: Vec<String>,
    events: u32,
    /// Cannot be stored, and stays.
    spoiled: String,
}

struct Sum;

impl DocumentProjection for Sum {
    type Event = Event;
    type Document = Document;

    fn evolve(
        &self,
        document: Option<Document>,
        event: &Event,
        at: &RecordedEvent,
    ) -> Option<Document> {
        let mut document = document.unwrap_or_default();
        document.events += 1;
        match event {
            Event::Added { n } => document.sum += n,
            Event::Named { first } => document.names.push(format!("{first}@{}", at.version)),
            Event::Cleared if document.spoiled.is_empty() => return None,
            Event::Cleared => {}
            Event::Exploded => panic!("too loud after {}", document.sum),
            Event::Spoiled => document.spoiled.push('\0'),
        }
        if document.names.len() > 5 {
            document.names.remove(0);
        }
        Some(document)
    }
}

fn upcasters() -> Arc<Upcasters> {
    let upcasters = Upcasters::new()
        .add("Named", 1, |data: Value| match data["name"].as_str() {
            Some(name) => Ok(json!({ "first": name, "account": data["account"] })),
            None => Err("no name"),
        })
        .rename("Called", "Named");
    Arc::new(upcasters)
}

/// What the log holds beside events that go well.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Bad {
    None,
    Some,
}

/// A log of streams and accounts; a part of its events is bad, if asked for.
pub(super) fn log(numbers: &mut Seed, bad: Bad) -> Vec<Value> {
    let mut event = || {
        let stream = format!("s-{}", numbers.below(200));
        let account = format!("a-{}", numbers.below(60));
        let n = numbers.below(100);
        let spoil = bad == Bad::Some && numbers.below(60) == 0;
        let (kind, version, data) = match (spoil, numbers.below(20)) {
            (true, 0..5) => ("Added", 1, json!({ "n": "many", "account": account })),
            (true, 5..8) => ("Exploded", 1, json!({ "account": account })),
            (true, 8..11) => ("Spoiled", 1, json!({ "account": account })),
            (true, 11..15) => ("Named", 1, json!({ "account": account })),
            (true, _) => ("Added", 1, json!({ "n": 1, "account": null })),
            (false, 0..10) => ("Added", 1, json!({ "n": n, "account": account })),
            (false, 10..13) => ("Named", 1, json!({ "name": format!("n{n}"), "account": account })),
            (false, 13..15) => {
                ("Named", 2, json!({ "first": format!("f{n}"), "account": account }))
            }
            (false, 15..17) => {
                ("Called", 2, json!({ "first": format!("c{n}"), "account": account }))
            }
            (false, 17) => ("Cleared", 1, json!({ "account": account })),
            (false, _) => ("Unknown", 1, json!({ "x": n, "account": account })),
        };
        json!({ "stream": stream, "type": kind, "schema_version": version, "data": data })
    };
    (0..EVENTS).map(|_| event()).collect()
}

impl Bench {
    pub(super) async fn append(&self, log: &[Value]) {
        let log = Value::from(log.to_vec()).to_string().replace('\'', "''");
        self.run(&format!(
            "DO $do$ DECLARE e jsonb; BEGIN FOR e IN SELECT jsonb_array_elements('{log}'::jsonb) LOOP \
             PERFORM everfold.append(e->>'stream', NULL, jsonb_build_array(e - 'stream')); \
             END LOOP; END $do$"
        ))
        .await;
    }

    /// A rebuild of its own, with a target, by large parts or by batches.
    pub(super) async fn begin(&self, projection: &Projection, by_batches: bool) -> Copying {
        let mut wanted = request(projection, RebuildKind::Beside);
        wanted.options.by_batches = by_batches;
        let (row, _) = self.store.request_rebuild(wanted).await.unwrap();
        let lease = self.take(row.id).await.expect("nobody works on it");
        let generation = self.store.make_target(lease, projection.clone()).await.unwrap();
        copying(lease, generation, projection)
    }

    pub(super) async fn end(&self, copying: &Copying) {
        let figures =
            RebuildFigures { phase: Some(RebuildPhase::Built), ..RebuildFigures::default() };
        assert!(
            self.store.end_rebuild(copying.lease, figures, "ann".to_owned(), None).await.unwrap()
        );
    }

    pub(super) async fn plan(&self, copying: &mut Copying) -> usize {
        let plan = self.store.plan_copy(copying.clone()).await.unwrap();
        copying.cutoff = plan.cutoff;
        plan.parts
    }

    /// Copies all parts and ends the rebuild. Returns how many parts there were.
    async fn copy_all(&self, copying: &mut Copying) -> usize {
        assert!(self.plan(copying).await > 0, "there is something to copy");
        let mut parts = 0;
        loop {
            match self.store.copy_part(copying.clone()).await.unwrap() {
                Copied::Part { .. } => parts += 1,
                Copied::NoneLeft => break,
                Copied::InBatches { reason } => panic!("{reason}"),
            }
        }
        self.store.finish_copy(copying.clone()).await.unwrap();
        self.end(copying).await;
        parts
    }

    /// Applies all in batches, as a runner does, and ends the rebuild.
    pub(super) async fn batches(&self, copying: &mut Copying) {
        assert_eq!(self.plan(copying).await, 0);
        let mark = self.store.high_water_mark().await.unwrap();
        for lease in self.store.target_leases(copying.lease).await.unwrap() {
            let worker = copying.lease.worker;
            loop {
                let (lease, actor) = (lease.clone(), "worker".to_owned());
                let batch = Task::Batch { lease: lease.clone(), mark, events_max: 500, worker };
                let careful =
                    Task::CarefulBatch { lease, mark, events_max: 50, worker, actor, attempts: 1 };
                let done = match self.job(copying, batch).await {
                    Err(ApplyError::Refused { .. }) => self.job(copying, careful).await,
                    done => done,
                };
                if !done.unwrap() {
                    break;
                }
            }
        }
        self.end(copying).await;
    }

    /// Whether there is more.
    async fn job(&self, copying: &Copying, task: Task) -> Result<bool, ApplyError> {
        let generation = Arc::clone(&copying.generation);
        let projector = copying.projection.projector.clone();
        let job = Job::new(generation, projector, Arc::clone(&copying.upcasters), task);
        let outcome = self.store.run(job).await?;
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        Ok(outcome.more)
    }

    /// Everything a generation came to: rows, dead letters, messages, indexes and constraints.
    pub(super) async fn outcome(&self, generation: &Generation) -> Vec<String> {
        let Generation { id, home, .. } = generation;
        let mut all = Vec::new();
        for table in &generation.tables {
            let rows =
                format!("SELECT '{table} ' || t::text FROM {home}.{table} t ORDER BY t::text");
            all.extend(self.texts(&rows).await);
        }
        all.extend(self.texts(&format!(
            "SELECT concat_ws(' ', 'dead', position, key, behind, error) FROM everfold.dead_letters \
             WHERE generation = {id} ORDER BY position"
        )).await);
        all.extend(
            self.texts(&format!(
                "SELECT concat_ws(' ', kind, position, key, message) FROM everfold.system_messages \
             WHERE generation = {id} AND kind IN ('skipped', 'dead-letter') ORDER BY position"
            ))
            .await,
        );
        all.extend(
            self.texts(&format!(
                "SELECT replace(indexdef, '{home}', 'home') FROM pg_indexes \
             WHERE schemaname = '{home}' ORDER BY 1"
            ))
            .await,
        );
        all.extend(
            self.texts(&format!(
                "SELECT c.conname || ' ' || pg_get_constraintdef(c.oid) FROM pg_constraint c \
             WHERE c.connamespace = '{home}'::regnamespace ORDER BY 1"
            ))
            .await,
        );
        all.extend(
            self.texts(&format!(
                "SELECT 'checkpoint ' || shard || ' ' || position || ' ' || attempts \
             FROM everfold.checkpoints WHERE generation = {id} ORDER BY shard"
            ))
            .await,
        );
        all
    }

    pub(super) async fn deferred(&self, generation: &Generation) -> bool {
        let id = generation.id;
        let sql = format!(
            "SELECT indexes_deferred::int::bigint FROM everfold.generations WHERE id = {id}"
        );
        self.number(&sql).await == 1
    }
}

fn copying(lease: RebuildLease, generation: Generation, projection: &Projection) -> Copying {
    Copying {
        lease,
        generation: Arc::new(generation),
        projection: projection.clone(),
        upcasters: upcasters(),
        cutoff: Position::START,
        memory_max: 64 << 20,
        events_done: Arc::new(AtomicU64::new(0)),
        pace: Arc::new(Pace::new(&RebuildOptions::default())),
        part_done: Default::default(),
        at_once: 2,
        cancel: CancellationToken::new(),
    }
}

#[derive(Clone, Copy, Debug)]
enum KeyIs {
    Stream,
    Field,
    Code,
}

pub(super) fn sums_by_stream(on_error: OnError) -> Projection {
    sums(KeyIs::Stream, on_error)
}

fn sums(key: KeyIs, on_error: OnError) -> Projection {
    let builder =
        Projection::document("sums", 1, Sum).index("sum").index("names").on_error(on_error);
    let builder = match key {
        KeyIs::Stream => builder,
        KeyIs::Field => builder.key_fields(["data.account"]),
        KeyIs::Code => builder.key(|event: &Event, recorded: &RecordedEvent| match event {
            Event::Cleared => None,
            Event::Added { n: 13 } => panic!("unlucky"),
            _ => Some(format!("k-{}", recorded.stream_id.as_str().len())),
        }),
    };
    builder.build().expect("the projection is a good one")
}

pub(super) fn assert_same(copied: &[String], batches: &[String], what: &str) {
    let first = copied.iter().zip(batches).find(|(copied, batches)| copied != batches);
    assert_eq!(first, None, "{what}");
    assert_eq!(copied.len(), batches.len(), "{what}");
}

async fn documents_are_as_from_batches(key: KeyIs, on_error: OnError, memory_max: usize) {
    let mut seed = Seed::from_env_or_random();
    let what = format!("{key:?}, {on_error:?}, seed {}", seed.value());
    let bench = Bench::new().await;
    let bad = if on_error == OnError::Stop { Bad::None } else { Bad::Some };
    let projection = sums(key, on_error);
    bench.registered(projection.clone()).await;
    bench.append(&log(&mut seed, bad)).await;
    let mut copying = bench.begin(&projection, false).await;
    copying.memory_max = memory_max;
    assert!(bench.deferred(&copying.generation).await);
    let parts = bench.copy_all(&mut copying).await;
    assert_eq!(parts > 1, memory_max < 1 << 20, "{what}: {parts} parts");
    let copied = bench.outcome(&copying.generation).await;
    assert!(!bench.deferred(&copying.generation).await);
    let mut in_batches = bench.begin(&projection, true).await;
    bench.batches(&mut in_batches).await;
    assert_same(&copied, &bench.outcome(&in_batches.generation).await, &what);
    if bad == Bad::Some {
        let aside = |line: &&String| line.starts_with("skipped") || line.starts_with("dead");
        assert!(copied.iter().filter(aside).count() > 3, "{what}");
    }
    let done = copying.events_done.load(Ordering::Relaxed);
    assert!(done > 0 && (memory_max < 1 << 20 || done <= EVENTS as u64), "{what}: {done}");
}

const PLENTY: usize = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_by_stream_are_as_from_batches() {
    for on_error in [OnError::Stop, OnError::Skip, OnError::DeadLetter] {
        documents_are_as_from_batches(KeyIs::Stream, on_error, PLENTY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_by_field_are_as_from_batches() {
    for on_error in [OnError::Skip, OnError::DeadLetter] {
        documents_are_as_from_batches(KeyIs::Field, on_error, PLENTY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_by_code_are_as_from_batches() {
    for on_error in [OnError::Skip, OnError::DeadLetter] {
        documents_are_as_from_batches(KeyIs::Code, on_error, PLENTY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_do_not_fit_into_memory_are_as_from_batches() {
    documents_are_as_from_batches(KeyIs::Stream, OnError::DeadLetter, 8 << 10).await;
    documents_are_as_from_batches(KeyIs::Field, OnError::Skip, 4 << 10).await;
}
