//! The failure: appends are under way while readers and appends are switched to another generation
//! behind the fence, or do not end; whoever holds the fence stalls, or is taken for dead.
//!
//! At risk: an event that is in the old read model and not in the new one, or twice in one of them;
//! appends that wait for as long as somebody else's transaction takes.
//!
//! Guaranteed (G1, G4, G5, G8): both read models are folds of the log in its order, and an append waits
//! no longer than the fence may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::run;
use super::scene::{NO_DIFFERENCES, Scene, append, chain, impatient, limits};
use crate::error::StoreErrorKind;
use crate::projection::job::{Job, SwitchLimits, SwitchStep, Switched};
use crate::projection::projector::{ApplyError, FoldDocuments, Folding, Projector};
use crate::{Position, RecordedEvent};

const LISTED: &str = "INSERT INTO everfold.dead_letters (generation, position, key, error)";

fn is_busy(outcome: &Result<Switched, ApplyError>) -> bool {
    matches!(outcome, Err(ApplyError::Store(error)) if error.kind() == StoreErrorKind::Busy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_left_the_new_generation_out_is_applied_by_the_flip() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let in_flight = scene.append_in_flight("a").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    run(&in_flight, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 1 });
    assert_eq!(scene.status(&scene.target).await, "active");
    assert_eq!(scene.status(&scene.source).await, "kept");
    assert_eq!(scene.shown().await, i64::from(scene.target.id));
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
    assert_eq!(
        (scene.checkpoint(&scene.source).await, scene.checkpoint(&scene.target).await),
        (3, 3)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_waited_behind_the_fence_is_applied_to_the_new_generation_alone() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let in_flight = scene.append_in_flight("a").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    let waits = scene.append_that_waits("b").await;
    run(&in_flight, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 1 });
    waits.await.unwrap();
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, ["b"], "it is fed behind the appends now");
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
    assert_eq!(scene.skips(&scene.target).await + scene.skips(&scene.source).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_gives_up_on_a_transaction_that_stays_open_and_appends_go_on() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    let before = scene.everything().await;
    let in_flight = scene.append_in_flight("a").await;
    for _ in 0..3 {
        let (outcome, ()) = tokio::join!(
            scene.try_step(SwitchStep::Flip, impatient()),
            // Whether it waits behind the fence or not: it comes to its end while the other stays.
            append(&scene.bench.session, "b"),
        );
        assert!(is_busy(&outcome), "{outcome:?}");
    }
    let holders = scene.bench.store.gate_holders(vec![scene.source.id, scene.target.id]).await;
    let holders = holders.unwrap();
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert!(holders[0].description.contains("idle in transaction"), "{holders:?}");
    assert_eq!(scene.everything().await, before);
    run(&in_flight, "ROLLBACK").await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 3 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

/// A projection whose code does not come back before an append has gone through.
struct Stalls {
    inside: AtomicBool,
    go_on: AtomicBool,
}

impl FoldDocuments for Stalls {
    fn key_of(&self, _: &RecordedEvent) -> Result<Option<String>, ApplyError> {
        self.inside.store(true, Ordering::SeqCst);
        everfold_testkit::eventually_blocking("the append goes through", super::LIMIT, || {
            self.go_on.load(Ordering::SeqCst)
        });
        Ok(None)
    }

    fn fold(&self, _: Option<&str>, _: &[&RecordedEvent]) -> Result<Option<String>, ApplyError> {
        unreachable!("there is no event with a key")
    }

    fn folding(self: Arc<Self>, _: bool) -> Box<dyn Folding> {
        unreachable!("nothing is copied")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stalls_with_the_fence_in_hand_is_thrown_out_and_changes_nothing() {
    let scene = Scene::inline().await;
    let before = scene.everything().await;
    let stalls = Arc::new(Stalls { inside: AtomicBool::default(), go_on: AtomicBool::default() });
    let leases = vec![scene.lease_of(scene.target.id).await];
    let job = Job {
        projector: Projector::Document(Arc::clone(&stalls) as Arc<dyn FoldDocuments>),
        ..scene.job(SwitchStep::Flip, impatient(), leases)
    };
    let url = scene.bench.database.url();
    // A process of its own, as it were: nothing else waits for its threads.
    let flip = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { super::open(&url, None).await.run(job).await.map(drop) })
    });
    everfold_testkit::eventually("it has the fence", super::LIMIT, async || {
        stalls.inside.load(Ordering::SeqCst)
    })
    .await;
    append(&scene.bench.session, "a").await;
    stalls.go_on.store(true, Ordering::SeqCst);
    assert!(flip.join().unwrap().is_err(), "its session is gone");
    assert_eq!(scene.everything().await, before);
    scene.feed(&scene.target).await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 0 });
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn way_back_to_a_kept_generation_loses_no_append_in_flight() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    scene.step(SwitchStep::Flip).await;
    append(&scene.bench.session, "a").await;
    let scene = scene.turned_round().await;
    scene.feed(&scene.target).await;

    // It has listed the generations, and this one is not among them.
    let in_flight = scene.append_in_flight("b").await;
    let listed = scene.try_step(SwitchStep::ListAgain, impatient()).await;
    assert!(is_busy(&listed), "{listed:?}");
    run(&in_flight, "COMMIT").await;
    assert_eq!(scene.step(SwitchStep::ListAgain).await, Switched::Done { events: 0 });
    assert_eq!(scene.status(&scene.target).await, "building");
    let in_flight = scene.append_in_flight("b").await;
    let flip = scene.step_that_waits(SwitchStep::Flip).await;
    run(&in_flight, "COMMIT").await;
    assert_eq!(flip.await.unwrap(), Switched::Done { events: 2 });
    append(&scene.bench.session, "c").await;
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_generation_that_owes_events_is_drained_before_it_is_fed_and_shown() {
    let scene = Scene::inline().await;
    scene.feed(&scene.target).await;
    scene
        .bench
        .run("UPDATE everfold.generations SET status = 'paused' WHERE status = 'active'")
        .await;
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.skips(&scene.source).await, 1);
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
    append(&scene.bench.session, "a").await;
    let scene = scene.turned_round().await;
    assert_eq!(scene.step(SwitchStep::ListAgain).await, Switched::Done { events: 0 });
    let refused = scene.step(SwitchStep::Flip).await;
    assert_eq!(refused, Switched::Behind { by: 1 }, "it owes an event");
    scene.feed(&scene.target).await;
    assert_eq!(scene.skips(&scene.target).await, 0);
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES, "in their order");
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 0 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_tail_is_not_applied_while_appends_wait() {
    let scene = Scene::inline().await;
    let short = SwitchLimits { fence_events: 1, ..limits() };
    let before = scene.everything().await;
    let refused = scene.try_step(SwitchStep::Flip, short.clone()).await.unwrap();
    assert_eq!(refused, Switched::TailTooLong { events: 2 });
    assert_eq!(scene.everything().await, before);
    scene.feed(&scene.target).await;
    let done = scene.try_step(SwitchStep::Flip, short).await.unwrap();
    assert_eq!(done, Switched::Done { events: 0 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_dead_letters_and_a_cancellation_refuse_the_flip() {
    let scene = Scene::inline().await;
    let (source, target) = (scene.source.id, scene.target.id);
    let both =
        format!("{LISTED} VALUES ({source}, 1, 'a', 'poison'), ({target}, 1, 'a', 'poison')");
    scene.bench.run(&both).await;
    scene.bench.run(&format!("{LISTED} VALUES ({target}, 2, 'b', 'poison')")).await;
    let refused = Switched::DeadLetters { new: 1, first: Position(2) };
    assert_eq!(scene.step(SwitchStep::Flip).await, refused);
    scene.bench.run("UPDATE everfold.rebuilds SET wanted = 'cancel'").await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Cancelled);
    assert_eq!(scene.step(SwitchStep::Record).await, Switched::Cancelled);
    assert_eq!(scene.shown().await, i64::from(source));
    scene.bench.run("UPDATE everfold.rebuilds SET wanted = 'run'").await;
    let allowed = SwitchLimits { allow_dead_letters: true, ..limits() };
    let done = scene.try_step(SwitchStep::Flip, allowed).await.unwrap();
    assert!(matches!(done, Switched::Done { .. }), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_target_is_not_shown_before_it_is_as_far_as_the_source() {
    let scene = Scene::new(chain().build().unwrap()).await;
    scene.feed(&scene.source).await;
    // What is missing would be applied on the way, if it were little enough.
    let within = |within| SwitchLimits { within, fence_events: 1, ..limits() };
    for few in [0, 1] {
        let refused = scene.try_step(SwitchStep::Flip, within(few)).await.unwrap();
        assert_eq!(refused, Switched::Behind { by: 2 });
    }
    assert_eq!(scene.shown().await, i64::from(scene.source.id));
    let done = scene.try_step(SwitchStep::Flip, within(2)).await.unwrap();
    assert_eq!(done, Switched::Done { events: 0 });
    assert_eq!(scene.status(&scene.source).await, "kept");
    scene.feed(&scene.target).await;
    append(&scene.bench.session, "a").await;
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "it is fed on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_target_that_is_a_little_behind_the_source_gets_there_in_the_switch() {
    let scene = Scene::new(chain().build().unwrap()).await;
    scene.feed(&scene.source).await;
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 2 });
    assert_eq!(scene.shown().await, i64::from(scene.target.id));
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    append(&scene.bench.session, "a").await;
    scene.feed(&scene.source).await;
    assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "it is fed on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuild_in_place_owes_what_comes_in_and_settles_it_on_its_way() {
    let mut scene = Scene::inline().await;
    let in_flight = scene.append_in_flight("a").await;
    let swap = scene.step_that_waits(SwitchStep::SwapIn).await;
    run(&in_flight, "COMMIT").await;
    assert_eq!(swap.await.unwrap(), Switched::Done { events: 0 });
    assert_eq!(scene.step(SwitchStep::SwapIn).await, Switched::Done { events: 0 }, "it was done");
    scene.in_place = true;
    assert_eq!(scene.status(&scene.target).await, "rebuilding");
    assert_eq!(scene.status(&scene.source).await, "retired");
    append(&scene.bench.session, "a").await;
    assert_eq!(scene.skips(&scene.target).await, 1);
    assert_eq!(scene.drain(&scene.target).await, 0, "those before it come first");
    let mark = scene.feed(&scene.target).await;
    assert_eq!((mark, scene.skips(&scene.target).await), (Position(4), 0));
    append(&scene.bench.session, "b").await;
    assert_eq!(scene.skips(&scene.target).await, 1);
    assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events: 1 });
    assert_eq!(scene.skips(&scene.target).await, 0);
    append(&scene.bench.session, "b").await;
    assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES);
    let settled = "SELECT count(*) FROM everfold.system_messages WHERE kind = 'skip-settled'";
    assert_eq!(scene.bench.number(settled).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_taken_for_dead_changes_nothing_at_any_step() {
    let scene = Scene::inline().await;
    let leases = vec![scene.lease_of(scene.target.id).await];
    scene.bench.run("UPDATE everfold.rebuilds SET expires_at = now() - interval '1 second'").await;
    let next = scene.bench.take(scene.lease.rebuild).await.unwrap();
    assert_ne!(next.epoch, scene.lease.epoch);
    let before = scene.everything().await;
    let fresh = vec![scene.lease_of(scene.target.id).await];
    for step in [
        SwitchStep::Flip,
        SwitchStep::SwapIn,
        SwitchStep::ListAgain,
        SwitchStep::Record,
        SwitchStep::FlipUnfenced { past: Position::START },
        SwitchStep::KeepSource { mark: Position(2) },
    ] {
        // Neither with what it knew nor with the shards' new epochs.
        for leases in [&leases, &fresh] {
            let job = scene.job(step.clone(), limits(), leases.clone());
            let outcome = scene.bench.store.run(job).await;
            assert!(matches!(outcome, Err(ApplyError::LeaseLost)), "{step:?}: {outcome:?}");
        }
    }
    assert_eq!(scene.everything().await, before);
}
