//! Rebuilds that are left, paused, joined, cancelled, or taken up by somebody else.

use everfold_testkit::eventually;
use serde_json::Value;

use super::{doubled, given};
use crate::run::{CATCH_UP, INLINE};
use crate::shop::{Running, Shop, on_both_stores};
use crate::support::LIMIT;

on_both_stores! {
    rebuild_that_was_left_is_gone_on_with,
    rebuild_that_was_killed_is_gone_on_with,
    rebuild_is_paused_resumed_and_joined,
    rebuild_is_cancelled,
    runner_takes_up_what_was_asked_for,
}

/// Whoever looks from elsewhere sees who is in the way, as the one who asked does.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_rebuild_up_is_shown_to_everybody() {
    let shop = Shop::postgres().await;
    given(&shop, INLINE);
    let caller = shop.database().connect().await;
    caller.batch_execute("BEGIN").await.unwrap();
    let append = "SELECT pg_backend_pid() \
        FROM everfold.append_event('c', NULL, 'Counted', '{\"n\": 1}')";
    let pid: i32 = caller.query_one(append, &[]).await.unwrap().get(0);
    let running = shop.start_command(&["rebuild", "sums"], &format!("process {pid}"));
    let shows = |command: &str| {
        let ran = shop.run(&[command]).exits(0);
        ran.stdout.contains(&format!("process {pid}"))
    };
    eventually("`rebuilds` names it", LIMIT, async || shows("rebuilds")).await;
    eventually("`status` names it", LIMIT, async || shows("status")).await;
    caller.batch_execute("COMMIT").await.unwrap();
    assert_eq!(running.ended().0, Some(0));
    assert!(!shows("rebuilds") && !shows("status"), "nobody is in the way any more");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2", "c|1"]);
}

fn rebuild(shop: &Shop) -> Value {
    let listed = shop.run(&["rebuilds", "--json"]).exits(0).json_lines();
    listed.into_iter().next().unwrap_or_default()
}

/// A command that works on a rebuild which is paused before it has come far: its 3 events take seconds.
async fn paused(shop: &Shop) -> Running {
    given(shop, CATCH_UP);
    doubled(shop, "catch-up");
    shop.run(&["rebuild", "sums", "--rate", "1", "--detach"]).done();
    shop.run(&["rebuilds", "pause", "sums"]).done().prints("paused the rebuild of sums");
    assert_eq!(rebuild(shop)["paused"], true);
    let running =
        shop.start_command(&["rebuild", "sums"], "paused (`everfold rebuilds resume sums`)");
    eventually("it is worked on", LIMIT, async || rebuild(shop)["worker"].is_string()).await;
    running
}

async fn rebuild_that_was_left_is_gone_on_with(shop: Shop) {
    let running = paused(&shop).await;
    running.signal("INT");
    let (code, said) = running.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("`everfold rebuild sums` goes on with it, from anywhere"), "{said}");
    assert_eq!(rebuild(&shop)["worker"], Value::Null);
    shop.run(&["rebuilds", "resume", "sums"]).done();
    let health = shop.run(&["health"]).exits(3).prints("nobody works on it");
    health.prints("`everfold rebuild sums` goes on with it");
    shop.run(&["status"]).exits(0).prints("rebuild to version 2 (beside): ");
    let ran = shop.run(&["rebuild", "sums"]).done().prints("readers see version 2 of sums now");
    assert!(ran.stderr.contains("a rebuild of sums is under way"), "{ran:#?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
    assert_eq!(shop.run(&["rebuilds", "--json"]).done().json_lines().len(), 1);
}

/// The lease of a process that died runs out; then somebody else goes on.
async fn rebuild_that_was_killed_is_gone_on_with(shop: Shop) {
    let running = paused(&shop).await;
    running.signal("KILL");
    running.ended();
    shop.run(&["rebuilds", "resume", "sums"]).done();
    shop.run(&["rebuild", "sums"]).exits(0).prints("readers see version 2 of sums now");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
}

async fn rebuild_is_paused_resumed_and_joined(shop: Shop) {
    let running = paused(&shop).await;
    let watching = shop.start_command(&["rebuild", "sums"], "a rebuild of sums is under way");
    shop.run(&["rebuilds", "resume", "sums"]).done();
    assert_eq!(running.ended().0, Some(0));
    assert_eq!(watching.ended().0, Some(0));
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
}

async fn rebuild_is_cancelled(shop: Shop) {
    let running = paused(&shop).await;
    shop.run(&["--yes", "rebuilds", "cancel", "sums"])
        .done()
        .prints("cancelled the rebuild of sums");
    let (code, said) = running.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("error: projection \"sums\" was not rebuilt: it was cancelled"),
        "{said}"
    );
    assert_eq!(rebuild(&shop)["phase"], "cancelled");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["rebuilds", "cancel", "sums"]).fails(1, "is not being rebuilt");
    shop.run(&["rebuild", "sums"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
}

async fn runner_takes_up_what_was_asked_for(shop: Shop) {
    given(&shop, CATCH_UP);
    doubled(&shop, "catch-up");
    let ran = shop.run(&["rebuild", "sums", "--detach"]).done();
    ran.prints(
        "nobody works on it: no live runner carries version 2 of sums; start `everfold run`",
    );
    let running = shop.start(&[]);
    eventually("the runner has switched", LIMIT, async || rebuild(&shop)["phase"] == "done").await;
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);

    let carried_by = async || {
        let ran = shop.run(&["rebuild", "sums", "--detach", "--json"]).done().json();
        let names = ran["carried_by"].as_array().unwrap();
        names.len() == 1
    };
    eventually("a live runner is named", LIMIT, carried_by).await;
    let ran = shop.run(&["rebuild", "sums", "--detach"]).done();
    let said = ["carries sums and takes it up", "works on it"];
    assert!(said.iter().any(|said| ran.stdout.contains(said)), "{ran:#?}");
    running.stop();
}
