//! A database that refuses what the engine itself needs: that does not pass by trying again, so it has
//! to show.

use everfold::{GenerationStatus, OnError, ProjectionError, Runner, Store};
use everfold_testkit::eventually;

use crate::chain::{Chain, LIMIT, assert_chains, moved, quick, run};
use crate::fixture::{Fixture, append};

/// As if the right to write the table had been taken away.
async fn refuse(fixture: &Fixture, table: &str) {
    let sql = format!(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             RAISE insufficient_privilege USING MESSAGE = 'permission denied for {table}'; END $$; \
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON everfold.{table} \
             FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    );
    fixture.database().connect().await.batch_execute(&sql).await.unwrap();
}

async fn allow(fixture: &Fixture) {
    let sql = "DROP FUNCTION public.refuse() CASCADE";
    fixture.database().connect().await.batch_execute(sql).await.unwrap();
}

async fn reason_of_run_once(store: &Store) -> String {
    let projection = Chain::default().projection("chain", OnError::Skip);
    match Runner::new(store).projection(projection).options(quick("once")).run_once().await {
        Err(ProjectionError::Failed { reason, .. }) => reason,
        other => panic!("wanted a failure, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_refuses_a_batch_is_shown_until_it_is_mended() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    store.register(Chain::default().projection("chain", OnError::Skip)).await.unwrap();
    refuse(&fixture, "run_log").await;
    append(&store, "s", [moved("a", 1)]).await;
    assert!(reason_of_run_once(&store).await.contains("denied for run_log"));

    let runner = run(&store, Chain::default().projection("chain", OnError::Skip)).await;
    eventually("status shows it", LIMIT, async || {
        let status = store.projection("chain").await.unwrap();
        status.shards[0]
            .failure
            .as_ref()
            .is_some_and(|failure| failure.contains("denied for run_log"))
    })
    .await;
    // No event is to blame, and nothing has to be resumed.
    assert_eq!(store.projection("chain").await.unwrap().status, GenerationStatus::Active);
    allow(&fixture).await;
    assert_chains(&store, "chain").await;
    assert_eq!(store.projection("chain").await.unwrap().shards[0].failure, None);
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_refuses_the_heartbeat_ends_a_single_run() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    store.register(Chain::default().projection("chain", OnError::Skip)).await.unwrap();
    append(&store, "s", [moved("a", 1)]).await;
    refuse(&fixture, "workers").await;
    assert!(reason_of_run_once(&store).await.contains("denied for workers"));

    let runner = run(&store, Chain::default().projection("chain", OnError::Skip)).await;
    eventually("the runner says so", LIMIT, async || runner.refused().is_some()).await;
    allow(&fixture).await;
    assert_chains(&store, "chain").await;
    assert_eq!(runner.refused(), None);
    runner.stop().await;
}
