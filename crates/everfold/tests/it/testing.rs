//! The test kit: projections that are right pass in every variant, and each way of being wrong by
//! luck is found and named.

use std::sync::atomic::{AtomicI64, Ordering};

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::testing::{ProjectionTest, TestFailure, Variation};
use everfold::{
    DocumentProjection, HandlerBatch, HandlerError, NewEvent, OnError, Projection, RecordedEvent,
    Upcasters,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::Fixture;

#[derive(Serialize, Deserialize)]
enum Event {
    Added { n: i64 },
    Removed { n: i64 },
    Cleared,
}

use Event::{Added, Cleared, Removed};

#[derive(Default, Serialize, Deserialize)]
struct Sum {
    sum: i64,
}

struct Sums;

impl DocumentProjection for Sums {
    type Event = Event;
    type Document = Sum;

    fn evolve(&self, sum: Option<Sum>, event: &Event, _: &RecordedEvent) -> Option<Sum> {
        let Sum { sum } = sum.unwrap_or_default();
        match event {
            Added { n } => Some(Sum { sum: sum + n }),
            Removed { n } => Some(Sum { sum: sum - n }),
            Cleared => None,
        }
    }
}

fn sums() -> everfold::ProjectionBuilder<everfold::DocumentBody<Sums>> {
    Projection::document("sums", 1, Sums)
}

fn test(
    projection: everfold::ProjectionBuilder<everfold::DocumentBody<impl DocumentProjection>>,
) -> ProjectionTest {
    given(ProjectionTest::new(projection.build().unwrap()))
}

fn given(test: ProjectionTest) -> ProjectionTest {
    test.given("a", [Added { n: 1 }, Added { n: 2 }, Removed { n: 1 }])
        .given("b", [Added { n: 10 }])
        .given("a", [Added { n: 4 }])
        .given("c", [Added { n: 7 }, Cleared])
        .given("b", [Added { n: 20 }])
}

fn expected() -> [(&'static str, Value); 2] {
    [("a", json!({ "sum": 6 })), ("b", json!({ "sum": 30 }))]
}

/// The failure of a test that must have one.
#[track_caller]
fn failure(outcome: Result<(), TestFailure>) -> String {
    outcome.expect_err("the test finds it").to_string()
}

#[tokio::test]
async fn documents_that_are_right_pass_in_every_variant() {
    test(sums()).then_documents(expected()).run().await.unwrap();
    test(sums().inline()).on_sqlite().then_documents(expected()).run().await.unwrap();
    let everything = sums().key(|_, _| Some("all".to_owned()));
    let test = test(everything).then_documents([("all", json!({ "sum": 20 }))]);
    // All of it is one key: `Cleared` takes the rest with it, in the order given and in no other.
    test.run().await.unwrap();
}

#[tokio::test]
async fn databases_beside_the_one_named_are_made_and_dropped_again() {
    let fixture = Fixture::postgres().await;
    let client = fixture.database().connect().await;
    let role = format!("kit_{}", everfold::Uuid::now_v7().simple());
    let create = format!("CREATE ROLE {role} LOGIN CREATEDB PASSWORD 'pw'");
    client.batch_execute(&create).await.unwrap();
    let url = fixture.database().server().as_user(&role, "pw").url(fixture.database().name());
    test(sums().inline()).on(url).then_documents(expected()).run().await.unwrap();
    // Would fail if the role had a database left.
    client.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn wrong_expectation_is_shown_with_the_first_difference() {
    let wrong = [("a", json!({ "sum": 6 })), ("b", json!({ "sum": 31 }))];
    let said = failure(test(sums()).then_documents(wrong).run().await);
    assert_eq!(
        said,
        "projection \"sums\": as given: document \"b\"\n  expected {\"sum\":31}\n  \
         found    {\"sum\":30}\n  at sum: expected 31, found 30"
    );
    let missing = [("a", json!({ "sum": 6 }))];
    let said = failure(test(sums()).then_documents(missing).run().await);
    assert!(said.contains("document \"b\" was not expected"), "{said}");
    let said = failure(test(sums()).run().await);
    assert!(said.contains("nothing is expected"), "{said}");
}

/// Remembers in a field that is not written.
struct Streak;

#[derive(Default, Serialize, Deserialize)]
struct WithStreak {
    longest: i64,
    #[serde(skip)]
    streak: i64,
}

impl DocumentProjection for Streak {
    type Event = Event;
    type Document = WithStreak;

    fn evolve(
        &self,
        was: Option<WithStreak>,
        event: &Event,
        _: &RecordedEvent,
    ) -> Option<WithStreak> {
        let WithStreak { longest, streak } = was.unwrap_or_default();
        let streak = if matches!(event, Added { .. }) { streak + 1 } else { 0 };
        Some(WithStreak { longest: longest.max(streak), streak })
    }
}

#[tokio::test]
async fn state_that_does_not_survive_a_batch_is_found() {
    let longest = |n: i64| json!({ "longest": n });
    let streak = Projection::document("streak", 1, Streak);
    let said = failure(
        test(streak)
            .then_documents([("a", longest(2)), ("b", longest(2)), ("c", longest(1))])
            .run()
            .await,
    );
    assert!(said.contains("\"streak\": in batches of 1: document \"a\""), "{said}");
    assert!(said.contains("must not depend on how events are cut into batches"), "{said}");
}

/// Numbers events by itself.
#[derive(Default)]
struct Numbering(AtomicI64);

impl SqliteHandler for Numbering {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        self.0.store(0, Ordering::Relaxed);
        Ok(connection.execute_batch(&format!("CREATE TABLE {home}numbers (n INTEGER NOT NULL)"))?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        for _ in batch.events {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            connection
                .execute(&format!("INSERT INTO {}numbers VALUES (?1)", batch.home), [number])?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn memory_outside_the_transaction_is_found() {
    let numbering = Projection::sqlite_handler("numbering", 1, Numbering::default());
    let test = given(ProjectionTest::new(numbering.build().unwrap()));
    let test = test.then_rows("SELECT n FROM read_model.numbers ORDER BY n", 0..8);
    let said = failure(test.clone().run().await);
    assert!(said.contains("with a crash before each commit: row 1 of"), "{said}");
    assert!(said.contains("nothing outside the transaction may remember"), "{said}");
    // Nothing else is wrong with it.
    test.without(Variation::Crashes).run().await.unwrap();
}

fn latest() -> Projection {
    Projection::sql("latest", 1)
        .create("CREATE TABLE read_model.latest (id INTEGER PRIMARY KEY, stream TEXT NOT NULL)")
        .apply(
            "INSERT INTO read_model.latest (id, stream)
             SELECT 1, stream_id FROM batch ORDER BY position DESC LIMIT 1
             ON CONFLICT (id) DO UPDATE SET stream = excluded.stream",
        )
        .build()
        .unwrap()
}

#[tokio::test]
async fn order_across_streams_that_nobody_keeps_is_found() {
    let test = given(ProjectionTest::new(latest()));
    let said = failure(test.then_rows("SELECT stream FROM read_model.latest", ["b"]).run().await);
    assert!(said.contains("with the last streams first: row 1 of"), "{said}");
    assert!(said.contains("expected [\"b\"]\n  found    [\"a\"]"), "{said}");
}

fn totals(apply: &str) -> Projection {
    Projection::sql("totals", 1)
        .events(["Added", "Removed"])
        .create("CREATE TABLE read_model.totals (stream TEXT PRIMARY KEY, n BIGINT NOT NULL CHECK (n >= 0))")
        .apply(apply)
        .on_error(OnError::Skip)
        .build()
        .unwrap()
}

const TOTALS: &str = "INSERT INTO read_model.totals AS t (stream, n)
SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT) * CASE type WHEN 'Added' THEN 1 ELSE -1 END)
FROM batch GROUP BY stream_id
ON CONFLICT (stream) DO UPDATE SET n = t.n + excluded.n";

#[tokio::test]
async fn sql_that_is_right_passes_on_both_stores() {
    let fixture = Fixture::postgres().await;
    let test = ProjectionTest::new(totals(TOTALS))
        .given("a", [Added { n: 1 }, Added { n: 2 }])
        .given("b", [Added { n: 4 }])
        .given("a", [Added { n: 8 }])
        .then_rows("SELECT stream, n FROM read_model.totals ORDER BY stream", [("a", 11), ("b", 4)])
        .then_rows("SELECT count(*) FROM read_model.totals", [2]);
    test.clone().on_sqlite().run().await.unwrap();
    test.on(&fixture.url).run().await.unwrap();
}

#[tokio::test]
async fn check_that_only_whole_batches_pass_is_found() {
    // 3 - 2 is fine as a sum; the row that an upsert proposes for -2 alone is refused.
    let test = ProjectionTest::new(totals(TOTALS))
        .given("a", [Added { n: 3 }, Removed { n: 2 }])
        .then_rows("SELECT n FROM read_model.totals", [1]);
    let said = failure(test.run().await);
    assert!(said.contains("in batches of 1: row 1 of"), "{said}");
}

#[tokio::test]
async fn projection_that_refuses_an_event_fails_the_test_with_the_reason() {
    let odd = NewEvent::new("Added", &json!({ "n": "one" })).unwrap();
    let said =
        failure(test(sums()).given_events("a", [odd]).then_documents(expected()).run().await);
    assert!(said.contains("as given: the event at position"), "{said}");
    assert!(said.contains("invalid type: string \"one\""), "{said}");
    let said = failure(test(sums()).given("a", [1]).then_documents(expected()).run().await);
    assert!(said.contains("event cannot be encoded"), "{said}");
}

#[tokio::test]
async fn upcasters_and_ignored_fields_are_taken_into_account() {
    let upcasters = Upcasters::new().rename("Plus", "Added");
    let plus = NewEvent::new("Plus", &json!({ "n": 5 })).unwrap();
    ProjectionTest::new(sums().build().unwrap())
        .upcasters(std::sync::Arc::new(upcasters))
        .given_events("a", [plus])
        .then_documents([("a", json!({ "sum": 5, "at": "any" }))])
        .ignoring("at")
        .run()
        .await
        .unwrap();
}

#[tokio::test]
async fn tables_are_compared_row_by_row_on_both_stores() {
    let fixture = Fixture::postgres().await;
    let test = ProjectionTest::new(totals(TOTALS))
        .given("a", [Added { n: 1 }, Added { n: 2 }])
        .given("b", [Added { n: 4 }]);
    for test in [test.clone().on_sqlite(), test.on(&fixture.url)] {
        let columns = vec!["stream".to_owned(), "n".to_owned()];
        assert_eq!(test.tables().await.unwrap(), [("totals".to_owned(), columns)]);
        let rows = |rows: [(&'static str, i64); 2]| {
            test.clone().then_table("totals", ["stream", "n"], rows)
        };
        rows([("b", 4), ("a", 3)]).run().await.unwrap();
        test.clone().then_table("totals", ["n"], [4, 3]).run().await.unwrap();
        let failure = rows([("a", 5), ("c", 4)]).run().await.unwrap_err();
        assert!(failure.is_difference() && failure.variation().is_none());
        assert_eq!(failure.variant(), Some("as given"));
        let pairs: Vec<_> = failure.rows().iter().map(|row| (&row.expected, &row.found)).collect();
        let row = |stream: &str, n: i64| Some(vec![json!(stream), json!(n)]);
        assert_eq!(
            pairs,
            [(&row("a", 5), &row("a", 3)), (&row("c", 4), &row("b", 4))],
            "by the first column, or else by another"
        );
        assert_eq!(
            failure.message(),
            "table totals (stream, n)\n  expected [\"a\",5]\n  found    [\"a\",3]"
        );
        for (table, column) in [("total", "n"), ("totals", "m")] {
            let test = test.clone().then_table(table, [column], [1]);
            let failure = test.run().await.unwrap_err();
            assert!(!failure.is_difference(), "{failure}");
            assert!(failure.to_string().contains(&format!("as given: table {table}: ")));
        }
    }
    let said =
        failure(given(ProjectionTest::new(latest())).then_table("t", ["a"], [(1, 2)]).run().await);
    assert!(said.contains("has not the 1 values of its columns"), "{said}");
}

/// Refuses events without a number, by the column's constraint.
fn strict(on_error: OnError, inline: bool) -> Projection {
    let strict = Projection::sql("strict", 1)
        .create("CREATE TABLE read_model.strict (stream TEXT NOT NULL, num BIGINT NOT NULL)")
        .apply(
            "INSERT INTO read_model.strict (stream, num)
             SELECT stream_id, CAST(data->>'n' AS BIGINT) FROM batch",
        )
        .on_error(on_error);
    if inline { strict.inline().build().unwrap() } else { strict.build().unwrap() }
}

#[tokio::test]
async fn refused_events_are_expected_under_every_policy() {
    let fixture = Fixture::postgres().await;
    let bad = || NewEvent::new("Added", &json!({})).unwrap();
    for inline in [false, true] {
        for on_error in [OnError::Stop, OnError::DeadLetter, OnError::Skip] {
            let test = ProjectionTest::new(strict(on_error, inline))
                .given("a", [Added { n: 1 }])
                .given("b", [Added { n: 2 }])
                .given_events("b", [bad()])
                .then_table("strict", ["stream", "num"], [("a", 1), ("b", 2)]);
            test.clone().then_refused(["num"]).run().await.unwrap();
            test.clone().on(&fixture.url).then_refused(["num"]).run().await.unwrap();

            let said = failure(test.clone().then_refused::<&str>([]).run().await);
            assert!(said.contains("as given: ") && said.contains("refused"), "{said}");
            assert!(said.contains("strict.num"), "{said}");
            let said = failure(test.clone().then_refused(["nothing of it"]).run().await);
            assert!(said.contains("\n  expected one that says \"nothing of it\""), "{said}");
            let more = test.given("c", [Added { n: 3 }]).then_refused(["num"]);
            let said = failure(more.run().await);
            let reason = if on_error == OnError::Stop {
                "let the one that is refused be the last"
            } else {
                "[\"c\",3]"
            };
            assert!(said.contains(reason), "{on_error}: {said}");
        }
    }
    let test = ProjectionTest::new(strict(OnError::Skip, false)).given("a", [Added { n: 1 }]);
    let said = failure(test.then_refused(["num"]).run().await);
    assert!(said.contains("no event was refused"), "{said}");
}

#[tokio::test]
async fn events_have_the_time_they_were_given() {
    let fixture = Fixture::postgres().await;
    let event = |n: i64| NewEvent::new("Added", &json!({ "n": n })).unwrap();
    let at = |text: &str| text.parse().unwrap();
    for inline in [false, true] {
        let times = Projection::sql("times", 1)
            .create("CREATE TABLE read_model.times (n BIGINT NOT NULL, at TEXT NOT NULL)")
            .apply(
                "INSERT INTO read_model.times SELECT CAST(data->>'n' AS BIGINT),
                 to_char(recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM batch",
            )
            .apply_on_sqlite(
                "INSERT INTO read_model.times SELECT CAST(data->>'n' AS BIGINT),
                 recorded_at FROM batch",
            );
        let times = if inline { times.inline().build() } else { times.build() };
        let test = ProjectionTest::new(times.unwrap())
            .given_events_at(at("2026-01-31T23:59:59Z"), "a", [event(1), event(2)])
            .given_events_at(at("2026-02-01T01:00:00+01:00"), "b", [event(3)])
            .then_table(
                "times",
                ["n", "at"],
                [
                    (1, "2026-01-31T23:59:59Z"),
                    (2, "2026-01-31T23:59:59Z"),
                    (3, "2026-02-01T00:00:00Z"),
                ],
            );
        test.clone().run().await.unwrap();
        test.on(&fixture.url).run().await.unwrap();
    }
    let bad = NewEvent::new("Added", &json!({})).unwrap();
    let test = ProjectionTest::new(strict(OnError::Stop, true))
        .given_events_at(at("2026-02-01T00:00:00Z"), "a", [event(1), bad])
        .then_table("strict", ["num"], [1])
        .then_refused(["num"]);
    test.clone().run().await.unwrap();
    test.on(&fixture.url).run().await.unwrap();
}

#[tokio::test]
async fn test_that_is_stopped_begins_no_further_variant() {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let test = test(sums()).then_documents([("a", json!({}))]).stop_when(stop);
    assert!(test.variants().starts_with(&["as given".to_owned()]), "{:?}", test.variants());
    let failure = test.run().await.unwrap_err();
    assert!(failure.is_stopped() && !failure.is_difference(), "{failure}");
    assert_eq!(failure.variant(), None);
}

/// Whatever leads elsewhere, a pooler or something in the URL: nothing is done in a database that was not
/// made for the test.
#[tokio::test]
async fn database_that_was_not_made_for_the_test_is_left_alone() {
    let fixture = Fixture::postgres().await;
    let (url, name) = (&fixture.url, fixture.database().name());
    let client = fixture.database().connect().await;
    client.batch_execute("CREATE SCHEMA mine; CREATE TABLE mine.kept (n int)").await.unwrap();
    // A name among the parameters is taken out, where it can be seen …
    test(sums().inline())
        .on(format!("{url}?dbname={name}"))
        .then_documents(expected())
        .run()
        .await
        .unwrap();
    // … and where it cannot, the database itself is asked.
    let hidden = format!("{url}?d%62name={name}");
    let told = failure(test(sums().inline()).on(hidden).then_documents(expected()).run().await);
    assert!(told.contains(&format!("leads to the database {name}")), "{told}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('everfold', 'mine')";
    assert_eq!(client.query_one(schemas, &[]).await.unwrap().get::<_, i64>(0), 1);
}
