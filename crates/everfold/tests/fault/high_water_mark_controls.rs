//! The failure: one condition of the high-water mark's protocol is not kept, by a change of the
//! code, the schema or a setting.
//!
//! At risk: the mark passes an append in flight; its events are lost to every reader.
//!
//! Guaranteed: each condition is load-bearing, and is kept. Every test here is a negative control:
//! it breaks one condition in a scratch database, shows the loss in a fixed interleaving of two or
//! three sessions, and shows that the store as it is loses nothing in the same interleaving.

use everfold_testkit::TestDatabase;

use crate::checker::compare;
use crate::readers::Reader;
use crate::session::{Session, append_sql, empty_store};

/// The key on which wrong variants wait in the middle of their work. A single bigint, so it is
/// never taken for an announcement.
const PAUSE: &str = "PERFORM pg_advisory_lock_shared(42); PERFORM pg_advisory_unlock_shared(42);";

/// The announcement, as it stands in `append_event`.
const ANNOUNCEMENT: &str = "    done := everfold.announce();\n";
const AFTER_INSERT: &str = "    IF applications IS NULL THEN\n";

/// The three sessions of an interleaving.
struct Scene {
    database: TestDatabase,
    /// Appends, and takes its time to commit.
    slow: Session,
    /// Appends later and commits at once.
    quick: Session,
    observer: Session,
}

impl Scene {
    async fn new() -> Scene {
        let database = empty_store().await;
        let url = database.url();
        let (slow, quick) = (Session::open(&url).await, Session::open(&url).await);
        let observer = Session::open(&url).await;
        Scene { database, slow, quick, observer }
    }

    /// The positions that a reader never saw, now that everything is committed.
    async fn missed(&self, mut reader: Reader) -> Vec<i64> {
        reader.poll(&self.observer).await;
        let comparison = compare(&self.observer.positions().await, &reader.seen);
        assert!(comparison.doubled.is_empty() && comparison.out_of_order == 0, "{comparison:?}");
        comparison.missed
    }

    /// The interleaving that catches every unsafe announcement: `slow` runs its statements and
    /// stays open, `quick` commits an append, a reader reads, `slow` commits. What is missed?
    async fn missed_while_in_flight(&self, statements: &[&str]) -> Vec<i64> {
        for statement in statements {
            self.slow.run(statement).await;
        }
        self.quick.append("quick").await;
        let mut reader = Reader::default();
        reader.poll(&self.observer).await;
        self.slow.run("COMMIT").await;
        self.missed(reader).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mark_and_rows_in_one_statement_lose_an_event() {
    // The statement's snapshot is taken first; the append commits; only then the mark is read.
    let paused = "WITH paused AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(42) AS done),
        mark AS MATERIALIZED (SELECT everfold.high_water_mark() AS mark FROM paused) SELECT mark";
    let rows = "(SELECT string_agg(e.position::text, ',') FROM everfold.events e
        WHERE e.position <= mark)";

    for (one_statement, expected) in [(true, vec![1]), (false, vec![])] {
        let scene = Scene::new().await;
        let reading = Session::open(&scene.database.url()).await;
        let pid = reading.pid().await;
        scene.observer.run("SELECT pg_advisory_lock(42)").await;
        let sql = match one_statement {
            true => format!("{paused}, {rows} FROM mark"),
            false => format!("{paused} FROM mark"),
        };
        let read = tokio::spawn(async move {
            let row = reading.rows(&sql).await.unwrap().remove(0);
            (row, reading)
        });
        scene.observer.until_waiting(pid).await;
        assert_eq!(scene.quick.append("quick").await, 1);
        scene.observer.run("SELECT pg_advisory_unlock(42)").await;
        let (row, reading) = read.await.unwrap();
        let mark: i64 = row[0].as_ref().unwrap().parse().unwrap();
        assert_eq!(mark, 1, "the mark is right, the rows beside it are not");

        let mut reader = Reader::default();
        match one_statement {
            true => {
                assert_eq!(row[1], None, "the snapshot is older than the append");
                reader.checkpoint = mark;
            }
            false => reader.read_to(&reading, mark).await,
        }
        assert_eq!(scene.missed(reader).await, expected, "one statement: {one_statement}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_in_repeatable_read_loses_an_event_and_is_refused() {
    let scene = Scene::new().await;
    let check =
        "current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')";
    scene.observer.alter("unchecked", "high_water_mark", &[(check, "false")]).await;
    scene.slow.run("BEGIN").await;
    assert_eq!(scene.slow.append("slow").await, 1);
    assert_eq!(scene.quick.append("quick").await, 2);

    let reading = Session::open(&scene.database.url()).await;
    reading.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    assert_eq!(reading.positions().await, [2], "the snapshot is taken");
    let mut ours = Reader::default();
    assert_eq!(ours.poll(&scene.observer).await, 0);
    scene.slow.run("COMMIT").await;

    let mut wrong = Reader::default();
    let mark = reading.number("SELECT unchecked.high_water_mark()").await;
    wrong.read_to(&reading, mark).await;
    let code = reading.code_of("SELECT everfold.high_water_mark()").await;
    assert_eq!(code, "EF002", "the mark is refused where it could not be kept");
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        reading.run(&format!("ROLLBACK; BEGIN ISOLATION LEVEL {isolation}")).await;
        assert_eq!(reading.code_of("SELECT * FROM everfold.read_all()").await, "EF002");
    }
    reading.run("ROLLBACK").await;
    assert_eq!(scene.missed(wrong).await, [1], "REPEATABLE READ loses the event");
    assert_eq!(scene.missed(ours).await, [] as [i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_scanned_before_the_last_position_lose_an_event() {
    let handed_out =
        "    handed_out := coalesce(pg_sequence_last_value('everfold.events_position_seq'), 0);\n";
    let decoded = "min(handed_out
               + ((l.objid::bigint - (handed_out & 4294967295) + 6442450944) % 4294967296 - 2147483648))";
    let visible = "    SELECT coalesce(max(e.position), 0) INTO visible FROM everfold.events e;\n";
    let late = format!("    {PAUSE}\n{handed_out}{visible}");

    let scene = Scene::new().await;
    let wrong = [(handed_out, ""), (decoded, "min(l.objid::bigint)"), (visible, late.as_str())];
    scene.observer.alter("locks_first", "high_water_mark", &wrong).await;
    assert_eq!(missed_when_paused("locks_first", scene).await, [1]);

    // Ours, paused before, between and after its steps.
    let before = |step: &'static str| (step, format!("    {PAUSE}\n{step}"));
    let after = |step: &'static str| (step, format!("{step}    {PAUSE}\n"));
    let locks = "    SELECT min(handed_out\n";
    for (step, paused) in [before(handed_out), before(locks), before(visible), after(visible)] {
        let scene = Scene::new().await;
        scene.observer.alter("paused", "high_water_mark", &[(step, paused.as_str())]).await;
        assert_eq!(missed_when_paused("paused", scene).await, [] as [i64; 0], "{paused}");
    }
}

/// While a reader is in the middle of reading the mark, one append begins and stays open and a
/// later one commits. What does the reader miss?
async fn missed_when_paused(schema: &str, scene: Scene) -> Vec<i64> {
    let reading = Session::open(&scene.database.url()).await;
    let pid = reading.pid().await;
    scene.observer.run("SELECT pg_advisory_lock(42)").await;
    let sql = format!("SELECT {schema}.high_water_mark()");
    let mark = tokio::spawn(async move { reading.number(&sql).await });
    scene.observer.until_waiting(pid).await;
    scene.slow.run("BEGIN").await;
    assert_eq!(scene.slow.append("slow").await, 1);
    assert_eq!(scene.quick.append("quick").await, 2);
    scene.observer.run("SELECT pg_advisory_unlock(42)").await;
    let mut reader = Reader::default();
    reader.read_to(&scene.observer, mark.await.unwrap()).await;
    scene.slow.run("COMMIT").await;
    scene.missed(reader).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcement_after_the_position_is_drawn_loses_an_event() {
    let scene = Scene::new().await;
    let late = format!("{ANNOUNCEMENT}{AFTER_INSERT}");
    let changes = [(ANNOUNCEMENT, ""), (AFTER_INSERT, late.as_str())];
    scene.observer.alter("late", "append_event", &changes).await;
    let wrong = ["BEGIN", &append_sql("late", "slow")];
    assert_eq!(scene.missed_while_in_flight(&wrong).await, [1]);

    let scene = Scene::new().await;
    let ours = ["BEGIN", &append_sql("everfold", "slow")];
    assert_eq!(scene.missed_while_in_flight(&ours).await, [] as [i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_does_not_announce_loses_an_event() {
    let scene = Scene::new().await;
    scene.observer.alter("silent", "append_event", &[(ANNOUNCEMENT, "")]).await;
    let wrong = ["BEGIN", &append_sql("silent", "slow")];
    assert_eq!(scene.missed_while_in_flight(&wrong).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequence_that_caches_positions_loses_an_event() {
    for (cache, expected) in [(10, vec![2]), (1, vec![])] {
        let scene = Scene::new().await;
        let alter = format!("ALTER SEQUENCE everfold.events_position_seq CACHE {cache}");
        scene.observer.run(&alter).await;
        // `slow` draws 1 and, with a cache, keeps 2 to 10 for itself.
        assert_eq!(scene.slow.append("slow").await, 1);
        assert_eq!(scene.quick.append("quick").await, cache + 1);
        scene.slow.run("BEGIN").await;
        scene.slow.append("slow").await;
        let mut reader = Reader::default();
        reader.poll(&scene.observer).await;
        scene.slow.run("COMMIT").await;
        assert_eq!(scene.missed(reader).await, expected, "CACHE {cache}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcement_remembered_across_a_rollback_to_savepoint_loses_an_event() {
    // "This transaction has announced already", kept on the client, outlives the lock.
    let scene = Scene::new().await;
    scene.observer.alter("remembered", "append_event", &[(ANNOUNCEMENT, "")]).await;
    let first = append_sql("everfold", "slow");
    let undone = ["BEGIN", "SAVEPOINT here", first.as_str(), "ROLLBACK TO here"];
    let remembered = append_sql("remembered", "slow");
    let wrong: Vec<&str> = undone.into_iter().chain([remembered.as_str()]).collect();
    assert_eq!(scene.missed_while_in_flight(&wrong).await, [2]);

    let scene = Scene::new().await;
    let ours: Vec<&str> = undone.into_iter().chain([first.as_str()]).collect();
    assert_eq!(scene.missed_while_in_flight(&ours).await, [] as [i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_value_of_an_untouched_sequence_loses_the_first_event() {
    // Before the first draw `last_value` is 1 although nothing was handed out.
    let scene = Scene::new().await;
    let read = "coalesce(pg_catalog.pg_sequence_last_value('everfold.events_position_seq'), 0)";
    let wrong = [(read, "(SELECT s.last_value FROM everfold.events_position_seq s)")];
    scene.observer.alter("last_value", "announce", &wrong).await;
    let call = [("everfold.announce()", "last_value.announce()")];
    scene.observer.alter("last_value", "append_event", &call).await;
    let wrong = ["BEGIN", &append_sql("last_value", "slow")];
    assert_eq!(scene.missed_while_in_flight(&wrong).await, [1]);

    let scene = Scene::new().await;
    let ours = ["BEGIN", &append_sql("everfold", "slow")];
    assert_eq!(scene.missed_while_in_flight(&ours).await, [] as [i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_hold_the_mark_past_the_32_bits_that_a_lock_has_room_for() {
    for last in [i64::from(i32::MAX), i64::from(u32::MAX), 5 * i64::from(u32::MAX), i64::MAX / 2] {
        // Just before, at and just after the low 32 bits start again.
        for base in last - 3..=last + 1 {
            let scene = Scene::new().await;
            let set = format!("SELECT setval('everfold.events_position_seq', {base})");
            scene.observer.run(&set).await;
            scene.slow.run("BEGIN").await;
            assert_eq!(scene.slow.append("slow").await, base + 1);
            let mut reader = Reader::default();
            for _ in 0..3 {
                scene.quick.append("quick").await;
                assert_eq!(reader.poll(&scene.observer).await, base, "the append is in flight");
            }
            scene.slow.run("COMMIT").await;
            assert_eq!(reader.poll(&scene.observer).await, base + 4);
            assert_eq!(scene.missed(reader).await, [] as [i64; 0]);
        }
    }
}

const RAW: &str =
    "INSERT INTO everfold.events (stream_id, version, type, schema_version, data, metadata, id)
    VALUES ('slow', 1, 'Raw', 1, '{}', '{}', gen_random_uuid())";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn insert_past_the_functions_loses_an_event_and_only_the_owner_can_do_it() {
    let scene = Scene::new().await;
    assert_eq!(scene.missed_while_in_flight(&["BEGIN", RAW]).await, [1], "as the owner");

    for role in ["everfold_writer", "everfold_events_reader", "everfold_admin"] {
        let scene = Scene::new().await;
        scene.slow.run(&format!("SET ROLE {role}")).await;
        for statement in [RAW, "COPY everfold.events FROM STDIN"] {
            assert_eq!(scene.slow.code_of(statement).await, "42501", "{role}: {statement}");
        }
    }
    let scene = Scene::new().await;
    let ours = ["SET ROLE everfold_writer", "BEGIN", &append_sql("everfold", "slow")];
    assert_eq!(scene.missed_while_in_flight(&ours).await, [] as [i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn position_drawn_before_its_insert_loses_an_event_and_is_refused() {
    // The number is drawn in one subtransaction or statement, the row is inserted in another, so
    // the announcement that covered the draw can be gone.
    let columns = "(position, stream_id, version, type, schema_version, data, metadata, id)";
    let values = "nextval('everfold.events_position_seq'), 'slow', 1, 'Raw', 1, \
                  '{}'::jsonb, '{}'::jsonb, \
                  gen_random_uuid()";
    let scene = Scene::new().await;
    let named = format!(
        "WITH drawn AS (SELECT {values}) INSERT INTO everfold.events {columns} SELECT * FROM drawn"
    );
    assert_eq!(scene.slow.code_of(&named).await, "428C9", "IDENTITY ALWAYS refuses the number");

    let scene = Scene::new().await;
    let forced =
        format!("INSERT INTO everfold.events {columns} OVERRIDING SYSTEM VALUE SELECT {values}");
    let wrong = ["BEGIN", forced.as_str()];
    assert_eq!(
        scene.missed_while_in_flight(&wrong).await,
        [1],
        "the owner can force it, and loses"
    );
}
