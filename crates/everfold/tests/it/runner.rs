//! Runners: exactly once, in order, shared among workers that come and go.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everfold::{
    DocumentProjection, GenerationStatus, OnError, Position, Projection, ProjectionError,
    RecordedEvent, Runner, Store, Trend,
};
use everfold_testkit::eventually;

use crate::chain::{
    Chain, LIMIT, Link, assert_chains, chains, folded, moved, poisoned, quick, run,
};
use crate::fixture::{Fixture, append, counted, on_every_store};

on_every_store! {
    catch_up_projection_is_fed,
    restarts_lose_and_double_nothing,
    sharded_chains_equal_a_fold_under_concurrent_appends,
    runners_share_shards_evenly,
    clean_stop_hands_over_at_once,
    crashed_runner_is_taken_over_when_its_leases_run_out,
    lost_lease_moves_nothing,
    stop_finishes_the_batch_in_hand,
    paused_projection_stands_still_until_resumed,
    run_once_catches_up_and_ends,
    run_once_says_which_projection_failed,
    checkpoint_advances_over_types_nobody_wants,
    only_the_named_projection_runs,
    panic_stops_one_projection_and_no_other,
    inline_projection_is_drained,
    waiting_says_why_it_was_in_vain,
}

async fn owners(store: &Store, name: &str) -> BTreeMap<String, usize> {
    let mut owners = BTreeMap::new();
    for shard in store.projection(name).await.unwrap().shards {
        *owners.entry(shard.owner.unwrap_or_default()).or_insert(0) += 1;
    }
    owners
}

async fn append_accounts(store: &Store, writers: u64, each: u64) {
    let writing = (0..writers).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..each {
                let account = format!("account-{}", (writer + n) % 7);
                append(&store, &format!("s-{writer}"), [moved(&account, writer * each + n)]).await;
            }
        })
    });
    for outcome in futures::future::join_all(writing).await {
        outcome.unwrap();
    }
}

async fn catch_up_projection_is_fed(fixture: Fixture) {
    let store = fixture.store().await;
    append_accounts(&store, 2, 20).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    assert_chains(&store, "chain").await;
    let appended = append(&store, "s-1", [moved("account-1", 7)]).await;
    store.wait_for("chain", appended.last_position, LIMIT).await.unwrap();
    assert_eq!(chains(&store, "chain").await, folded(&store, |_| true).await);

    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.status, GenerationStatus::Active);
    assert_eq!(status.position, status.mark);
    assert_eq!((status.lag_events, status.lag_seconds), (0, 0.0));
    assert_eq!(status.trend, Trend::Steady);
    assert_eq!(status.shards[0].owner.as_deref(), Some("test"));
    assert!(store.health(&Default::default()).await.unwrap().is_empty());
    runner.stop().await;
    assert_eq!(store.projection("chain").await.unwrap().shards[0].owner, None);

    append(&store, "s-1", [moved("account-1", 8)]).await;
    eventually("one that nobody runs is standing, however fast it was", LIMIT, async || {
        let status = store.projection("chain").await.unwrap();
        status.trend == Trend::Standing && status.seconds_left.is_none() && status.rate > 0.0
    })
    .await;
}

async fn restarts_lose_and_double_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    let writer = fixture.store().await;
    let writing = tokio::spawn(async move { append_accounts(&writer, 3, 60).await });
    for _ in 0..6 {
        let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
        let before = store.projection("chain").await.unwrap().position;
        eventually("the projection moves, or all is done", LIMIT, async || {
            let status = store.projection("chain").await.unwrap();
            status.position > before || writing.is_finished()
        })
        .await;
        runner.stop().await;
    }
    writing.await.unwrap();
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

async fn sharded_chains_equal_a_fold_under_concurrent_appends(fixture: Fixture) {
    let store = fixture.store().await;
    let sharded = || Chain::default().builder("chain").shards(4).build().unwrap();
    let other = fixture.store().await;
    let first = run(&store, sharded()).await;
    let second =
        Runner::new(&other).projection(sharded()).options(quick("second")).start().await.unwrap();
    let writer = fixture.store().await;
    append_accounts(&writer, 4, 50).await;
    first.stop().await;
    append_accounts(&writer, 2, 20).await;
    assert_chains(&store, "chain").await;
    second.stop().await;
}

async fn runners_share_shards_evenly(fixture: Fixture) {
    let store = fixture.store().await;
    let mut runners = Vec::new();
    for (count, each) in [(1, 10), (2, 5), (5, 2)] {
        while runners.len() < count {
            let name = format!("worker-{}", runners.len());
            let sharded = Chain::default().builder("chain").shards(10).build().unwrap();
            let runner = Runner::new(&store).projection(sharded).options(quick(&name));
            runners.push(runner.start().await.unwrap());
        }
        eventually("all have the same share", LIMIT, async || {
            let owners = owners(&store, "chain").await;
            owners.len() == count && owners.values().all(|&shards| shards == each)
        })
        .await;
    }
    for runner in runners.drain(1..) {
        runner.stop().await;
    }
    eventually("the last one has all", LIMIT, async || {
        owners(&store, "chain").await == BTreeMap::from([("worker-0".to_owned(), 10)])
    })
    .await;
    append_accounts(&store, 2, 20).await;
    assert_chains(&store, "chain").await;
}

async fn clean_stop_hands_over_at_once(fixture: Fixture) {
    let store = fixture.store().await;
    let start = |name: &str| {
        let mut options = quick(name);
        // So long that only a lease that was given up can be taken.
        options.lease_ttl = Duration::from_secs(600);
        let projection = Chain::default().projection("chain", OnError::Stop);
        Runner::new(&store).projection(projection).options(options).start()
    };
    let first = start("first").await.unwrap();
    let owned_by = async |name: &str| owners(&store, "chain").await.contains_key(name);
    eventually("the first one runs it", LIMIT, async || owned_by("first").await).await;
    let second = start("second").await.unwrap();
    first.stop().await;
    eventually("the second one runs it", LIMIT, async || owned_by("second").await).await;
    append_accounts(&store, 1, 10).await;
    assert_chains(&store, "chain").await;
    second.stop().await;
}

async fn crashed_runner_is_taken_over_when_its_leases_run_out(fixture: Fixture) {
    let store = fixture.store().await;
    let url = fixture.url.clone();
    store.register(Chain::default().projection("chain", OnError::Stop)).await.unwrap();
    // A runtime of its own that ends with all tasks where they stand, as a process does.
    let crashing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&url).await.unwrap();
            let projection = Chain::default().projection("chain", OnError::Stop);
            let options = quick("crashing");
            let runner = Runner::new(&store).projection(projection).options(options);
            std::mem::forget(runner.start().await.unwrap());
            append_accounts(&store, 1, 10).await;
            let mark = store.high_water_mark().await.unwrap();
            store.wait_for("chain", mark, LIMIT).await.unwrap();
        });
        runtime.shutdown_background();
    });
    tokio::task::spawn_blocking(|| crashing.join().unwrap()).await.unwrap();
    assert!(owners(&store, "chain").await.contains_key("crashing"));
    append_accounts(&store, 1, 10).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

/// Somebody else takes the shard while its holder sleeps; the holder wakes up and changes nothing.
async fn lost_lease_moves_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    let mut options = quick("late");
    options.heartbeat = Duration::from_secs(600);
    options.standby_poll = Duration::from_millis(50);
    options.lease_ttl = Duration::from_secs(3_600);
    let projection = Chain::default().projection("chain", OnError::Stop);
    let runner = Runner::new(&store).projection(projection).options(options).start().await.unwrap();
    let appended = append(&store, "s", [moved("a", 1)]).await;
    store.wait_for("chain", appended.last_position, LIMIT).await.unwrap();

    let other = "00000000-0000-7000-8000-000000000001";
    fixture.take_lease(other, Duration::from_secs(3_600)).await;
    let late = append(&store, "s", [moved("a", 2)]).await;
    eventually("the holder notices", LIMIT, async || {
        !owners(&store, "chain").await.contains_key("late")
    })
    .await;
    let reached = store
        .wait_for_or_stale("chain", late.last_position, Duration::from_millis(200))
        .await
        .unwrap();
    assert!(!reached, "a lease that was lost moved the checkpoint");
    assert_eq!(chains(&store, "chain").await["a"], Link::then(None, 1));

    fixture.take_lease(other, Duration::ZERO).await;
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

async fn stop_finishes_the_batch_in_hand(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    append_accounts(&store, 1, 10).await;
    chain.0.wait.store(true, Ordering::SeqCst);
    let runner = run(&store, chain.projection("chain", OnError::Stop)).await;
    eventually("a batch is in hand", LIMIT, async || chain.0.waiting.load(Ordering::SeqCst)).await;
    let stopping = tokio::spawn(runner.stop());
    tokio::task::yield_now().await;
    assert!(!stopping.is_finished());
    chain.0.wait.store(false, Ordering::SeqCst);
    stopping.await.unwrap();
    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.position, status.mark);
    assert_eq!(status.status, GenerationStatus::Active);
    assert_eq!(status.shards[0].owner, None);
    assert_eq!(chains(&store, "chain").await, folded(&store, |_| true).await);
}

async fn paused_projection_stands_still_until_resumed(fixture: Fixture) {
    let store = fixture.store().await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    append_accounts(&store, 1, 10).await;
    assert_chains(&store, "chain").await;
    store.pause("chain").await.unwrap();
    let error = store.pause("chain").await.unwrap_err();
    assert!(matches!(error, ProjectionError::Refused { .. }), "{error}");
    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.status, GenerationStatus::Paused);
    assert!(status.reason.unwrap().starts_with("paused by "));

    let appended = append(&store, "s", [moved("a", 2)]).await;
    let error = store
        .wait_for("chain", appended.last_position, Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("it is paused at position 10"), "{error}");
    store.resume("chain").await.unwrap();
    assert_chains(&store, "chain").await;
    let error = store.resume("chain").await.unwrap_err();
    assert!(error.to_string().contains("neither paused nor failed"), "{error}");
    runner.stop().await;
}

async fn run_once_catches_up_and_ends(fixture: Fixture) {
    let store = fixture.store().await;
    for round in 1..=3 {
        append_accounts(&store, 2, 10).await;
        let sharded = Chain::default().builder("chain").shards(3).build().unwrap();
        let runner = Runner::new(&store).projection(sharded).options(quick("once"));
        runner.run_once().await.unwrap();
        let chains = chains(&store, "chain").await;
        assert_eq!(chains.values().map(|link| link.count).sum::<u64>(), round * 20);
        assert_eq!(chains, folded(&store, |_| true).await);
    }
}

async fn run_once_says_which_projection_failed(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("b", 3)]).await;
    let mended = Chain::default();
    mended.0.mended.store(true, Ordering::SeqCst);
    let outcome = Runner::new(&store)
        .projection(Chain::default().projection("broken", OnError::Stop))
        .projection(mended.projection("whole", OnError::Stop))
        .options(quick("once"))
        .run_once()
        .await;
    let Err(ProjectionError::Failed { projection, reason }) = outcome else {
        panic!("wanted a failure, got {outcome:?}");
    };
    assert_eq!(projection, "broken");
    assert!(reason.contains("number 2 is poisonous"), "{reason}");
    assert_eq!(chains(&store, "whole").await, folded(&store, |_| true).await);
}

/// Nothing that it wants, but the checkpoint goes on: no range is looked at twice.
async fn checkpoint_advances_over_types_nobody_wants(fixture: Fixture) {
    let store = fixture.store().await;
    for _ in 0..5 {
        append(&store, "other", counted(0..500)).await;
    }
    append(&store, "s", [moved("a", 1)]).await;
    let last = append(&store, "other", counted(0..500)).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Stop)).await;
    eventually("the checkpoint reaches the mark", LIMIT, async || {
        store.projection("chain").await.unwrap().position >= last.last_position
    })
    .await;
    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.lag_events, 0);
    assert_eq!(chains(&store, "chain").await["a"], Link::then(None, 1));
    runner.stop().await;
}

async fn only_the_named_projection_runs(fixture: Fixture) {
    let store = fixture.store().await;
    append_accounts(&store, 1, 5).await;
    let runner = || {
        Runner::new(&store)
            .projection(Chain::default().projection("first_chain", OnError::Stop))
            .projection(Chain::default().projection("second_chain", OnError::Stop))
            .options(quick("only"))
    };
    let error = runner().only("frst_chain").run_once().await.unwrap_err();
    assert!(error.to_string().contains("did you mean \"first_chain\"?"), "{error}");
    runner().only("second_chain").run_once().await.unwrap();
    let names: Vec<String> =
        store.projections().await.unwrap().into_iter().map(|status| status.name).collect();
    assert_eq!(names, ["second_chain"]);
    assert_eq!(chains(&store, "second_chain").await, folded(&store, |_| true).await);
}

/// Everything its code can do wrong: the key, the fold.
struct Panics;

impl DocumentProjection for Panics {
    type Event = crate::chain::AccountEvent;
    type Document = u64;

    fn evolve(&self, _: Option<u64>, _: &Self::Event, _: &RecordedEvent) -> Option<u64> {
        panic!("this one always does")
    }
}

async fn panic_stops_one_projection_and_no_other(fixture: Fixture) {
    let store = fixture.store().await;
    append_accounts(&store, 1, 5).await;
    let mut settings = everfold::ProjectionSettings::default();
    settings.retries = 0;
    let panics = Projection::document("panics", 1, Panics).settings(settings).build().unwrap();
    let runner = Runner::new(&store)
        .projection(panics)
        .projection(Chain::default().projection("chain", OnError::Stop))
        .options(quick("test"))
        .start()
        .await
        .unwrap();
    eventually("it has failed", LIMIT, async || !runner.failed().is_empty()).await;
    let failed = &runner.failed()[0];
    assert_eq!(failed.projection, "panics");
    assert!(failed.reason.contains("this one always does"), "{failed:?}");
    assert_eq!(store.projection("panics").await.unwrap().status, GenerationStatus::Failed);
    append_accounts(&store, 1, 5).await;
    assert_chains(&store, "chain").await;
    let problems = store.health(&Default::default()).await.unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!((problems[0].check, problems[0].projection.as_deref()), ("failed", Some("panics")));
    runner.stop().await;
}

/// Appended by code that does not know the projection, applied by the runner.
async fn inline_projection_is_drained(fixture: Fixture) {
    let (store, stranger) = (fixture.store().await, fixture.store().await);
    let inline = || {
        let chain = Chain::default();
        Projection::document("chain", 1, chain).inline().build().unwrap()
    };
    let runner = run(&store, inline()).await;
    let mut last = Position::START;
    for n in 0..30 {
        let writer = if n % 3 == 0 { &store } else { &stranger };
        let stream = format!("account-{}", n % 4);
        last = append(writer, &stream, [moved(&stream, n)]).await.last_position;
    }
    store.wait_for("chain", last, LIMIT).await.unwrap();
    assert_eq!(chains(&store, "chain").await, folded(&store, |_| true).await);
    assert!(store.skips("chain").await.unwrap().is_empty());
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    assert!(messages.iter().any(|message| message.kind == "skip-settled"));
    runner.stop().await;
}

async fn waiting_says_why_it_was_in_vain(fixture: Fixture) {
    let store = fixture.store().await;
    let none = store.wait_for("chain", Position(1), Duration::ZERO).await.unwrap_err();
    assert!(matches!(none, ProjectionError::Unknown { .. }), "{none}");
    store.register(Chain::default().projection("chain", OnError::Stop)).await.unwrap();
    let unknown = store.wait_for("chains", Position(1), Duration::ZERO).await.unwrap_err();
    assert!(unknown.to_string().contains("did you mean \"chain\"?"), "{unknown}");
    let appended = append(&store, "s", [moved("a", 1)]).await;
    let at = appended.last_position;
    let error = store.wait_for("chain", at, Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, ProjectionError::NotReached { .. }), "{error}");
    assert!(error.to_string().contains("it is active at position 0"), "{error}");
    assert!(!store.wait_for_or_stale("chain", at, Duration::ZERO).await.unwrap());
}

/// Twenty projections with nothing to do: the heartbeat, and one poll of the mark for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_projections_ask_little_of_the_server() {
    let fixture = Fixture::postgres().await;
    let store = fixture.store().await;
    append_accounts(&store, 1, 5).await;
    let chain = Chain::default();
    let projections = (0..20).map(|n| chain.projection(&format!("chain_{n}"), OnError::Stop));
    let runner = Runner::new(&store).projections(projections).start().await.unwrap();
    for n in 0..20 {
        assert_chains(&store, &format!("chain_{n}")).await;
    }
    let client = fixture.database().connect().await;
    let asked = async || {
        let sql = "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database \
                   WHERE datname = current_database()";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(1)
    };
    // A span of time is the thing under test; what happened before is counted with a delay.
    eventually("a time with fewer than 20 transactions a second", LIMIT, async || {
        let before = asked().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        asked().await - before < 3 * 20
    })
    .await;
    runner.stop().await;
}
