//! Waiting and status from SQL, as other languages use them, and the roles around projections.

use std::time::Duration;

use everfold::{GenerationStatus, Projection, ProjectionError, Runner, Store, StoreErrorKind};
use everfold_testkit::eventually;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::fixture::{Fixture, append, counted, event};
use crate::roles::Login;

const LIMIT: Duration = Duration::from_secs(60);

fn totals() -> everfold::ProjectionBuilder<everfold::SqlBody> {
    Projection::sql("totals", 1)
        .create("CREATE TABLE read_model.totals (stream_id TEXT PRIMARY KEY, n BIGINT NOT NULL)")
        .apply(
            "INSERT INTO read_model.totals AS t (stream_id, n)
             SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT)) FROM batch WHERE true GROUP BY stream_id
             ON CONFLICT (stream_id) DO UPDATE SET n = t.n + EXCLUDED.n",
        )
        .events(["Counted"])
}

async fn reached(client: &Client, position: i64, timeout_ms: i32) -> bool {
    let sql = "SELECT everfold.wait_for('totals', $1, $2)";
    client.query_one(sql, &[&position, &timeout_ms]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_projection_is_waited_for() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let client = fixture.database().connect().await;
    store.register(totals().build().unwrap()).await.unwrap();
    append(&store, "a", [event("Other", serde_json::json!({}))]).await;
    let position = append(&store, "a", counted([1, 2])).await.last_position.0 as i64;
    assert!(!reached(&client, position, 20).await, "nobody runs it");

    let waiting = tokio::spawn(async move { reached(&client, position, 60_000).await });
    let runner = Runner::new(&store).projection(totals().build().unwrap()).start().await.unwrap();
    assert!(waiting.await.unwrap());
    runner.stop().await;
    let client = fixture.database().connect().await;
    let row = client.query_one("SELECT n::text FROM read_model.totals", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "3");
    assert!(!reached(&client, position + 1, 20).await, "it is not there yet");

    let sql =
        "SELECT name, status, position >= $1, behind_events FROM everfold.projection_status()";
    let row = client.query_one(sql, &[&position]).await.unwrap();
    let found: (String, String, bool, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(found, ("totals".to_owned(), "active".to_owned(), true, 0));
}

#[tokio::test]
async fn inline_projection_is_there_at_once_unless_it_owes() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let client = fixture.database().connect().await;
    store.register(totals().inline().build().unwrap()).await.unwrap();
    // An older append that is still open holds the mark, not the projection.
    let open = fixture.database().connect().await;
    open.batch_execute(
        "BEGIN; SELECT everfold.append_event('open', NULL, 'Counted', '{\"n\": 1}')",
    )
    .await
    .unwrap();
    let position = append(&store, "a", counted([1])).await.last_position.0 as i64;
    assert!(reached(&client, position, 0).await);
    assert!(!reached(&client, position + 1, 20).await, "that one cannot be seen yet");
    open.batch_execute("COMMIT").await.unwrap();

    let skip =
        "INSERT INTO everfold.skips (generation, position, key, reason) VALUES (1, 1, 'a', 'x')";
    client.batch_execute(skip).await.unwrap();
    assert!(!reached(&client, position, 20).await, "an open skip is owed");
    client.batch_execute("DELETE FROM everfold.skips").await.unwrap();
    let letter = "INSERT INTO everfold.dead_letters (generation, position, key, error) \
        VALUES (1, 1, 'a', 'x')";
    client.batch_execute(letter).await.unwrap();
    assert!(!reached(&client, position, 20).await, "a dead letter is owed");
}

#[tokio::test]
async fn waiting_for_what_cannot_come_is_an_error() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let client = fixture.database().connect().await;
    for (sql, code, message) in [
        ("SELECT everfold.wait_for('nobody', 1)", "EF020", "there is no projection \"nobody\""),
        ("SELECT everfold.wait_for('nobody', 1, 1, 'shop')", "EF020", "in namespace \"shop\""),
        ("SELECT everfold.wait_for('nobody', NULL)", "EF003", "no position"),
        (
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT everfold.wait_for('nobody', 1)",
            "EF002",
            "READ COMMITTED",
        ),
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), code, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_registers_and_runs_and_another_admin_goes_on() {
    let fixture = Fixture::postgres().await;
    append(&fixture.store().await, "a", counted([1, 2])).await;
    let (first, url) = Login::new(fixture, "everfold_admin").await;
    let store = Store::open(&url).await.unwrap();
    let projection = totals().build().unwrap();
    let runner = Runner::new(&store).projection(projection.clone()).start().await.unwrap();
    store.wait_for("totals", store.high_water_mark().await.unwrap(), LIMIT).await.unwrap();
    runner.stop().await;
    store.close().await;
    let database = first.drop_role().await;

    // What was made belongs to the role, so that it outlives who made it.
    let owner = database.connect().await;
    let (reader, reader_url) = Login::of(database, "everfold_read_models").await;
    let client = connect(&reader_url).await;
    let row = client.query_one("SELECT n FROM read_model.totals", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 3);
    client.batch_execute("SELECT everfold.wait_for('totals', 1, 1)").await.unwrap();
    client.batch_execute("SELECT * FROM everfold.projection_status()").await.unwrap();
    for (sql, code) in [
        // A view of several generations takes no writes from anybody.
        ("DELETE FROM read_model.totals", "55000"),
        ("DELETE FROM everfold_1_totals.totals", "42501"),
        ("SELECT * FROM everfold.events", "42501"),
        ("SELECT everfold_1_totals.apply('{1}')", "42501"),
        ("UPDATE everfold.generations SET status = 'retired'", "42501"),
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{sql}: {error}");
    }
    drop(client);
    let table = "SELECT DISTINCT tableowner::text FROM pg_tables WHERE tablename = 'totals'";
    let row = owner.query_one(table, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "everfold_admin");
    drop(owner);
    reader.drop_role().await;
}

#[tokio::test]
async fn writer_finds_what_is_registered_and_registers_nothing() {
    let fixture = Fixture::postgres().await;
    fixture.store().await.register(totals().inline().build().unwrap()).await.unwrap();
    let (login, url) = Login::new(fixture, "everfold_writer, everfold_read_models").await;
    let store = Store::open(&url).await.unwrap();
    assert!(!store.register(totals().inline().build().unwrap()).await.unwrap().created);
    append(&store, "a", counted([4])).await;
    let other = Projection::sql("other", 1)
        .create("CREATE TABLE read_model.other (x TEXT)")
        .apply("INSERT INTO read_model.other SELECT type FROM batch");
    let error = store.register(other.build().unwrap()).await.unwrap_err();
    assert!(matches!(error, ProjectionError::Store(_)), "{error:?}");
    assert!(error.to_string().contains("everfold_admin"), "{error}");
    store.close().await;
    drop(store);
    login.drop_role().await;
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A projection on a rare type must not read the whole log to find nothing.
#[tokio::test]
async fn end_of_a_batch_of_rare_types_is_found_by_their_index() {
    const OF_TYPES: &str =
        include_str!("../../sql/postgres/statements/find_range_end_of_types.sql");
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    for _ in 0..8 {
        append(&store, "a", counted(0..1_000)).await;
    }
    append(&store, "e", [event("Rare", serde_json::json!({}))]).await;
    let client = fixture.database().connect().await;
    client.batch_execute("VACUUM ANALYZE everfold.events").await.unwrap();
    let prepare = format!("PREPARE range_end (bigint, bigint, bigint, text[]) AS {OF_TYPES}");
    client.batch_execute(&prepare).await.unwrap();
    for (types, max, expected) in [("{Rare}", 100, (8_001, 1)), ("{Counted,Rare}", 100, (100, 100))]
    {
        let max = i64::from(max);
        let list: Vec<&str> = types.trim_matches(['{', '}']).split(',').collect();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&0_i64, Type::INT8),
            (&8_001_i64, Type::INT8),
            (&max, Type::INT8),
            (&list, Type::TEXT_ARRAY),
        ];
        let row = client.query_typed(OF_TYPES, &params).await.unwrap().remove(0);
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), expected, "{types}");
        let explain =
            format!("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE range_end (0, 8001, {max}, '{types}')");
        let plan = client.query_one(&explain, &[]).await.unwrap();
        let plan: Json = plan.get(0);
        let plan: serde_json::Value = serde_json::from_str(&plan.0).unwrap();
        let read = rows_read(&plan[0]["Plan"]);
        assert!(read <= 500.0, "{types}: {read} rows were read: {plan:#}");
    }
}

/// Rows of the log that a plan looked at.
fn rows_read(plan: &serde_json::Value) -> f64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let own = match plan["Relation Name"] == "events" {
        true => (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops"),
        false => 0.0,
    };
    let below = plan["Plans"].as_array().into_iter().flatten();
    own + below.map(rows_read).sum::<f64>()
}

/// A `json` column as text.
struct Json(String);

impl<'a> tokio_postgres::types::FromSql<'a> for Json {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Json(std::str::from_utf8(raw)?.to_owned()))
    }

    tokio_postgres::types::accepts!(JSON);
}

/// What an event of the log does wrong is told with file and line of the projection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_statement_is_told_by_file_and_line() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let projection = Projection::sql("ratios", 1)
        .create("CREATE TABLE read_model.ratios (n NUMERIC)")
        .apply("-- Two statements,\nDELETE FROM read_model.ratios\n WHERE n < 0;\n\n\nINSERT INTO read_model.ratios\nSELECT 1 / CAST(data->>'n' AS NUMERIC)\n  FROM batch")
        .build()
        .unwrap();
    let runner = Runner::new(&store).projection(projection).start().await.unwrap();
    append(&store, "a", counted([0])).await;
    let reason = async || store.projections().await.unwrap().remove(0).reason.unwrap_or_default();
    eventually("it fails", LIMIT, async || !reason().await.is_empty()).await;
    let reason = reason().await;
    assert!(reason.contains("apply:6: division by zero"), "{reason}");
    runner.stop().await;
}

/// A projection of the same events that runs behind.
fn later() -> Projection {
    Projection::sql("later", 1)
        .create("CREATE TABLE read_model.later (position BIGINT PRIMARY KEY)")
        .apply("INSERT INTO read_model.later SELECT position FROM batch")
        .build()
        .unwrap()
}

/// Whether an error says that a right is missing, and which role has it.
fn needs_admin(error: &ProjectionError) -> bool {
    matches!(error, ProjectionError::Store(error) if error.kind() == StoreErrorKind::Privilege)
        && error.to_string().contains("everfold_admin")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_and_reader_wait_with_the_rights_of_their_roles_alone() {
    let fixture = Fixture::postgres().await;
    let owner = fixture.store().await;
    owner.register(totals().inline().build().unwrap()).await.unwrap();
    owner.register(later()).await.unwrap();
    let mut database = fixture.into_database();
    for role in ["everfold_writer", "everfold_events_reader"] {
        let (login, url) = Login::of(database, role).await;
        let store = Store::open(&url).await.unwrap();
        let appender = if role == "everfold_writer" { &store } else { &owner };
        let position = append(appender, "a", counted([1])).await.last_position;
        assert_eq!(store.last_position().await.unwrap(), position, "{role}");
        store.wait_for("totals", position, LIMIT).await.unwrap();
        let error = store.wait_for("later", position, Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(error, ProjectionError::NotReached { .. }), "{role}: {error:?}");
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { store.wait_for("later", position, LIMIT).await })
        };
        Runner::new(&owner).projection(later()).run_once().await.unwrap();
        waiting.await.unwrap().unwrap();
        let error = store.wait_for("nobody", position, LIMIT).await.unwrap_err();
        assert!(matches!(error, ProjectionError::Unknown { .. }), "{role}: {error:?}");

        let client = connect(&url).await;
        assert!(reached(&client, position.0 as i64, 0).await, "{role}");
        let sql = "SELECT count(*) FROM everfold.projection_status() WHERE status = 'active'";
        assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 2, "{role}");
        // Whatever changes a projection, or shows what went wrong with its events, is not theirs.
        for outcome in [
            store.pause("later").await.err(),
            Runner::new(&store).projection(later()).run_once().await.err(),
        ] {
            let error = outcome.unwrap_or_else(|| panic!("{role} may not do this"));
            assert!(needs_admin(&error), "{role}: {error:?}");
        }
        drop(client);
        store.close().await;
        drop(store);
        database = login.drop_role().await;
    }
    assert_eq!(owner.projection("later").await.unwrap().status, GenerationStatus::Active);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_sees_status_and_health_and_pauses_what_the_owner_registered() {
    let fixture = Fixture::postgres().await;
    let owner = fixture.store().await;
    owner.register(totals().inline().build().unwrap()).await.unwrap();
    owner.register(later()).await.unwrap();
    append(&owner, "a", counted([1, 2])).await;
    let (login, url) = Login::new(fixture, "everfold_admin").await;
    let store = Store::open(&url).await.unwrap();
    Runner::new(&store).projection(later()).run_once().await.unwrap();
    assert_eq!(store.projections().await.unwrap().len(), 2);
    assert_eq!(store.projection("later").await.unwrap().lag_events, 0);
    assert!(store.health(&Default::default()).await.unwrap().is_empty());
    for name in ["totals", "later"] {
        store.pause(name).await.unwrap();
        assert_eq!(owner.projection(name).await.unwrap().status, GenerationStatus::Paused);
    }
    // An event that is owed while it is paused, and drained by the admin's runner.
    append(&store, "a", counted([3])).await;
    assert_eq!(store.projection("totals").await.unwrap().open_skips, 1);
    for name in ["totals", "later"] {
        store.resume(name).await.unwrap();
    }
    let runner = Runner::new(&store).projection(totals().inline().build().unwrap());
    runner.run_once().await.unwrap();
    let status = store.projection("totals").await.unwrap();
    assert_eq!((status.open_skips, status.status), (0, GenerationStatus::Active));
    store.close().await;
    drop(store);
    login.drop_role().await;
}
