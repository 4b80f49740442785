//! Changing projections under the command: plan, rebuild, compare, promote, roll back, retire.

mod input;
mod replay;
mod stopping;
mod verify;

use serde_json::Value;

use crate::run::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    inline_projection_is_changed_switched_and_switched_back,
    catch_up_projection_is_changed_switched_and_switched_back,
    new_projection_is_filled_with_the_events_there_are,
    new_catch_up_projection_with_many_events_is_filled_before_it_is_read,
    same_version_is_built_again_in_place,
    version_that_was_not_promoted_waits_for_it,
    rows_that_differ_too_much_keep_readers_where_they_are,
    new_dead_letters_keep_readers_where_they_are,
    plan_changes_nothing_and_tells_what_would_happen,
    switch_ends_a_pause_and_says_so,
    projection_is_removed,
}

/// Whoever asks for a rebuild wants readers to see what goes on.
async fn switch_ends_a_pause_and_says_so(shop: Shop) {
    let said = "it was paused, and is fed again since the switch";
    given(&shop, INLINE);
    shop.run(&["pause", "sums"]).done();
    shop.numbers("owed", &[("a", Some(5))]);
    doubled(&shop, "inline");
    shop.run(&["plan"]).done().prints("it is paused, which the switch ends");
    let ran = shop.run(&["rebuild", "sums"]).done().prints(said);
    ran.prints("`everfold pause sums` pauses what readers see now");
    assert_eq!(shop.status("sums")["status"], "kept");
    shop.run(&["rebuilds"]).done().prints(said);
    shop.run(&["messages", "sums"]).done().prints("which was paused");
    shop.run(&["health"]).done().prints("healthy");
    shop.numbers("more", &[("b", Some(1))]);
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|18", "b|6"]);

    let ran = shop.run(&["rebuild", "sums"]).done();
    assert!(!ran.stdout.contains("paused"), "nothing was: {ran:#?}");
    shop.run(&["pause", "sums"]).done();
    shop.run(&["--yes", "rebuild", "sums", "--in-place"]).done().prints(said);
    shop.run(&["health"]).done().prints("healthy");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|18", "b|6"]);
}

/// Version 2: everything counts double.
pub(crate) fn doubled(shop: &Shop, lifecycle: &str) {
    let toml = format!("version = 2\nlifecycle = \"{lifecycle}\"\n");
    shop.sums("sums", &toml);
    let file = "projections/sums/apply.sql";
    let apply = shop.folder.read(file).replace("SUM(", "2 * SUM(");
    shop.folder.write(file, &apply);
}

pub(crate) fn given(shop: &Shop, toml: &str) {
    shop.sums("sums", toml);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("b", Some(2)), ("a", Some(3))]);
    shop.run(&["run", "--once"]).done();
}

async fn changed_switched_and_switched_back(shop: Shop, lifecycle: &str) {
    given(&shop, &format!("version = 1\nlifecycle = \"{lifecycle}\"\n"));
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);

    doubled(&shop, lifecycle);
    let planned = shop.run(&["plan"]).done();
    let planned = planned.prints("1 -> 2").prints("rebuild beside").prints("apply.sql");
    planned.prints("run: everfold rebuild sums").prints("views keep their names");

    let ran = shop.run(&["rebuild", "sums"]).done();
    assert!(ran.stderr.contains("registered sums version 2"), "{ran:#?}");
    assert!(ran.stderr.contains("sums version 2: "), "no plain lines in {ran:#?}");
    let ran =
        ran.prints("readers see version 2 of sums now").prints("2 rows with the version before");
    let ran = ran.prints("2 differ").prints("n 4").prints("n 8");
    ran.prints("`everfold rollback sums` goes back");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);

    // Both go on being fed.
    shop.numbers("more", &[("b", Some(10))]);
    shop.run(&["run", "--once"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|24"]);
    shop.run(&["status"]).done().prints("kept");
    let ran = shop.run(&["rollback", "sums"]).done();
    let ran = ran.prints("readers see version 1 of sums now");
    ran.prints("`everfold promote sums` goes forward to version 2 again");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|12"]);
    shop.run(&["plan"]).done().prints("run: everfold promote sums");
    let advice = "`everfold promote sums` goes forward to version 2 again";
    shop.run(&["rebuild", "sums"]).fails(1, advice);
    let ran = shop.run(&["promote", "sums"]).done();
    let ran = ran.prints("readers see version 2 of sums now");
    ran.prints("`everfold rollback sums` goes back");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|24"]);

    shop.run(&["plan"]).done().prints("`everfold retire sums` would drop version 1 (kept)");
    shop.run(&["retire", "sums"]).fails(2, "nobody is there to ask: run it with --yes if so");
    shop.run(&["--yes", "retire", "sums"]).done().prints("dropped version 1 of sums");
    shop.run(&["rollback", "sums"]).fails(1, "nothing to go back to");
    let json = shop.run(&["plan", "--json"]).done().json();
    assert_eq!(json["changes"][0]["retire"], serde_json::json!([]), "{json:#}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|24"]);
    let listed = shop.run(&["rebuilds", "--json"]).done().json_lines();
    let kinds: Vec<_> = listed.iter().map(|rebuild| rebuild["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["switch", "switch", "beside"]);
    assert!(listed.iter().all(|rebuild| rebuild["phase"] == "done"), "{listed:#?}");
    shop.run(&["rebuilds", "sums"]).done().prints("BEFORE").prints("n 8");
    shop.run(&["health"]).done().prints("healthy");
}

/// What an earlier rebuild could not drop yet is no version that an operator knows of.
#[tokio::test(flavor = "multi_thread")]
async fn what_rebuilds_have_left_is_not_called_the_version_that_readers_see() {
    let shop = Shop::postgres().await;
    given(&shop, INLINE);
    let report = shop.database().connect().await;
    report.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    doubled(&shop, "inline");
    shop.run(&["rebuild", "sums"]).done();
    let ran = shop.run(&["--yes", "retire", "sums"]).done();
    ran.prints("retired what readers do not see of sums").prints("may still see them");
    report.batch_execute("COMMIT").await.unwrap();
    let ran = shop.run(&["--yes", "retire", "sums"]).done();
    let ran = ran.prints("dropped version 1 of sums\n");
    ran.prints("builds of version 2 too, other than the one that readers see");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
    // Of one version.
    shop.run(&["rebuild", "sums"]).done();
    let ran = shop.run(&["--yes", "retire", "sums"]).done();
    ran.prints("dropped what readers do not see of sums\n  builds of version 2 too");
}

async fn inline_projection_is_changed_switched_and_switched_back(shop: Shop) {
    changed_switched_and_switched_back(shop, "inline").await;
}

async fn catch_up_projection_is_changed_switched_and_switched_back(shop: Shop) {
    changed_switched_and_switched_back(shop, "catch-up").await;
}

async fn new_projection_is_filled_with_the_events_there_are(shop: Shop) {
    shop.numbers("events", &[("a", Some(1)), ("b", Some(2)), ("a", Some(3))]);
    shop.sums("sums", INLINE);
    let json = shop.run(&["plan", "--json"]).done().json();
    let change = &json["changes"][0];
    assert_eq!((&change["action"], &change["events"]), (&"create".into(), &3.into()), "{json:#}");
    let ended = shop.run(&["rebuild", "sums", "--json"]).done().json();
    assert_eq!((&ended["phase"], &ended["joined"]), (&"done".into(), &false.into()));
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.numbers("more", &[("a", Some(5))]);
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|9", "b|2"]);

    shop.sums("totals", INLINE);
    let ran = shop.run(&["rebuild", "totals"]).done();
    let ran = ran.prints("readers see version 1 of totals now");
    assert!(!ran.stdout.contains("rollback"), "there is nothing to go back to: {ran:#?}");
}

async fn new_catch_up_projection_with_many_events_is_filled_before_it_is_read(shop: Shop) {
    shop.numbers("events", &[("a", Some(1)); 10_001]);
    shop.sums("sums", CATCH_UP);
    let planned = shop.run(&["plan"]).done();
    planned.prints("before readers see it").prints("run: everfold rebuild sums");
    let ran = shop.run(&["run", "--once"]).done();
    assert!(ran.stderr.contains("sums version 1 is building: the store has events"), "{ran:#?}");
    assert!(ran.stderr.contains("sums version 1 is active at position"), "{ran:#?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|10001"]);
    let rebuilds = shop.run(&["rebuilds", "--json"]).done().json_lines();
    assert_eq!(rebuilds.len(), 1, "{rebuilds:#?}");
    assert_eq!(rebuilds[0]["phase"], "done");
}

async fn same_version_is_built_again_in_place(shop: Shop) {
    given(&shop, INLINE);
    shop.execute_in_read_model("sums", "UPDATE {table} SET n = 77").await;
    let ran = shop.run(&["--yes", "rebuild", "sums", "--in-place"]).done();
    let ran = ran.prints("readers see version 1 of sums now");
    assert!(!ran.stdout.contains("rollback"), "{ran:#?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.numbers("more", &[("a", Some(5))]);
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|9", "b|2"]);
    shop.run(&["skips", "list"]).done().prints("nothing is owed");
    shop.run(&["rollback", "sums"]).fails(1, "nothing to go back to");
}

async fn version_that_was_not_promoted_waits_for_it(shop: Shop) {
    given(&shop, CATCH_UP);
    doubled(&shop, "catch-up");
    let ran = shop.run(&["rebuild", "sums", "--no-promote"]).done();
    ran.prints("version 2 of sums is built")
        .prints("`everfold promote sums` switches readers over");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["--yes", "promote", "sums", "--drop-old"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
    shop.run(&["rollback", "sums"]).fails(1, "nothing to go back to");
}

async fn rows_that_differ_too_much_keep_readers_where_they_are(shop: Shop) {
    given(&shop, INLINE);
    doubled(&shop, "inline");
    let ran = shop.run(&["rebuild", "sums", "--max-differences", "1"]).exits(3);
    assert!(ran.stderr.contains("error: projection \"sums\" is built, but"), "{ran:#?}");
    ran.prints("2 differ").prints("`everfold promote sums`");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["promote", "sums"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
}

async fn new_dead_letters_keep_readers_where_they_are(shop: Shop) {
    given(&shop, &format!("{CATCH_UP}on_error = \"dead-letter\"\nretries = 0\n"));
    let toml = "version = 2\nlifecycle = \"catch-up\"\non_error = \"dead-letter\"\nretries = 0\n";
    shop.sums("sums", toml);
    // 3 is too much for the new version.
    let create = shop.folder.read("projections/sums/create.sql");
    let create = create.replace("n BIGINT NOT NULL", "n BIGINT NOT NULL CHECK (n < 3)");
    shop.folder.write("projections/sums/create.sql", &create);
    let ran = shop.run(&["rebuild", "sums"]).exits(3);
    assert!(ran.stderr.contains("put aside"), "{ran:#?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["promote", "sums", "--allow-dead-letters"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1", "b|2"]);
}

async fn plan_changes_nothing_and_tells_what_would_happen(shop: Shop) {
    given(&shop, CATCH_UP);
    let action = |shop: &Shop, code: i32| -> Value {
        let json = shop.run(&["plan", "--json"]).exits(code).json();
        json["changes"][0]["action"].clone()
    };
    assert_eq!(action(&shop, 0), "nothing");
    shop.sums("sums", &format!("{CATCH_UP}lag_fail = \"9s\"\n"));
    assert_eq!(action(&shop, 0), "settings");
    shop.run(&["plan"]).done().prints("lag_fail is 9s, was not set");
    shop.sums("sums", &format!("{CATCH_UP}shards = 2\n"));
    assert_eq!(action(&shop, 3), "changed");
    shop.run(&["plan"]).exits(3).prints("raise its version");
    doubled(&shop, "catch-up");
    let json = shop.run(&["plan", "--json"]).done().json();
    let change = &json["changes"][0];
    for (key, value) in [
        ("action", Value::from("rebuild-beside")),
        ("from", 1.into()),
        ("to", 2.into()),
        ("events", 3.into()),
        ("events_exact", true.into()),
        ("rows", 2.into()),
        ("rate_measured", false.into()),
        ("command", "everfold rebuild sums".into()),
    ] {
        assert_eq!(change[key], value, "{key} of {change:#}");
    }
    assert_eq!(shop.status("sums")["version"], 1);
    shop.run(&["rebuild", "sums"]).done();
    shop.sums("sums", CATCH_UP);
    // It is there: kept, to go back to.
    assert_eq!(action(&shop, 0), "nothing");
    shop.run(&["plan"]).done().prints("run: everfold rollback sums");
    shop.run(&["--yes", "retire", "sums"]).done();
    assert_eq!(action(&shop, 3), "older");
    std::fs::remove_dir_all(shop.folder.file("projections/sums")).unwrap();
    assert_eq!(action(&shop, 0), "not-in-project");
}

/// Nothing is left of it, health is not spoiled by it, and it can be made again.
async fn projection_is_removed(shop: Shop) {
    given(&shop, INLINE);
    doubled(&shop, "inline");
    shop.run(&["rebuild", "sums"]).done();
    shop.run(&["remove", "sum"]).fails(1, "did you mean \"sums\"?");
    shop.run(&["--yes", "remove", "sums"]).fails(1, "take that folder away first");
    std::fs::remove_dir_all(shop.folder.file("projections/sums")).unwrap();
    shop.run(&["remove", "sums"]).fails(2, "nobody is there to ask: run it with --yes if so");
    let before = shop.all_rows().await;
    let ran = shop.run(&["remove", "sums", "--dry-run"]).done();
    let ran = ran.prints("would drop version 2 of sums (which readers see), 2 rows");
    ran.prints("would drop version 1 of sums (kept), 2 rows");
    assert_eq!(shop.all_rows().await, before);

    shop.run(&["--yes", "remove", "sums"]).done().prints("removed sums");
    shop.run(&["status"]).done().prints("no projections");
    shop.run(&["health"]).done().prints("healthy");
    shop.run(&["show", "sums"]).fails(1, "no projection \"sums\"");
    // Who did it stays on record.
    shop.run(&["messages", "sums"]).done().prints("removed the projection");
    shop.run(&["messages", "sum"]).fails(1, "no projection \"sum\"");
    shop.numbers("more", &[("a", Some(5)), ("a", None)]);
    shop.run(&["append", "--stream", "a", "--type", "Counted", "--data", "{\"n\":0}"]).done();
    // The event without a number, which the projection would have refused, is in the log now.
    shop.projection(
        "sums",
        "version = 1\nlifecycle = \"inline\"\n",
        "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, n BIGINT NOT NULL)",
        "INSERT INTO read_model.sums AS t (stream, n) SELECT stream_id, COUNT(*) FROM batch \
         WHERE true GROUP BY stream_id ON CONFLICT (stream) DO UPDATE SET n = t.n + EXCLUDED.n",
    );
    shop.run(&["rebuild", "sums"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|5", "b|1"]);
}
