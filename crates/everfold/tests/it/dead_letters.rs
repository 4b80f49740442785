//! Events that cannot be applied: retries, each policy, held keys, and what operators can do.

use std::sync::atomic::Ordering;
use std::time::Duration;

use everfold::{
    GenerationStatus, OnError, Position, Projection, ProjectionError, ProjectionSettings, Retried,
    Store,
};
use everfold_testkit::eventually;
use serde_json::json;

use crate::chain::{Chain, LIMIT, Link, assert_chains, chains, folded, moved, poisoned, run};
use crate::fixture::{Fixture, append, event, on_every_store};

on_every_store! {
    failure_that_passes_is_only_retried,
    stop_stands_before_the_event_and_says_why,
    dead_letter_holds_its_key_and_no_other,
    retried_dead_letter_applies_what_waits_in_order,
    dead_letter_that_fails_again_stays_and_counts,
    event_that_fails_behind_a_discarded_one_is_told,
    event_behind_a_dead_letter_can_become_the_next,
    discarded_dead_letter_lets_the_others_go_on,
    skip_leaves_the_event_out_for_good,
    dead_letters_are_retried_beside_a_running_worker,
    runner_retries_for_a_process_without_the_code,
    many_poisonous_events_are_all_put_aside,
    wait_is_not_over_while_something_at_or_below_is_put_aside,
    sql_projection_holds_keys_and_retries,
    event_without_its_key_is_refused,
    events_without_a_key_do_not_wait_for_each_other,
    unknown_dead_letter_is_an_error,
}

async fn at(store: &Store, name: &str, position: Position) {
    eventually("the checkpoint gets there", LIMIT, async || {
        store.projection(name).await.unwrap().position >= position
    })
    .await;
}

async fn failed_reason(store: &Store, name: &str) -> String {
    eventually("the projection fails", LIMIT, async || {
        store.projection(name).await.unwrap().status == GenerationStatus::Failed
    })
    .await;
    store.projection(name).await.unwrap().reason.unwrap()
}

/// Positions of dead letters, each with what it waits behind.
async fn letters(store: &Store, name: &str) -> Vec<(u64, Option<u64>)> {
    let letters = store.dead_letters(name).await.unwrap();
    letters.iter().map(|letter| (letter.position.0, letter.behind.map(|at| at.0))).collect()
}

fn kinds(messages: &[everfold::ProjectionMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.kind.as_str()).collect()
}

async fn failure_that_passes_is_only_retried(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    // Two tries fail, the third works.
    chain.0.fail_times.store(3, Ordering::SeqCst);
    let mut settings = ProjectionSettings::default();
    settings.retries = 5;
    settings.retry_delay = Duration::from_millis(5);
    let projection = chain.builder("chain").settings(settings).build().unwrap();
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("a", 3)]).await;
    let runner = run(&store, projection).await;
    assert_chains(&store, "chain").await;
    assert_eq!(chain.0.tries.load(Ordering::SeqCst), 3);
    let status = store.projection("chain").await.unwrap();
    assert_eq!((status.shards[0].attempts, status.shards[0].failure.clone()), (0, None));
    runner.stop().await;
}

async fn stop_stands_before_the_event_and_says_why(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    append(&store, "s", (0..100).map(|n| moved("a", n))).await;
    append(&store, "t", [moved("b", 1), poisoned("b", 2), moved("b", 3)]).await;
    append(&store, "s", (0..100).map(|n| moved("a", n))).await;
    let runner = run(&store, chain.projection("chain", OnError::Stop)).await;
    let reason = failed_reason(&store, "chain").await;
    for part in ["position 102", "\"Poisoned\"", "stream \"t\"", "number 2 is poisonous"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(reason.contains("everfold resume chain"), "{reason}");
    assert_eq!(store.projection("chain").await.unwrap().position, Position(101));
    let before = folded(&store, |event| event.position.0 <= 101).await;
    assert_eq!(chains(&store, "chain").await, before);
    let told = async || runner.failed().first().is_some_and(|failed| failed.reason == reason);
    eventually("the runner tells", LIMIT, told).await;
    assert!(
        kinds(&store.messages(&everfold::MessageQuery::of("chain")).await.unwrap())
            .contains(&"failure")
    );
    let problems = store.health(&Default::default()).await.unwrap();
    assert_eq!((problems.len(), problems[0].check), (1, "failed"));

    chain.0.mended.store(true, Ordering::SeqCst);
    store.resume("chain").await.unwrap();
    assert_chains(&store, "chain").await;
    assert!(runner.failed().is_empty());
    runner.stop().await;
}

async fn dead_letter_holds_its_key_and_no_other(fixture: Fixture) {
    let store = fixture.store().await;
    let events = [
        moved("a", 1),
        poisoned("a", 2),
        moved("b", 3),
        moved("a", 4),
        moved("b", 5),
        moved("a", 6),
    ];
    append(&store, "s", events).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::DeadLetter)).await;
    at(&store, "chain", Position(6)).await;
    let later = append(&store, "s", [moved("a", 7), moved("b", 8)]).await;
    at(&store, "chain", later.last_position).await;
    let waiting = [(2, None), (4, Some(2)), (6, Some(2)), (7, Some(2))];
    assert_eq!(letters(&store, "chain").await, waiting);
    let letter = &store.dead_letters("chain").await.unwrap()[0];
    assert_eq!((letter.key.as_str(), letter.event_type.as_str()), ("a", "Poisoned"));
    assert!(letter.error.as_ref().unwrap().contains("number 2 is poisonous"), "{letter:?}");
    assert_eq!(letter.attempts, 2, "one try and one retry");
    let applied =
        folded(&store, |event| event.position.0 == 1 || event.data.contains("\"b\"")).await;
    assert_eq!(chains(&store, "chain").await, applied);
    let status = store.projection("chain").await.unwrap();
    assert_eq!(status.status, GenerationStatus::Active);
    assert_eq!((status.dead_letters, status.held_events), (1, 3));
    assert!(status.oldest_dead_letter.is_some());
    runner.stop().await;
}

/// `a` waits behind position 2; `b` goes on.
async fn with_a_dead_letter(store: &Store, chain: &Chain) -> everfold::RunnerHandle {
    let events = [moved("a", 1), poisoned("a", 2), moved("a", 3), moved("b", 4), moved("a", 5)];
    append(store, "s", events).await;
    let runner = run(store, chain.projection("chain", OnError::DeadLetter)).await;
    at(store, "chain", Position(5)).await;
    assert_eq!(letters(store, "chain").await, [(2, None), (3, Some(2)), (5, Some(2))]);
    runner
}

async fn retried_dead_letter_applies_what_waits_in_order(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    let runner = with_a_dead_letter(&store, &chain).await;
    chain.0.mended.store(true, Ordering::SeqCst);
    let retried = store.retry_dead_letter("chain", Position(2)).await.unwrap();
    assert_eq!(retried, Retried::Applied { events: 3 });
    assert_eq!(letters(&store, "chain").await, []);
    assert_chains(&store, "chain").await;
    append(&store, "s", [moved("a", 6)]).await;
    assert_chains(&store, "chain").await;
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    assert!(kinds(&messages).contains(&"dead-letter-retried"), "{messages:?}");
    runner.stop().await;
}

async fn dead_letter_that_fails_again_stays_and_counts(fixture: Fixture) {
    let store = fixture.store().await;
    let runner = with_a_dead_letter(&store, &Chain::default()).await;
    for attempts in 3..=4 {
        let retried = store.retry_dead_letters("chain").await.unwrap();
        let [(position, Retried::FailedAgain { position: failed, error })] = &retried[..] else {
            panic!("wanted one failure, got {retried:?}");
        };
        assert_eq!((position.0, failed.0), (2, 2));
        assert!(error.contains("number 2 is poisonous"), "{error}");
        assert_eq!(store.dead_letters("chain").await.unwrap()[0].attempts, attempts);
    }
    assert_eq!(letters(&store, "chain").await, [(2, None), (3, Some(2)), (5, Some(2))]);
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    let tries: Vec<_> = messages.iter().filter(|m| m.kind == "dead-letter-retried").collect();
    assert_eq!(tries.len(), 2, "{messages:?}");
    for message in tries {
        assert_eq!((message.position, message.key.as_deref()), (Some(Position(2)), Some("a")));
        assert!(message.message.starts_with("failed again: event at position 2"), "{message:?}");
    }
    runner.stop().await;
}

async fn event_that_fails_behind_a_discarded_one_is_told(fixture: Fixture) {
    let store = fixture.store().await;
    let events = [poisoned("a", 1), moved("a", 2), poisoned("a", 3), moved("a", 4)];
    append(&store, "s", events).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::DeadLetter)).await;
    at(&store, "chain", Position(4)).await;
    let discarded = store.discard_dead_letter("chain", Position(1), "a test event").await.unwrap();
    assert!(
        matches!(discarded, Retried::FailedAgain { position: Position(3), .. }),
        "{discarded:?}"
    );
    assert_eq!(letters(&store, "chain").await, [(3, None), (4, Some(3))]);
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    let put_aside = messages.iter().filter(|message| message.kind == "dead-letter");
    let mut positions: Vec<_> = put_aside.map(|message| message.position).collect();
    positions.sort_unstable();
    assert_eq!(positions, [Some(Position(1)), Some(Position(3))], "{messages:?}");
    runner.stop().await;
}

async fn event_behind_a_dead_letter_can_become_the_next(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    let events = [poisoned("a", 1), moved("a", 2), poisoned("a", 3), moved("a", 4)];
    append(&store, "s", events).await;
    let runner = run(&store, chain.projection("chain", OnError::DeadLetter)).await;
    at(&store, "chain", Position(4)).await;
    // The first try of the first one works, that of the second does not.
    chain.0.fail_times.store(1, Ordering::SeqCst);
    let retried = store.retry_dead_letter("chain", Position(1)).await.unwrap();
    let Retried::FailedAgain { position, .. } = retried else { panic!("{retried:?}") };
    // The first try may have been the whole at once, so that either of them failed then.
    let letters_now = letters(&store, "chain").await;
    assert_eq!(letters_now[0], (position.0, None));
    chain.0.mended.store(true, Ordering::SeqCst);
    let retried = store.retry_dead_letter("chain", position).await.unwrap();
    assert!(matches!(retried, Retried::Applied { .. }), "{retried:?}");
    assert_eq!(letters(&store, "chain").await, []);
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

async fn discarded_dead_letter_lets_the_others_go_on(fixture: Fixture) {
    let store = fixture.store().await;
    let runner = with_a_dead_letter(&store, &Chain::default()).await;
    let discarded = store.discard_dead_letter("chain", Position(2), "a test event").await.unwrap();
    assert_eq!(discarded, Retried::Applied { events: 2 });
    assert_eq!(letters(&store, "chain").await, []);
    let without = folded(&store, |event| event.position.0 != 2).await;
    assert_eq!(chains(&store, "chain").await, without);
    store.wait_for("chain", Position(5), LIMIT).await.unwrap();
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    let message = messages.iter().find(|message| message.kind == "dead-letter-discarded").unwrap();
    assert_eq!(message.position, Some(Position(2)));
    assert_eq!(message.message, "a test event");
    runner.stop().await;
}

async fn skip_leaves_the_event_out_for_good(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "s", [moved("a", 1), poisoned("a", 2), moved("a", 3)]).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::Skip)).await;
    store.wait_for("chain", Position(3), LIMIT).await.unwrap();
    assert_eq!(chains(&store, "chain").await["a"], Link::then(Some(Link::then(None, 1)), 3));
    assert_eq!(letters(&store, "chain").await, []);
    let messages = store.messages(&everfold::MessageQuery::of("chain")).await.unwrap();
    let message = messages.iter().find(|message| message.kind == "skipped").unwrap();
    assert_eq!(message.position, Some(Position(2)));
    assert!(message.message.contains("number 2 is poisonous"), "{message:?}");
    runner.stop().await;
}

/// A held event must never be left behind nothing: retry and worker take turns on the checkpoint.
async fn dead_letters_are_retried_beside_a_running_worker(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    let runner = run(&store, chain.projection("chain", OnError::DeadLetter)).await;
    let writer = fixture.store().await;
    let writing = tokio::spawn(async move {
        for n in 0..150 {
            let account = format!("account-{}", n % 3);
            let event = if n % 20 == 7 { poisoned(&account, n) } else { moved(&account, n) };
            append(&writer, &account, [event]).await;
        }
    });
    let mut round = 0u32;
    while !writing.is_finished() {
        chain.0.mended.store(round % 3 == 2, Ordering::SeqCst);
        store.retry_dead_letters("chain").await.unwrap();
        round += 1;
    }
    writing.await.unwrap();
    chain.0.mended.store(true, Ordering::SeqCst);
    let mark = store.high_water_mark().await.unwrap();
    at(&store, "chain", mark).await;
    store.retry_dead_letters("chain").await.unwrap();
    assert_eq!(letters(&store, "chain").await, []);
    assert_chains(&store, "chain").await;
    runner.stop().await;
}

async fn runner_retries_for_a_process_without_the_code(fixture: Fixture) {
    let store = fixture.store().await;
    let operator = fixture.store().await;
    let chain = Chain::default();
    let runner = with_a_dead_letter(&store, &chain).await;
    chain.0.mended.store(true, Ordering::SeqCst);
    let refused = operator.discard_dead_letter("chain", Position(2), "no").await.unwrap_err();
    assert!(refused.to_string().contains("does not have its code"), "{refused}");
    let retried = operator.retry_dead_letter("chain", Position(2)).await.unwrap();
    assert_eq!(retried, Retried::Requested);
    assert_chains(&operator, "chain").await;
    let missing = operator.retry_dead_letter("chain", Position(2)).await.unwrap_err();
    assert!(matches!(missing, ProjectionError::NoDeadLetter { .. }), "{missing}");
    runner.stop().await;
}

async fn many_poisonous_events_are_all_put_aside(fixture: Fixture) {
    let store = fixture.store().await;
    let event = |n: u64| match n % 4 {
        0 => poisoned(&format!("bad-{n}"), n),
        _ => moved(&format!("good-{}", n % 9), n),
    };
    append(&store, "s", (1..=200).map(event)).await;
    let runner = run(&store, Chain::default().projection("chain", OnError::DeadLetter)).await;
    at(&store, "chain", Position(200)).await;
    let expected: Vec<(u64, Option<u64>)> = (1..=50).map(|n| (n * 4, None)).collect();
    assert_eq!(letters(&store, "chain").await, expected);
    let good = folded(&store, |event| event.event_type == "Moved").await;
    assert_eq!(chains(&store, "chain").await, good);
    runner.stop().await;
}

async fn wait_is_not_over_while_something_at_or_below_is_put_aside(fixture: Fixture) {
    let store = fixture.store().await;
    let chain = Chain::default();
    let runner = with_a_dead_letter(&store, &chain).await;
    let soon = Duration::from_millis(50);
    store.wait_for("chain", Position(1), LIMIT).await.unwrap();
    for position in 2..=5 {
        let error = store.wait_for("chain", Position(position), soon).await.unwrap_err();
        assert!(error.to_string().contains("owed or put aside"), "{error}");
        assert!(!store.wait_for_or_stale("chain", Position(position), soon).await.unwrap());
    }
    chain.0.mended.store(true, Ordering::SeqCst);
    store.retry_dead_letters("chain").await.unwrap();
    store.wait_for("chain", Position(5), LIMIT).await.unwrap();
    runner.stop().await;
}

/// The database refuses an amount of 13 until it is allowed.
async fn sql_projection_holds_keys_and_retries(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    settings.retries = 0;
    settings.on_error = OnError::DeadLetter;
    let projection = Projection::sql("totals", 1)
        .create(
            "CREATE TABLE read_model.totals (account TEXT PRIMARY KEY, total BIGINT NOT NULL);
             CREATE TABLE read_model.moves (position BIGINT PRIMARY KEY, n BIGINT NOT NULL);
             CREATE TABLE read_model.allowed (n BIGINT PRIMARY KEY);",
        )
        .apply(
            "INSERT INTO read_model.totals AS t (account, total)
             SELECT data->>'account', SUM(CAST(data->>'n' AS BIGINT)) FROM batch
             GROUP BY data->>'account'
             ON CONFLICT (account) DO UPDATE SET total = t.total + EXCLUDED.total;
             INSERT INTO read_model.moves (position, n)
             SELECT position, CASE WHEN CAST(data->>'n' AS BIGINT) = 13
                 AND NOT EXISTS (SELECT 1 FROM read_model.allowed)
                 THEN NULL ELSE CAST(data->>'n' AS BIGINT) END
             FROM batch;",
        )
        .key_fields(["data.account"])
        .settings(settings)
        .build()
        .unwrap();
    append(&store, "s", [moved("a", 1), moved("a", 13), moved("b", 2), moved("a", 4)]).await;
    let runner = run(&store, projection).await;
    at(&store, "totals", Position(4)).await;
    assert_eq!(letters(&store, "totals").await, [(2, None), (4, Some(2))]);
    let error = store.dead_letters("totals").await.unwrap()[0].error.clone().unwrap();
    assert!(error.contains("apply"), "no file in: {error}");
    // Another batch with a held key.
    append(&store, "s", [moved("a", 5), moved("b", 6)]).await;
    at(&store, "totals", Position(6)).await;
    assert_eq!(letters(&store, "totals").await, [(2, None), (4, Some(2)), (5, Some(2))]);
    assert_eq!(fixture.pairs("totals", "account", "total").await, [("a", 1), ("b", 8)].map(pair));

    fixture.execute_in("totals", "INSERT INTO {}allowed VALUES (13)").await;
    let retried = store.retry_dead_letter("totals", Position(2)).await.unwrap();
    assert_eq!(retried, Retried::Applied { events: 3 });
    store.wait_for("totals", Position(6), LIMIT).await.unwrap();
    assert_eq!(fixture.pairs("totals", "account", "total").await, [("a", 23), ("b", 8)].map(pair));
    runner.stop().await;
}

fn pair((account, total): (&str, i64)) -> (String, i64) {
    (account.to_owned(), total)
}

async fn event_without_its_key_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    settings.retries = 0;
    for (name, shards) in [("totals", 1), ("totals_sharded", 3)] {
        let projection = Projection::sql(name, 1)
            .create(format!(
                "CREATE TABLE read_model.{name} (account TEXT PRIMARY KEY, events BIGINT NOT NULL);"
            ))
            .apply(format!(
                "INSERT INTO read_model.{name} AS t (account, events)
                 SELECT data->>'account', COUNT(*) FROM batch GROUP BY data->>'account'
                 ON CONFLICT (account) DO UPDATE SET events = t.events + EXCLUDED.events;"
            ))
            .key_fields(["data.account"])
            .shards(shards)
            .settings(settings.clone())
            .build()
            .unwrap();
        store.register(projection.clone()).await.unwrap();
        append(&store, "s", [moved("a", 1), event("Moved", json!({ "account": null, "n": 2 }))])
            .await;
        let runner = run(&store, projection).await;
        let reason = failed_reason(&store, name).await;
        assert!(reason.contains("position 2"), "{reason}");
        assert!(reason.contains("data.account is missing or null"), "{reason}");
        runner.stop().await;
    }
}

async fn unknown_dead_letter_is_an_error(fixture: Fixture) {
    let store = fixture.store().await;
    let runner = with_a_dead_letter(&store, &Chain::default()).await;
    for position in [1, 3, 99] {
        let error = store.retry_dead_letter("chain", Position(position)).await.unwrap_err();
        let ProjectionError::NoDeadLetter { projection, .. } = error else { panic!("{error}") };
        assert_eq!(projection, "chain");
        let error = store.discard_dead_letter("chain", Position(position), "no").await.unwrap_err();
        assert!(matches!(error, ProjectionError::NoDeadLetter { .. }), "{error}");
    }
    let error = store.retry_dead_letters("chians").await.unwrap_err();
    assert!(error.to_string().contains("did you mean \"chain\"?"), "{error}");
    runner.stop().await;
}

async fn events_without_a_key_do_not_wait_for_each_other(fixture: Fixture) {
    let store = fixture.store().await;
    let mut settings = ProjectionSettings::default();
    (settings.retries, settings.on_error) = (0, OnError::DeadLetter);
    let mut runner = everfold::Runner::new(&store);
    for name in ["totals_inline", "totals_behind"] {
        let projection = Projection::sql(name, 1)
            .create(format!(
                "CREATE TABLE read_model.{name} (account TEXT PRIMARY KEY, events BIGINT NOT NULL);"
            ))
            .apply(format!(
                "INSERT INTO read_model.{name} AS t (account, events)
                 SELECT data->>'account', COUNT(*) FROM batch GROUP BY data->>'account'
                 ON CONFLICT (account) DO UPDATE SET events = t.events + EXCLUDED.events;"
            ))
            .key_fields(["data.account"])
            .settings(settings.clone());
        let projection = if name == "totals_inline" { projection.inline() } else { projection };
        let projection = projection.build().unwrap();
        store.register(projection.clone()).await.unwrap();
        runner = runner.projection(projection);
    }
    let keyless = || event("Moved", json!({ "n": 2 }));
    let appended = append(&store, "s", [moved("a", 1), keyless(), keyless(), moved("a", 2)]).await;
    let runner = runner.start().await.unwrap();
    for name in ["totals_inline", "totals_behind"] {
        at(&store, name, appended.last_position).await;
        assert_eq!(letters(&store, name).await, [(2, None), (3, None)], "{name}");
        let outcome = store.wait_for_or_stale(name, appended.last_position, Duration::ZERO).await;
        assert!(!outcome.unwrap(), "{name}: two events are put aside");
        for position in [3, 2] {
            store.discard_dead_letter(name, Position(position), "no account").await.unwrap();
        }
        assert_eq!(letters(&store, name).await, [], "{name}");
        store.wait_for(name, appended.last_position, LIMIT).await.unwrap();
    }
    runner.stop().await;
}
