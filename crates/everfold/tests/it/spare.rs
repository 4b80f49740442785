//! Spare generations on PostgreSQL: a rebuild waits for nobody who has read the view and stays in his
//! transaction, because the view shows its target from before it began. Nobody notices them otherwise.

use std::collections::BTreeMap;

use everfold::{
    GenerationStatus, Projection, ProjectionError, RebuildOptions, RebuildPhase, Runner, Store,
};
use everfold_testkit::eventually;
use tokio_postgres::Client;

use crate::chain::LIMIT;
use crate::fixture::{Fixture, append, caught_up, counted};
use crate::rebuild::{Sum, count, expected, numbers};
use crate::roles::Login;

const SQL_ROWS: &str = "SELECT key, n FROM read_model.numbers";
const DOCUMENT_ROWS: &str = "SELECT key, document->>'n' FROM read_model.numbers";
/// With so many of each of so many streams history is copied in parts.
const MANY: std::ops::Range<u64> = 0..300;
const STREAMS: u64 = 8;

struct Story {
    fixture: Fixture,
    store: Store,
    projection: Projection,
    rows: &'static str,
}

impl Story {
    async fn new(projection: Projection, rows: &'static str) -> Story {
        let fixture = Fixture::postgres().await;
        let store = fixture.store().await;
        store.register(projection.clone()).await.unwrap();
        Story { fixture, store, projection, rows }
    }

    async fn inline() -> Story {
        Story::new(numbers(1, true), SQL_ROWS).await
    }

    /// Appends, and lets a runner follow; an inline one is there already.
    async fn count(&self, numbers: std::ops::Range<u64>) {
        count(&self.store, numbers).await;
        caught_up(&self.store, &self.projection).await;
    }

    async fn seen_by(&self, client: &Client) -> BTreeMap<String, String> {
        let rows = client.query(self.rows, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn seen(&self) -> BTreeMap<String, String> {
        self.seen_by(&self.fixture.database().connect().await).await
    }

    async fn expected(&self) -> BTreeMap<String, String> {
        expected(&self.store, "").await
    }

    /// A transaction that has read the view and stays open.
    async fn report(&self) -> (Client, BTreeMap<String, String>) {
        let client = self.fixture.database().connect().await;
        let begin = "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ";
        client.batch_execute(begin).await.unwrap();
        let seen = self.seen_by(&client).await;
        (client, seen)
    }

    async fn rebuild(&self) {
        let rebuild = self.store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
        let ended = tokio::time::timeout(LIMIT, rebuild.finish()).await;
        let ended = ended.expect("it does not wait for readers").unwrap();
        assert_eq!(ended.phase, RebuildPhase::Done);
    }

    async fn number(&self, sql: &str) -> i64 {
        self.fixture.database().connect().await.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn active(&self) -> i64 {
        self.number("SELECT active_generation::bigint FROM everfold.projections").await
    }

    /// Spares that the views show.
    async fn ready(&self) -> i64 {
        let ready =
            "SELECT count(*) FROM everfold.generations WHERE status = 'spare' AND reason IS NULL";
        self.number(ready).await
    }

    async fn spares(&self) -> i64 {
        self.number("SELECT count(*) FROM everfold.generations WHERE status = 'spare'").await
    }

    /// Indexes of what readers see.
    async fn indexes(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_indexes i JOIN everfold.generations g ON g.home = i.schemaname \
             JOIN everfold.projections p ON p.active_generation = g.id",
        )
        .await
    }

    /// A report is open during a rebuild; then during another one, whose spare could not be shown.
    async fn told(self) {
        for stream in 0..STREAMS {
            append(&self.store, &format!("long_{stream}"), counted(MANY)).await;
        }
        self.count(0..10).await;
        assert_eq!(self.ready().await, 1, "registering prepares one");
        let (indexes, before) = (self.indexes().await, self.active().await);
        let (report, in_report) = self.report().await;
        assert_eq!(in_report, self.expected().await);

        self.count(10..20).await;
        self.rebuild().await;
        assert_ne!(self.active().await, before);
        assert_eq!(self.seen_by(&report).await, in_report, "a snapshot stays what it is");
        assert_eq!(self.seen().await, self.expected().await);
        assert_eq!(self.indexes().await, indexes, "all are made in the end");
        assert_eq!((self.spares().await, self.ready().await), (1, 0), "the report holds the view");

        self.waits_for(&report, &in_report).await;
        self.count(20..30).await;
        assert_eq!(self.seen().await, self.expected().await);
        assert_eq!(self.indexes().await, indexes);
        assert_eq!(self.ready().await, 1, "nobody is in the way any more");
    }

    /// A rebuild that has to change the view says for whom it waits, and ends when he does.
    async fn waits_for(&self, report: &Client, in_report: &BTreeMap<String, String>) {
        let rebuild = self.store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
        eventually("the rebuild says for whom it waits", LIMIT, async || {
            let rebuilds = self.store.rebuilds().await.unwrap();
            let message = rebuilds.first().and_then(|rebuild| rebuild.message.clone());
            message.is_some_and(|message| message.contains("(report)"))
        })
        .await;
        let rebuilds = self.store.rebuilds().await.unwrap();
        assert_eq!((rebuilds[0].finished_at, rebuilds[0].switched_at), (None, None));
        assert_eq!(self.seen_by(report).await, *in_report);
        report.batch_execute("COMMIT").await.unwrap();
        assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_is_not_in_the_way_of_an_inline_rebuild() {
    Story::inline().await.told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_is_not_in_the_way_of_a_catch_up_rebuild() {
    Story::new(numbers(1, false), SQL_ROWS).await.told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_is_not_in_the_way_of_a_rebuild_of_documents() {
    // A field that is not there: those that are may be too long for an index.
    let documents = Projection::document("numbers", 1, Sum).index("m").inline().build().unwrap();
    Story::new(documents, DOCUMENT_ROWS).await.told().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_is_not_in_the_way_of_a_rebuild_in_place() {
    let story = Story::inline().await;
    story.count(0..20).await;
    let (report, in_report) = story.report().await;
    story.count(20..30).await;
    let rebuild = story.store.rebuild("numbers", RebuildOptions::in_place()).await.unwrap();
    rebuild.finish().await.unwrap();
    assert_eq!(story.seen_by(&report).await, in_report);
    assert_eq!(story.seen().await, story.expected().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_who_has_read_the_view_appends_after_the_switch() {
    let story = Story::inline().await;
    story.count(0..20).await;
    let caller = story.fixture.database().connect().await;
    caller.batch_execute("BEGIN").await.unwrap();
    assert_eq!(story.seen_by(&caller).await, story.expected().await);
    story.rebuild().await;
    let sql = "SELECT everfold.append_event('a', NULL, 'Counted', '{\"n\": 20}')";
    caller.batch_execute(sql).await.unwrap();
    caller.batch_execute("COMMIT").await.unwrap();
    append(&story.store, "a", counted([21])).await;
    assert_eq!(story.seen().await, story.expected().await);
    assert!(story.store.skips("numbers").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_is_listed_nowhere_and_stays_when_others_are_retired() {
    let story = Story::inline().await;
    let store = &story.store;
    let statuses = async || {
        let all = store.projections().await.unwrap();
        all.iter().map(|projection| projection.status).collect::<Vec<_>>()
    };
    story.count(0..20).await;
    assert_eq!(story.ready().await, 1);
    assert_eq!(statuses().await, [GenerationStatus::Active]);
    let plan = store.plan(vec![story.projection.clone()]).await.unwrap();
    assert!(plan.changes[0].retire.is_empty());
    let nothing = async || {
        let error = store.retire("numbers").await.unwrap_err();
        assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("nothing to retire"), "{error}");
    };
    nothing().await;

    // Finding it again makes no other.
    store.register(story.projection.clone()).await.unwrap();
    assert_eq!(story.spares().await, 1);
    story.rebuild().await;
    assert_eq!(statuses().await, [GenerationStatus::Kept, GenerationStatus::Active]);
    let retired = store.retire("numbers").await.unwrap();
    assert_eq!((retired.versions, retired.waits_for), (vec![1], vec![]));
    assert_eq!(story.ready().await, 1, "it is still of use");
    nothing().await;
    let (_report, _) = story.report().await;
    story.rebuild().await;
    assert_eq!(story.seen().await, story.expected().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_goes_when_another_version_is_active() {
    let story = Story::inline().await;
    story.count(0..20).await;
    story.store.register(numbers(2, true)).await.unwrap();
    assert_eq!(story.ready().await, 1, "that of the version that readers see");
    story.rebuild().await;
    let versions =
        "SELECT array_agg(version)::text FROM everfold.generations WHERE status = 'spare'";
    let versions = story.fixture.rows(versions).await;
    assert_eq!(versions[0][0], "{2}");
    let left = "SELECT count(*) FROM everfold.generations g \
        JOIN pg_namespace n ON n.nspname = g.home WHERE g.status = 'retired'";
    eventually("the old one is gone", LIMIT, async || story.number(left).await == 0).await;
    assert_eq!(story.ready().await, 1);
    let (_report, _) = story.report().await;
    story.rebuild().await;
    assert_eq!(story.seen().await, expected(&story.store, "!").await);
}

/// The spare of the old version is in its view, empty; that is never shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_version_with_other_columns_is_shown_on_while_its_spare_goes() {
    let story = Story::inline().await;
    story.count(0..20).await;
    let other = Projection::sql("numbers", 2)
        .create("CREATE TABLE read_model.numbers (n BIGINT NOT NULL, key TEXT PRIMARY KEY)")
        .apply(
            "INSERT INTO read_model.numbers AS t (n, key) \
             SELECT count(*), stream_id FROM batch GROUP BY 2 \
             ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n",
        )
        .inline();
    story.store.register(other.build().unwrap()).await.unwrap();
    // Whoever holds the view keeps the old spare in it.
    let (report, in_report) = story.report().await;
    let rebuild = story.store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
    let waits = async || {
        let rebuilds = story.store.rebuilds().await.unwrap();
        rebuilds[0].message.as_ref().is_some_and(|message| message.contains("(report)"))
    };
    eventually("it waits for the report", LIMIT, waits).await;
    // A snapshot from before the switch: the old spare is retired, and not removed yet.
    let old = story.fixture.database().connect().await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM everfold.projections";
    old.batch_execute(begin).await.unwrap();
    report.batch_execute("COMMIT").await.unwrap();
    rebuild.finish().await.unwrap();
    assert_eq!(story.seen().await, in_report);
    let rows = story.number("SELECT count(*) FROM read_model.numbers_v2 WHERE n = 20").await;
    assert_eq!((rows, story.ready().await), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_rebuild_leaves_a_new_spare() {
    let story = Story::inline().await;
    story.count(0..20).await;
    let (report, _) = story.report().await;
    story.rebuild().await;
    let rebuild = story.store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
    eventually("it waits", LIMIT, async || {
        let rebuilds = story.store.rebuilds().await.unwrap();
        rebuilds[0].message.as_ref().is_some_and(|message| message.contains("(report)"))
    })
    .await;
    assert_eq!(story.spares().await, 0, "it is put to use");
    report.batch_execute("COMMIT").await.unwrap();
    // Either it is cancelled, or it was faster.
    let _ = story.store.cancel_rebuild("numbers").await;
    let _ = rebuild.finish().await;
    eventually("there is another one", LIMIT, async || story.ready().await == 1).await;
    assert_eq!(story.seen().await, story.expected().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runner_prepares_what_could_not_be_prepared_before() {
    let story = Story::inline().await;
    story.count(0..20).await;
    let (report, _) = story.report().await;
    story.rebuild().await;
    assert_eq!(story.ready().await, 0);
    report.batch_execute("COMMIT").await.unwrap();
    let other = story.fixture.store().await;
    let runner = Runner::new(&other).projection(story.projection.clone()).start().await.unwrap();
    eventually("a runner prepares it", LIMIT, async || story.ready().await == 1).await;
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrator_makes_spares_and_writers_do_without() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let (administrator, url) = Login::new(fixture, "everfold_admin").await;
    let store = Store::open(&url).await.unwrap();
    store.register(numbers(1, true)).await.unwrap();
    store.close().await;
    let database = administrator.drop_role().await;
    let session = database.connect().await;
    let ready = "SELECT count(*) FROM everfold.generations g JOIN pg_namespace n ON n.nspname = g.home \
        WHERE g.status = 'spare' AND g.reason IS NULL \
        AND pg_get_userbyid(n.nspowner) = 'everfold_admin'";
    let count: i64 = session.query_one(ready, &[]).await.unwrap().get(0);
    assert_eq!(count, 1);

    let retire = "UPDATE everfold.generations SET status = 'retired' WHERE status = 'spare'";
    session.batch_execute(retire).await.unwrap();
    let (writer, url) = Login::of(database, "everfold_writer").await;
    let store = Store::open(&url).await.unwrap();
    let registered = store.register(numbers(1, true)).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Active);
    append(&store, "a", counted([1])).await;
    let count: i64 = session.query_one(ready, &[]).await.unwrap().get(0);
    assert_eq!(count, 0);
    store.close().await;
    writer.drop_role().await;
}
