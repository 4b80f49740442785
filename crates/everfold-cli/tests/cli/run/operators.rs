//! Pausing, resuming, waiting, watching, and several projects in one store.

use serde_json::Value;

use super::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};
use crate::support::{LIMIT, lines, send, wait};

on_both_stores! {
    paused_inline_projection_owes_and_makes_up_for_it,
    paused_catch_up_projection_stands_still,
    lag_is_held_against_its_thresholds,
    mistyped_names_get_a_suggestion,
    namespaces_keep_projects_apart,
    status_is_stable_json,
    projections_are_shown_by_name,
}

async fn projections_are_shown_by_name(shop: Shop) {
    shop.sums("later", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.sums("earlier", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    // A younger generation of it.
    shop.run(&["rebuild", "later"]).done().prints("applied   1 event in ");
    let json = shop.run(&["status", "--json"]).done().json();
    let all = json["projections"].as_array().unwrap().iter();
    let shown: Vec<_> = all.map(|status| (&status["name"], &status["status"])).collect();
    let wanted = [("earlier", "active"), ("later", "kept"), ("later", "active")];
    let wanted = wanted.map(|(name, status)| (Value::from(name), Value::from(status)));
    assert_eq!(shown, wanted.iter().map(|(name, status)| (name, status)).collect::<Vec<_>>());
    shop.run(&["verify", "later", "--all"]).done().prints("compared 1 row (all)");
}

async fn paused_inline_projection_owes_and_makes_up_for_it(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.run(&["skips", "list"]).done().prints("nothing is owed");
    shop.numbers("first", &[("a", Some(1))]);
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
    shop.run(&["wait", "sums", "--timeout", "0"]).done();

    shop.run(&["pause", "sums"]).done().prints("paused sums");
    shop.numbers("second", &[("a", Some(2)), ("b", Some(3))]);
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
    let owed = shop.run(&["skips", "list", "--json"]).done().json_lines();
    let of = |name: &str| owed.iter().map(|skip| skip[name].clone()).collect::<Vec<_>>();
    assert_eq!(
        (of("position"), of("key")),
        (vec![2.into(), 3.into()], vec!["a".into(), "b".into()])
    );
    assert_eq!(of("projection"), ["sums", "sums"]);
    shop.run(&["skips", "list", "sums"]).done().prints("paused");
    shop.run(&["status"]).done().prints("owed: 2 events").prints("reason: paused by ");
    shop.run(&["health", "--skip-age", "0"]).exits(3).prints("sums  skips: ");
    shop.run(&["wait", "sums", "--timeout", "0"]).fails(3, "owed or put aside");
    shop.run(&["pause", "sums"]).fails(1, "cannot be paused");

    shop.run(&["resume", "sums"]).done().prints("resumed sums");
    shop.run(&["run", "--once"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n", "v"]).await, ["a|3|2", "b|3|1"]);
    shop.run(&["skips", "list", "sums"]).done().prints("nothing is owed");
    shop.run(&["resume", "sums"]).fails(1, "neither paused nor failed");
}

async fn paused_catch_up_projection_stands_still(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let json = shop.run(&["pause", "sums", "--json"]).done().json();
    assert_eq!(json, serde_json::json!({ "paused": ["sums"] }));
    shop.numbers("events", &[("a", Some(1))]);
    let ran = shop.run(&["run", "--once"]).exits(0);
    assert!(ran.stderr.contains("sums version 1 is paused: paused by "), "{ran:#?}");
    assert!(shop.rows("sums", &["n"]).await.is_empty());
    let json = shop.run(&["resume", "sums", "--json"]).done().json();
    assert_eq!(json, serde_json::json!({ "resumed": ["sums"] }));
    shop.run(&["run", "--once"]).done();
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
}

async fn lag_is_held_against_its_thresholds(shop: Shop) {
    shop.sums("patient", CATCH_UP);
    shop.sums("uneasy", &format!("{CATCH_UP}lag_warn = \"0ms\"\nlag_fail = \"1h\"\n"));
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2))]);
    let ran =
        shop.run(&["health"]).exits(0).prints("warning  uneasy  lag: ").prints("2 events behind");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:#?}");
    shop.sums("failing", &format!("{CATCH_UP}lag_fail = \"0ms\"\n"));
    shop.run(&["run", "--once", "--only", "failing"]).done();
    shop.run(&["health"]).exits(0);
    shop.numbers("more", &[("b", Some(1))]);
    let json = shop.run(&["health", "--json"]).exits(3).json();
    let problems = json["problems"].as_array().unwrap();
    let failing = problems.iter().find(|problem| problem["projection"] == "failing").unwrap();
    assert_eq!((&failing["check"], &failing["severity"]), (&"lag".into(), &"problem".into()));
    let ran = shop.run(&["health", "--stalled-after", "0"]).exits(3).prints("patient  stalled: ");
    ran.prints("nobody runs it; start a runner that carries it (`everfold run`)");
    shop.run(&["run", "--once"]).done();
    shop.run(&["health", "--stalled-after", "0"]).done().prints("healthy");
}

async fn mistyped_names_get_a_suggestion(shop: Shop) {
    shop.sums("order_sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    for arguments in [
        &["status", "order_sum"][..],
        &["wait", "order_sum"],
        &["wait", "order_sum", "--at", "1"],
        &["pause", "order_sum"],
        &["resume", "order_sum"],
        &["skips", "list", "order_sum"],
        &["dead-letters", "list", "order_sum"],
        &["dead-letters", "retry", "order_sum"],
        &["dead-letters", "retry", "order_sum", "1"],
        &["--yes", "dead-letters", "discard", "order_sum", "1"],
    ] {
        shop.run(arguments).fails(1, "did you mean \"order_sums\"?");
    }
    shop.run(&["status", "x"]).fails(1, "`everfold status` lists those there are");
}

async fn namespaces_keep_projects_apart(shop: Shop) {
    shop.folder.write("everfold.toml", "[project]\nnamespace = \"east\"\n");
    shop.sums("sums", CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    shop.folder.write("everfold.toml", "[project]\nnamespace = \"west\"\n");
    shop.run(&["status", "sums"]).fails(1, "no projection \"sums\"; none is registered");
    let toml = format!("{CATCH_UP}events = [\"Other\"]\n");
    shop.sums("sums", &toml);
    shop.run(&["run", "--once"]).done();
    let json = shop.run(&["status", "--json"]).done().json();
    assert_eq!(json["namespace"], "west");
    assert_eq!(json["projections"].as_array().unwrap().len(), 1);
    assert_eq!(shop.rows_in("east", "sums", &["n"]).await, ["1"]);
    assert!(shop.rows_in("west", "sums", &["n"]).await.is_empty());
    shop.folder.write("everfold.toml", "[project]\nnamespace = \"West!\"\n");
    shop.run(&["status"]).fails(1, "namespace");
    shop.folder.write("everfold.toml", "[project]\nname = \"shop\"\n");
    shop.run(&["status"]).fails(1, "everfold.toml line 2: unknown field `name`");
}

async fn status_is_stable_json(shop: Shop) {
    let json = shop.run(&["status", "--json"]);
    if shop.is_sqlite() {
        json.fails(1, "no store at sqlite:");
    } else {
        assert_eq!(json.done().json()["projections"], serde_json::json!([]));
    }
    shop.sums("sums", &format!("{CATCH_UP}shards = 2\nlag_fail = \"90s\"\n"));
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("b", Some(1))]);
    let status = shop.status("sums");
    let mut keys: Vec<_> = status.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    assert_eq!(
        keys,
        [
            "active",
            "dead_letters",
            "held_events",
            "highest",
            "kind",
            "lag_events",
            "lag_fail_seconds",
            "lag_seconds",
            "lag_warn_seconds",
            "lifecycle",
            "mark",
            "name",
            "namespace",
            "oldest_dead_letter",
            "oldest_dead_letter_seconds",
            "oldest_skip",
            "oldest_skip_seconds",
            "open_skips",
            "position",
            "rate",
            "reason",
            "seconds_left",
            "shards",
            "status",
            "status_since",
            "trend",
            "verified",
            "version",
        ]
    );
    for (key, value) in [
        ("name", serde_json::json!("sums")),
        ("version", 1.into()),
        ("kind", "sql".into()),
        ("lifecycle", "catch-up".into()),
        ("status", "active".into()),
        ("active", true.into()),
        ("position", 0.into()),
        ("mark", 2.into()),
        ("lag_events", 2.into()),
        ("lag_fail_seconds", 90.0.into()),
        ("open_skips", 0.into()),
        ("dead_letters", 0.into()),
    ] {
        assert_eq!(status[key], value, "{key} of {status:#}");
    }
    shop.run(&["status"]).done().prints("2 events ").prints("nobody");
}

#[test]
fn watch_shows_it_again_until_a_signal() {
    let shop = Shop::sqlite();
    shop.sums("sums", CATCH_UP);
    shop.run(&["run", "--once"]).done();
    let mut child = shop.folder.command(&["status", "--watch", "--json"]).spawn().unwrap();
    let shown = lines(child.stdout.take().unwrap());
    for _ in 0..2 {
        assert!(shown.recv_timeout(LIMIT).unwrap().contains("\"name\":\"sums\""));
    }
    send(&child, "INT");
    assert_eq!(wait(&mut child), Some(0));
}
