//! Copying history by the database itself, and what holds for parts of any kind: who may write them, what
//! interrupts them, who goes on.

use std::sync::Arc;

use everfold_testkit::{Seed, eventually};
use serde_json::json;

use super::copy::{Bad, assert_same, log, sums_by_stream};
use super::{Bench, LIMIT, number, request, run};
use crate::Position;
use crate::projection::Projection;
use crate::projection::definition::OnError;
use crate::projection::projector::ApplyError;
use crate::rebuild::RebuildKind;
use crate::store::{Copied, Copying};

const CREATE: &str = "CREATE TABLE read_model.totals (id TEXT PRIMARY KEY, sum BIGINT NOT NULL, \
        name TEXT, at BIGINT NOT NULL CHECK (at > 0)); \
    CREATE INDEX totals_by_sum ON read_model.totals (sum); \
    CREATE UNIQUE INDEX ON read_model.totals (id, at); \
    CREATE INDEX ON read_model.totals (name); \
    CREATE TABLE read_model.counts (type TEXT PRIMARY KEY, n BIGINT NOT NULL); \
    CREATE TABLE read_model.notes (id TEXT NOT NULL, at BIGINT NOT NULL, name TEXT NOT NULL); \
    CREATE INDEX notes_by_id ON read_model.notes (id)";

/// Sums by key, the last name, a table that all keys share, and names that are cleared away.
fn apply(key: &str) -> String {
    format!(
        "INSERT INTO read_model.totals AS t (id, sum, name, at) \
         SELECT {key}, coalesce(sum(CAST(data->>'n' AS BIGINT)), 0), \
                (array_agg(data->>'first' ORDER BY position DESC) FILTER (WHERE type = 'Named'))[1], \
                max(position) \
         FROM batch GROUP BY {key} \
         ON CONFLICT (id) DO UPDATE SET sum = t.sum + EXCLUDED.sum, \
             name = coalesce(EXCLUDED.name, t.name), at = EXCLUDED.at; \
         INSERT INTO read_model.counts AS c (type, n) \
         SELECT type, count(*) FROM batch GROUP BY type ORDER BY type \
         ON CONFLICT (type) DO UPDATE SET n = c.n + EXCLUDED.n; \
         DELETE FROM read_model.notes n USING \
             (SELECT DISTINCT {key} AS id FROM batch WHERE type = 'Cleared') gone \
         WHERE n.id = gone.id; \
         INSERT INTO read_model.notes (id, at, name) \
         SELECT {key}, position, data->>'first' FROM batch \
         LEFT JOIN (SELECT {key} AS id, max(position) AS at FROM batch WHERE type = 'Cleared' \
                    GROUP BY {key}) gone ON gone.id = {key} \
         WHERE type = 'Named' AND position > coalesce(gone.at, 0)"
    )
}

fn totals_by(field: Option<&str>) -> Projection {
    let key = field.map_or("stream_id".to_owned(), |field| format!("data->>'{field}'"));
    let builder = Projection::sql("totals", 1).create(CREATE).apply(apply(&key)).upcaster(
        "Named",
        1,
        "jsonb_build_object('first', data->>'name', 'account', data->'account')",
    );
    let builder = match field {
        Some(field) => builder.key_fields([format!("data.{field}")]),
        None => builder,
    };
    builder.build().expect("the projection is a good one")
}

impl Bench {
    /// A log, and a rebuild with a plan.
    async fn planned(&self, projection: &Projection) -> Copying {
        self.registered(projection.clone()).await;
        self.append(&log(&mut Seed::from_env_or_random(), Bad::None)).await;
        let mut copying = self.begin(projection, false).await;
        assert_eq!(self.plan(&mut copying).await, 1);
        copying
    }

    /// Cuts the one part into four.
    async fn cut(&self) {
        self.run(
            "DELETE FROM everfold.rebuild_parts; \
             INSERT INTO everfold.rebuild_parts (rebuild, low, high, events) \
             SELECT r.id, n * 1073741824, (n + 1) * 1073741824, 750 \
             FROM everfold.rebuilds r, generate_series(0::bigint, 3) n WHERE r.finished_at IS NULL",
        )
        .await;
    }

    /// Compares what was copied with what batches give.
    async fn assert_as_from_batches(&self, copied: &Copying) {
        let found = self.outcome(&copied.generation).await;
        assert!(found.len() > 20, "{found:?}");
        let mut in_batches = self.begin(&copied.projection, true).await;
        self.batches(&mut in_batches).await;
        let expected = self.outcome(&in_batches.generation).await;
        assert_same(&found, &expected, "see the seed");
    }

    /// The same rebuild in the hands of another worker, who found the first one dead.
    async fn taken_over(&self, copying: &Copying) -> Copying {
        self.run("UPDATE everfold.rebuilds SET expires_at = clock_timestamp() - interval '1 s'")
            .await;
        let lease = self.take(copying.lease.rebuild).await.expect("nobody works on it");
        Copying { lease, ..copying.clone() }
    }

    async fn copy_rest(&self, copying: &Copying) {
        while self.store.copy_part(copying.clone()).await.unwrap() != Copied::NoneLeft {}
        self.store.finish_copy(copying.clone()).await.unwrap();
        self.end(copying).await;
    }

    async fn waiting(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND wait_event_type = 'Lock'",
        )
        .await
    }

    /// Copies a part in the background until it waits for a lock that `held` takes.
    async fn copies_until(
        &self,
        copying: &Copying,
        held: &str,
    ) -> (tokio_postgres::Client, tokio::task::JoinHandle<Result<Copied, ApplyError>>) {
        let other = self.database.connect().await;
        run(&other, &format!("BEGIN; {held}")).await;
        let (store, copying) = (Arc::clone(&self.store), copying.clone());
        let part = tokio::spawn(async move { store.copy_part(copying).await });
        eventually("the part waits", LIMIT, async || self.waiting().await == 1).await;
        (other, part)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_as_from_batches() {
    for projection in [totals_by(None), totals_by(Some("account"))] {
        let bench = Bench::new().await;
        let copying = bench.planned(&projection).await;
        assert!(bench.deferred(&copying.generation).await);
        bench.copy_rest(&copying).await;
        bench.assert_as_from_batches(&copying).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_copied_in_parts_at_once_are_as_from_batches() {
    for projection in [totals_by(None), totals_by(Some("account"))] {
        let bench = Bench::new().await;
        let copying = bench.planned(&projection).await;
        bench.cut().await;
        let copy = async || {
            let mut parts = 0;
            loop {
                match bench.store.copy_part(copying.clone()).await.unwrap() {
                    Copied::NoneLeft => return parts,
                    Copied::Part { .. } => parts += 1,
                    Copied::InBatches { reason } => panic!("{reason}"),
                }
            }
        };
        let (one, other) = tokio::join!(copy(), copy());
        assert_eq!(one + other, 4);
        bench.copy_rest(&copying).await;
        bench.assert_as_from_batches(&copying).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_sql_refuses_sends_history_into_batches() {
    let bench = Bench::new().await;
    bench.registered(totals_by(None)).await;
    let mut events = log(&mut Seed::from_env_or_random(), Bad::None);
    events.push(json!({ "stream": "s-1", "type": "Added", "data": { "n": "many" } }));
    bench.append(&events).await;
    let mut copying = bench.begin(&totals_by(None), false).await;
    bench.plan(&mut copying).await;
    let copied = bench.store.copy_part(copying.clone()).await.unwrap();
    let Copied::InBatches { reason } = copied else { panic!("{copied:?}") };
    assert!(reason.contains("many") && reason.contains("apply:1"), "{reason}");
    bench.store.discard_target(copying.lease).await.unwrap();
    let generation = bench.store.make_target(copying.lease, totals_by(None)).await.unwrap();
    assert!(!bench.deferred(&generation).await, "batches need their indexes");
    copying.generation = Arc::new(generation);
    assert_eq!(bench.plan(&mut copying).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_without_key_sends_history_into_batches() {
    let bench = Bench::new().await;
    let projection = totals_by(Some("account"));
    bench.registered(projection.clone()).await;
    let mut events = log(&mut Seed::from_env_or_random(), Bad::None);
    events.push(json!({ "stream": "s-1", "type": "Added", "data": { "n": 1 } }));
    bench.append(&events).await;
    let mut copying = bench.begin(&projection, false).await;
    bench.plan(&mut copying).await;
    let copied = bench.store.copy_part(copying.clone()).await.unwrap();
    let Copied::InBatches { reason } = copied else { panic!("{copied:?}") };
    assert!(reason.contains("data.account"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_that_fails_under_stop_names_its_event() {
    let bench = Bench::new().await;
    let projection = sums_by_stream(OnError::Stop);
    bench.registered(projection.clone()).await;
    let mut events = log(&mut Seed::from_env_or_random(), Bad::None);
    let at = events.len() / 2;
    events[at] = json!({ "stream": "s-1", "type": "Exploded", "data": null });
    events[at + 7] = json!({ "stream": "s-2", "type": "Added", "data": { "n": "many" } });
    bench.append(&events).await;
    let mut copying = bench.begin(&projection, false).await;
    bench.plan(&mut copying).await;
    let error = bench.store.copy_part(copying.clone()).await.unwrap_err();
    let ApplyError::Refused { message, position } = error else { panic!("{error:?}") };
    let first = at as u64 + 1;
    assert_eq!(position, Some(Position(first)), "the first in the log");
    let named =
        format!("event at position {first} (\"Exploded\", stream \"s-1\"): evolve panicked");
    assert!(message.starts_with(&named), "{message}");
    eventually("what was not copied does not count", LIMIT, async || {
        copying.events_done.load(std::sync::atomic::Ordering::Relaxed) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_else_goes_on_with_the_parts_that_are_left() {
    let bench = Bench::new().await;
    let first = bench.planned(&totals_by(None)).await;
    bench.cut().await;
    for _ in 0..2 {
        assert!(matches!(bench.store.copy_part(first.clone()).await, Ok(Copied::Part { .. })));
    }
    let mut second = bench.taken_over(&first).await;
    let late = bench.store.copy_part(first.clone()).await;
    assert!(matches!(late, Err(ApplyError::LeaseLost)), "{late:?}");
    let late = bench.store.finish_copy(first.clone()).await;
    assert!(matches!(late, Err(ApplyError::LeaseLost)), "{late:?}");
    let late = bench.store.plan_copy(first).await;
    assert!(matches!(late, Err(ApplyError::LeaseLost)), "{late:?}");
    let early = bench.store.finish_copy(second.clone()).await.unwrap_err();
    assert!(matches!(&early, ApplyError::Store(error) if error.is_transient()), "{early:?}");
    assert_eq!(bench.plan(&mut second).await, 2);
    while bench.store.copy_part(second.clone()).await.unwrap() != Copied::NoneLeft {}
    for _ in 0..2 {
        bench.store.finish_copy(second.clone()).await.expect("it may be done again");
    }
    bench.end(&second).await;
    bench.assert_as_from_batches(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_rebuild_of_the_same_generation_goes_on() {
    let bench = Bench::new().await;
    let first = bench.planned(&sums_by_stream(OnError::Stop)).await;
    bench.cut().await;
    assert!(matches!(bench.store.copy_part(first.clone()).await, Ok(Copied::Part { .. })));
    bench
        .run("UPDATE everfold.rebuilds SET finished_at = clock_timestamp(), phase = 'cancelled'")
        .await;
    let mut wanted = request(&first.projection, RebuildKind::Beside);
    wanted.target = Some(first.generation.id);
    let (row, _) = bench.store.request_rebuild(wanted).await.unwrap();
    let lease = bench.take(row.id).await.unwrap();
    let mut second = Copying { lease, cutoff: Position::START, ..first.clone() };
    assert_eq!(bench.plan(&mut second).await, 3);
    assert_eq!(second.cutoff, first.cutoff);
    bench.copy_rest(&second).await;
    bench.assert_as_from_batches(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_lost_the_lease_in_the_middle_of_a_part_writes_nothing() {
    for projection in [totals_by(None), sums_by_stream(OnError::Stop)] {
        let bench = Bench::new().await;
        let first = bench.planned(&projection).await;
        let home = &first.generation.home;
        let held = format!("LOCK TABLE {home}.{} IN SHARE MODE", projection.name());
        let (other, part) = bench.copies_until(&first, &held).await;
        let second = bench.taken_over(&first).await;
        run(&other, "COMMIT").await;
        let late = part.await.unwrap();
        assert!(matches!(late, Err(ApplyError::LeaseLost)), "{late:?}");
        let rows = format!("SELECT count(*) FROM {home}.{}", projection.name());
        assert_eq!(bench.number(&rows).await, 0);
        bench.copy_rest(&second).await;
        bench.assert_as_from_batches(&second).await;
    }
}

/// As if its process stood still: it holds the part, and nothing comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_lost_the_lease_and_stands_still_holds_nobody_up() {
    for projection in [totals_by(None), sums_by_stream(OnError::Stop)] {
        let bench = Bench::new().await;
        let first = bench.planned(&projection).await;
        let home = &first.generation.home;
        let held = format!("LOCK TABLE {home}.{} IN SHARE MODE", projection.name());
        let (other, part) = bench.copies_until(&first, &held).await;
        let second = bench.taken_over(&first).await;
        let rest = bench.copy_rest(&second);
        let goes_on = async {
            let late = part.await.unwrap();
            assert!(late.is_err(), "{late:?}");
            run(&other, "COMMIT").await;
        };
        tokio::time::timeout(LIMIT, async { tokio::join!(rest, goes_on) }).await.unwrap();
        bench.assert_as_from_batches(&second).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_that_nobody_wants_any_more_ends_at_once_on_the_server_too() {
    for projection in [totals_by(None), sums_by_stream(OnError::Stop)] {
        let bench = Bench::new().await;
        let copying = bench.planned(&projection).await;
        let home = &copying.generation.home;
        let held = format!("LOCK TABLE {home}.{} IN SHARE MODE", projection.name());
        let (other, part) = bench.copies_until(&copying, &held).await;
        copying.cancel.cancel();
        assert!(part.await.unwrap().is_err());
        eventually("the server has stopped", LIMIT, async || bench.waiting().await == 0).await;
        let again = Copying { cancel: Default::default(), ..copying.clone() };
        run(&other, "COMMIT").await;
        let (other, part) = bench.copies_until(&again, &held).await;
        part.abort();
        eventually("the server has stopped", LIMIT, async || bench.waiting().await == 0).await;
        run(&other, "COMMIT").await;
        let parts = "SELECT count(*) FROM everfold.rebuild_parts WHERE NOT done";
        assert_eq!(number(&bench.session, parts).await, 1);
        bench.copy_rest(&again).await;
        bench.assert_as_from_batches(&again).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_events_are_left_to_batches_with_all_indexes_in_place() {
    let bench = Bench::new().await;
    bench.registered(sums_by_stream(OnError::Stop)).await;
    let events = log(&mut Seed::from_env_or_random(), Bad::None);
    bench.append(&events[..500]).await;
    let mut copying = bench.begin(&sums_by_stream(OnError::Stop), false).await;
    assert!(bench.deferred(&copying.generation).await);
    assert_eq!(bench.plan(&mut copying).await, 0);
    assert!(!bench.deferred(&copying.generation).await);
    assert_eq!(copying.cutoff, Position::START);
    bench.batches(&mut copying).await;
    bench.assert_as_from_batches(&copying).await;
}
