//! SQL projections in shards: every event of a key in the key's shard, by whichever runner has it, and
//! events without a key.

use std::time::Duration;

use everfold::{
    GenerationStatus, OnError, Projection, ProjectionSettings, Runner, RunnerOptions, Store,
};
use everfold_testkit::eventually;
use serde_json::{Value, json};

use crate::fixture::{Fixture, append, event, on_every_store};

on_every_store! {
    two_runners_share_the_shards_and_apply_every_event_once,
    event_without_a_key_is_put_aside_once,
}

const BALANCES: &str = "SELECT account, total FROM read_model.balances ORDER BY account";
const LIMIT: Duration = Duration::from_secs(60);

fn balances(settings: ProjectionSettings) -> Projection {
    Projection::sql("balances", 1)
        .create(
            "CREATE TABLE read_model.balances (tenant TEXT, account TEXT, total BIGINT NOT NULL,
                 PRIMARY KEY (tenant, account));
             CREATE TABLE read_model.applied (position BIGINT PRIMARY KEY)",
        )
        .apply(
            "INSERT INTO read_model.applied SELECT position FROM batch;
             INSERT INTO read_model.balances AS b (tenant, account, total)
             SELECT data->>'tenant', data->>'account', SUM(CAST(data->>'amount' AS BIGINT))
             FROM batch WHERE true GROUP BY data->>'tenant', data->>'account'
             ON CONFLICT (tenant, account) DO UPDATE SET total = b.total + EXCLUDED.total",
        )
        .events(["Moved"])
        .key_fields(["data.tenant", "data.account"])
        .shards(5)
        .settings(settings)
        .build()
        .unwrap()
}

fn moved(tenant: &str, account: Option<&str>, amount: i64) -> everfold::NewEvent {
    event("Moved", json!({ "tenant": tenant, "account": account, "amount": amount }))
}

async fn runner(store: &Store, projection: Projection) -> everfold::RunnerHandle {
    let mut options = RunnerOptions::default();
    options.worker_name = everfold::Uuid::now_v7().to_string();
    options.heartbeat = Duration::from_millis(50);
    Runner::new(store).projection(projection).options(options).start().await.unwrap()
}

async fn two_runners_share_the_shards_and_apply_every_event_once(fixture: Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let projection = balances(ProjectionSettings::default());
    let first = runner(&store, projection.clone()).await;
    let mut last = append(&store, "s", [moved("a", Some("0"), 0)]).await;
    let second = runner(&other, projection).await;
    for n in 0..40 {
        let events =
            (0..10).map(|k| moved(if k % 2 == 0 { "a" } else { "b" }, Some(&k.to_string()), n));
        last = append(&store, &format!("s{}", n % 7), events).await;
    }
    store.wait_for("balances", last.last_position, LIMIT).await.unwrap();
    let total: i64 = (0..40).sum();
    let expected: Vec<Vec<Value>> =
        (0..10).map(|k| vec![json!(k.to_string()), json!(total)]).collect();
    assert_eq!(fixture.rows(BALANCES).await, expected);
    eventually("both have shards", LIMIT, async || {
        let status = store.projection("balances").await.unwrap();
        let owners: std::collections::BTreeSet<_> =
            status.shards.iter().filter_map(|shard| shard.owner.clone()).collect();
        owners.len() == 2
    })
    .await;
    first.stop().await;
    second.stop().await;
}

async fn event_without_a_key_is_put_aside_once(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    settings.on_error = OnError::DeadLetter;
    settings.retries = 0;
    let runner = runner(&store, balances(settings)).await;
    append(&store, "s", [moved("a", Some("1"), 1)]).await;
    append(&store, "s", [moved("a", None, 2)]).await;
    let last = append(&store, "s", [moved("b", Some("2"), 3), moved("a", Some("1"), 4)]).await;
    eventually("all shards have passed", LIMIT, async || {
        let status = store.projection("balances").await.unwrap();
        status.shards.iter().all(|shard| shard.position >= last.last_position)
    })
    .await;
    let letters = store.dead_letters("balances").await.unwrap();
    assert_eq!(letters.len(), 1, "{letters:?}");
    let error = letters[0].error.as_deref().unwrap_or_default();
    assert!(error.contains("data.account"), "{error}");
    assert_eq!(fixture.rows(BALANCES).await, [[json!("1"), json!(5)], [json!("2"), json!(3)]]);
    assert_eq!(store.projection("balances").await.unwrap().status, GenerationStatus::Active);
    runner.stop().await;
}
