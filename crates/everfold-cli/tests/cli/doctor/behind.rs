//! A read model lacks an event that was appended, is older than it may be, or does not move.

use std::time::Duration;

use everfold_testkit::eventually;

use super::{CATCH_UP, Found, INLINE, eventually_found};
use crate::shop::{Running, Shop, on_both_stores};
use crate::support::LIMIT;

on_both_stores! {
    catch_up_that_nobody_runs_is_behind,
    worker_that_died_is_named,
    event_that_is_owed_is_named,
    event_that_was_put_aside_is_named,
    old_dead_letter_and_old_skip_are_problems,
    paused_projection_is_told_with_who_and_why,
    projection_that_waits_for_its_backfill_is_told,
    stale_read_model_is_a_problem_by_its_settings_or_the_option,
    failed_projection_is_told_with_event_and_line,
    runner_that_tries_again_and_again_is_told_with_its_lease,
    rebuild_that_nobody_works_on_is_told,
}

const AN_HOUR: Duration = Duration::from_secs(60 * 60);

/// Starts a runner; its name, once it has the lease.
async fn start(shop: &Shop) -> (Running, String) {
    let running = shop.start(&[]);
    eventually("it has its lease", LIMIT, async || {
        shop.run(&["status", "sums"]).code == Some(0) && shop.owners("sums")[0].is_some()
    })
    .await;
    let worker = shop.owners("sums").remove(0).unwrap();
    (running, worker)
}

async fn catch_up_that_nobody_runs_is_behind(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2))]);
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, behind: ");
    assert!(message.contains("2 events behind, and nobody runs it"), "{message}");
    assert_eq!(hint, "`everfold run`");
    // After a minute it is a problem.
    shop.number_of_long_ago("b", Some(1), AN_HOUR);
    shop.run(&["run", "--once"]).done();
    shop.number_of_long_ago("c", Some(1), AN_HOUR);
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "projections", "sums, stalled: ");
    assert!(message.contains("1 event behind, and nobody runs it"), "{message}");
    assert_eq!(hint, "`everfold run`");

    let running = shop.start(&[]);
    shop.run(&["wait", "sums", "--timeout", "20"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
    running.stop();
}

async fn worker_that_died_is_named(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    let (running, worker) = start(&shop).await;
    running.signal("KILL");
    drop(running);
    shop.numbers("events", &[("a", Some(1))]);
    // As a lease of 15 s does, without waiting for it.
    let past = match shop.is_sqlite() {
        true => "1".to_owned(),
        false => "clock_timestamp() - interval '1 second'".to_owned(),
    };
    for table in ["workers", "checkpoints"] {
        let expire = format!("UPDATE everfold.{table} SET expires_at = {past}");
        shop.execute(&expire).await;
    }
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, behind: ");
    assert!(message.contains(&format!("nobody runs it: worker {worker} has gone")), "{message}");
    assert!(message.contains("its lease ran out at "), "{message}");
    assert_eq!(hint, "`everfold run`");
    // He is named as well once it is a problem.
    let found = Found::by(&shop, &["--stalled-after", "0"], 3);
    found.told("problem", "projections", "sums, stalled: ");
    found.told("warning", "projections", &format!("worker {worker} has gone silent"));
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}

async fn event_that_is_owed_is_named(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "sums"]).done();
    shop.numbers("events", &[("a", Some(1))]);
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, owed: ");
    assert!(message.contains("1 event is owed since 20"), "{message}");
    assert!(message.contains("; the first at position 1: "), "{message}");
    assert_eq!(hint, "`everfold resume sums`");

    shop.run(&["resume", "sums"]).done();
    let (_, hint) = Found::by(&shop, &[], 0).told("warning", "projections", "sums, owed: ");
    assert_eq!(hint, "`everfold skips drain sums`");
    shop.run(&["skips", "drain", "sums"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}

async fn event_that_was_put_aside_is_named(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.numbers("events", &[("a", None), ("a", Some(1))]);
    shop.run(&["run", "--once"]).exits(0);
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, put aside: ");
    assert!(message.contains("1 dead letter, 1 event behind, since 20"), "{message}");
    let event = "the first is the event at position 1 (\"Counted\", stream \"a\"): ";
    assert!(message.contains(event) && message.contains("apply.sql:1"), "{message}");
    assert_eq!(hint, "`everfold dead-letters list sums`");
    shop.run(&["--yes", "dead-letters", "discard", "sums", "1"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}

async fn old_dead_letter_and_old_skip_are_problems(shop: Shop) {
    shop.sums("letters", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.numbers("events", &[("a", None)]);
    shop.run(&["run", "--once"]).exits(0);
    let found = Found::by(&shop, &["--dead-letter-age", "0"], 3);
    let (message, hint) = found.told("problem", "projections", "letters, dead-letters: ");
    assert!(message.contains("1 dead letter, the oldest for "), "{message}");
    assert_eq!(hint, "`everfold dead-letters list letters`");
    shop.run(&["--yes", "dead-letters", "discard", "letters", "1"]).done();

    shop.sums("sums", &format!("{INLINE}events = [\"Other\"]\n"));
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "sums"]).done();
    shop.run(&["append", "--stream", "b", "--type", "Other", "--data", "{\"n\": 1}"]).exits(0);
    shop.run(&["run", "--once"]).exits(0);
    let found = Found::by(&shop, &["--skip-age", "0"], 3);
    let (message, hint) = found.told("problem", "projections", "sums, skips: ");
    assert!(message.contains("1 event is owed, the oldest for "), "{message}");
    assert_eq!(hint, "`everfold resume sums`");
    shop.run(&["resume", "sums"]).done();
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &["--skip-age", "0", "--dead-letter-age", "0"], 0).is_ok("projections");
}

async fn paused_projection_is_told_with_who_and_why(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "sums"]).done();
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, paused: paused by ");
    assert!(message.contains("goes on with it"), "{message}");
    assert_eq!(hint, "`everfold resume sums`");
    shop.run(&["resume", "sums"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}

async fn projection_that_waits_for_its_backfill_is_told(shop: Shop) {
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2)), ("a", Some(3))]);
    shop.sums("sums", INLINE);
    shop.run(&["rebuild", "sums", "--rate", "1", "--detach"]).done();
    shop.run(&["rebuilds", "pause", "sums"]).done();
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "projections", "sums, building: ");
    assert!(message.contains("it cannot be read yet: "), "{message}");
    assert_eq!(hint, "`everfold rebuilds sums`");
    let (_, hint) = found.told("warning", "projections", "sums, rebuild: its rebuild is paused");
    assert_eq!(hint, "`everfold rebuilds resume sums`");
    shop.run(&["--yes", "rebuilds", "cancel", "sums"]).exits(0);
    shop.run(&["rebuild", "sums"]).exits(0);
    Found::by(&shop, &[], 0).is_ok("projections");
}

async fn stale_read_model_is_a_problem_by_its_settings_or_the_option(shop: Shop) {
    shop.sums("strict", &format!("{CATCH_UP}lag_warn = \"5m\"\nlag_fail = \"30m\"\n"));
    shop.sums("uneasy", &format!("{CATCH_UP}lag_warn = \"30m\"\nlag_fail = \"2h\"\n"));
    shop.sums("patient", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.number_of_long_ago("a", Some(1), AN_HOUR);
    let patience = ["--stalled-after", "2h"];
    let found = Found::by(&shop, &patience, 3);
    let (message, hint) = found.told("problem", "projections", "strict, lag: ");
    assert!(message.ends_with(" s and 1 event behind, more than lag_fail allows"), "{message}");
    assert_eq!(hint, "`everfold run`");
    found.told("warning", "projections", "uneasy, lag: ");
    assert!(!found.text.stdout.contains("patient, lag"), "{:#?}", found.text);

    let found = Found::by(&shop, &["--stalled-after", "2h", "--stale", "10m"], 3);
    for name in ["uneasy", "patient"] {
        let (message, _) = found.told("problem", "projections", &format!("{name}, lag: "));
        assert!(message.ends_with("more than --stale allows"), "{message}");
    }
    let health = shop.run(&["health", "--stalled-after", "2h", "--stale", "10m"]).exits(3);
    health.prints("problem  patient  lag: ");
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &["--stale", "0"], 0).is_ok("projections");
}

async fn failed_projection_is_told_with_event_and_line(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\n"));
    shop.numbers("events", &[("a", Some(1)), ("b", None)]);
    shop.run(&["run", "--once"]).exits(1);
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "projections", "sums, failed: ");
    let event = "event at position 2 (\"Counted\", stream \"b\"): projections/sums/apply.sql:1: ";
    assert!(message.contains(event), "{message}");
    assert_eq!(hint, "`everfold resume sums`");
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.run(&["resume", "sums"]).done();
    shop.run(&["run", "--once"]).exits(0);
    Found::by(&shop, &[], 0).told("warning", "projections", "sums, put aside: ");
}

async fn runner_that_tries_again_and_again_is_told_with_its_lease(shop: Shop) {
    let toml = "retries = 1000\nretry_delay = \"5m\"\nretry_delay_max = \"5m\"\n";
    shop.sums("sums", &format!("{CATCH_UP}{toml}"));
    shop.run(&["run", "--once"]).done();
    let (running, worker) = start(&shop).await;
    shop.number_of_long_ago("a", None, AN_HOUR);
    let (message, hint) =
        eventually_found(&shop, &[], 3, "warning", "projections", "sums, failing: ");
    for part in [
        "shard 0 stands at position 0 since 20",
        &format!("run by {worker} since 20"),
        ", lease until 20",
        "what comes next has failed once: ",
        "apply.sql:1: ",
    ] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    assert_eq!(hint, "`everfold status sums`");
    Found::by(&shop, &[], 3).told("problem", "projections", "and it does not move");
    drop(running);
}

async fn rebuild_that_nobody_works_on_is_told(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    shop.run(&["rebuild", "sums", "--detach"]).done();
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "projections", "sums, rebuild: ");
    assert!(message.contains("and nobody works on it"), "{message}");
    assert_eq!(hint, "`everfold rebuild sums`");
    shop.run(&["rebuild", "sums"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}
