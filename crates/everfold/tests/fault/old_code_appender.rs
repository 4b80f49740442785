//! The failure: programs of different age append side by side (a rolling deploy): one carries an
//! inline projection in Rust, another does not know it, a third is plain SQL. And a projection is
//! registered while appends are in flight.
//!
//! At risk: an event that no read model ever shows, because whoever appended it could not apply it
//! and nobody else knew; or one that is applied late, after its successors.
//!
//! Guaranteed: at every moment each event is applied, or owed by a skip record, or put aside, exactly
//! one of these; what is owed is settled in order within its key; `wait_for` does not say "reached"
//! before. A registration that does not wait for appends in flight is the negative control.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use everfold::{ExpectedVersion, GenerationStatus, Projection, Store};
use everfold_testkit::{Seed, eventually};

use crate::checker::{ByKey, compare_keys};
use crate::session::{LIMIT, Session, empty_store, open};
use crate::steady::{Pace, SteadyAppends};
use crate::workers::{Seen, applied, assert_exact, by_key, moved, run, stop_appends};

fn seen() -> Projection {
    Projection::document("seen", 1, Seen).inline().build().unwrap()
}

/// Events that are not exactly one of applied, owed and put aside, in one snapshot.
const UNACCOUNTED: &str = "
    WITH told AS (
        SELECT p.position::bigint AS position FROM read_model.seen, jsonb_array_elements_text(document) p(position)
        UNION ALL SELECT position FROM everfold.skips s JOIN everfold.generations g ON g.id = s.generation
                   WHERE g.kind = 'document'
        UNION ALL SELECT position FROM everfold.dead_letters
    ), counted AS (
        SELECT position, count(*) AS n FROM told GROUP BY position
    )
    SELECT count(*) FROM everfold.events e LEFT JOIN counted c USING (position)
     WHERE e.type = 'Moved' AND coalesce(c.n, 0) <> 1";

async fn assert_in_order(truth: &Session) -> usize {
    let log =
        "SELECT stream_id, position FROM everfold.events WHERE type = 'Moved' ORDER BY position";
    let shown = "SELECT key, p.position FROM read_model.seen, \
        jsonb_array_elements_text(document) WITH ORDINALITY AS p(position, n) ORDER BY key, n";
    let (log, shown): (ByKey, ByKey) = (by_key(truth, log).await, by_key(truth, shown).await);
    let comparison = compare_keys(&log, &shown);
    assert!(comparison.is_exact(), "{comparison:?}");
    log.values().map(Vec::len).sum()
}

fn start(store: &Store, appenders: usize) -> SteadyAppends {
    SteadyAppends::start_with(store, appenders, Pace::Every(Duration::from_millis(3)), |from, n| {
        // All appenders on the same streams.
        (format!("s-{}", (n + from as u64) % 5), moved(n))
    })
}

/// A program in another language: plain calls of the SQL function, until it is told to stop.
async fn append_by_sql(url: String, stop: Arc<AtomicBool>) -> u64 {
    let (mut session, mut stored) = (Session::open(&url).await, 0);
    while !stop.load(Ordering::Relaxed) {
        let stream = format!("s-{}", stored % 5);
        let append = format!(
            "SELECT first_position FROM everfold.append_event('{stream}', NULL, 'Moved', \
             '{{\"account\": \"a-{}\"}}')",
            stored % 7
        );
        match session.try_numbers(&append).await {
            Ok(_) => stored += 1,
            Err(_) => session = Session::reopen(&url).await,
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_different_age_leave_no_event_without_its_application() {
    let database = empty_store().await;
    let url = database.url();
    let truth = Session::open(&url).await;
    let (new, old) = (open(&format!("{url}?application_name=program")).await, open(&url).await);
    new.register(seen()).await.unwrap();
    // Applied by the server, whoever appends; its keys cross streams.
    new.register(applied().inline().build().unwrap()).await.unwrap();
    let worker = run(&new, "drainer", seen()).await;
    let stop = Arc::<AtomicBool>::default();
    let other_language = tokio::spawn(append_by_sql(url.clone(), stop.clone()));
    let (by_new, by_old) = (start(&new, 2), start(&old, 2));

    let (mut looks, mut owed, mut kills) = (0, 0, 0);
    let mut seed = Seed::from_env_or_random();
    for _ in 0..25 {
        by_old.until_confirmed(8).await;
        assert_eq!(truth.number(UNACCOUNTED).await, 0, "an event is lost or counted twice");
        looks += 1;
        owed += truth.number("SELECT count(*) FROM everfold.skips").await;
        // What an old program appended is waited for, then it is there.
        let appended = old.append("s-0", ExpectedVersion::Any, [moved(1)]).await.unwrap();
        let position = appended.last_position;
        new.wait_for("seen", position, LIMIT).await.unwrap();
        let shown = format!(
            "SELECT count(*) FROM read_model.seen WHERE key = 's-0' AND document @> '[{position}]'"
        );
        assert_eq!(truth.number(&shown).await, 1, "position {position} was said to be there");
        if seed.chance(0.3) {
            let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE application_name = 'program' AND datname = current_database()";
            kills += truth.number(kill).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let by_sql = other_language.await.unwrap();
    let head = stop_appends(by_new).await.max(stop_appends(by_old).await);
    new.wait_for("seen", head, LIMIT).await.unwrap();
    let none_owed = async || new.projection("seen").await.unwrap().open_skips == 0;
    eventually("nothing is owed", LIMIT, none_owed).await;
    let events = assert_in_order(&truth).await;
    let settled = "SELECT count(*) FROM everfold.system_messages WHERE kind = 'skip-settled'";
    let settled = truth.number(settled).await;
    println!(
        "{events} events ({by_sql} by plain SQL), {settled} of them skipped and settled, {kills} \
         sessions killed; {looks} looks found {owed} owed and none unaccounted for"
    );
    assert!(settled > 0, "the old program applied what it does not know");
    assert_exact(&truth, "inline by the server, keys across streams").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_of_an_old_program_is_owed_until_a_runner_has_applied_it() {
    let database = empty_store().await;
    let (new, old) = (open(&database.url()).await, open(&database.url()).await);
    let truth = Session::open(&database.url()).await;
    new.register(seen()).await.unwrap();
    let first = new.append("s", ExpectedVersion::Any, [moved(1)]).await.unwrap().last_position;
    assert!(new.wait_for_or_stale("seen", first, Duration::ZERO).await.unwrap());
    let owed = old.append("s", ExpectedVersion::Any, [moved(2)]).await.unwrap().last_position;
    assert!(!new.wait_for_or_stale("seen", owed, Duration::ZERO).await.unwrap());
    assert!(new.wait_for_or_stale("seen", first, Duration::ZERO).await.unwrap());
    assert_eq!(truth.number(UNACCOUNTED).await, 0);
    assert_eq!(new.projection("seen").await.unwrap().open_skips, 1);
    // On another stream nothing is owed; on this one the successor settles it on its way.
    new.append("other", ExpectedVersion::Any, [moved(3)]).await.unwrap();
    assert_eq!(new.projection("seen").await.unwrap().open_skips, 1);
    let last = new.append("s", ExpectedVersion::Any, [moved(4)]).await.unwrap().last_position;
    assert!(new.wait_for_or_stale("seen", last, Duration::ZERO).await.unwrap());
    assert_eq!(assert_in_order(&truth).await, 4);

    let owed = old.append("s", ExpectedVersion::Any, [moved(5)]).await.unwrap().last_position;
    let worker = run(&new, "drainer", seen()).await;
    new.wait_for("seen", owed, LIMIT).await.unwrap();
    assert_eq!(assert_in_order(&truth).await, 5);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_waits_for_appends_in_flight_and_is_not_active_without_their_events() {
    for projection in [seen(), applied().inline().build().unwrap()] {
        let database = empty_store().await;
        let store = open(&database.url()).await;
        let (in_flight, other) =
            (Session::open(&database.url()).await, Session::open(&database.url()).await);
        let append = "SELECT everfold.append_event('s', NULL, 'Moved', '{\"account\": \"a\"}')";
        in_flight.run(&format!("BEGIN; {append}")).await;
        // The negative control: a look without waiting finds an empty store, and would be wrong.
        assert_eq!(other.number("SELECT count(*) FROM everfold.events").await, 0);
        let registering = tokio::spawn({
            let (store, projection) = (store.clone(), projection.clone());
            async move { store.register(projection).await }
        });
        let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
            WHERE d.datname = current_database() AND NOT l.granted";
        eventually("it waits", LIMIT, async || other.number(waiting).await > 0).await;
        assert!(!registering.is_finished());
        in_flight.run("COMMIT").await;
        let registered = registering.await.unwrap().unwrap();
        assert_eq!(registered.status, GenerationStatus::Building);
        let reason = registered.reason.unwrap();
        assert!(reason.contains("everfold rebuild"), "{reason}");
        let position = everfold::Position(1);
        let name = projection.name();
        assert!(!store.wait_for_or_stale(name, position, Duration::ZERO).await.unwrap());
    }
}

/// The round in which appends begin when the projection is registered.
const LATE: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projection_registered_while_programs_begin_to_append_accounts_for_every_event() {
    let (mut active, mut building) = (0, 0);
    for round in 0..=LATE {
        let database = empty_store().await;
        let truth = Session::open(&database.url()).await;
        let (new, old) = (open(&database.url()).await, open(&database.url()).await);
        let registering = tokio::spawn({
            let new = new.clone();
            async move { new.register(seen()).await.unwrap().status }
        });
        // Before, during and after the registration.
        let soon = tokio::time::sleep(Duration::from_millis(30 * round));
        let begin = || (start(&new, 2), start(&old, 2));
        let ((by_new, by_old), status) = if round < LATE {
            soon.await;
            (begin(), registering.await.unwrap())
        } else {
            let status = registering.await.unwrap();
            (begin(), status)
        };
        by_old.until_confirmed(20).await;
        if status == GenerationStatus::Active {
            active += 1;
            assert_eq!(truth.number(UNACCOUNTED).await, 0);
            let worker = run(&new, "drainer", seen()).await;
            let head = stop_appends(by_new).await.max(stop_appends(by_old).await);
            new.wait_for("seen", head, LIMIT).await.unwrap();
            assert_in_order(&truth).await;
            worker.stop().await;
        } else {
            building += 1;
            assert_eq!(status, GenerationStatus::Building);
            let head = stop_appends(by_new).await.max(stop_appends(by_old).await);
            assert!(!new.wait_for_or_stale("seen", head, Duration::ZERO).await.unwrap());
        }
    }
    assert!(active > 0, "at least the one before all appends");
    println!("registered beside first appends: {active} times active, {building} times building");
}
