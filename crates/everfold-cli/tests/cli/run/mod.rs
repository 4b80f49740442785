//! `everfold run`, and what happens to it.

mod failures;
mod health;
mod input;
mod many;
mod messages;
mod operators;
mod stopping;

use std::time::Duration;

use everfold_testkit::eventually;

use crate::shop::{Shop, on_both_stores};
use crate::support::LIMIT;

pub(crate) const INLINE: &str = "version = 1\nlifecycle = \"inline\"\n";
pub(crate) const CATCH_UP: &str = "version = 1\nlifecycle = \"catch-up\"\n";

on_both_stores! {
    project_of_init_runs_at_once,
    events_are_applied_as_they_come_until_a_signal,
    only_what_was_named_runs,
    runner_that_was_killed_is_taken_over_from,
}

async fn project_of_init_runs_at_once(shop: Shop) {
    // The URL goes to every command, so the project is made beside it.
    shop.run(&["init"]).exits(0);
    let ran = shop.run(&["run", "--once"]).done();
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("registered cart_totals version 1 (inline)"), "{ran:#?}");
    assert!(ran.stderr.contains("registered events_per_day version 1 (catch-up)"), "{ran:#?}");
    shop.run(&["import", "events.sample.jsonl"]).exits(0);
    assert_eq!(
        shop.rows("cart_totals", &["cart_id", "items"]).await,
        ["cart-1001|2", "cart-1002|1"]
    );
    let ran = shop.run(&["run", "--once"]).done();
    assert!(!ran.stderr.contains("registered"), "{ran:#?}");
    assert!(ran.stderr.contains("events_per_day version 1 is active at position 10"), "{ran:#?}");
    let days = shop.rows("events_per_day", &["type", "events"]).await;
    assert!(days.contains(&"ItemAdded|3".to_owned()), "{days:?}");
    shop.run(&["wait", "events_per_day", "--timeout", "5"])
        .done()
        .prints("has reached position 10");
    shop.run(&["status"]).done().prints("events_per_day").prints("catch-up");
    shop.run(&["health"]).done().prints("healthy");
    let json = shop.run(&["health", "--json"]).done().json();
    assert_eq!(json, serde_json::json!({ "healthy": true, "problems": [] }));
    shop.run(&["doctor"]).exits(0).prints("2 registered, nothing is wrong with them");
}

async fn events_are_applied_as_they_come_until_a_signal(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    let running = shop.start(&[]);
    for version in 1..=2 {
        let data = "{\"n\": 5}";
        let appended = ["append", "--stream", "a", "--type", "Counted", "--data", data, "--json"];
        let position = shop.run(&appended).exits(0).json()["last_position"].to_string();
        shop.run(&["wait", "sums", "--at", &position, "--timeout", "20"]).done();
        assert_eq!(shop.rows("sums", &["n", "v"]).await, [format!("{}|{version}", 5 * version)]);
    }
    running.stop();
    assert_eq!(shop.owners("sums"), [None], "the lease was given up");

    let running = shop.start(&[]);
    running.signal("INT");
    assert_eq!(running.ended().0, Some(0));
}

async fn only_what_was_named_runs(shop: Shop) {
    shop.sums("one", CATCH_UP);
    shop.sums("two", CATCH_UP);
    shop.sums("three", "version = 0");
    shop.run(&["run", "--once"]).fails(1, "projections/three/projection.toml line 1");
    shop.sums("three", CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    let ran = shop.run(&["run", "--once", "--only", "two", "--only", "one"]).done();
    assert!(!ran.stderr.contains("three"), "{ran:#?}");
    let json = shop.run(&["status", "--json"]).exits(0).json();
    let names: Vec<_> =
        json["projections"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["one", "two"]);
    let ran = shop.run(&["run", "--once", "--only", "tow"]).fails(1, "no projection \"tow\"");
    ran.says("did you mean \"two\"?");
}

/// kill -9 in the middle of the work: the lease runs out, and nothing is lost or applied twice.
async fn runner_that_was_killed_is_taken_over_from(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}batch_events = 20\n"));
    let numbers: Vec<_> =
        (0..6_000_i64).map(|n| (["a", "b", "c"][n as usize % 3], Some(n))).collect();
    shop.numbers("events", &numbers);
    let running = shop.start(&[]);
    let versions = async || {
        let rows = shop.rows("sums", &["v"]).await;
        rows.iter().map(|version| version.parse::<u64>().unwrap()).sum::<u64>()
    };
    eventually("some events are applied", LIMIT, async || versions().await > 0).await;
    running.signal("KILL");
    assert_eq!(running.ended().0, None, "it was killed");
    let killed_at = versions().await;
    assert!(killed_at < 6_000, "it was killed in the middle");

    let running = shop.start(&[]);
    shop.run(&["wait", "sums", "--timeout", "50"]).done();
    let sum = |from: i64| -> i64 { (0..2_000).map(|n| from + 3 * n).sum() };
    let expected: Vec<_> =
        [("a", 0), ("b", 1), ("c", 2)].map(|(s, n)| format!("{s}|{}|2000", sum(n))).to_vec();
    assert_eq!(shop.rows("sums", &["stream", "n", "v"]).await, expected);
    running.stop();
}

/// The write lock is held, so leases cannot be given up: the first signal waits, the second does not.
#[test]
fn second_signal_ends_it_at_once() {
    let shop = Shop::sqlite();
    shop.sums("sums", CATCH_UP);
    let running = shop.start(&[]);
    let connection = shop.folder.connect();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    running.signal("TERM");
    let running = running.until("another signal ends it at once");
    running.signal("TERM");
    let (code, said) = running.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: ended at once"), "{said}");
}
