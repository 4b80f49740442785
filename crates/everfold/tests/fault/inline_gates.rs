//! The failure: appends are under way while an inline projection is registered, stopped or resumed,
//! while another append or a drainer works on the same key, or by code that cannot apply it.
//!
//! At risk: an event that is in no read model and owed to none; one applied on top of a hole, or in
//! another order than that of the log.
//!
//! Guaranteed (G1, G3): each event was applied, or there is a record that it was not, and within a
//! key in the order of positions. The negative controls leave out one lock, or take lock and status
//! in one statement, and lose or reorder an event in the same interleaving.

use tokio::task::JoinSet;

use everfold_testkit::{Seed, TestDatabase};

use crate::chain::{Chain, Made, gate, one_event};
use crate::session::{Session, append_sql, empty_store};

/// Where a variant waits in the middle of an append.
const PAUSE: &str = "PERFORM pg_advisory_lock_shared(42); PERFORM pg_advisory_unlock_shared(42);";
const STOP: &str = "SELECT pg_advisory_lock(42)";
const GO_ON: &str = "SELECT pg_advisory_unlock(42)";

const ENTER: &str = "NOT everfold.enter_append(the_stream, $8)";
const REGISTRY_READ: &str = "      INTO actual, inline;\n";
const KEYS_ACROSS_STREAMS: &str = "0 OPERATOR(pg_catalog.>) ANY (inline)";
const APPLY: &str = "        EXECUTE application USING";

struct Scene {
    database: TestDatabase,
    one: Session,
    other: Session,
    observer: Session,
}

impl Scene {
    async fn new() -> Scene {
        let database = empty_store().await;
        let url = database.url();
        let (one, other) = (Session::open(&url).await, Session::open(&url).await);
        let observer = Session::open(&url).await;
        Scene { database, one, other, observer }
    }

    /// Runs a statement in a session of its own, which ends up waiting for a lock.
    async fn start(&self, sql: &str) -> tokio::task::JoinHandle<()> {
        let (session, sql) = (Session::open(&self.database.url()).await, sql.to_owned());
        let pid = session.pid().await;
        let running = tokio::spawn(async move { session.run(&sql).await });
        self.observer.until_waiting(pid).await;
        running
    }

    /// Events that are in no chain and owed to none.
    async fn missing(&self, chain: &Chain) -> i64 {
        let name = chain.home.splitn(3, '_').last().unwrap();
        self.observer
            .number(&format!(
                "SELECT count(*) FROM everfold.events e WHERE NOT EXISTS (
                    SELECT FROM everfold.skips s WHERE s.position = e.position)
                 AND NOT EXISTS (SELECT FROM {}.{name} c WHERE c.key = e.stream_id)
                 AND EXISTS (SELECT FROM everfold.generations WHERE status = 'active')",
                chain.home
            ))
            .await
    }
}

/// Registers as the library does, apart from the patience: active if there are no events yet, which
/// is found out behind the registry gate.
async fn register(session: &Session) -> Chain {
    let gate = "SELECT pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)";
    session.run(&format!("BEGIN; {gate}")).await;
    let chain = Chain::make(session, Made { status: "building", ..Made::default() }).await;
    let activate = "status = CASE WHEN EXISTS (SELECT FROM everfold.events) THEN 'building' \
                    ELSE 'active' END";
    chain.set(session, activate).await;
    session.run("COMMIT").await;
    chain
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_read_the_registry_before_a_registration_is_not_missing() {
    let ungated = "pg_advisory_xact_lock('everfold.stream_snapshots'::regclass::oid::int,
        hashtext(the_stream)) IS NULL";
    let paused = format!("{REGISTRY_READ}    {PAUSE}\n");
    let pause = (REGISTRY_READ, paused.as_str());
    for (variant, changes, missing) in
        [("ungated", vec![(ENTER, ungated), pause], 1), ("gated", vec![pause], 0)]
    {
        let scene = Scene::new().await;
        scene.observer.alter(variant, "append_event", &changes).await;
        scene.observer.run(STOP).await;
        let append = scene.start(&append_sql(variant, "a")).await;
        let chain = if missing == 1 {
            let chain = register(&scene.one).await;
            scene.observer.run(GO_ON).await;
            append.await.unwrap();
            chain
        } else {
            // The registration waits for the append, and finds that the store has events.
            let pid = scene.one.pid().await;
            let (chain, ()) = tokio::join!(register(&scene.one), async {
                scene.observer.until_waiting(pid).await;
                scene.observer.run(GO_ON).await;
                append.await.unwrap();
            });
            chain
        };
        assert_eq!(scene.missing(&chain).await, missing, "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_waited_for_a_registration_is_applied() {
    let scene = Scene::new().await;
    scene
        .one
        .run("BEGIN; SELECT pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)")
        .await;
    let chain = Chain::make(&scene.one, Made::default()).await;
    let append = scene.start(&append_sql("everfold", "a")).await;
    scene.one.run("COMMIT").await;
    append.await.unwrap();
    assert_eq!(scene.missing(&chain).await, 0);
    assert_eq!(chain.differences(&scene.observer).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_above_read_committed_is_refused() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made::default()).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        scene.one.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(scene.one.code_of(&append_sql("everfold", "a")).await, "EF002");
        scene.one.run("ROLLBACK").await;
    }
    assert_eq!(chain.differences(&scene.observer).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_waited_for_a_pause_records_a_skip() {
    for (variant, expected) in [("everfold", vec![1]), ("stale", vec![])] {
        let scene = Scene::new().await;
        let chain = Chain::make(&scene.one, Made::default()).await;
        // The status as the statement saw it that took the gate.
        let status = [(
            "g.status OPERATOR(pg_catalog.=) 'active' AND NOT o.owes",
            "current_setting('stale.status') = 'active' AND NOT o.owes",
        )];
        scene.observer.alter("stale", "inline_steps", &status).await;
        let remembered = [
            (
                "WHEN g.key_fields IS NULL THEN g.id",
                "WHEN set_config('stale.status', g.status, true) IS NULL THEN NULL
                 WHEN g.key_fields IS NULL THEN g.id",
            ),
            ("everfold.inline_steps(", "stale.inline_steps("),
        ];
        scene.observer.alter("stale", "append_event", &remembered).await;

        scene.one.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({})", gate(chain.id))).await;
        chain.set(&scene.one, "status = 'paused'").await;
        let append = scene.start(&append_sql(variant, "a")).await;
        scene.one.run("COMMIT").await;
        append.await.unwrap();
        // The stale one applied to a projection that was paused.
        assert_eq!(chain.skips(&scene.observer).await, expected, "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_waits_for_an_append_under_way_also_for_one_that_skips() {
    for status in ["active", "paused", "building"] {
        let scene = Scene::new().await;
        let chain = Chain::make(&scene.one, Made { status, ..Made::default() }).await;
        scene.one.run("BEGIN").await;
        scene.one.append("a").await;
        let fence = scene.start(&format!("SELECT pg_advisory_xact_lock({})", gate(chain.id))).await;
        scene.one.run("COMMIT").await;
        fence.await.unwrap();
        let skips = if status == "paused" { vec![1] } else { vec![] };
        assert_eq!(chain.skips(&scene.observer).await, skips, "{status}");
    }
}

fn keyed_append(schema: &str, stream: &str) -> String {
    format!(
        "SELECT first_position FROM {schema}.append_event('{stream}', NULL, 'T', '{{\"k\": \"x\"}}')"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_streams_with_one_key_are_applied_in_the_order_of_the_log() {
    let paused = format!("        {PAUSE}\n{APPLY}");
    let pause = (APPLY, paused.as_str());
    for (variant, changes) in
        [("unlocked", vec![(KEYS_ACROSS_STREAMS, "false"), pause]), ("locked", vec![pause])]
    {
        let scene = Scene::new().await;
        let made = Made { key: Some("data.k"), ..Made::default() };
        let chain = Chain::make(&scene.one, made).await;
        scene.observer.alter(variant, "append_event", &changes).await;
        // The first has its position and waits before it applies.
        scene.observer.run(STOP).await;
        let first = scene.start(&keyed_append(variant, "a")).await;
        if variant == "unlocked" {
            assert_eq!(scene.other.number(&keyed_append("everfold", "b")).await, 2);
            scene.observer.run(GO_ON).await;
            first.await.unwrap();
            assert_eq!(chain.differences(&scene.observer).await, ["x"], "applied 2, 1");
        } else {
            let second = scene.start(&keyed_append("everfold", "b")).await;
            scene.observer.run(GO_ON).await;
            first.await.unwrap();
            second.await.unwrap();
            assert_eq!(chain.differences(&scene.observer).await, [""; 0]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_locked_by_those_who_skip_too() {
    let scene = Scene::new().await;
    let made = Made { key: Some("data.k"), kind: "document", ..Made::default() };
    let chain = Chain::make(&scene.one, made).await;
    scene.one.run("BEGIN").await;
    scene.one.run(&keyed_append("everfold", "a")).await;
    let second = scene.start(&keyed_append("everfold", "b")).await;
    scene.one.run("COMMIT").await;
    second.await.unwrap();
    assert_eq!(chain.skips(&scene.observer).await, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_applies_the_open_skips_of_its_key_first() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made { status: "paused", ..Made::default() }).await;
    for stream in ["a", "b", "a"] {
        scene.one.append(stream).await;
    }
    chain.set(&scene.one, "status = 'active'").await;
    scene.one.append("a").await;
    assert_eq!(chain.skips(&scene.one).await, [2], "those of other keys are left");
    let settled = "SELECT position FROM everfold.system_messages WHERE kind = 'skip-settled'";
    assert_eq!(scene.one.numbers(settled).await, [1, 3]);
    chain.drain(&scene.one).await;
    assert_eq!(chain.differences(&scene.one).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_records_itself_behind_more_skips_than_it_can_help_with() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made { status: "paused", ..Made::default() }).await;
    scene
        .one
        .run("SELECT everfold.append_event('a', NULL, 'T', '{}') FROM generate_series(1, 101)")
        .await;
    chain.set(&scene.one, "status = 'active'").await;
    scene.one.append("a").await;
    assert_eq!(chain.skips(&scene.one).await.len(), 102);
    scene.one.run("DELETE FROM everfold.skips WHERE position = 1").await;
    scene.one.run(&format!("SELECT {}.apply(ARRAY[1])", chain.home)).await;
    scene.one.run("DELETE FROM everfold.skips WHERE position = 2").await;
    scene.one.run(&format!("SELECT {}.apply(ARRAY[2])", chain.home)).await;
    scene.one.append("a").await;
    assert_eq!(chain.skips(&scene.one).await, [0; 0], "a hundred it can");
    assert_eq!(chain.differences(&scene.one).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_waits_for_a_drainer_of_its_key_and_applies_behind_it() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made { status: "paused", ..Made::default() }).await;
    scene.one.append("a").await;
    chain.set(&scene.one, "status = 'active'").await;
    scene.one.run("BEGIN").await;
    chain.drain(&scene.one).await;
    let append = scene.start(&append_sql("everfold", "a")).await;
    scene.one.run("COMMIT").await;
    append.await.unwrap();
    assert_eq!(chain.differences(&scene.observer).await, [""; 0]);
}

/// What `append_group` hands back to a client that carries the generation.
async fn carried(session: &Session, carries: &str) -> String {
    let sql = format!(
        "SELECT carried::text FROM everfold.append_group(ARRAY['a'], ARRAY[1], ARRAY[NULL]::bigint[],
            ARRAY[1], ARRAY['T'], ARRAY['{{}}']::jsonb[], ARRAY['{{}}']::jsonb[],
            ARRAY[gen_random_uuid()], ARRAY[1], true, {carries})"
    );
    let mut rows = session.rows(&sql).await.unwrap();
    rows.pop().unwrap().pop().unwrap().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appender_that_does_not_know_a_projection_owes_it_and_the_next_that_does_pays() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made { kind: "handler", ..Made::default() }).await;
    scene.one.append("a").await;
    scene.one.append("b").await;
    assert_eq!(carried(&scene.one, "'{}'").await, "");
    assert_eq!(chain.skips(&scene.one).await, [1, 2, 3]);
    let id = chain.id;
    let all = format!("{{{id},1,{id},3,{id},4}}");
    assert_eq!(carried(&scene.one, &format!("ARRAY[{id}]")).await, all);
    assert_eq!(chain.skips(&scene.one).await, [2]);
}

/// Appends of every kind to streams that share keys, while the projections are paused and resumed
/// under their gates; then what is owed is drained.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn chains_equal_a_fold_of_the_log_after_a_load_with_pauses() {
    let scene = Scene::new().await;
    let by_stream = Chain::make(&scene.one, Made::default()).await;
    let made = Made { name: "by_key", key: Some("data.k"), ..Made::default() };
    let by_key = Chain::make(&scene.one, made).await;
    let mut seed = Seed::from_env_or_random();
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let (session, mut seed) = (Session::open(&scene.database.url()).await, seed.fork());
        tasks.spawn(async move {
            for _ in 0..80 {
                let (stream, key) = (seed.below(8), seed.below(3));
                let event = format!(r#"{{"type":"T","data":{{"k":"{key}"}}}}"#);
                let many = format!(
                    r#"[{{"stream_id":"s{stream}","events":[{event},{event}]}},
                        {{"stream_id":"s{}","events":[{event}]}}]"#,
                    (stream + 1) % 8
                );
                let sql = match seed.below(3) {
                    0 => format!("SELECT everfold.append('s{stream}', NULL, '[{event},{event}]')"),
                    1 => format!("SELECT everfold.append_many('{many}')"),
                    _ => format!(
                        r#"SELECT everfold.append_event('s{stream}', NULL, 'T', '{{"k":"{key}"}}')"#
                    ),
                };
                session.run(&sql).await;
            }
        });
    }
    let mut changes = 0;
    while !tasks.is_empty() {
        let chain = if changes % 2 == 0 { &by_stream } else { &by_key };
        let status = if changes % 4 < 2 { "paused" } else { "active" };
        scene.one.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({})", gate(chain.id))).await;
        chain.set(&scene.one, &format!("status = '{status}'")).await;
        scene.one.run("COMMIT").await;
        changes += 1;
        while let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
    }
    let settled = "SELECT count(*) FROM everfold.system_messages WHERE kind = 'skip-settled'";
    let settled = scene.one.number(settled).await;
    let events = scene.one.number("SELECT count(*) FROM everfold.events").await;
    for chain in [&by_stream, &by_key] {
        chain.drain(&scene.one).await;
        assert_eq!(chain.differences(&scene.one).await, [""; 0], "{}", chain.home);
    }
    println!("{events} events, {changes} changes of status, {settled} skips settled by appends");
    assert!(settled > 0, "the load must make appends help");
}

/// Which function is called is data, read anew by each append: a transaction that has called one
/// before, and holds all its relation locks, calls the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn function_is_chosen_by_data_also_in_a_transaction_that_called_another() {
    let scene = Scene::new().await;
    let chain = Chain::make(&scene.one, Made::default()).await;
    scene
        .observer
        .run(&format!(
            "CREATE TABLE moved (position bigint); CREATE SCHEMA new;
             CREATE FUNCTION new.apply(bigint[]) RETURNS void LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.moved SELECT unnest($1); END $$;
             {}",
            one_event("new")
        ))
        .await;
    scene.one.run("BEGIN").await;
    scene.one.append("a").await;
    chain.set(&scene.other, "home = 'new'").await;
    scene.one.append("a").await;
    scene.one.run("COMMIT").await;
    assert_eq!(scene.observer.numbers("SELECT position FROM moved").await, [2]);
}
