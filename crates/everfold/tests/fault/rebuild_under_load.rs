//! The failure: read models are rebuilt again and again, beside, in place and back, while sixteen
//! writers of every kind append; the rebuilders are killed at any moment and their sessions ended.
//!
//! At risk: an event lost, doubled or reordered at a switch; a reader with an old snapshot who sees a
//! read model vanish; appends that wait for long, or fail.
//!
//! Guaranteed: after each switch and at the end the read model is what a fold of the log by position
//! gives, but for what is owed by a record of it; in the end nothing is owed. Readers that began before
//! a switch go on to see what they saw.

use std::time::{Duration, Instant};

use everfold::{Projection, ProjectionError, RebuildOptions, RebuildPhase, Runner, Store};
use everfold_testkit::{Seed, eventually};

use crate::checker::compare_keys;
use crate::rebuild_load::Writers;
use crate::session::{LIMIT, Session, empty_store, open};
use crate::workers::{
    Seen, Worker, applied, by_key, child_url, few_connections, orders, quick, small_batches,
};

/// Which read model a story is about.
const STORY: &str = "EVERFOLD_TEST_STORY";

/// A read model, and how to ask for what it holds and for what the log says it should.
struct Told {
    name: &'static str,
    view: &'static str,
    /// Rows of key and position in the order of application.
    shown: &'static str,
    /// The key of an event.
    key: &'static str,
}

const STORIES: [Told; 4] = [
    Told {
        name: "streams",
        view: "read_model.streams",
        shown: "SELECT stream, p FROM read_model.streams, unnest(positions) WITH ORDINALITY u(p, n) \
                ORDER BY stream, n",
        key: "stream_id",
    },
    Told {
        name: "applied",
        view: "read_model.applied",
        shown: "SELECT account, p FROM read_model.applied, unnest(positions) WITH ORDINALITY u(p, n) \
                ORDER BY account, n",
        key: "data->>'account'",
    },
    Told {
        name: "seen",
        view: "read_model.seen",
        shown: "SELECT key, p FROM read_model.seen, \
                jsonb_array_elements_text(document) WITH ORDINALITY u(p, n) ORDER BY key, n",
        key: "stream_id",
    },
    Told {
        name: "later",
        view: "read_model.later",
        shown: "SELECT stream, p FROM read_model.later, unnest(positions) WITH ORDINALITY u(p, n) \
                ORDER BY stream, n",
        key: "stream_id",
    },
];

fn told(name: &str) -> &'static Told {
    STORIES.iter().find(|told| told.name == name).expect("there is such a story")
}

fn projection(name: &str) -> Projection {
    let by_stream = |name: &'static str| {
        let table = format!("read_model.{name}");
        Projection::sql(name, 1)
            .create(format!("CREATE TABLE {table} (stream text PRIMARY KEY, positions bigint[])"))
            .apply(format!(
                "INSERT INTO {table} AS t SELECT stream_id, array_agg(position ORDER BY position) \
                 FROM batch GROUP BY 1 ORDER BY 1 \
                 ON CONFLICT (stream) DO UPDATE SET positions = t.positions || EXCLUDED.positions"
            ))
            .events(["Moved"])
            .settings(small_batches())
    };
    match name {
        "streams" => by_stream("streams").inline().build(),
        "later" => by_stream("later").shards(3).build(),
        "applied" => applied().inline().build(),
        _ => Projection::document("seen", 1, Seen).inline().build(),
    }
    .expect("the projection is right")
}

/// Few events at a time, few tries for the fence, leases at the pace of tests.
fn options(in_place: bool) -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.in_place = in_place;
    options.fence_tries = 4;
    options.fence_events = 200;
    options.lease_ttl = Duration::from_millis(1_500);
    options
}

/// The process that is killed: does what it is told, one rebuild after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is killed by other tests"]
async fn child_rebuilds() {
    let Some(url) = child_url() else { return };
    let name = std::env::var(STORY).expect("the story has a name");
    let store = loop {
        match Store::open_with(&url, few_connections()).await {
            Ok(store) => match store.register(projection(&name)).await {
                Ok(_) => break store,
                Err(error) => eprintln!("the child tries again: {error}"),
            },
            Err(error) => eprintln!("the child tries again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        let ended = loop {
            match obey(&store, &name, &order).await {
                Err(ProjectionError::Store(error)) => eprintln!("the child tries again: {error}"),
                ended => break ended,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        match ended {
            Ok(phase) => println!("ended as {phase}"),
            Err(error) => println!("ended: {error}"),
        }
    }
}

async fn obey(store: &Store, name: &str, order: &str) -> Result<RebuildPhase, ProjectionError> {
    let rebuild = match order {
        "beside" => store.rebuild(name, options(false)).await?,
        "in-place" => store.rebuild(name, options(true)).await?,
        _ => match store.rollback(name, options(false)).await {
            Err(ProjectionError::Refused { .. }) => store.rebuild(name, options(false)).await?,
            other => other?,
        },
    };
    Ok(rebuild.finish().await?.phase)
}

/// What the read model should hold in this snapshot: the log, without what is owed.
async fn differences(truth: &Session, told: &Told) -> (usize, String, bool) {
    truth.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    let found = differences_in(truth, told).await;
    truth.run("COMMIT").await;
    found
}

/// The same in the snapshot of a transaction that is open.
async fn differences_in(truth: &Session, told: &Told) -> (usize, String, bool) {
    let owed = format!(
        "SELECT {}, position FROM everfold.events e WHERE type = 'Moved' AND NOT EXISTS (
            SELECT FROM everfold.skips s JOIN everfold.projections p ON p.active_generation = s.generation
             WHERE s.position = e.position AND p.name = '{}') ORDER BY position",
        told.key, told.name
    );
    let stored = by_key(truth, &owed).await;
    let shown = by_key(truth, told.shown).await;
    let comparison = compare_keys(&stored, &shown);
    let events = stored.values().map(Vec::len).sum();
    (events, comparison.to_string(), comparison.is_exact())
}

struct Rounds {
    rounds: usize,
    kills: u64,
    sessions: i64,
    longest: Duration,
}

/// Rebuilds again and again, each of them killed now and then until one gets through.
async fn rebuild_again_and_again(
    truth: &Session,
    url: &str,
    told: &'static Told,
    writers: &Writers,
    rounds: usize,
) -> Rounds {
    let mut seed = Seed::from_env_or_random();
    let child_url = format!("{url}?application_name=rebuilder");
    let start = || {
        Worker::start_test("rebuild_under_load::child_rebuilds", &child_url, &[(STORY, told.name)])
    };
    let mut done = Rounds { rounds: 0, kills: 0, sessions: 0, longest: Duration::ZERO };
    let mut child = start();
    let inline = told.name != "later";
    for round in 0..rounds {
        let order = ["beside", "rollback", "in-place"][round % 3];
        let old = Session::open(url).await;
        // A report that begins now and looks at the read model after the switch.
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        let before = old.number("SELECT count(*) FROM everfold.events").await;
        let ended_before = ended(truth).await;
        child.tell(order);
        let deadline = Instant::now() + LIMIT * 2;
        let mut pains = if seed.chance(0.3) { 0 } else { seed.within(1..4) };
        while ended(truth).await == ended_before {
            assert!(
                Instant::now() < deadline,
                "{order} of {} does not end: {}",
                told.name,
                state(truth).await
            );
            tokio::time::sleep(Duration::from_millis(seed.within(20..400))).await;
            if pains == 0 || ended(truth).await != ended_before {
                continue;
            }
            pains -= 1;
            if seed.chance(0.6) {
                child.kill();
                child = start();
                if ended(truth).await == ended_before {
                    child.tell(order);
                }
                done.kills += 1;
            } else {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'rebuilder' AND datname = current_database()";
                done.sessions += truth.number(end).await;
            }
        }
        done.rounds += 1;
        if inline && order != "in-place" {
            let (_, found, exact) = differences_in(&old, told).await;
            assert!(exact, "{order} ({round}): a report of before, {before} events: {found}");
        }
        old.run("ROLLBACK").await;
        if inline {
            let (events, found, exact) = differences(truth, told).await;
            assert!(exact, "after {order} ({round}) of {}, {events} events: {found}", told.name);
        }
        done.longest = done.longest.max(writers.written.longest());
    }
    child.leave().await;
    done
}

async fn ended(truth: &Session) -> i64 {
    truth.number("SELECT count(*) FROM everfold.rebuilds WHERE phase IN ('done', 'built')").await
}

async fn state(truth: &Session) -> String {
    let sql = "SELECT kind, phase, message, owner_name, wanted, target, source FROM everfold.rebuilds \
        ORDER BY id DESC LIMIT 2";
    let generations = "SELECT g.id, g.status, c.position, c.epoch, c.owner, c.failure,
            (SELECT count(*) FROM everfold.skips s WHERE s.generation = g.id), everfold.high_water_mark(),
            (SELECT max(position) FROM everfold.events)
        FROM everfold.generations g LEFT JOIN everfold.checkpoints c ON c.generation = g.id ORDER BY 1";
    let sessions =
        "SELECT pid, state, wait_event_type, wait_event, left(query, 200) FROM pg_stat_activity
        WHERE application_name = 'rebuilder' AND datname = current_database()";
    let rows = async |sql| truth.rows(sql).await.unwrap_or_default();
    format!("{:?} {:?} {:?}", rows(sql).await, rows(generations).await, rows(sessions).await)
}

/// One story at a time: each of them keeps the machine busy.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn story(name: &'static str, rounds: usize) {
    let _turn = TURN.lock().await;
    let told = told(name);
    let database = empty_store().await;
    let url = database.url();
    let truth = Session::open(&url).await;
    let (carrying, old) = (open(&url).await, open(&url).await);
    carrying.register(projection(name)).await.unwrap();
    let runner = Runner::new(&carrying).projection(projection(name)).options({
        let mut options = quick();
        // The rebuilds are the children's.
        options.rebuilds = 0;
        options
    });
    let runner = runner.start().await.unwrap();
    let writers = Writers::start(&carrying, &old, &url, told.view);
    eventually("events come in", LIMIT, async || {
        truth.number("SELECT count(*) FROM everfold.events").await > 300
    })
    .await;
    let done = rebuild_again_and_again(&truth, &url, told, &writers, rounds).await;
    let written = writers.stop().await;
    let head = carrying.high_water_mark().await.unwrap();
    carrying.wait_for(name, head, LIMIT).await.unwrap();
    eventually("nothing is owed", LIMIT, async || {
        truth
            .number(
                "SELECT count(*) FROM everfold.skips s JOIN everfold.projections p \
            ON p.active_generation = s.generation",
            )
            .await
            == 0
    })
    .await;
    let (events, found, exact) = differences(&truth, told).await;
    println!(
        "{name}: {events} events, {} switches, {} rebuilders killed, {} sessions ended, {} appends \
         rolled back, {} failed; longest append {:?}: {found}",
        done.rounds,
        done.kills,
        done.sessions,
        written.rolled_back.load(std::sync::atomic::Ordering::Relaxed),
        written.failed.load(std::sync::atomic::Ordering::Relaxed),
        done.longest,
    );
    assert!(exact, "{found}");
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_sql_by_stream() {
    story("streams", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_sql_with_keys_across_streams() {
    story("applied", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_documents() {
    story("seen", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_sql_in_shards() {
    story("later", 3).await;
}
