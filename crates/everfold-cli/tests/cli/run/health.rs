//! `everfold health`: every trouble made for real, with the default thresholds, its text and code 3. A
//! mark that stands still is in `postgres.rs`: on SQLite nothing can hold it.

use std::time::Duration;

use everfold_testkit::eventually;

use super::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};
use crate::support::{LIMIT, Ran};

on_both_stores! {
    lag_beyond_its_thresholds_is_told,
    projection_that_nobody_runs_is_stalled,
    projection_that_is_run_and_does_not_move_is_stalled,
    old_dead_letter_is_a_problem,
    old_skip_is_a_problem,
    failed_and_paused_projections_are_told,
    inline_projection_that_waits_for_its_backfill_is_a_warning,
}

const AN_HOUR: Duration = Duration::from_secs(60 * 60);

/// What is told about a projection, without the number of seconds.
#[track_caller]
fn told(ran: &Ran, about: &str) -> String {
    let line = ran.stdout.lines().find(|line| line.contains(about));
    let line = line.unwrap_or_else(|| panic!("nothing about {about} in {ran:#?}"));
    let shown = line.split(' ').map(|word| match word.parse::<f64>() {
        Ok(seconds) if (3_599.0..3_700.0).contains(&seconds) => "3600".to_owned(),
        _ => word.to_owned(),
    });
    shown.collect::<Vec<_>>().join(" ")
}

async fn lag_beyond_its_thresholds_is_told(shop: Shop) {
    shop.sums("patient", &format!("{CATCH_UP}lag_warn = \"2h\"\nlag_fail = \"3h\"\n"));
    shop.sums("uneasy", &format!("{CATCH_UP}lag_warn = \"30m\"\nlag_fail = \"2h\"\n"));
    shop.sums("strict", &format!("{CATCH_UP}lag_warn = \"5m\"\nlag_fail = \"30m\"\n"));
    shop.run(&["run", "--once"]).done();
    shop.run(&["health"]).done().prints("healthy");
    shop.number_of_long_ago("a", Some(1), AN_HOUR);
    let ran = shop.run(&["health", "--stalled-after", "2h"]).exits(3);
    assert_eq!(
        told(&ran, "strict"),
        "problem  strict  lag: 3600 s and 1 event behind, more than lag_fail allows"
    );
    assert_eq!(
        told(&ran, "uneasy"),
        "warning  uneasy  lag: 3600 s and 1 event behind, more than lag_warn allows"
    );
    assert_eq!(ran.stdout.lines().count(), 2, "{ran:#?}");
    shop.run(&["run", "--once"]).done();
    shop.run(&["health"]).done().prints("healthy");
}

async fn projection_that_nobody_runs_is_stalled(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.numbers("young", &[("b", Some(1))]);
    shop.run(&["health"]).done().prints("healthy");
    shop.run(&["run", "--once"]).done();
    shop.number_of_long_ago("a", Some(1), AN_HOUR);
    let ran = shop.run(&["health"]).exits(3);
    assert_eq!(
        told(&ran, "sums"),
        "problem  sums  stalled: 3600 s and 1 event behind, and nobody runs it; start a runner that \
         carries it (`everfold run`)"
    );
    let running = shop.start(&[]);
    shop.run(&["wait", "sums", "--timeout", "20"]).done();
    shop.run(&["health"]).done().prints("healthy");
    running.stop();
}

async fn projection_that_is_run_and_does_not_move_is_stalled(shop: Shop) {
    // A runner that has the lease, and tries again and again for an hour.
    let toml = "retries = 1000\nretry_delay = \"5m\"\nretry_delay_max = \"5m\"\n";
    shop.sums("sums", &format!("{CATCH_UP}{toml}"));
    shop.run(&["run", "--once"]).done();
    shop.number_of_long_ago("a", None, AN_HOUR);
    let running = shop.start(&[]).until("events could not be applied");
    eventually("the failure is noted", LIMIT, async || {
        shop.status("sums")["shards"][0]["failure"].is_string()
    })
    .await;
    let ran = shop.run(&["health"]).exits(3);
    assert_eq!(
        told(&ran, "sums"),
        "problem  sums  stalled: 3600 s and 1 event behind, and it does not move; `everfold status` \
         shows the last failure, `everfold doctor` who holds the mark"
    );
    shop.run(&["status", "sums"])
        .done()
        .prints("shard 0 failed, 1 try: projections/sums/apply.sql:");
    drop(running);
}

async fn old_dead_letter_is_a_problem(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n"));
    shop.numbers("events", &[("a", None), ("a", Some(1))]);
    shop.run(&["run", "--once"]).exits(0);
    shop.run(&["health"]).done().prints("healthy");
    let old = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(3_605)).to_string();
    shop.execute(&format!("UPDATE everfold.dead_letters SET created_at = '{old}'")).await;
    let ran = shop.run(&["health"]).exits(3);
    assert_eq!(
        told(&ran, "sums"),
        "problem  sums  dead-letters: 1 dead letter, the oldest for 3600 s, and 1 event behind; look \
         at `everfold dead-letters list sums`, then retry or discard"
    );
    shop.run(&["doctor"]).exits(3).prints("-> `everfold dead-letters list sums`");
    shop.run(&["--yes", "dead-letters", "discard", "sums", "1"]).done();
    shop.run(&["health"]).done().prints("healthy");
}

async fn old_skip_is_a_problem(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "sums"]).done();
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["health"]).exits(0);
    let old = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(3_605)).to_string();
    shop.execute(&format!("UPDATE everfold.skips SET skipped_at = '{old}'")).await;
    let ran = shop.run(&["health"]).exits(3);
    assert_eq!(
        told(&ran, "skips:"),
        "problem  sums  skips: 1 event is owed, the oldest for 3600 s; it is paused: `everfold resume \
         sums`"
    );
    shop.run(&["resume", "sums"]).done();
    let ran = shop.run(&["health"]).exits(3);
    assert_eq!(
        told(&ran, "skips:"),
        "problem  sums  skips: 1 event is owed, the oldest for 3600 s; start a runner that carries \
         this projection (`everfold run`)"
    );
    shop.run(&["run", "--once"]).done();
    shop.run(&["health"]).done().prints("healthy");
}

async fn failed_and_paused_projections_are_told(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}retries = 0\n"));
    shop.numbers("events", &[("a", None)]);
    shop.run(&["run", "--once"]).exits(1);
    let ran = shop.run(&["health"]).exits(3);
    let line = told(&ran, "sums");
    for part in [
        "problem  sums  failed: event at position 1 (\"Counted\", stream \"a\"): ",
        "projections/sums/apply.sql:1: ",
        "then `everfold resume sums`",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    shop.sums("other", &format!("{CATCH_UP}events = [\"Other\"]\n"));
    shop.run(&["run", "--once", "--only", "other"]).done();
    shop.run(&["pause", "other"]).done();
    let line = told(&shop.run(&["health"]).exits(3), "other");
    assert!(line.starts_with("warning  other  paused: paused by "), "{line}");
    assert!(line.ends_with("; `everfold resume other` goes on with it"), "{line}");
}

async fn inline_projection_that_waits_for_its_backfill_is_a_warning(shop: Shop) {
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2)), ("a", Some(3))]);
    shop.sums("sums", INLINE);
    shop.run(&["rebuild", "sums", "--rate", "1", "--detach"]).done();
    shop.run(&["rebuilds", "pause", "sums"]).done();
    let ran = shop.run(&["health"]).exits(0);
    let ran = ran.prints("warning  sums  building: it cannot be read yet: ");
    ran.prints("warning  sums  rebuild: its rebuild is paused; `everfold rebuilds resume sums`");
}
