//! A checkpoint that does not fit the log: the database was restored, or a server without the last
//! commits took over.

use everfold::{
    GenerationStatus, HealthOptions, OnError, ProjectionError, RebuildOptions, RebuildPhase,
    Runner, Store,
};
use everfold_testkit::eventually;

use crate::chain::{Chain, LIMIT, assert_chains, chains, folded, moved, quick, run};
use crate::fixture::{Fixture, append, caught_up, on_every_store};

on_every_store! {
    checkpoint_past_the_end_of_the_log_stops_a_running_projection,
    checkpoint_past_the_end_of_the_log_is_seen_at_the_start,
    checkpoint_that_stepped_back_is_gone_on_from,
}

/// As after a restore in which the events are older than the checkpoints.
async fn move_checkpoint(fixture: &Fixture, by: i64) {
    let set = format!("SET position = position + {by}");
    fixture
        .execute(
            &format!("UPDATE everfold.checkpoints {set}"),
            &format!("UPDATE everfold_checkpoints {set}"),
        )
        .await;
}

async fn assert_said(store: &Store) {
    let status = store.projection("chain").await.unwrap();
    let reason = status.reason.expect("it says why");
    for part in ["checkpoint 12", "end of the log, 2", "restored", "failed over"] {
        assert!(reason.contains(part), "{reason}");
    }
    let problems = store.health(&HealthOptions::default()).await.unwrap();
    assert!(problems.iter().any(|problem| problem.message.contains("checkpoint 12")));
}

async fn checkpoint_past_the_end_of_the_log_stops_a_running_projection(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1), moved("a", 2)]).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Skip)).await;
    assert_chains(&store, "chain").await;
    move_checkpoint(&fixture, 10).await;
    eventually("it has failed", LIMIT, async || {
        store.projection("chain").await.unwrap().status == GenerationStatus::Failed
    })
    .await;
    assert_said(&store).await;
    eventually("the runner says so", LIMIT, async || !runner.failed().is_empty()).await;

    // Events that get those positions are not taken for the ones that were lost.
    store.resume("chain").await.unwrap();
    eventually("it has failed again", LIMIT, async || {
        store.projection("chain").await.unwrap().status == GenerationStatus::Failed
    })
    .await;
    runner.stop().await;
    move_checkpoint(&fixture, -10).await;
    store.resume("chain").await.unwrap();
    append(&store, "s", [moved("a", 3)]).await;
    caught_up(&store, &Chain::default().projection("chain", OnError::Skip)).await;
    assert_chains(&store, "chain").await;
}

async fn checkpoint_past_the_end_of_the_log_is_seen_at_the_start(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1), moved("a", 2)]).await;
    let projection = Chain::default().projection("chain", OnError::Stop);
    caught_up(&store, &projection).await;
    move_checkpoint(&fixture, 10).await;
    // Without a runner too.
    assert_said(&store).await;
    let run = Runner::new(&store).projection(projection).options(quick("test")).run_once();
    match run.await {
        Err(ProjectionError::Failed { reason, .. }) => {
            assert!(reason.contains("checkpoint 12"), "{reason}");
        }
        other => panic!("wanted a failure, got {other:?}"),
    }
    assert_said(&store).await;

    // What readers see is ahead of the log, and a new read model cannot get there.
    let rebuild = store.rebuild("chain", RebuildOptions::default()).await.unwrap();
    assert_eq!(rebuild.finish().await.unwrap().phase, RebuildPhase::Done);
    append(&store, "s", [moved("a", 3)]).await;
    caught_up(&store, &Chain::default().projection("chain", OnError::Stop)).await;
    assert_chains(&store, "chain").await;
    assert_eq!(store.projection("chain").await.unwrap().status, GenerationStatus::Active);
}

/// The read model has stepped back with its checkpoint: both are in the same transactions.
async fn checkpoint_that_stepped_back_is_gone_on_from(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1), moved("a", 2)]).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    assert_chains(&store, "chain").await;
    fixture.execute_in("chain", "DELETE FROM {}chain").await;
    move_checkpoint(&fixture, -2).await;
    let all = folded(&store, |_| true).await;
    eventually("it is filled again", LIMIT, async || chains(&store, "chain").await == all).await;
    runner.stop().await;
}
