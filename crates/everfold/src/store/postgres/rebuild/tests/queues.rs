//! The failure: whoever waits for a gate meets others who wait for each other; gates are given back in
//! the middle of a transaction; several read models are switched at once.
//!
//! At risk: transactions that wait in a circle and are ended; a decision that outlives its gate.
//!
//! Guaranteed (G4, G8): the fence gives way, nobody is ended, and what an append decides holds until it
//! commits.

use std::sync::Arc;
use std::time::Duration;

use super::run;
use super::scene::{NO_DIFFERENCES, Scene, append, limits};
use crate::Position;
use crate::error::StoreErrorKind;
use crate::projection::job::{SwitchLimits, SwitchStep, Switched};
use crate::projection::projector::ApplyError;

/// One holds the gate and wants a row of the other; the other has the row and queues for the gate,
/// behind the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circle_through_the_fence_ends_when_it_gives_way_and_nobody_is_ended() {
    let mut scene = Scene::inline().await;
    // Or the server would let the other pass when it has looked for deadlocks.
    let patient =
        format!("ALTER DATABASE {} SET deadlock_timeout = '60s'", scene.bench.database.name());
    scene.bench.run(&patient).await;
    scene.bench.store = super::open(&scene.bench.database.url(), None).await;
    scene.feed(&scene.target).await;
    scene
        .bench
        .run("CREATE TABLE orders (id INT PRIMARY KEY); INSERT INTO orders VALUES (1)")
        .await;
    let order = "UPDATE orders SET id = id WHERE id = 1";
    let one = scene.append_in_flight("a").await;
    let other = scene.bench.database.connect().await;
    run(&other, &format!("BEGIN; {order}")).await;
    let flip = tokio::spawn({
        let limits = SwitchLimits { fence_timeout: Duration::from_secs(3), ..limits() };
        let (store, job) =
            (Arc::clone(&scene.bench.store), scene.switch(SwitchStep::Flip, limits).await);
        async move { store.run(job).await.map(drop) }
    });
    scene.until_somebody_waits("ExclusiveLock").await;
    let other = tokio::spawn(async move {
        append(&other, "b").await;
        run(&other, "COMMIT").await;
    });
    scene.until_somebody_waits("ShareLock").await;
    let one = tokio::spawn(async move {
        run(&one, order).await;
        run(&one, "COMMIT").await;
    });
    let refused = flip.await.unwrap();
    assert!(
        matches!(&refused, Err(ApplyError::Store(e)) if e.kind() == StoreErrorKind::Busy),
        "{refused:?}"
    );
    other.await.unwrap();
    one.await.unwrap();
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 2 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

/// `ROLLBACK TO` gives gates back. What was decided with them is rolled back too, and decided anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_after_a_savepoint_was_rolled_back_decides_anew() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let session = scene.bench.database.connect().await;
    run(&session, "BEGIN; SAVEPOINT before").await;
    append(&session, "a").await;
    run(&session, "ROLLBACK TO before").await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 0 });
    append(&session, "a").await;
    append(&session, "b").await;
    run(&session, "COMMIT").await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, ["a", "b"], "it is fed behind the appends");
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
}

/// Released, a savepoint gives its gates to the transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_in_a_savepoint_that_was_released_is_waited_for() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let session = scene.bench.database.connect().await;
    run(&session, "BEGIN; SAVEPOINT before").await;
    append(&session, "a").await;
    run(&session, "RELEASE before").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    append(&session, "a").await;
    run(&session, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 2 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
}

/// Positions are drawn in another order than they are committed in: the highest that can be seen says
/// nothing about what an inline read model holds, unless no append of it is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_waits_for_an_append_that_drew_a_lower_position() {
    let scene = Scene::inline().await;
    let in_flight = scene.append_in_flight("a").await;
    append(&scene.bench.session, "b").await;
    let highest = "SELECT max(position) FROM everfold.events";
    let seen = "SELECT count(*) FROM everfold.events";
    let control = (scene.bench.number(highest).await, scene.bench.number(seen).await);
    assert_eq!(control, (4, 3), "a copy of this moment, called 4, would lack an event for ever");
    let taking = tokio::spawn({
        let (store, source) = (Arc::clone(&scene.bench.store), Arc::clone(&scene.source));
        async move { store.take_snapshot(source, "ann".to_owned()).await.unwrap() }
    });
    scene.until_somebody_waits("ExclusiveLock").await;
    run(&in_flight, "COMMIT").await;
    let taken = taking.await.unwrap();
    assert_eq!((taken.position, taken.rows), (Position(4), 2));
    let copied =
        format!("SELECT seen FROM everfold_snapshot_{}_chain.chain WHERE key = 'a'", taken.id);
    assert_eq!(scene.bench.texts(&copied).await, ["1,3"]);
}
