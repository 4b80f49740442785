//! The roles: who may append, who may read, and that nobody writes the tables by hand.

use std::time::Duration;

use everfold::{AppendError, ExpectedVersion, ReadError, Store, StoreErrorKind};
use everfold_testkit::TestDatabase;

use crate::fixture::{Fixture, append, counted, read_all};

/// A login in the given roles; dropped with the guard, since logins belong to the whole server.
pub(crate) struct Login {
    name: String,
    database: TestDatabase,
}

impl Login {
    pub(crate) async fn new(fixture: Fixture, roles: &str) -> (Login, String) {
        Login::of(fixture.into_database(), roles).await
    }

    pub(crate) async fn of(database: TestDatabase, roles: &str) -> (Login, String) {
        let name = format!("login_{}", everfold::Uuid::now_v7().simple());
        let client = database.connect().await;
        let mut sql = format!("CREATE ROLE {name} LOGIN PASSWORD 'pw'");
        if !roles.is_empty() {
            sql.push_str(&format!(" IN ROLE {roles}"));
        }
        client.batch_execute(&sql).await.unwrap();
        let url = database.server().as_user(&name, "pw").url(database.name());
        (Login { name, database }, url)
    }

    /// Only possible if nothing belongs to it.
    pub(crate) async fn drop_role(self) -> TestDatabase {
        let client = self.database.connect().await;
        // Sessions that were just dropped may still have temporary things of its own.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
        let gone = async || {
            let row = client.query_one(sessions, &[&self.name]).await.unwrap();
            row.get::<_, i64>(0) == 0
        };
        everfold_testkit::eventually("its sessions end", Duration::from_secs(30), gone).await;
        client.batch_execute(&format!("DROP ROLE {}", self.name)).await.unwrap();
        self.database
    }
}

#[track_caller]
fn privilege(error: &AppendError) -> String {
    match error {
        AppendError::Store(error) if error.kind() == StoreErrorKind::Privilege => error.to_string(),
        other => panic!("wanted a missing privilege, got {other:?}"),
    }
}

#[tokio::test]
async fn writer_appends_reads_and_follows_but_does_not_write_the_tables() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let (login, url) = Login::new(fixture, "everfold_writer").await;
    let store = Store::open(&url).await.unwrap();
    append(&store, "a", counted([1])).await;
    append(&store, "a", counted([2, 3])).await;
    assert_eq!(read_all(&store).await.len(), 3);
    let text = r#"{"stream_id":"b","type":"Counted","data":{"n":1}}"#;
    store.import("f", std::io::Cursor::new(text), Default::default(), |_| {}).await.unwrap();
    store.diagnose().await.unwrap();
    drop(store);

    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for sql in [
        "INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id) \
         VALUES ('a', 9, 'T', 1, '{}', '{}', gen_random_uuid())",
        "UPDATE everfold.events SET type = 'x'",
        "DELETE FROM everfold.events",
        "TRUNCATE everfold.events",
        "SELECT nextval('everfold.events_position_seq')",
        "UPDATE everfold.published_mark SET position = 99",
        "INSERT INTO everfold.imports VALUES ('x', 1, 1, '')",
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{sql}: {error}");
    }
    drop(client);
    login.drop_role().await;
}

#[tokio::test]
async fn reader_reads_and_does_not_append() {
    let fixture = Fixture::postgres().await;
    append(&fixture.store().await, "a", counted([1])).await;
    let (login, url) = Login::new(fixture, "everfold_events_reader").await;
    let store = Store::open(&url).await.unwrap();
    assert_eq!(read_all(&store).await.len(), 1);
    assert_eq!(store.high_water_mark().await.unwrap().0, 1);
    let error = store.append("a", ExpectedVersion::Any, counted([2])).await.unwrap_err();
    assert!(privilege(&error).contains("everfold_writer"), "{error}");
    store.close().await;
    drop(store);
    login.drop_role().await;
}

#[tokio::test]
async fn login_without_a_role_is_told_which_to_ask_for() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let (login, url) = Login::new(fixture, "").await;
    let error = Store::open(&url).await.unwrap_err();
    assert!(error.to_string().contains("everfold_events_reader"), "{error}");
    login.drop_role().await;
}

#[tokio::test]
async fn nobody_changes_stored_events_not_even_the_owner() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    let client = fixture.database().connect().await;
    for sql in [
        "UPDATE everfold.events SET type = 'x'",
        "DELETE FROM everfold.events",
        "TRUNCATE everfold.events",
        "SET session_replication_role = replica; DELETE FROM everfold.events",
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "EF005", "{sql}: {error}");
    }
    let events: Result<_, ReadError> = store.read_all().collect().await;
    assert_eq!(events.unwrap().len(), 1);
}

/// Objects of the caller's own must not be found before ours by a function that runs with the
/// owner's rights.
#[tokio::test]
async fn callers_search_path_does_not_reach_into_the_functions() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let client = fixture.database().connect().await;
    client.batch_execute(INLINE).await.unwrap();
    client.batch_execute(&traps()).await.unwrap();
    let events = r#"[{"type":"T","data":1},{"type":"U","data":{}}]"#;
    let array = "ARRAY['T','U']::pg_catalog.text[], ARRAY['1','2']::pg_catalog.jsonb[]";
    for (call, version) in [
        (format!("everfold.append('a', 0, '{events}')"), 2),
        (format!("everfold.append('a', 2, {array})"), 4),
        ("everfold.append_event('a', 4, 'T', '1')".to_owned(), 5),
        ("everfold.append_event('a', NULL, 'T', '1', wait => false)".to_owned(), 6),
    ] {
        let sql = format!("SELECT version FROM {call}");
        let row =
            client.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert_eq!(row.get::<_, i64>(0), version, "{call}");
    }
    let many = r#"[{"stream_id":"b","expected_version":0,"events":[{"type":"T","data":1}]}]"#;
    for sql in [
        format!("SELECT everfold.append_many('{many}')"),
        "SELECT everfold.high_water_mark()".to_owned(),
        "SELECT everfold.publish_high_water_mark()".to_owned(),
        "SELECT everfold.startup_checks()".to_owned(),
        "SELECT everfold.read_all()".to_owned(),
        "SELECT everfold.high_water_mark_holders()".to_owned(),
        "SELECT everfold.import_progress('x')".to_owned(),
        "SELECT everfold.save_stream_snapshot('a', 'n', 1, 1, '{}')".to_owned(),
        "BEGIN; SELECT everfold.stage_import(); \
         SELECT everfold.import_chunk('x', 0, 1, 1, '', true); ROLLBACK"
            .to_owned(),
    ] {
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    // Both inline projections were applied, by whichever function stored the event.
    let applied = "SELECT pg_catalog.count(*) FROM home_1.applied WHERE generation \
        OPERATOR(pg_catalog.=) $1";
    for generation in [1, 2] {
        let row = client.query_one(applied, &[&generation]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 7, "generation {generation}");
    }
    // The traps do catch what does not say its schema.
    let caught = client.batch_execute("SELECT 1::bigint <> 2::bigint").await.unwrap_err();
    assert!(caught.as_db_error().unwrap().message().contains("trapped"), "{caught}");
    let error = client.batch_execute("SELECT everfold.append_event('a', 1, 'T', '1')").await;
    assert_eq!(error.unwrap_err().code().unwrap().code(), "EF001");
}

/// Two inline projections made by hand, one of them with a key across streams.
const INLINE: &str = "
    CREATE SCHEMA home_1; CREATE SCHEMA home_2;
    CREATE TABLE home_1.applied (generation integer, position bigint);
    CREATE FUNCTION home_1.apply(bigint[]) RETURNS void LANGUAGE sql SET search_path = pg_catalog
        AS $$ INSERT INTO home_1.applied SELECT 1, unnest($1) $$;
    CREATE FUNCTION home_2.apply(bigint[]) RETURNS void LANGUAGE sql SET search_path = pg_catalog
        AS $$ INSERT INTO home_1.applied SELECT 2, unnest($1) $$;
    CREATE FUNCTION home_1.apply_event(everfold.events) RETURNS void LANGUAGE sql
        SET search_path = pg_catalog AS $$ INSERT INTO home_1.applied SELECT 1, ($1).position $$;
    INSERT INTO everfold.projections (namespace, name) VALUES ('', 'a'), ('', 'b');
    INSERT INTO everfold.generations (projection, version, kind, lifecycle, event_types, key_fields,
        shards, on_error, definition_hash, definition, home, tables, status)
    SELECT p.id, 1, 'sql', 'inline', CASE p.id WHEN 1 THEN ARRAY['T', 'U'] END,
           CASE p.id WHEN 2 THEN ARRAY['type'] END, 1, CASE p.id WHEN 1 THEN 'stop' ELSE 'skip' END,
           '', '{}', 'home_' || p.id, '{}', 'active'
      FROM everfold.projections p ORDER BY p.id";

/// A schema before pg_catalog with operators, functions and types of its own that raise an error.
fn traps() -> String {
    let mut sql = String::from(
        "CREATE SCHEMA trap;
         CREATE DOMAIN trap.uuid AS integer; CREATE DOMAIN trap.jsonb AS integer;
         CREATE DOMAIN trap.text AS integer; CREATE DOMAIN trap.regclass AS integer;
         CREATE DOMAIN trap.oid AS integer;",
    );
    let types =
        ["bigint", "integer", "pg_catalog.text", "boolean", "pg_catalog.uuid", "pg_catalog.jsonb"];
    let mut pairs: Vec<(&str, &str)> = types.iter().map(|&kind| (kind, kind)).collect();
    pairs.extend([("bigint", "integer"), ("integer", "bigint")]);
    for (n, (left, right)) in pairs.into_iter().enumerate() {
        sql.push_str(&format!(
            "CREATE FUNCTION trap.trapped_{n}({left}, {right}) RETURNS boolean LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;"
        ));
        for operator in ["=", "<>", "<", ">", "<=", ">=", "+", "-", "&", "||"] {
            sql.push_str(&format!(
                "CREATE OPERATOR trap.{operator}
                     (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = trap.trapped_{n});"
            ));
        }
    }
    sql.push_str(
        "CREATE FUNCTION trap.trapped_sign(integer) RETURNS integer LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
         CREATE OPERATOR trap.- (RIGHTARG = integer, FUNCTION = trap.trapped_sign);
         CREATE FUNCTION trap.trapped_overlap(pg_catalog.text[], pg_catalog.text[]) RETURNS boolean
             LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
         CREATE OPERATOR trap.&& (LEFTARG = pg_catalog.text[], RIGHTARG = pg_catalog.text[],
             FUNCTION = trap.trapped_overlap);",
    );
    for function in [
        "hashtext(pg_catalog.text)",
        "octet_length(pg_catalog.text)",
        "current_setting(pg_catalog.text)",
        "cardinality(anyarray)",
        "array_position(anycompatiblearray, anycompatible)",
        "pg_advisory_xact_lock(integer, integer)",
        "pg_advisory_xact_lock_shared(integer, integer)",
        "pg_try_advisory_xact_lock(integer, integer)",
        "pg_sequence_last_value(pg_catalog.regclass)",
        "unnest(anyarray)",
        "generate_series(integer, integer)",
        "clock_timestamp()",
        "abs(integer)",
        "format(pg_catalog.text, VARIADIC pg_catalog.text[])",
        "array_cat(anycompatiblearray, anycompatiblearray)",
        "array_fill(anyelement, integer[])",
    ] {
        sql.push_str(&format!(
            "CREATE FUNCTION trap.{function} RETURNS integer LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;"
        ));
    }
    sql.push_str("SET search_path = trap, pg_catalog, public;");
    sql
}

/// The staging table of an import is read with the owner's rights: it must be the one we made.
#[tokio::test]
async fn planted_staging_table_is_refused() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let (login, url) = Login::new(fixture, "everfold_writer").await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let plant = "CREATE TEMPORARY VIEW everfold_import AS SELECT 1::bigint AS line, 'a'::text AS \
        stream_id, NULL::bigint AS version, 'T'::text AS type, 1 AS schema_version, '{}'::jsonb AS \
        data, '{}'::jsonb AS metadata, gen_random_uuid() AS id, NULL::timestamptz AS recorded_at";
    client.batch_execute(plant).await.unwrap();
    let sql =
        "SELECT everfold.stage_import(); SELECT everfold.import_chunk('f', 0, 1, 1, '', false)";
    let error = client.batch_execute(sql).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "EF003", "{error}");
    drop(client);
    login.drop_role().await;
}

/// Anybody who can connect can take an advisory lock in our space. It may hold the mark, no more.
#[tokio::test]
async fn foreign_lock_in_our_space_only_holds_the_mark() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    append(&store, "a", counted([1])).await;
    let client = fixture.database().connect().await;
    let lock = "SELECT pg_advisory_lock('everfold.events'::regclass::oid::int, -5)";
    client.batch_execute(lock).await.unwrap();
    assert_eq!(store.high_water_mark().await.unwrap().0, 0);
    assert_eq!(store.diagnose().await.unwrap().holders.len(), 1);
    drop(client);
    let free = async || store.high_water_mark().await.unwrap().0 == 1;
    everfold_testkit::eventually("the mark moves on", std::time::Duration::from_secs(30), free)
        .await;
}

/// A time that no client can read would end every reader at that event, for ever.
#[tokio::test]
async fn import_of_an_infinite_time_is_refused() {
    let fixture = Fixture::postgres().await;
    drop(fixture.store().await);
    let client = fixture.database().connect().await;
    let sql = "BEGIN; SELECT everfold.stage_import(); \
        INSERT INTO pg_temp.everfold_import VALUES \
            (1, 'a', NULL, 'T', 1, '{}', '{}', gen_random_uuid(), 'infinity'); \
        SELECT everfold.import_chunk('f', 0, 1, 1, '', false)";
    let error = client.batch_execute(sql).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "EF003", "{error}");
}
