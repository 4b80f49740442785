//! What the locks of a switch are for: the same interleavings without one of them lose an event, or see
//! what is over; with it they do not.

use std::sync::Arc;

use everfold_testkit::eventually;
use tokio_postgres::Client;

use super::scene::{NO_DIFFERENCES, Scene, append, chain, impatient, limits};
use super::{Bench, LIMIT, run};
use crate::error::StoreErrorKind;
use crate::projection::Projection;
use crate::projection::job::{SwitchStep, Switched};
use crate::projection::projector::ApplyError;
use crate::rebuild::RebuildKind;

const GATE: &str = "pg_advisory_xact_lock_shared('everfold.generations'::regclass::oid::int";

/// Takes the gate of a generation and reads its status: the last statement's text, or the error's code.
async fn look(session: Client, statements: Vec<String>) -> String {
    let mut found = String::new();
    for sql in statements {
        match session.simple_query(&sql).await {
            Err(error) => return error.code().expect("the server answers").code().to_owned(),
            Ok(messages) => {
                for message in messages {
                    if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                        found = row.get(0).unwrap_or_default().to_owned();
                    }
                }
            }
        }
    }
    found
}

/// Each way to take the gate and to read the status that an append could take, and what it sees.
fn ways(target: i32) -> Vec<(&'static str, Vec<String>, &'static str)> {
    let gate = format!("SELECT {GATE}, {target})");
    let status = format!("SELECT status FROM everfold.generations WHERE id = {target}");
    let function = |volatility: &str| {
        vec![
            format!(
                "CREATE FUNCTION pg_temp.look() RETURNS text LANGUAGE plpgsql {volatility} AS $$ \
                 BEGIN PERFORM {GATE}, {target}); RETURN ({status}); END $$"
            ),
            "SELECT pg_temp.look()".to_owned(),
        ]
    };
    let in_transaction = |level: &str, status: &str| {
        vec![format!("BEGIN ISOLATION LEVEL {level}"), gate.clone(), status.to_owned()]
    };
    let one = format!(
        "WITH gate AS MATERIALIZED ({gate}) SELECT g.status FROM gate, everfold.generations g \
         WHERE g.id = {target}"
    );
    vec![
        ("two statements", in_transaction("READ COMMITTED", &status), "active"),
        ("a volatile function", function("VOLATILE"), "active"),
        ("one statement", vec![one], "building"),
        ("a stable function", function("STABLE"), "building"),
        ("REPEATABLE READ", in_transaction("REPEATABLE READ", &status), "building"),
        ("SERIALIZABLE", in_transaction("SERIALIZABLE", &status), "building"),
        (
            "REPEATABLE READ with a lock",
            in_transaction("REPEATABLE READ", &format!("{status} FOR SHARE")),
            "40001",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_right_only_in_a_statement_after_the_one_that_waited_for_the_gate() {
    let scene = Scene::inline().await;
    let rows = scene.target_that_nobody_gets_at().await;
    let (store, job) =
        (Arc::clone(&scene.bench.store), scene.switch(SwitchStep::Flip, limits()).await);
    let flip = tokio::spawn(async move { store.run(job).await.unwrap().switched.unwrap() });
    scene.until_the_gates_are_held().await;
    let ways = ways(scene.target.id);
    let mut looks = Vec::new();
    for (way, statements, expected) in &ways {
        let session = scene.bench.database.connect().await;
        looks.push((way, tokio::spawn(look(session, statements.clone())), expected));
    }
    eventually("all of them wait", LIMIT, async || {
        scene.waiting("ShareLock").await == ways.len() as i64
    })
    .await;
    run(&rows, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 2 });
    for (way, found, expected) in looks {
        assert_eq!(found.await.unwrap(), **expected, "{way}");
    }
    // So an append that waited is applied to what is active now.
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

/// Counterpart: `append_that_left_the_new_generation_out_is_applied_by_the_flip`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_that_flips_without_the_gates_loses_an_event() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let in_flight = scene.append_in_flight("a").await;
    scene.bench.flip(scene.lease, scene.target.id, Some(scene.source.id)).await;
    run(&in_flight, "COMMIT").await;
    append(&scene.bench.session, "b").await;
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, ["a"], "neither applied nor owed");
}

/// Another inline projection comes first, at whose gate an append can be made to wait: by then it has
/// listed the generations it will look at.
struct WayBack {
    scene: Scene,
    other: i32,
}

impl WayBack {
    /// Readers see the new generation of `chain`, and the way back begins.
    async fn new() -> WayBack {
        let bench = Bench::new().await;
        let other = Projection::sql("other", 1)
            .create("CREATE TABLE read_model.other (n BIGINT)")
            .apply("INSERT INTO read_model.other SELECT position FROM batch")
            .inline();
        let other = bench.registered(other.build().unwrap()).await.id;
        let projection = chain().inline().build().unwrap();
        let source = Arc::new(bench.registered(projection.clone()).await);
        append(&bench.session, "a").await;
        let lease = bench.taken(&projection, RebuildKind::Beside).await;
        let target = Arc::new(bench.store.make_target(lease, projection).await.unwrap());
        let scene = Scene { bench, source, target, lease, in_place: false };
        assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
        let scene = scene.turned_round().await;
        scene.feed(&scene.target).await;
        WayBack { scene, other }
    }

    /// Holds the gate of the other projection until its transaction ends.
    async fn stop(&self) -> Client {
        let session = self.scene.bench.database.connect().await;
        let gate = GATE.replace("_shared", "");
        run(&session, &format!("BEGIN; SELECT {gate}, {})", self.other)).await;
        session
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_generation_is_listed_again_before_it_is_shown() {
    let WayBack { scene, other } = WayBack::new().await;
    let way_back = WayBack { scene, other };
    let stop = way_back.stop().await;
    let scene = &way_back.scene;
    let append_of_b = scene.append_that_waits("b").await;
    let listed = scene.try_step(SwitchStep::ListAgain, impatient()).await;
    assert!(
        matches!(&listed, Err(ApplyError::Store(e)) if e.kind() == StoreErrorKind::Busy),
        "an append is under way that does not list it: {listed:?}"
    );
    let refused = scene.try_step(SwitchStep::Flip, impatient()).await;
    assert!(refused.is_err(), "not without having been listed: {refused:?}");
    run(&stop, "COMMIT").await;
    append_of_b.await.unwrap();
    assert_eq!(scene.step(SwitchStep::ListAgain).await, Switched::Done { events: 0 });
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_that_does_not_list_a_kept_generation_again_loses_an_event() {
    let way_back = WayBack::new().await;
    let stop = way_back.stop().await;
    let scene = &way_back.scene;
    let append_of_b = scene.append_that_waits("b").await;
    let unlisted = "UPDATE everfold.generations SET status = 'building' WHERE status = 'kept'";
    scene.bench.run(unlisted).await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 0 });
    run(&stop, "COMMIT").await;
    append_of_b.await.unwrap();
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, ["b"], "neither applied nor owed");
}

/// Appends overlap, so that at every moment somebody holds the gate: who tries does not get it, who
/// queues does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_queues_because_trying_finds_somebody_there_every_time() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let tries = GATE.replace("pg_advisory_xact_lock_shared", "pg_try_advisory_xact_lock");
    let tries = format!("SELECT ({tries}, {}))::int::bigint", scene.source.id);
    let mut holds = scene.append_in_flight("a").await;
    for _ in 0..5 {
        let next = scene.append_in_flight("b").await;
        run(&holds, "ROLLBACK").await;
        assert_eq!(scene.bench.number(&tries).await, 0, "somebody is there");
        // Streams are locked too.
        holds = scene.append_in_flight("a").await;
        run(&next, "ROLLBACK").await;
        assert_eq!(scene.bench.number(&tries).await, 0, "somebody is there");
    }
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    let waits = scene.append_that_waits("b").await;
    run(&holds, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 1 });
    waits.await.unwrap();
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}
