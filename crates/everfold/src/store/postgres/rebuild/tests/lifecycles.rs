//! The failure: a projection that appends fed is fed by runners from its next version on, or the other
//! way round, and readers go back and forth between the two while appends are under way.
//!
//! At risk: events that readers have seen and do not see after the switch; events that neither the
//! appends nor the runner apply.
//!
//! Guaranteed (G1, G4): what readers are switched to holds all that they saw, and both generations are
//! folds of the log in its order once they are fed.

use super::scene::{NO_DIFFERENCES, Scene, append, chain, limits};
use super::{LIMIT, run};
use crate::projection::Projection;
use crate::projection::job::{SwitchLimits, SwitchStep, Switched};

fn version(version: u32, inline: bool) -> Projection {
    let builder = chain();
    let builder = if inline { builder.inline() } else { builder };
    let mut projection = builder.build().unwrap();
    projection.definition.version = version;
    projection
}

async fn inline_to_catch_up() -> Scene {
    Scene::of_versions(version(1, true), version(2, false)).await
}

async fn catch_up_to_inline() -> Scene {
    Scene::of_versions(version(1, false), version(2, true)).await
}

/// What a switch came to that was tried once already. Where the target is fed by runners it is tried until
/// the mark has passed what appends stored, which other databases of the server can hold up.
async fn flipped(scene: &Scene, mut outcome: Switched) -> Switched {
    let passed = async {
        while matches!(outcome, Switched::Behind { .. }) {
            outcome = scene.step(SwitchStep::Flip).await;
        }
    };
    tokio::time::timeout(LIMIT, passed).await.expect("the mark passes what is committed");
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_an_inline_version_do_not_go_back_in_time() {
    let scene = inline_to_catch_up().await;
    scene.feed(&scene.target).await;
    // Readers see it as soon as it commits, and the new one does not have it.
    let in_flight = scene.append_in_flight("a").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    run(&in_flight, "COMMIT").await;
    let outcome = flipped(&scene, flip.await.unwrap()).await;
    assert_eq!(outcome, Switched::Done { events: 1 });
    assert_eq!(scene.shown().await, i64::from(scene.target.id));
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    append(&scene.bench.session, "b").await;
    assert_eq!(scene.differences(&scene.target).await, ["b"], "a runner feeds it");
    scene.feed(&scene.target).await;
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
    assert_eq!(scene.skips(&scene.source).await, 0);
}

/// What only the new version wants is not waited for by the gates of the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_only_the_new_version_wants_is_not_passed_over() {
    let mut first = version(1, true);
    first.definition.event_types = Some(vec!["Happened".to_owned()]);
    let scene = Scene::of_versions(first, version(2, false)).await;
    scene.feed(&scene.target).await;
    let in_flight = scene.bench.database.connect().await;
    run(&in_flight, "BEGIN; SELECT everfold.append_event('c', NULL, 'Else', '{}')").await;
    append(&scene.bench.session, "a").await;
    let refused = scene.step(SwitchStep::Flip).await;
    assert!(matches!(refused, Switched::Behind { .. }), "{refused:?}");
    run(&in_flight, "COMMIT").await;
    let outcome = flipped(&scene, scene.step(SwitchStep::Flip).await).await;
    assert_eq!(outcome, Switched::Done { events: 2 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_tail_of_a_catch_up_version_is_not_applied_while_appends_wait() {
    let scene = inline_to_catch_up().await;
    let short = SwitchLimits { fence_events: 1, ..limits() };
    let refused = scene.try_step(SwitchStep::Flip, short.clone()).await.unwrap();
    assert_eq!(refused, Switched::Behind { by: 2 });
    let within = SwitchLimits { within: 2, ..short };
    assert_eq!(
        scene.try_step(SwitchStep::Flip, within).await.unwrap(),
        Switched::Done { events: 0 }
    );
    assert_eq!(scene.differences(&scene.target).await, ["a", "b"], "as far behind as was allowed");
    scene.feed(&scene.target).await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_version_takes_over_from_one_that_is_behind() {
    let scene = catch_up_to_inline().await;
    scene.feed(&scene.target).await;
    let in_flight = scene.append_in_flight("a").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    let waits = scene.append_that_waits("b").await;
    run(&in_flight, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 1 });
    waits.await.unwrap();
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
}

/// Twice there and back, with an append in flight at each switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_go_back_and_forth_between_lifecycles() {
    for mut scene in [inline_to_catch_up().await, catch_up_to_inline().await] {
        for round in 0..4 {
            scene.feed(&scene.target).await;
            if round > 0 {
                let listed = scene.step(SwitchStep::ListAgain).await;
                assert_eq!(listed, Switched::Done { events: 0 });
            }
            let in_flight = scene.append_in_flight("a").await;
            let flip = scene.step_that_waits(SwitchStep::Flip).await;
            run(&in_flight, "COMMIT").await;
            let outcome = flipped(&scene, flip.await.unwrap()).await;
            assert_eq!(outcome, Switched::Done { events: 1 }, "round {round}");
            assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES, "round {round}");
            append(&scene.bench.session, "b").await;
            for generation in [&scene.source, &scene.target] {
                scene.feed_unless_appends_do(generation).await;
                assert_eq!(scene.differences(generation).await, NO_DIFFERENCES, "round {round}");
                assert_eq!(scene.skips(generation).await, 0);
            }
            scene = scene.turned_round().await;
        }
    }
}
