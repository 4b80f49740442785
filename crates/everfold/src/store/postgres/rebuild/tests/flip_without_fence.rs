//! The failure: transactions that append outlast the fence, so readers and appends are switched over
//! without holding anybody up, while appends decide before, between and after the steps.
//!
//! At risk: an event that neither generation has and nobody owes; one that is applied twice, or before
//! an earlier one of its key.
//!
//! Guaranteed (G1, G3, G4): every event is applied or owed in both, and once all is settled both are
//! folds of the log in its order. The negative control does not wait for those who decided before.

use super::run;
use super::scene::{NO_DIFFERENCES, Scene, append};
use crate::Position;
use crate::projection::job::{SwitchStep, Switched};

const DONE: Switched = Switched::Done { events: 0 };

async fn holders(scene: &Scene) -> Vec<String> {
    let holders = scene.bench.store.gate_holders(vec![scene.target.id]).await.unwrap();
    holders.into_iter().map(|holder| holder.transaction).collect()
}

async fn highest(scene: &Scene) -> Position {
    scene.bench.store.heads().await.unwrap().highest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_before_between_and_after_the_steps_are_applied_or_owed() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let before = scene.append_in_flight("a").await;
    assert_eq!(scene.step(SwitchStep::Record).await, DONE);
    assert_eq!(scene.step(SwitchStep::Record).await, DONE, "it was done");
    let waited_for = holders(&scene).await;
    assert_eq!(waited_for.len(), 1);
    let between = scene.append_in_flight("b").await;
    assert_eq!(holders(&scene).await.len(), 2);
    run(&before, "COMMIT").await;
    let now = holders(&scene).await;
    assert!(now.len() == 1 && now[0] != waited_for[0], "{now:?} after {waited_for:?}");

    let past = highest(&scene).await;
    let refused = scene.step(SwitchStep::FlipUnfenced { past }).await;
    assert_eq!(refused, Switched::Behind { by: 1 });
    assert!(scene.feed(&scene.target).await >= past);
    assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
    assert_eq!(scene.status(&scene.source).await, "paused");
    assert_eq!(scene.shown().await, i64::from(scene.target.id));
    run(&between, "COMMIT").await;
    assert_eq!(scene.skips(&scene.target).await, 1, "it decided before the flip");
    // The next of its key applies what is owed first.
    append(&scene.bench.session, "b").await;
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.skips(&scene.source).await, 2, "those after the flip");

    let late = scene.append_in_flight("c").await;
    let mark = scene.bench.store.high_water_mark().await.unwrap();
    assert!(mark >= highest(&scene).await);
    assert_eq!(scene.step(SwitchStep::KeepSource { mark }).await, DONE);
    assert_eq!(scene.checkpoint(&scene.source).await, mark.to_stored());
    run(&late, "COMMIT").await;
    assert_eq!(scene.skips(&scene.source).await, 3, "one of them is above its checkpoint");
    scene.feed(&scene.source).await;
    assert_eq!(scene.skips(&scene.source).await, 0);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_nobody_comes_back_to_is_settled_by_the_drain() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    assert_eq!(scene.step(SwitchStep::Record).await, DONE);
    let in_flight = scene.append_in_flight("a").await;
    let past = highest(&scene).await;
    assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
    assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE, "it was done");
    assert_eq!(scene.drain(&scene.target).await, 0);
    run(&in_flight, "COMMIT").await;
    assert_eq!(scene.differences(&scene.target).await, ["a"], "it is owed");
    assert_eq!(scene.drain(&scene.target).await, 1);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "it was applied there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_that_does_not_wait_for_holders_loses_an_event() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let before = scene.append_in_flight("a").await;
    assert_eq!(scene.step(SwitchStep::Record).await, DONE);
    let past = highest(&scene).await;
    assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
    run(&before, "COMMIT").await;
    scene.drain(&scene.target).await;
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, ["a"], "neither applied nor owed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_cannot_set_the_old_generation_going_before_it_is_known_from_where() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    scene.step(SwitchStep::Record).await;
    let past = highest(&scene).await;
    scene.step(SwitchStep::FlipUnfenced { past }).await;
    let change = crate::store::StatusChange {
        generation: scene.source.id,
        from: vec![crate::projection::generation::GenerationStatus::Paused],
        to: crate::projection::generation::GenerationStatus::Kept,
        reason: None,
        actor: "ann".to_owned(),
        rebuild: None,
    };
    assert!(!scene.bench.store.change_status(change).await.unwrap());
    assert_eq!(scene.status(&scene.source).await, "paused");
    let mark = scene.bench.store.high_water_mark().await.unwrap();
    assert_eq!(scene.step(SwitchStep::KeepSource { mark }).await, DONE);
    assert_eq!(scene.status(&scene.source).await, "kept");
}
