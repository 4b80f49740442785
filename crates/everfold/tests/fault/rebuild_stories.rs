//! Read models that are rebuilt in these stories, how to ask for what they hold and for what the log says
//! they should, and the process that rebuilds them.

use std::time::Duration;

use everfold::{Pooler, Projection, ProjectionError, RebuildOptions, RebuildPhase, Store};

use crate::checker::compare_keys;
use crate::session::Session;
use crate::workers::{Seen, applied, by_key, child_url, few_connections, orders, small_batches};

/// Which read model a story is about.
pub(crate) const STORY: &str = "EVERFOLD_TEST_STORY";

/// A read model, and how to ask for what it holds and for what the log says it should.
pub(crate) struct Told {
    pub(crate) name: &'static str,
    pub(crate) view: &'static str,
    /// Rows of key and position in the order of application.
    pub(crate) shown: &'static str,
    /// The key of an event.
    pub(crate) key: &'static str,
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

impl Told {
    pub(crate) fn is_inline(&self) -> bool {
        self.name != "later"
    }
}

pub(crate) fn told(name: &str) -> &'static Told {
    STORIES.iter().find(|told| told.name == name).expect("there is such a story")
}

pub(crate) fn projection(name: &str) -> Projection {
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
pub(crate) fn options(in_place: bool) -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.in_place = in_place;
    options.fence_tries = 4;
    options.fence_events = 200;
    options.lease_ttl = Duration::from_millis(1_500);
    options
}

/// The path of the test that [`child_rebuilds`] is.
pub(crate) const CHILD: &str = "rebuild_stories::child_rebuilds";

/// The process that is killed: does what it is told, one rebuild after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is killed by other tests"]
async fn child_rebuilds() {
    let Some(url) = child_url() else { return };
    let name = std::env::var(STORY).expect("the story has a name");
    let mut connections = few_connections();
    connections.pooler = Pooler::Detect;
    let store = loop {
        match Store::open_with(&url, connections.clone()).await {
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
pub(crate) async fn differences(truth: &Session, told: &Told) -> (usize, String, bool) {
    truth.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    let found = differences_in(truth, told).await;
    truth.run("COMMIT").await;
    found
}

/// The same in the snapshot of a transaction that is open.
pub(crate) async fn differences_in(truth: &Session, told: &Told) -> (usize, String, bool) {
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

pub(crate) async fn ended(truth: &Session) -> i64 {
    truth.number("SELECT count(*) FROM everfold.rebuilds WHERE phase IN ('done', 'built')").await
}

pub(crate) async fn state(truth: &Session) -> String {
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
pub(crate) static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
