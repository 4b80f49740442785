//! The readers' views: widened, switched, narrowed, under the eyes of readers.

use tokio_postgres::Client;

use super::{Bench, COLUMNS, number, request, run, totals};
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::generation::Generation;
use crate::rebuild::RebuildKind;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase};
use crate::store::Removed;

/// A first version with three rows, and a second one that is built with two.
pub(super) struct Switch {
    pub(super) bench: Bench,
    pub(super) old: Generation,
    pub(super) new: Generation,
    pub(super) lease: RebuildLease,
}

impl Switch {
    pub(super) async fn prepare(columns: &str) -> Switch {
        let bench = Bench::new().await;
        let old = bench.registered(totals(1, COLUMNS)).await;
        let insert =
            "INSERT INTO {home}.totals (id, n) SELECT 'a' || i, i FROM generate_series(1, {n}) i";
        let fill = |home: &str, n: &str| insert.replace("{home}", home).replace("{n}", n);
        bench.run(&fill(&old.home, "3")).await;
        let next = totals(2, columns);
        let lease = bench.taken(&next, RebuildKind::Beside).await;
        let new = bench.store.make_target(lease, next).await.unwrap();
        bench.run(&fill(&new.home, "2")).await;
        Switch { bench, old, new, lease }
    }

    pub(super) async fn widen(&self) {
        self.bench.store.widen_views(self.lease).await.unwrap();
    }

    pub(super) async fn flip(&self) {
        self.bench.flip(self.lease, self.new.id, Some(self.old.id)).await;
    }

    pub(super) async fn remove(&self, generation: &Generation) -> Result<Removed, ProjectionError> {
        self.bench.store.remove_generation(generation.id, None, "ann".to_owned()).await
    }

    /// The rows that a new reader sees.
    pub(super) async fn rows(&self) -> i64 {
        self.bench.number("SELECT count(*) FROM read_model.totals").await
    }

    /// A reader whose snapshot is of now, and who has not looked at the view yet.
    pub(super) async fn reader(&self) -> Client {
        let reader = self.bench.database.connect().await;
        run(&reader, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM everfold.store").await;
        reader
    }

    async fn views(&self) -> Vec<String> {
        let sql = "SELECT viewname::text FROM pg_views WHERE schemaname = 'read_model' ORDER BY 1";
        self.bench.texts(sql).await
    }

    async fn columns(&self, view: &str) -> Vec<String> {
        let sql = format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = 'read_model.{view}'::regclass \
             AND attnum > 0 ORDER BY attnum"
        );
        self.bench.texts(&sql).await
    }
}

const SEEN: &str = "SELECT count(*) FROM read_model.totals";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_whole_read_model_throughout() {
    let switch = Switch::prepare(COLUMNS).await;
    let before = switch.reader().await;
    switch.widen().await;
    assert_eq!(switch.rows().await, 3, "widening shows nothing else");
    let widened = switch.reader().await;
    switch.widen().await;
    switch.flip().await;
    assert_eq!(switch.rows().await, 2);
    for reader in [&before, &widened] {
        assert_eq!(number(reader, SEEN).await, 3, "as it was when he began");
    }
    // Nothing that he sees is taken away.
    let Removed::Seen(who) = switch.remove(&switch.old).await.unwrap() else {
        panic!("it is seen");
    };
    assert_eq!(who.len(), 2, "{who:?}");
    assert!(who[0].starts_with("process "), "{who:?}");
    for reader in [&before, &widened] {
        assert_eq!(number(reader, SEEN).await, 3);
    }
    let left = switch.bench.store.leftovers().await.unwrap();
    assert_eq!(left.iter().map(|left| left.id).collect::<Vec<_>>(), [switch.old.id]);
    for reader in [before, widened] {
        run(&reader, "COMMIT").await;
    }
    assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
    assert_eq!(switch.rows().await, 2);
    assert!(switch.bench.store.leftovers().await.unwrap().is_empty());
    let definition = "SELECT pg_get_viewdef('read_model.totals'::regclass)";
    let text = switch.bench.texts(definition).await.remove(0);
    assert!(!text.contains("active_generation"), "one is left, without conditions: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_and_views_of_others_survive_and_a_new_column_is_seen_at_the_end() {
    let switch = Switch::prepare(&format!("{COLUMNS}, note TEXT")).await;
    let role = format!("reader_{}", uuid::Uuid::now_v7().simple());
    let bench = &switch.bench;
    bench
        .run(&format!(
            "CREATE ROLE {role}; GRANT SELECT ON read_model.totals TO {role}; \
         CREATE VIEW public.big AS SELECT * FROM read_model.totals WHERE n > 1"
        ))
        .await;
    let allowed =
        format!("SELECT has_table_privilege('{role}', 'read_model.totals', 'SELECT')::int::bigint");
    let big = "SELECT count(*) FROM public.big";
    switch.widen().await;
    assert_eq!(switch.columns("totals").await, ["id", "n", "note"]);
    assert_eq!((switch.rows().await, bench.number(big).await), (3, 2));
    switch.flip().await;
    assert_eq!((switch.rows().await, bench.number(big).await), (2, 1));
    assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
    assert_eq!((switch.rows().await, bench.number(big).await), (2, 1));
    assert_eq!(bench.number(&allowed).await, 1);
    assert_eq!(switch.views().await, ["totals"]);
    bench.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_that_is_not_active_is_planned_but_never_executed() {
    let switch = Switch::prepare(COLUMNS).await;
    switch.widen().await;
    let explain =
        "EXPLAIN (ANALYZE, COSTS off, TIMING off) SELECT * FROM read_model.totals WHERE id = 'a1'";
    let plan = switch.bench.texts(explain).await.join("\n");
    assert_eq!(plan.matches("One-Time Filter").count(), 2, "{plan}");
    assert_eq!(plan.matches("never executed").count(), 1, "{plan}");
    assert!(plan.contains("Index Cond") || plan.contains("Recheck Cond"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_columns_get_a_name_of_their_own() {
    let switch = Switch::prepare("id TEXT PRIMARY KEY, n NUMERIC(10, 2) NOT NULL").await;
    let role = format!("reader_{}", uuid::Uuid::now_v7().simple());
    let bench = &switch.bench;
    bench.run(&format!("CREATE ROLE {role}; GRANT SELECT ON read_model.totals TO {role}")).await;
    switch.widen().await;
    assert_eq!(switch.views().await, ["totals", "totals_v2"]);
    let own = "SELECT count(*) FROM read_model.totals_v2";
    assert_eq!((switch.rows().await, bench.number(own).await), (3, 0), "it is not there yet");
    switch.flip().await;
    assert_eq!((switch.rows().await, bench.number(own).await), (3, 2), "each has its own");
    let granted = "SELECT has_table_privilege('everfold_read_models', 'read_model.totals_v2', 'SELECT')::int::bigint";
    let exists =
        bench.number("SELECT count(*) FROM pg_roles WHERE rolname = 'everfold_read_models'").await;
    if exists == 1 {
        assert_eq!(bench.number(granted).await, 1);
    }
    assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
    assert_eq!(switch.views().await, ["totals", "totals_v2"]);
    assert_eq!((switch.rows().await, bench.number(own).await), (2, 2), "the name is free for it");
    let allowed =
        format!("SELECT has_table_privilege('{role}', 'read_model.totals', 'SELECT')::int::bigint");
    assert_eq!(bench.number(&allowed).await, 1);
    bench.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_back_and_removing_the_new_one_leaves_the_views_of_the_old() {
    let switch = Switch::prepare(&format!("{COLUMNS}, note TEXT")).await;
    switch.widen().await;
    switch.flip().await;
    let figures = RebuildFigures { phase: Some(RebuildPhase::Done), ..RebuildFigures::default() };
    let bench = &switch.bench;
    assert!(bench.store.end_rebuild(switch.lease, figures, "ann".to_owned(), None).await.unwrap());
    let mut back = request(&totals(1, COLUMNS), RebuildKind::Switch);
    back.target = Some(switch.old.id);
    let (row, _) = bench.store.request_rebuild(back).await.unwrap();
    let lease = bench.take(row.id).await.unwrap();
    bench.store.widen_views(lease).await.unwrap();
    assert_eq!(switch.rows().await, 2);
    bench.flip(lease, switch.old.id, Some(switch.new.id)).await;
    assert_eq!(switch.rows().await, 3);
    assert_eq!(switch.remove(&switch.new).await.unwrap(), Removed::Done);
    assert_eq!(switch.rows().await, 3);
    assert_eq!(switch.columns("totals").await, ["id", "n", "note"], "a column never goes away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_generation_and_tables_that_come_and_go() {
    let bench = Bench::new().await;
    let tables = |version, tables: &[&str]| {
        let create: Vec<String> =
            tables.iter().map(|t| format!("CREATE TABLE read_model.{t} (id TEXT)")).collect();
        Projection::sql("totals", version)
            .create(create.join("; "))
            .apply(format!("INSERT INTO read_model.{} SELECT stream_id FROM batch", tables[0]))
            .build()
            .unwrap()
    };
    let one = tables(1, &["both", "old_one"]);
    let old = bench.registered(one).await;
    // Nobody has ever read it.
    bench
        .run(
            "DROP VIEW read_model.both, read_model.old_one; \
        UPDATE everfold.projections SET active_generation = NULL; \
        UPDATE everfold.generations SET status = 'building'",
        )
        .await;
    let mut first = request(&tables(1, &["both", "old_one"]), RebuildKind::Beside);
    first.target = Some(old.id);
    let (row, _) = bench.store.request_rebuild(first).await.unwrap();
    let lease = bench.take(row.id).await.unwrap();
    bench.run(&format!("INSERT INTO {}.both VALUES ('x')", old.home)).await;
    bench.store.widen_views(lease).await.unwrap();
    let rows = "SELECT count(*) FROM read_model.both";
    assert_eq!(bench.number(rows).await, 0, "nothing half-built is seen");
    bench.flip(lease, old.id, None).await;
    assert_eq!(bench.number(rows).await, 1);
    let figures = RebuildFigures { phase: Some(RebuildPhase::Done), ..RebuildFigures::default() };
    bench.store.end_rebuild(lease, figures, "ann".to_owned(), None).await.unwrap();

    let two = tables(2, &["both", "new"]);
    let lease = bench.taken(&two, RebuildKind::Beside).await;
    let new = bench.store.make_target(lease, two).await.unwrap();
    bench.store.widen_views(lease).await.unwrap();
    let views = "SELECT viewname::text FROM pg_views WHERE schemaname = 'read_model' ORDER BY 1";
    assert_eq!(bench.texts(views).await, ["both", "new", "old_one"]);
    bench.flip(lease, new.id, Some(old.id)).await;
    let removed = bench.store.remove_generation(old.id, None, "ann".to_owned()).await.unwrap();
    assert_eq!(removed, Removed::Done);
    assert_eq!(bench.texts(views).await, ["both", "new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_holds_a_view_is_named_and_the_lease_is_looked_at() {
    let switch = Switch::prepare(COLUMNS).await;
    let holder = switch.bench.database.connect().await;
    run(&holder, "SET application_name = 'report'; BEGIN; SELECT FROM read_model.totals").await;
    let error = switch.bench.store.widen_views(switch.lease).await.unwrap_err();
    assert!(error.to_string().contains("(report)"), "{error}");
    assert_eq!(number(&holder, SEEN).await, 3);
    run(&holder, "COMMIT").await;
    switch.widen().await;
    let lost = RebuildLease { epoch: switch.lease.epoch - 1, ..switch.lease };
    let error = switch.bench.store.widen_views(lost).await.unwrap_err();
    assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("\"totals\""), "{error}");
}
