//! Events that cannot be applied, and what operators do about them.

use super::CATCH_UP;
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    failed_projection_is_told_and_the_others_go_on,
    dead_letters_are_listed_retried_and_discarded,
    refused_projection_does_not_keep_the_others_from_running,
}

async fn failed_projection_is_told_and_the_others_go_on(shop: Shop) {
    let toml = format!("{CATCH_UP}retries = 1\nretry_delay = \"1ms\"\n");
    shop.sums("sums", &toml);
    shop.projection(
        "streams",
        CATCH_UP,
        "CREATE TABLE read_model.streams (stream TEXT PRIMARY KEY)",
        "INSERT INTO read_model.streams SELECT DISTINCT stream_id FROM batch WHERE true \
         ON CONFLICT DO NOTHING",
    );
    shop.numbers("events", &[("a", Some(1)), ("b", None), ("c", Some(3))]);
    let ran = shop.run(&["run", "--once"]).exits(1);
    assert!(ran.stderr.contains("error: sums version 1 has failed: "), "{ran:#?}");
    assert!(ran.stderr.contains("apply.sql:1"), "file and line: {ran:#?}");
    assert!(ran.stderr.contains("then `everfold resume sums`"), "{ran:#?}");
    assert_eq!(shop.rows("streams", &["stream"]).await, ["a", "b", "c"]);
    assert_eq!(shop.rows("sums", &["stream"]).await, ["a"], "it stands before the bad event");

    let status = shop.status("sums");
    assert_eq!((&status["status"], &status["position"]), (&"failed".into(), &1.into()));
    assert!(status["reason"].as_str().unwrap().contains("position 2"), "{status}");
    shop.run(&["status"]).exits(0).prints("\n    reason: ");
    let ran = shop.run(&["health"]).exits(3).prints("problem  sums  failed: ");
    assert_eq!(ran.stderr, "");
    let json = shop.run(&["health", "--json"]).exits(3).json();
    assert_eq!(
        (&json["healthy"], &json["problems"][0]["check"]),
        (&false.into(), &"failed".into())
    );
    shop.run(&["doctor"]).exits(3).prints("  sums, failed: ");
    let ran = shop.run(&["wait", "sums", "--timeout", "0"]).fails(3, "it is failed at position 1");
    ran.says("did not reach position 3");
    shop.run(&["wait", "sums", "--timeout", "0", "--stale"]).done().prints("sums is stale");

    // A running one tells it once, and goes on with the others.
    shop.run(&["resume", "sums"]).done().prints("resumed sums");
    let running = shop.start(&[]).until("sums version 1 has failed: ");
    shop.numbers("more", &[("d", Some(4))]);
    shop.run(&["wait", "streams", "--timeout", "20"]).done();
    let said = running.stop();
    assert_eq!(said.matches("has failed").count(), 1, "{said}");
}

async fn dead_letters_are_listed_retried_and_discarded(shop: Shop) {
    let toml = format!("{CATCH_UP}retries = 0\non_error = \"dead-letter\"\n");
    shop.sums("sums", &toml);
    shop.run(&["run", "--once"]).done();
    shop.run(&["dead-letters", "list"]).done().prints("no dead letters");
    let numbers = [("a", Some(1)), ("b", None), ("b", Some(5)), ("c", Some(3)), ("b", Some(6))];
    shop.numbers("events", &numbers);
    let ran = shop.run(&["run", "--once"]).exits(0);
    assert!(ran.stderr.contains("sums has 1 dead letter, 2 events behind"), "{ran:#?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1", "c|3"]);

    let listed = shop.run(&["dead-letters", "list", "--json"]).done().json_lines();
    let of = |name: &str| listed.iter().map(|letter| letter[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("position"), [2, 3, 5]);
    assert_eq!(of("behind"), [serde_json::Value::Null, 2.into(), 2.into()]);
    assert_eq!(of("key"), ["b", "b", "b"]);
    assert!(listed[0]["error"].as_str().unwrap().contains("apply.sql:1"), "{listed:#?}");
    shop.run(&["dead-letters", "list", "sums"]).done().prints("waits behind 2");
    shop.run(&["status"]).done().prints("1 dead letter and 2 events behind");
    shop.run(&["wait", "sums", "--timeout", "0"]).fails(3, "owed or put aside");
    shop.run(&["health", "--dead-letter-age", "0"]).exits(3).prints("sums  dead-letters: ");
    shop.run(&["health"]).done();

    shop.run(&["dead-letters", "retry", "sums"]).exits(1).prints("2: failed again: ");
    shop.run(&["dead-letters", "retry", "sums", "4"]).fails(1, "no dead letter at position 4");
    shop.run(&["dead-letters", "discard", "sums", "2"]).fails(2, "run it with --yes");
    let discard = ["--yes", "dead-letters", "discard", "sums", "2", "--reason", "a test", "--json"];
    let discarded = shop.run(&discard).done().json();
    assert_eq!((&discarded["position"], &discarded["outcome"]), (&2.into(), &"discarded".into()));
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1", "b|11", "c|3"]);
    shop.run(&["dead-letters", "list", "sums"]).done().prints("no dead letters");
    shop.run(&["dead-letters", "retry", "sums"]).done().prints("no dead letters");
    shop.run(&["wait", "sums", "--timeout", "5"]).done();
}

async fn refused_projection_does_not_keep_the_others_from_running(shop: Shop) {
    shop.sums("one", CATCH_UP);
    shop.sums("two", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.sums("one", &format!("{CATCH_UP}events = [\"Counted\"]\n"));
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2))]);

    let ran = shop.run(&["run", "--once"]);
    ran.fails(1, "error: not run, the others are: projection \"one\" version 1");
    assert_eq!(shop.rows("two", &["n", "v"]).await, ["3|2"]);
    assert_eq!(shop.rows("one", &["n", "v"]).await, Vec::<String>::new());

    let running = shop.start(&[]);
    shop.numbers("more", &[("a", Some(4))]);
    shop.run(&["wait", "two", "--timeout", "20"]).done();
    running.stop();
    assert_eq!(shop.rows("two", &["n", "v"]).await, ["7|3"]);

    // With nothing else to run, that is the end of it.
    shop.run(&["run", "--only", "one"]).fails(1, "projection \"one\" version 1");
}
