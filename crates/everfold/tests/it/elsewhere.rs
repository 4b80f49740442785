//! What other processes do takes effect here without a restart.

use everfold::{ExpectedVersion, OnError, Position, Projection, ProjectionSettings, Runner, Store};
use everfold_testkit::eventually;

use crate::chain::{Chain, LIMIT, chains, moved, poisoned, quick, run};
use crate::fixture::{Fixture, append, on_every_store};

on_every_store! {
    runner_follows_settings_that_another_process_changes,
    appends_follow_settings_that_another_process_changes,
    run_once_settles_what_no_dead_letter_holds,
}

/// Tried again and again before the policy decides.
fn patient(on_error: OnError, retries: u32) -> Projection {
    let mut settings = ProjectionSettings::default();
    settings.retries = retries;
    settings.retry_delay = std::time::Duration::from_millis(5);
    settings.retry_delay_max = std::time::Duration::from_millis(50);
    Chain::default().builder("chain").settings(settings).on_error(on_error).build().unwrap()
}

async fn runner_follows_settings_that_another_process_changes(fixture: Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let runner = run(&store, patient(OnError::Stop, 1_000_000)).await;
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("b", 3)]).await;
    eventually("it fails and is tried again", LIMIT, async || {
        store.projection("chain").await.unwrap().shards[0].attempts > 1
    })
    .await;
    other.register(patient(OnError::DeadLetter, 0)).await.unwrap();
    eventually("the new policy has decided", LIMIT, async || {
        store.dead_letters("chain").await.unwrap().len() == 1
    })
    .await;
    store.wait_for("chain", Position(1), LIMIT).await.unwrap();
    eventually("the others go on", LIMIT, async || chains(&store, "chain").await.len() == 2).await;
    runner.stop().await;
}

fn inline(on_error: OnError) -> Projection {
    Projection::document("chain", 1, Chain::default()).inline().on_error(on_error).build().unwrap()
}

async fn is_stored(store: &Store, n: u64) -> bool {
    let event = poisoned("a", n);
    store.append("a", ExpectedVersion::Any, [event]).await.is_ok()
}

async fn appends_follow_settings_that_another_process_changes(fixture: Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    store.register(inline(OnError::Stop)).await.unwrap();
    append(&store, "a", [moved("a", 1)]).await;
    assert!(!is_stored(&store, 2).await, "the policy is to stop");
    other.register(inline(OnError::DeadLetter)).await.unwrap();
    eventually("the new policy holds", LIMIT, async || is_stored(&store, 3).await).await;
    assert_eq!(store.dead_letters("chain").await.unwrap().len(), 1);
}

async fn run_once_settles_what_no_dead_letter_holds(fixture: Fixture) {
    let (store, stranger) = (fixture.store().await, fixture.store().await);
    store.register(inline(OnError::DeadLetter)).await.unwrap();
    append(&store, "a", [poisoned("a", 1)]).await;
    // More than fit into one transaction.
    for stream in ["a", "b", "c"] {
        append(&stranger, stream, (0..900).map(|n| moved(stream, n))).await;
    }
    let once = Runner::new(&store).projection(inline(OnError::DeadLetter)).options(quick("once"));
    once.run_once().await.unwrap();
    let owed = store.skips("chain").await.unwrap();
    assert!(owed.iter().all(|skip| skip.key == "a"), "{} are owed", owed.len());
    let counts: Vec<u64> = chains(&store, "chain").await.values().map(|link| link.count).collect();
    assert_eq!(counts, [900, 900]);
}
