//! The scenarios by which published designs of rebuilds tell what can go wrong, each under its name.
//!
//! At risk: an event that is lost, applied twice, or applied before an earlier one of its stream.
//!
//! Guaranteed (G1, G3, G4, G5): both read models are folds of the log in its order, or owe what they
//! lack, and whoever comes next goes on where the last one stood.

use std::sync::Arc;

use futures::future::join_all;

use super::scene::{NO_DIFFERENCES, Scene, append, chain, impatient, limits};
use super::{request, run};
use crate::Position;
use crate::error::StoreErrorKind;
use crate::projection::job::{SwitchStep, Switched, Task};
use crate::projection::projector::ApplyError;
use crate::rebuild::RebuildKind;

const DONE: Switched = Switched::Done { events: 0 };

const EXPIRE: &str = "UPDATE everfold.rebuilds SET expires_at = now() - interval '1 second'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_at_event_500_of_1000_and_an_inline_append_at_1001() {
    let mut scene = Scene::inline().await;
    let more = "SELECT count(everfold.append_event('s-' || n % 10, NULL, 'Happened', '{}')) \
        FROM generate_series(3, 1000) n";
    scene.bench.number(more).await;
    scene.feed_to(&scene.target, Position(500)).await;

    // In the middle of the next batch its session is gone.
    let rows = scene.target_that_nobody_gets_at().await;
    let task = scene.batch(&scene.target, Position(600)).await;
    let (outcome, ()) = tokio::join!(
        scene.try_run(&scene.target, task.clone()),
        scene.end_whoever_waits_for_rows(),
    );
    assert!(outcome.is_err(), "{outcome:?}");
    run(&rows, "COMMIT").await;
    assert_eq!(scene.checkpoint(&scene.target).await, 500);
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "1,001 is there at once");

    scene.bench.run(EXPIRE).await;
    scene.lease = scene.bench.take(scene.lease.rebuild).await.expect("nobody works on it");
    let late = scene.try_run(&scene.target, task).await;
    assert!(matches!(late, Err(ApplyError::LeaseLost)), "{late:?}");
    let applied = scene.feed_to(&scene.target, Position(1_000)).await;
    assert_eq!(applied, 500, "nothing is done again");
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
}

/// With the fence it cannot commit after the flip; without it, it is owed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_decided_to_skip_before_the_flip_and_commits_after_it() {
    let mut scene = Scene::inline().await;
    assert_eq!(scene.step(SwitchStep::SwapIn).await, DONE);
    scene.in_place = true;
    scene.feed(&scene.target).await;
    let skips = scene.append_in_flight("a").await;
    let refused = scene.try_step(SwitchStep::Flip, impatient()).await;
    assert!(
        matches!(&refused, Err(ApplyError::Store(e)) if e.kind() == StoreErrorKind::Busy),
        "{refused:?}"
    );
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    run(&skips, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 1 });
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);

    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    assert_eq!(scene.step(SwitchStep::Record).await, DONE);
    let skips = scene.append_in_flight("a").await;
    let past = scene.bench.store.heads().await.unwrap().highest;
    assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
    run(&skips, "COMMIT").await;
    assert_eq!(scene.skips(&scene.target).await, 1);
    assert_eq!(scene.differences(&scene.target).await, ["a"], "it is owed");
    assert_eq!(scene.drain(&scene.target).await, 1);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_rebuild_workers_started_by_accident() {
    let mut scene = Scene::inline().await;
    let again = request(&chain().inline().build().unwrap(), RebuildKind::Beside);
    let (row, joined) = scene.bench.store.request_rebuild(again).await.unwrap();
    assert!(joined && row.id == scene.lease.rebuild, "there is one rebuild");
    assert!(scene.bench.take(row.id).await.is_none(), "somebody works on it");
    scene.feed_to(&scene.target, Position(1)).await;

    // Others take it for dead, all at once.
    let first = scene.lease;
    let old = scene.batch(&scene.target, Position(2)).await;
    scene.bench.run(EXPIRE).await;
    let taken = join_all((0..4).map(|_| scene.bench.take(row.id))).await;
    let mut taken = taken.into_iter().flatten();
    let second = taken.next().expect("one of them has it");
    assert_eq!(taken.next(), None, "and no other");

    // It is not dead, and goes on between the steps of the second.
    let of_first = async |scene: &Scene, step: Option<SwitchStep>| match step {
        None => scene.try_run(&scene.target, old.clone()).await.map(drop),
        Some(step) => {
            let leases = vec![scene.lease_of(scene.target.id).await];
            let mut job = scene.job(step, limits(), leases);
            let Task::Switch(switch) = &mut job.task else { unreachable!() };
            switch.rebuild = first;
            scene.bench.store.run(job).await.map(drop)
        }
    };
    scene.lease = second;
    let lost = of_first(&scene, None).await;
    assert!(matches!(lost, Err(ApplyError::LeaseLost)), "{lost:?}");
    assert_eq!(scene.feed_to(&scene.target, Position(2)).await, 1);
    append(&scene.bench.session, "a").await;
    for step in [SwitchStep::Flip, SwitchStep::Record] {
        let lost = of_first(&scene, Some(step)).await;
        assert!(matches!(lost, Err(ApplyError::LeaseLost)), "{lost:?}");
    }
    assert_eq!(scene.shown().await, i64::from(scene.source.id));
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
    let lost = of_first(&scene, None).await;
    assert!(matches!(lost, Err(ApplyError::LeaseLost)), "{lost:?}");
    append(&scene.bench.session, "b").await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES, "each event once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_lost_while_the_exclusive_lock_is_held() {
    let scene = Scene::inline().await;
    let before = scene.everything().await;
    let rows = scene.target_that_nobody_gets_at().await;
    let (store, job) =
        (Arc::clone(&scene.bench.store), scene.switch(SwitchStep::Flip, limits()).await);
    let flip = tokio::spawn(async move { store.run(job).await.map(drop) });
    scene.until_the_gates_are_held().await;
    let waits = scene.append_that_waits("a").await;
    scene.end_whoever_waits_for_rows().await;
    assert!(flip.await.unwrap().is_err(), "its session is gone");
    waits.await.unwrap();
    assert_eq!(scene.gates_held().await, 0);
    run(&rows, "COMMIT").await;
    assert_eq!(scene.everything().await, before, "readers and appends are where they were");
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);

    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 3 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

/// The control is an append that does not see what is owed: it is applied first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_event_followed_by_another_on_the_same_stream_before_the_drain() {
    for control in [false, true] {
        let scene = Scene::inline().await;
        scene.feed(&scene.target).await;
        assert_eq!(scene.step(SwitchStep::Record).await, DONE);
        let skipped = scene.append_in_flight("a").await;
        let past = scene.bench.store.heads().await.unwrap().highest;
        assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
        run(&skipped, "COMMIT").await;
        assert_eq!(scene.skips(&scene.target).await, 1);
        let owed_by = |key| format!("UPDATE everfold.skips SET key = '{key}' WHERE position = 3");
        if control {
            scene.bench.run(&owed_by("somebody else")).await;
        }
        append(&scene.bench.session, "a").await;
        if control {
            scene.bench.run(&owed_by("a")).await;
        }
        let (drained, differences) =
            (scene.drain(&scene.target).await, scene.differences(&scene.target).await);
        match control {
            false => assert_eq!((drained, differences), (0, vec![])),
            true => assert_eq!((drained, differences), (1, vec!["a".to_owned()])),
        }
    }
}
