//! The SQL door from other languages and drivers, each with its real client: psql, psycopg,
//! node-postgres and sqlx. `scripts/test` installs what they need.

use std::process::Command;

use everfold::Version;
use sqlx::Row;

use crate::fixture::{Fixture, read_stream};

async fn shop() -> (Fixture, everfold::Store) {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    let client = fixture.database().connect().await;
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)").await.unwrap();
    (fixture, store)
}

/// Runs a client program; its output is the message if it fails.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} runs (scripts/test installs it): {error}"));
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{program}: {text}");
    text
}

/// What each client did: an order with two events, a conflict that it recognised by SQLSTATE, a
/// rolled back transaction that left nothing.
async fn assert_shop(store: &everfold::Store) {
    let events = read_stream(store, "order-1").await;
    let types: Vec<&str> = events.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(types, ["OrderPlaced", "OrderPaid"]);
    assert_eq!(events[0].metadata().unwrap().correlation_id(), Some("request-1"));
    assert_eq!(events[1].id.get_version_num(), 7, "an id that is not given is made, version 7");
    assert_eq!(store.stream_version("order-2").await.unwrap(), Version::NONE);
}

#[tokio::test]
async fn psql_appends_and_reads() {
    let (fixture, store) = shop().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/doors/shop.sql");
    let url = fixture.url.as_str();
    let text =
        run("psql", &["-X", "-v", "ON_ERROR_STOP=0", "-v", "VERBOSITY=verbose", url, "-f", script]);
    assert!(
        text.contains(
            "ERROR:  EF001: version conflict on stream \"order-1\": expected 1, actual 2"
        ),
        "{text}"
    );
    assert!(text.contains("OrderPaid"), "{text}");
    assert_shop(&store).await;
}

#[tokio::test]
async fn psycopg_appends_and_reads() {
    let (fixture, store) = shop().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/doors/shop.py");
    let text = run("/usr/bin/python3", &[script, &fixture.url]);
    assert!(text.contains("python: all as expected"), "{text}");
    assert_shop(&store).await;
}

#[tokio::test]
async fn node_postgres_appends_and_reads() {
    let (fixture, store) = shop().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/doors/shop.js");
    let text = run("node", &[script, &fixture.url]);
    assert!(text.contains("node: all as expected"), "{text}");
    assert_shop(&store).await;
}

#[tokio::test]
async fn sqlx_appends_and_reads() {
    let (fixture, store) = shop().await;
    let pool = sqlx::PgPool::connect(&fixture.url).await.unwrap();
    let append = "SELECT first_position, last_position, version FROM everfold.append($1, $2, $3)";

    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *transaction).await.unwrap();
    let events = serde_json::json!([
        {"type": "OrderPlaced", "data": {"total": 1999}, "metadata": {"correlation_id": "request-1"}},
        {"type": "OrderPaid", "data": {}},
    ]);
    let row = sqlx::query(append)
        .bind("order-1")
        .bind(0_i64)
        .bind(events)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(row.get::<i64, _>("version"), 2);
    transaction.commit().await.unwrap();

    let one = serde_json::json!([{"type": "OrderPaid", "data": {}}]);
    let stale = sqlx::query(append).bind("order-1").bind(1_i64).bind(&one).fetch_one(&pool).await;
    let error = stale.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "EF001");

    let mut transaction = pool.begin().await.unwrap();
    sqlx::query(append)
        .bind("order-2")
        .bind(0_i64)
        .bind(&one)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();

    let read =
        sqlx::query("SELECT type FROM everfold.read_stream('order-1')").fetch_all(&pool).await;
    let types: Vec<String> = read.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(types, ["OrderPlaced", "OrderPaid"]);
    pool.close().await;
    assert_shop(&store).await;
}

/// The JSON form checks what it is given and says what is wrong.
#[tokio::test]
async fn bad_json_appends_are_refused_with_what_to_do() {
    let (fixture, store) = shop().await;
    let client = fixture.database().connect().await;
    let long = "x".repeat(600);
    let cases = [
        ("'a', 0, '[]'", "EF003", "has 0 events"),
        ("'a', 0, '{}'", "EF003", "must be a JSON array, not object"),
        ("'a', 0, NULL", "EF003", "must be a JSON array, not NULL"),
        ("'a', 0, '[1]'", "EF003", "event 1 is not an object"),
        ("'a', 0, '[{\"data\":1}]'", "EF003", "needs a \"type\""),
        ("'a', 0, '[{\"type\":\"\",\"data\":1}]'", "EF003", "\"type\" of 0 bytes"),
        ("'a', 0, '[{\"type\":\"T\"}]'", "EF003", "needs \"data\""),
        ("'a', 0, '[{\"type\":\"T\",\"data\":1,\"x\":1}]'", "EF003", "unknown field \"x\""),
        ("'a', 0, '[{\"type\":\"T\",\"data\":1,\"id\":\"1\"}]'", "EF003", "not a UUID"),
        ("'a', 0, '[{\"type\":\"T\",\"data\":1,\"metadata\":[]}]'", "EF003", "not an object"),
        ("'a', 0, '[{\"type\":\"T\",\"data\":1,\"schema_version\":0}]'", "EF003", "schema_version"),
        ("'a', -2, '[{\"type\":\"T\",\"data\":1}]'", "EF003", "not a version"),
        ("'', 0, '[{\"type\":\"T\",\"data\":1}]'", "EF003", "stream id has 0 bytes"),
        ("NULL, 0, '[{\"type\":\"T\",\"data\":1}]'", "EF003", "stream id"),
        ("'a', 0, '[{\"type\":\"T\",\"data\":\"\\u0000\"}]'", "22P05", "Unicode"),
        ("'a', 5, '[{\"type\":\"T\",\"data\":1}]'", "EF001", "expected 5, actual no stream"),
        ("'a', 0, ARRAY['T'], ARRAY[]::jsonb[]", "EF003", "differ in length"),
    ];
    for (arguments, code, wanted) in cases {
        let sql = format!("SELECT * FROM everfold.append({arguments})");
        let error = client.simple_query(&sql).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), code, "{arguments}: {error}");
        assert!(error.message().contains(wanted), "{arguments}: {error}");
    }
    let sql =
        format!("SELECT * FROM everfold.append('{long}', 0, '[{{\"type\":\"T\",\"data\":1}}]')");
    let error = client.simple_query(&sql).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("600 bytes"));
    assert!(crate::fixture::read_all(&store).await.is_empty());
}

/// The function for many streams: one row a member, errors of one leaving the others alone.
#[tokio::test]
async fn append_many_answers_for_each_member() {
    let (fixture, store) = shop().await;
    let client = fixture.database().connect().await;
    let rows = client
        .query(
            "SELECT member, stream_id, outcome, version, code, message FROM everfold.append_many($1)",
            &[&serde_json::json!([
                {"stream_id": "a", "expected_version": 0, "events": [{"type": "T", "data": 1}]},
                {"stream_id": "b", "expected_version": 3, "events": [{"type": "T", "data": 1}]},
                {"stream_id": "a", "expected_version": 1, "events": [{"type": "U", "data": 2}]},
                {"stream_id": "c", "events": [{"type": "T", "data": 1}, {"type": "T", "data": 2}]},
            ])],
        )
        .await
        .unwrap();
    let outcomes: Vec<(i32, &str, Option<&str>)> =
        rows.iter().map(|row| (row.get(0), row.get(2), row.get(4))).collect();
    assert_eq!(
        outcomes,
        [
            (1, "stored", None),
            (2, "conflict", Some("EF001")),
            (3, "stored", None),
            (4, "stored", None)
        ]
    );
    assert_eq!(rows[3].get::<_, i64>("version"), 2);
    assert_eq!(store.stream_version("a").await.unwrap(), Version(2));
    assert_eq!(store.stream_version("b").await.unwrap(), Version::NONE);
    for (bad, wanted) in [
        (serde_json::json!([]), "1 to 10000 appends"),
        (serde_json::json!([{"stream_id": "a"}]), "must be a JSON array"),
        (serde_json::json!([{"stream_id": "a", "events": []}]), "has 0 events"),
        (serde_json::json!([{"stream_id": "a", "event": []}]), "member 1 is not"),
    ] {
        let error = client.query("SELECT everfold.append_many($1)", &[&bad]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "EF003");
        assert!(error.message().contains(wanted), "{bad}: {error}");
    }
}

/// A writer may call the function behind group append; what does not fit together is refused.
#[tokio::test]
async fn group_arrays_that_do_not_fit_are_refused() {
    let (fixture, store) = shop().await;
    let client = fixture.database().connect().await;
    let id = || everfold::Uuid::now_v7();
    for (members, sizes) in [
        ("{1,1,1}", "{2,-1,1}"),
        ("{1}", "{0}"),
        ("{1}", "{NULL}"),
        ("{2}", "{1}"),
        ("{0}", "{1}"),
        ("{1}", "{1,1}"),
    ] {
        let sql = format!(
            "SELECT * FROM everfold.append_group('{{a}}', '{members}', \
             array_fill(NULL::bigint, ARRAY[cardinality('{members}'::int[])]), '{sizes}', '{{T,T}}', \
             ARRAY['1','2']::jsonb[], ARRAY['{{}}','{{}}']::jsonb[], ARRAY['{}','{}']::uuid[], '{{1,1}}', \
             true)",
            id(),
            id()
        );
        let error = client.simple_query(&sql).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "EF003", "{members} {sizes}: {error}");
    }
    assert!(crate::fixture::read_all(&store).await.is_empty());
}
