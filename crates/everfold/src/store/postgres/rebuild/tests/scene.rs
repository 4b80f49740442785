//! An inline projection whose rows say which events they were made of, in which order, and a rebuild of
//! it whose target is made.

use std::sync::Arc;
use std::time::Duration;

use everfold_testkit::eventually;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{Bench, LIMIT, number, request, run};
use crate::Position;
use crate::projection::Projection;
use crate::projection::builder::ProjectionBuilder;
use crate::projection::generation::{Generation, Lease, ShardId};
use crate::projection::job::{Job, JobOutcome, Switch, SwitchLimits, SwitchStep, Switched, Task};
use crate::projection::projector::{ApplyError, Projector};
use crate::projection::sql::SqlBody;
use crate::rebuild::RebuildKind;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase};

pub(super) const NO_DIFFERENCES: [&str; 0] = [];

/// What a chain is of each stream, from the log itself.
const FOLDED: &str = "SELECT stream_id, string_agg(position::text, ',' ORDER BY position) AS seen \
    FROM everfold.events GROUP BY stream_id";

pub(super) struct Scene {
    pub(super) bench: Bench,
    pub(super) source: Arc<Generation>,
    pub(super) target: Arc<Generation>,
    pub(super) lease: RebuildLease,
    /// Whether readers see the target already, as when it is rebuilt in place.
    pub(super) in_place: bool,
}

pub(super) fn chain() -> ProjectionBuilder<SqlBody> {
    Projection::sql("chain", 1)
        .create("CREATE TABLE read_model.chain (key TEXT PRIMARY KEY, seen TEXT NOT NULL)")
        .apply(
            "INSERT INTO read_model.chain (key, seen) \
             SELECT stream_id, string_agg(position::text, ',' ORDER BY position) \
               FROM batch GROUP BY stream_id \
             ON CONFLICT (key) DO UPDATE SET seen = chain.seen || ',' || EXCLUDED.seen",
        )
}

/// What a step may cost, with enough patience for a busy machine.
pub(super) fn limits() -> SwitchLimits {
    SwitchLimits {
        fence_timeout: Duration::from_secs(30),
        fence_events: 100,
        within: 0,
        allow_dead_letters: false,
        keep_source: true,
    }
}

pub(super) fn impatient() -> SwitchLimits {
    SwitchLimits { fence_timeout: Duration::from_millis(200), ..limits() }
}

impl Scene {
    /// Two events are in the log; the target is empty.
    pub(super) async fn new(projection: Projection) -> Scene {
        let bench = Bench::new().await;
        let source = Arc::new(bench.registered(projection.clone()).await);
        for stream in ["a", "b"] {
            append(&bench.session, stream).await;
        }
        let lease = bench.taken(&projection, RebuildKind::Beside).await;
        let target = Arc::new(bench.store.make_target(lease, projection).await.unwrap());
        Scene { bench, source, target, lease, in_place: false }
    }

    pub(super) async fn inline() -> Scene {
        Scene::new(chain().inline().build().unwrap()).await
    }

    /// Readers see one version, and another one is built beside it; two events are in the log.
    pub(super) async fn of_versions(first: Projection, second: Projection) -> Scene {
        let bench = Bench::new().await;
        let source = Arc::new(bench.registered(first).await);
        for stream in ["a", "b"] {
            append(&bench.session, stream).await;
        }
        let target = Arc::new(bench.registered(second.clone()).await);
        let mut wanted = request(&second, RebuildKind::Beside);
        wanted.target = Some(target.id);
        let (row, _) = bench.store.request_rebuild(wanted).await.unwrap();
        let lease = bench.take(row.id).await.unwrap();
        Scene { bench, source, target, lease, in_place: false }
    }

    /// A session with a transaction that has appended and stays open.
    pub(super) async fn append_in_flight(&self, stream: &str) -> Client {
        let session = self.bench.database.connect().await;
        run(&session, "BEGIN").await;
        append(&session, stream).await;
        session
    }

    /// An append that cannot go on yet.
    pub(super) async fn append_that_waits(&self, stream: &'static str) -> JoinHandle<()> {
        let session = self.bench.database.connect().await;
        let running = tokio::spawn(async move { append(&session, stream).await });
        self.until_somebody_waits("ShareLock").await;
        running
    }

    pub(super) async fn until_somebody_waits(&self, mode: &str) {
        eventually("somebody waits for a gate", LIMIT, async || self.waiting(mode).await > 0).await;
    }

    /// How many wait for a gate.
    pub(super) async fn waiting(&self, mode: &str) -> i64 {
        let waiting = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
             AND mode = '{mode}' AND database = (SELECT oid FROM pg_database \
                WHERE datname = current_database())"
        );
        self.bench.number(&waiting).await
    }

    /// Somebody has the gates of both generations for himself.
    pub(super) async fn until_the_gates_are_held(&self) {
        eventually("both gates are held", LIMIT, async || self.gates_held().await == 2).await;
    }

    pub(super) async fn gates_held(&self) -> i64 {
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted \
            AND mode = 'ExclusiveLock' AND classid = 'everfold.generations'::regclass \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        self.bench.number(held).await
    }

    /// Readers see the target, the source is kept, and this rebuild has ended: the way back begins.
    pub(super) async fn turned_round(mut self) -> Scene {
        self.bench.store.end_rebuild(self.lease, done(), "ann".to_owned(), None).await.unwrap();
        let projection = chain().inline().build().unwrap();
        let mut wanted = request(&projection, RebuildKind::Switch);
        wanted.target = Some(self.source.id);
        wanted.version = self.source.version;
        wanted.definition_hash = self.source.definition_hash.clone();
        let (row, _) = self.bench.store.request_rebuild(wanted).await.unwrap();
        self.lease = self.bench.take(row.id).await.unwrap();
        std::mem::swap(&mut self.source, &mut self.target);
        self
    }

    pub(super) async fn switch(&self, step: SwitchStep, limits: SwitchLimits) -> Job {
        let leases = vec![self.lease_of(self.target.id).await];
        self.job(step, limits, leases)
    }

    pub(super) fn job(&self, step: SwitchStep, limits: SwitchLimits, leases: Vec<Lease>) -> Job {
        let source = (!self.in_place).then(|| Arc::clone(&self.source));
        let rebuild = self.lease;
        let switch = Switch { rebuild, leases, source, step, limits, actor: "ann".to_owned() };
        let task = Task::Switch(Box::new(switch));
        Job::new(Arc::clone(&self.target), Projector::Sql, Arc::default(), task)
    }

    pub(super) async fn step(&self, step: SwitchStep) -> Switched {
        self.try_step(step, limits()).await.unwrap()
    }

    pub(super) async fn try_step(
        &self,
        step: SwitchStep,
        limits: SwitchLimits,
    ) -> Result<Switched, ApplyError> {
        let job = self.switch(step, limits).await;
        self.bench.store.run(job).await.map(|outcome| outcome.switched.unwrap())
    }

    /// A step that has to wait for somebody's gate.
    pub(super) async fn step_that_waits(&self, step: SwitchStep) -> JoinHandle<Switched> {
        let (store, job) = (Arc::clone(&self.bench.store), self.switch(step, limits()).await);
        let running = tokio::spawn(async move { store.run(job).await.unwrap().switched.unwrap() });
        self.until_somebody_waits("ExclusiveLock").await;
        running
    }

    /// The right to run a generation's shard, whoever has it.
    pub(super) async fn lease_of(&self, generation: i32) -> Lease {
        let sql = format!("SELECT epoch FROM everfold.checkpoints WHERE generation = {generation}");
        let epoch = self.bench.number(&sql).await;
        let shard = ShardId { generation, shard: 0 };
        Lease { shard, epoch, position: Position::START }
    }

    /// Batches up to the mark of now, as whoever feeds a generation does; the mark.
    pub(super) async fn feed(&self, generation: &Arc<Generation>) -> Position {
        let mark = self.bench.store.high_water_mark().await.unwrap();
        self.feed_to(generation, mark).await;
        mark
    }

    /// Whatever is not fed by appends now.
    pub(super) async fn feed_unless_appends_do(&self, generation: &Arc<Generation>) {
        let inline = generation.lifecycle == crate::projection::definition::Lifecycle::Inline;
        if !inline || self.status(generation).await != "active" {
            self.feed(generation).await;
        }
    }

    /// Batches up to there; how many events that were.
    pub(super) async fn feed_to(&self, generation: &Arc<Generation>, mark: Position) -> u64 {
        let task = self.batch(generation, mark).await;
        let mut applied = 0;
        loop {
            let outcome = self.run(generation, task.clone()).await;
            applied += outcome.applied;
            if !outcome.more {
                return applied;
            }
        }
    }

    pub(super) async fn batch(&self, generation: &Generation, mark: Position) -> Task {
        let lease = self.lease_of(generation.id).await;
        Task::Batch { lease, mark, events_max: 100, worker: self.lease.worker }
    }

    pub(super) async fn drain(&self, generation: &Arc<Generation>) -> u64 {
        let (lease, actor) = (self.lease_of(generation.id).await, "ann".to_owned());
        self.run(generation, Task::Drain { lease, events_max: 10, actor }).await.applied
    }

    async fn run(&self, generation: &Arc<Generation>, task: Task) -> JobOutcome {
        self.try_run(generation, task).await.unwrap()
    }

    pub(super) async fn try_run(
        &self,
        generation: &Arc<Generation>,
        task: Task,
    ) -> Result<JobOutcome, ApplyError> {
        let job = Job::new(Arc::clone(generation), Projector::Sql, Arc::default(), task);
        self.bench.store.run(job).await
    }

    /// Nobody gets at the target's rows until this session ends its transaction.
    pub(super) async fn target_that_nobody_gets_at(&self) -> Client {
        let session = self.bench.database.connect().await;
        let lock = format!("BEGIN; LOCK TABLE {}.chain", self.target.home);
        run(&session, &lock).await;
        session
    }

    /// Ends the session that waits for rows of a read model, and returns when it is gone.
    pub(super) async fn end_whoever_waits_for_rows(&self) {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        eventually("somebody waits for rows", LIMIT, async || self.bench.number(waits).await > 0)
            .await;
        let end = waits.replace("count(*)", "count(pg_terminate_backend(pid))");
        assert_eq!(self.bench.number(&end).await, 1);
        eventually("it is gone", LIMIT, async || self.bench.number(waits).await == 0).await;
    }

    /// Keys whose rows were not made of all their events, each once, in the order of the log.
    pub(super) async fn differences(&self, generation: &Generation) -> Vec<String> {
        let home = &generation.home;
        let sql = format!(
            "SELECT coalesce(f.stream_id::text, c.key) FROM ({FOLDED}) f \
             FULL JOIN {home}.chain c ON c.key = f.stream_id \
             WHERE c.seen IS DISTINCT FROM f.seen ORDER BY 1"
        );
        self.bench.texts(&sql).await
    }

    pub(super) async fn status(&self, generation: &Generation) -> String {
        let sql = format!("SELECT status FROM everfold.generations WHERE id = {}", generation.id);
        self.bench.texts(&sql).await.remove(0)
    }

    pub(super) async fn shown(&self) -> i64 {
        self.bench.number("SELECT active_generation::bigint FROM everfold.projections").await
    }

    pub(super) async fn checkpoint(&self, generation: &Generation) -> i64 {
        let id = generation.id;
        let sql = format!("SELECT position FROM everfold.checkpoints WHERE generation = {id}");
        self.bench.number(&sql).await
    }

    pub(super) async fn skips(&self, generation: &Generation) -> i64 {
        let id = generation.id;
        let sql = format!("SELECT count(*) FROM everfold.skips WHERE generation = {id}");
        self.bench.number(&sql).await
    }

    /// Everything that a switch changes, as text.
    pub(super) async fn everything(&self) -> Vec<String> {
        self.bench
            .texts(
                "SELECT id || ' ' || status FROM everfold.generations \
                 UNION ALL SELECT generation || ' at ' || position || ' in ' || epoch \
                    FROM everfold.checkpoints \
                 UNION ALL SELECT 'shown ' || active_generation FROM everfold.projections \
                 UNION ALL SELECT 'flipped ' || (flipped_at IS NOT NULL) FROM everfold.rebuilds \
                 UNION ALL SELECT 'owed ' || generation || ' ' || position FROM everfold.skips \
                 ORDER BY 1",
            )
            .await
    }
}

fn done() -> RebuildFigures {
    RebuildFigures { phase: Some(RebuildPhase::Done), ..RebuildFigures::default() }
}

/// Appends an event to a stream, from a client that knows nothing but the function.
pub(super) async fn append(session: &Client, stream: &str) {
    let sql = format!(
        "SELECT first_position FROM everfold.append_event('{stream}', NULL, 'Happened', '{{}}')"
    );
    number(session, &sql).await;
}
