//! A new catch-up projection on a store with many events: filled out of readers' sight, by a runner
//! that nobody had to tell, and theirs from the switch on.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everfold::{
    GenerationStatus, HealthOptions, HealthProblem, OnError, PlannedAction, Position, Projection,
    ProjectionError, RebuildKind, RebuildOptions, RebuildPhase, Runner, RunnerHandle, Severity,
    Store,
};
use serde_json::Value;

use crate::chain::{Chain, LIMIT, assert_chains, moved, poisoned, quick};
use crate::fixture::{Fixture, append, counted, failed, on_every_store};
use crate::rebuild::{count, expected, numbers};

on_every_store! {
    many_events_are_applied_before_readers_see_it,
    few_events_are_applied_in_readers_sight,
    events_that_it_does_not_want_do_not_count,
    documents_in_shards_are_filled_by_two_runners_once,
    fill_that_was_left_is_gone_on_with,
    fill_that_was_cancelled_is_left_to_an_operator,
    fill_that_was_not_promoted_is_left_to_an_operator,
    fill_that_failed_is_told_and_not_tried_again,
    newer_version_takes_the_place_of_one_that_nobody_fills,
}

/// A new projection with more events than this before it is filled first.
async fn opened(fixture: &Fixture, backfill_events: u64) -> Store {
    fixture.store_with(|options| options.backfill_events = backfill_events).await
}

async fn running(store: &Store, name: &str, projection: Projection) -> RunnerHandle {
    Runner::new(store).projection(projection).options(quick(name)).start().await.unwrap()
}

async fn statuses(store: &Store) -> Vec<(u32, GenerationStatus)> {
    let all = store.projections().await.unwrap();
    all.iter().map(|status| (status.version, status.status)).collect()
}

async fn found(fixture: &Fixture) -> BTreeMap<String, String> {
    let rows = fixture.rows("SELECT key, n FROM read_model.numbers").await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

async fn can_be_read(fixture: &Fixture) -> bool {
    let sql = match fixture.is_sqlite() {
        true => "SELECT count(*) AS n FROM sqlite_schema WHERE name = 'read_model_numbers'",
        false => {
            "SELECT count(*) AS n FROM pg_catalog.pg_views \
             WHERE schemaname = 'read_model' AND viewname = 'numbers'"
        }
    };
    fixture.rows(sql).await[0][0] == 1
}

async fn building(store: &Store) -> Option<HealthProblem> {
    let problems = store.health(&HealthOptions::default()).await.unwrap();
    problems.into_iter().find(|problem| problem.check == "building")
}

async fn many_events_are_applied_before_readers_see_it(fixture: Fixture) {
    use GenerationStatus::{Active, Building};
    let store = opened(&fixture, 59).await;
    count(&store, 0..20).await;
    let plan = store.plan(vec![numbers(1, false)]).await.unwrap();
    assert_eq!(plan.changes[0].action, PlannedAction::Create);
    assert!(plan.changes[0].message.contains("before readers see it"), "{plan:?}");

    let registered = store.register(numbers(1, false)).await.unwrap();
    assert_eq!((registered.created, registered.status), (true, Building));
    assert!(!can_be_read(&fixture).await, "nobody takes nothing for all there is");
    let soon = Duration::from_millis(20);
    assert!(!store.wait_for_or_stale("numbers", Position(1), soon).await.unwrap());
    assert!(!store.wait_for_or_stale("numbers", Position(0), soon).await.unwrap());
    let error = store.pause("numbers").await.unwrap_err();
    assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
    let problem = building(&store).await.unwrap();
    assert_eq!(problem.severity, Severity::Warning, "{problem:?}");
    assert!(problem.message.contains("a runner that carries it"), "{problem:?}");

    let runner = running(&store, "one", numbers(1, false)).await;
    let last = store.last_position().await.unwrap();
    store.wait_for("numbers", last, LIMIT).await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    count(&store, 20..30).await;
    runner.catch_up().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await, "and is fed from then on");
    assert_eq!(statuses(&store).await, [(1, Active)], "there is nothing to go back to");
    let rebuilds = store.rebuilds().await.unwrap();
    assert_eq!(rebuilds.len(), 1);
    assert_eq!((rebuilds[0].kind, rebuilds[0].phase), (RebuildKind::Beside, RebuildPhase::Done));
    assert_eq!(building(&store).await, None);
    runner.stop().await;
}

async fn few_events_are_applied_in_readers_sight(fixture: Fixture) {
    let store = opened(&fixture, 60).await;
    count(&store, 0..20).await;
    let plan = store.plan(vec![numbers(1, false)]).await.unwrap();
    assert!(plan.changes[0].message.contains("from the first event"), "{plan:?}");
    let registered = store.register(numbers(1, false)).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Active);
    assert!(found(&fixture).await.is_empty());
    Runner::new(&store).projection(numbers(1, false)).run_once().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert!(store.rebuilds().await.unwrap().is_empty());
}

async fn events_that_it_does_not_want_do_not_count(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    append(&store, "s", (0..30).map(|n| moved("a", n))).await;
    append(&store, "a", counted(0..10)).await;
    assert_eq!(store.register(numbers(1, false)).await.unwrap().status, GenerationStatus::Active);
    let all = Projection::sql("all_events", 1)
        .create("CREATE TABLE read_model.all_events (position BIGINT PRIMARY KEY)")
        .apply("INSERT INTO read_model.all_events SELECT position FROM batch");
    let registered = store.register(all.build().unwrap()).await.unwrap();
    assert_eq!(registered.status, GenerationStatus::Building, "it wants all of them");
}

async fn documents_in_shards_are_filled_by_two_runners_once(fixture: Fixture) {
    let (store, other) = (opened(&fixture, 100).await, opened(&fixture, 100).await);
    for account in ["a", "b", "c", "d", "e"] {
        append(&store, account, (0..40).map(|n| moved(account, n))).await;
    }
    let chain = Chain::default();
    let projection = || chain.builder("chain").shards(3).build().unwrap();
    let (first, second) =
        tokio::join!(running(&store, "one", projection()), running(&other, "two", projection()));
    assert_chains(&store, "chain").await;
    first.stop().await;
    append(&store, "f", (0..10).map(|n| moved("f", n))).await;
    assert_chains(&other, "chain").await;
    // What was filled is shown before what it leaves behind is retired.
    second.catch_up().await.unwrap();
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
    let rebuilds = store.rebuilds().await.unwrap();
    assert_eq!(rebuilds.len(), 1, "{rebuilds:?}");
    second.stop().await;
}

fn slowly() -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.events_per_second = Some(40);
    options
}

async fn fill_that_was_left_is_gone_on_with(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    count(&store, 0..20).await;
    store.register(numbers(1, false)).await.unwrap();
    store.rebuild("numbers", slowly()).await.unwrap().leave().await;
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Building)]);
    store.close().await;

    let store = opened(&fixture, 10).await;
    let runner = running(&store, "one", numbers(1, false)).await;
    let last = store.last_position().await.unwrap();
    store.wait_for("numbers", last, LIMIT).await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(store.rebuilds().await.unwrap().len(), 1, "it is the same one");
    runner.stop().await;
}

async fn fill_that_was_cancelled_is_left_to_an_operator(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    count(&store, 0..20).await;
    store.register(numbers(1, false)).await.unwrap();
    let filling = store.rebuild("numbers", slowly()).await.unwrap();
    store.cancel_rebuild("numbers").await.unwrap();
    filling.finish().await.unwrap_err();

    Runner::new(&store).projection(numbers(1, false)).run_once().await.unwrap();
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Building)], "nobody asked for it");
    assert_eq!(store.rebuilds().await.unwrap().len(), 1);
    let problem = building(&store).await.unwrap();
    assert_eq!(problem.severity, Severity::Warning);
    assert!(problem.message.contains("was cancelled; `everfold rebuild numbers`"), "{problem:?}");

    let filling = store.rebuild("numbers", RebuildOptions::default()).await.unwrap();
    assert_eq!(filling.finish().await.unwrap().phase, RebuildPhase::Done);
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn fill_that_was_not_promoted_is_left_to_an_operator(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    count(&store, 0..20).await;
    store.register(numbers(1, false)).await.unwrap();
    let mut options = RebuildOptions::default();
    options.promote = false;
    let built = store.rebuild("numbers", options).await.unwrap().finish().await.unwrap();
    assert_eq!(built.phase, RebuildPhase::Built);

    Runner::new(&store).projection(numbers(1, false)).run_once().await.unwrap();
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Building)]);
    assert!(!can_be_read(&fixture).await);
    let reason = store.projection("numbers").await.unwrap().reason.unwrap();
    assert!(reason.contains("`everfold promote numbers`"), "{reason}");
    count(&store, 20..30).await;
    let promoted = store.promote("numbers", RebuildOptions::default()).await.unwrap();
    promoted.finish().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "").await);
    assert_eq!(statuses(&store).await, [(1, GenerationStatus::Active)]);
}

async fn fill_that_failed_is_told_and_not_tried_again(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    let chain = Chain::default();
    append(&store, "s", (0..30).map(|n| moved("a", n))).await;
    append(&store, "s", [poisoned("b", 30)]).await;
    let projection = chain.projection("chain", OnError::Stop);
    let reason = failed(&store, &projection).await;
    assert!(reason.contains("could not be filled") && reason.contains("poisonous"), "{reason}");
    let tries = chain.0.tries.load(Ordering::SeqCst);

    assert_eq!(failed(&store, &projection).await, reason, "the next run says the same");
    assert_eq!(chain.0.tries.load(Ordering::SeqCst), tries, "without trying");
    let runner = running(&store, "one", projection).await;
    let told = async || runner.failed().iter().any(|failure| failure.reason == reason);
    everfold_testkit::eventually("the runner says it", LIMIT, told).await;
    let problem = building(&store).await.unwrap();
    assert_eq!(problem.severity, Severity::Problem, "{problem:?}");
    assert!(problem.message.contains("could not be filled"), "{problem:?}");

    chain.0.mended.store(true, Ordering::SeqCst);
    let filling = store.rebuild("chain", RebuildOptions::default()).await.unwrap();
    filling.finish().await.unwrap();
    assert_chains(&store, "chain").await;
    let over = async || runner.failed().is_empty();
    everfold_testkit::eventually("it is a failure no more", LIMIT, over).await;
    runner.stop().await;
}

async fn newer_version_takes_the_place_of_one_that_nobody_fills(fixture: Fixture) {
    let store = opened(&fixture, 10).await;
    count(&store, 0..20).await;
    store.register(numbers(1, false)).await.unwrap();
    store.rebuild("numbers", slowly()).await.unwrap().leave().await;
    store.close().await;

    let store = opened(&fixture, 10).await;
    Runner::new(&store).projection(numbers(2, false)).run_once().await.unwrap();
    assert_eq!(found(&fixture).await, expected(&store, "!").await);
    assert_eq!(statuses(&store).await, [(2, GenerationStatus::Active)]);
}
