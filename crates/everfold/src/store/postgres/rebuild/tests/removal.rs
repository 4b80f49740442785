//! Removing generations: what is refused, what is waited for, what is left.

use everfold_testkit::{PgBouncer, Server, TestDatabase};
use futures::future::BoxFuture;
use uuid::Uuid;

use super::views::Switch;
use super::{Bench, COLUMNS, open, request, run, totals};
use crate::projection::Projection;
use crate::projection::handler::{HandlerBatch, HandlerError, PostgresHandler};
use crate::rebuild::RebuildKind;
use crate::store::Removed;

fn inline(name: &str) -> Projection {
    Projection::sql(name, 1)
        .create(format!("CREATE TABLE read_model.{name} (id TEXT)"))
        .apply(format!("INSERT INTO read_model.{name} SELECT stream_id FROM batch"))
        .inline()
        .build()
        .expect("the projection is a good one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_readers_see_and_what_is_built_is_not_removed() {
    let switch = Switch::prepare(COLUMNS).await;
    let error = switch.remove(&switch.old).await.unwrap_err();
    assert!(error.to_string().contains("is read through"), "{error}");
    let error = switch.remove(&switch.new).await.unwrap_err();
    assert!(error.to_string().contains("has rebuild"), "{error}");
    let retired = "SELECT count(*) FROM everfold.generations WHERE status = 'retired'";
    assert_eq!(switch.bench.number(retired).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_but_the_record_and_a_second_call_finds_nothing_to_do() {
    let switch = Switch::prepare(COLUMNS).await;
    switch.widen().await;
    switch.flip().await;
    let (bench, old) = (&switch.bench, switch.old.id);
    bench.run(&format!(
        "INSERT INTO everfold.skips (generation, position, key, reason) VALUES ({old}, 1, 'a', 'x'); \
         INSERT INTO everfold.dead_letters (generation, position, key, error) VALUES ({old}, 2, 'b', 'x')"
    )).await;
    for _ in 0..2 {
        assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
        let left = format!(
            "SELECT (SELECT count(*) FROM everfold.checkpoints WHERE generation = {old}) \
             + (SELECT count(*) FROM everfold.skips WHERE generation = {old}) \
             + (SELECT count(*) FROM everfold.dead_letters WHERE generation = {old}) \
             + (SELECT count(*) FROM pg_namespace WHERE nspname = '{}')",
            switch.old.home
        );
        assert_eq!(bench.number(&left).await, 0);
    }
    let status = format!("SELECT status FROM everfold.generations WHERE id = {old}");
    assert_eq!(bench.texts(&status).await, ["retired"]);
    let checkpoints =
        format!("SELECT count(*) FROM everfold.checkpoints WHERE generation = {}", switch.new.id);
    assert_eq!(bench.number(&checkpoints).await, 1, "the other one has its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_made_is_not_dropped_but_named() {
    let switch = Switch::prepare(COLUMNS).await;
    switch.widen().await;
    switch.flip().await;
    let (bench, home) = (&switch.bench, &switch.old.home);
    bench.run(&format!("CREATE VIEW public.mine AS SELECT id FROM {home}.totals; \
        CREATE TABLE public.notes (id TEXT REFERENCES {home}.totals); \
        CREATE FUNCTION public.total(t {home}.totals) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'")).await;
    let error = switch.remove(&switch.old).await.unwrap_err().to_string();
    for name in ["view public.mine", "public.notes", "function public.total"] {
        assert!(error.contains(name), "{name}: {error}");
    }
    assert_eq!(bench.number("SELECT count(*) FROM public.mine").await, 3);
    assert_eq!(switch.rows().await, 2);
    bench.run("DROP VIEW public.mine; DROP TABLE public.notes; DROP FUNCTION public.total").await;
    assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn view_with_other_columns_is_not_taken_from_under_others_views() {
    let switch = Switch::prepare("id TEXT PRIMARY KEY, n TEXT NOT NULL").await;
    switch.widen().await;
    switch.flip().await;
    switch.bench.run("CREATE VIEW public.mine AS SELECT n FROM read_model.totals").await;
    let error = switch.remove(&switch.old).await.unwrap_err().to_string();
    assert!(error.contains("view public.mine depends"), "{error}");
    switch.bench.run("DROP VIEW public.mine").await;
    assert_eq!(switch.remove(&switch.old).await.unwrap(), Removed::Done);
}

/// The append has read the registry before the generation was retired: it owes it the event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_under_way_is_waited_for() {
    let bench = Bench::new().await;
    let generation = bench.registered(inline("seen")).await;
    // Switched away from, and appends record what they leave out.
    bench
        .run(
            "UPDATE everfold.projections SET active_generation = NULL; \
        UPDATE everfold.generations SET status = 'paused'",
        )
        .await;
    let open = bench.database.connect().await;
    run(&open, "BEGIN; SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
    let remove = || bench.store.remove_generation(generation.id, None, "ann".to_owned());
    let first = remove().await.unwrap();
    assert!(matches!(first, Removed::Seen(_)), "{first:?}");
    run(&open, "COMMIT").await;
    assert_eq!(remove().await.unwrap(), Removed::Done);
    assert_eq!(bench.number("SELECT count(*) FROM everfold.skips").await, 0);
    bench.run("SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projection_that_was_withdrawn_is_not_built_again() {
    let bench = Bench::new().await;
    let projection = inline("seen");
    let generation = bench.registered(projection.clone()).await;
    bench.store.withdraw(generation.id, "ann".to_owned()).await.unwrap();
    // Of somebody who looked before, and goes on after a pause.
    let asked = bench.store.request_rebuild(request(&projection, RebuildKind::Beside)).await;
    let refused = asked.unwrap_err().to_string();
    assert!(refused.contains("was removed"), "{refused}");
    bench.run("SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
    assert_eq!(bench.number("SELECT count(*) FROM everfold.skips").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projection_is_withdrawn_only_behind_the_appends_that_know_it() {
    let bench = Bench::new().await;
    let generation = bench.registered(inline("seen")).await;
    let open = bench.database.connect().await;
    run(&open, "BEGIN; SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
    let withdraw = || bench.store.withdraw(generation.id, "ann".to_owned());
    let error = withdraw().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let active = "SELECT count(*) FROM everfold.projections WHERE active_generation IS NOT NULL";
    assert_eq!(bench.number(active).await, 1, "nothing was done");
    run(&open, "COMMIT").await;
    assert_eq!(bench.number("SELECT count(*) FROM read_model.seen").await, 1);
    withdraw().await.unwrap();
    assert_eq!(bench.number(active).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_of_a_cancelled_rebuild_is_found_and_removed() {
    let bench = Bench::new().await;
    let projection = inline("seen");
    bench.registered(projection.clone()).await;
    let lease = bench.taken(&projection, RebuildKind::Beside).await;
    let target = bench.store.make_target(lease, projection.clone()).await.unwrap();
    bench.store.leave_rebuild(lease).await.unwrap();
    let cancel = crate::rebuild::row::Wanted::Cancel;
    bench.store.steer_rebuild(lease.rebuild, cancel, "ann".to_owned()).await.unwrap();
    let left = bench.store.leftovers().await.unwrap();
    assert_eq!(left.iter().map(|left| left.id).collect::<Vec<_>>(), [target.id]);
    let removed = bench.store.remove_generation(target.id, None, "ann".to_owned()).await.unwrap();
    assert_eq!(removed, Removed::Done);
    assert!(bench.store.leftovers().await.unwrap().is_empty());
    bench.run("SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
    assert_eq!(bench.number("SELECT count(*) FROM read_model.seen").await, 1);
}

/// Makes a table outside its schema, and removes it, or not.
struct Outside {
    fails: bool,
}

impl PostgresHandler for Outside {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let sql = format!("CREATE TABLE {home}.inside (); CREATE SCHEMA out_{home}");
        Box::pin(async move { Ok(transaction.batch_execute(&sql).await?) })
    }

    fn apply<'a>(
        &'a self,
        _: HandlerBatch<'a>,
        _: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async { Ok(()) })
    }

    fn tear_down<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            transaction.batch_execute(&format!("DROP SCHEMA out_{home}")).await?;
            if self.fails { Err("the cache is gone".into()) } else { Ok(()) }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_tears_down_what_it_made_and_its_failure_is_told() {
    let bench = Bench::new().await;
    let outside = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'out\\_%'";
    let told = "SELECT count(*) FROM everfold.system_messages WHERE kind = 'rebuild' \
        AND message LIKE '%the cache is gone%by hand%'";
    for fails in [false, true] {
        let name = if fails { "fails" } else { "works" };
        let projection = Projection::postgres_handler(name, 1, Outside { fails }).build().unwrap();
        let generation = bench.registered(projection.clone()).await;
        bench.run("UPDATE everfold.projections SET active_generation = NULL").await;
        assert_eq!(bench.number(outside).await, 1);
        let projector = Some(projection.projector.clone());
        let removed =
            bench.store.remove_generation(generation.id, projector, "ann".to_owned()).await;
        assert_eq!(removed.unwrap(), Removed::Done);
        let (left, said) = (bench.number(outside).await, bench.number(told).await);
        assert_eq!((left, said), if fails { (1, 1) } else { (0, 0) });
    }
    assert!(bench.store.leftovers().await.unwrap().is_empty());
}

/// What a pooler in transaction mode hands around is no session of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_works_through_a_pooler() {
    let pooler = PgBouncer::start(Server::shared()).expect("pgbouncer starts");
    let database = TestDatabase::create().await;
    let store = open(&pooler.url(database.name()), Some(true)).await;
    let session = database.connect().await;
    there_and_gone(&Bench { database, store, session }).await;
}

/// A rebuild from its request to the removal of what was there before.
async fn there_and_gone(bench: &Bench) {
    let old = bench.registered(totals(1, COLUMNS)).await;
    let next = totals(2, &format!("{COLUMNS}, note TEXT"));
    let lease = bench.taken(&next, RebuildKind::Beside).await;
    let new = bench.store.make_target(lease, next).await.unwrap();
    bench.store.widen_views(lease).await.unwrap();
    bench.flip(lease, new.id, Some(old.id)).await;
    let removed = bench.store.remove_generation(old.id, None, "ann".to_owned()).await.unwrap();
    assert_eq!(removed, Removed::Done);
    assert!(bench.store.leftovers().await.unwrap().is_empty());
}

/// A login of its own in everfold_admin, which owns nothing, does all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_of_everfold_admin_can_do_all_of_it() {
    let database = TestDatabase::create().await;
    drop(open(&database.url(), Some(true)).await);
    let session = database.connect().await;
    let login = format!("login_{}", Uuid::now_v7().simple());
    let create = format!("CREATE ROLE {login} LOGIN PASSWORD 'pw' IN ROLE everfold_admin");
    run(&session, &create).await;
    let store = open(&database.server().as_user(&login, "pw").url(database.name()), None).await;
    let bench = Bench { database, store, session };
    there_and_gone(&bench).await;
    bench.store.close().await;
    let owned = format!(
        "SELECT count(*) FROM pg_class WHERE relowner = '{login}'::regrole AND relpersistence <> 't'"
    );
    assert_eq!(bench.number(&owned).await, 0, "everything belongs to everfold_admin");
    everfold_testkit::eventually("its sessions end", super::LIMIT, async || {
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{login}'");
        bench.number(&sessions).await == 0
    })
    .await;
    bench.run(&format!("DROP ROLE {login}")).await;
}
