//! `--dry-run`: each command that changes data says what it would do, is refused where it would be, and
//! leaves every table as it was.

use serde_json::Value;

use crate::rebuild::{doubled, given};
use crate::run::INLINE;
use crate::shop::{Shop, on_both_stores};
use crate::support::Ran;

on_both_stores! {
    appends_and_imports_are_tried_and_not_stored,
    projects_and_plans_are_told,
    rebuilds_and_switches_are_told,
    steering_is_told,
    what_is_put_aside_and_owed_is_told,
    what_is_destroyed_is_asked_about,
}

/// Runs a dry run, which must change nothing; what it would do.
#[track_caller]
fn would(shop: &Shop, arguments: &[&str]) -> Vec<String> {
    let ran = dry(shop, arguments).done();
    let lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
    let json = shop.run(&[arguments, &["--dry-run", "--json"]].concat()).done().json();
    assert_eq!(json["dry_run"], true);
    let said = json["would"].as_array().unwrap().iter().map(|would| would.as_str().unwrap());
    let said: Vec<String> = said.map(|would| format!("would {would}")).collect();
    assert_eq!(if said.is_empty() { vec!["would do nothing".to_owned()] } else { said }, lines);
    lines
}

fn dry(shop: &Shop, arguments: &[&str]) -> Ran {
    shop.run(&[arguments, &["--dry-run"]].concat())
}

async fn appends_and_imports_are_tried_and_not_stored(shop: Shop) {
    given(&shop, INLINE);
    let before = shop.all_rows().await;
    let append = ["append", "--stream", "a", "--type", "Counted", "--data", "{\"n\":1}"];
    let told = would(&shop, &append);
    assert_eq!(told, ["would append 1 event to a, which is at version 3 then"]);
    let conflict = [&append[..], &["--expected", "7"]].concat();
    dry(&shop, &conflict).fails(1, "expected 7, actual 2");
    // An inline projection has its say too.
    let refused = ["append", "--stream", "a", "--type", "Counted", "--data", "{}"];
    dry(&shop, &refused).fails(1, "projections/sums/apply.sql");

    let line = r#"{"stream_id":"c","type":"Counted","data":{"n":1}}"#;
    shop.folder.write("more.jsonl", &format!("{line}\n{line}\n"));
    let told = would(&shop, &["import", "more.jsonl"]);
    assert_eq!(told[0], "would store 2 events as import \"more.jsonl\"");
    shop.folder.write("broken.jsonl", &format!("{line}\nno event\n"));
    dry(&shop, &["import", "broken.jsonl"]).fails(1, "line 2");
    assert_eq!(shop.all_rows().await, before);

    shop.run(&["import", "more.jsonl"]).done();
    assert_eq!(would(&shop, &["import", "more.jsonl"]), ["would do nothing"]);
}

async fn projects_and_plans_are_told(shop: Shop) {
    let told = would(&shop, &["init", "new"]);
    assert!(told.iter().any(|line| line == "would write new/everfold.toml"), "{told:?}");
    assert!(!shop.folder.file("new").exists());

    given(&shop, INLINE);
    doubled(&shop, "inline");
    let before = shop.all_rows().await;
    let ran = dry(&shop, &["run", "--once"]).done();
    ran.prints("1 -> 2").prints("rebuild beside");
    dry(&shop, &["run", "--only", "sum"]).fails(1, "did you mean \"sums\"?");
    let told = would(&shop, &["rebuild", "sums"]);
    assert!(told[0].starts_with("would build version 2 of sums beside"), "{told:?}");
    assert!(told[0].contains("from 3 events") && told[1].contains("from version 1"), "{told:?}");
    let told = would(&shop, &["rebuild", "sums", "--in-place"]);
    assert!(told[0].starts_with("would empty sums and fill version 2"), "{told:?}");
    let told = would(&shop, &["rebuild", "sums", "--drop-old"]);
    assert!(told[1].ends_with("and drop that: no way back"), "{told:?}");
    assert_eq!(shop.all_rows().await, before);
}

async fn rebuilds_and_switches_are_told(shop: Shop) {
    given(&shop, INLINE);
    let before = shop.all_rows().await;
    let told = would(&shop, &["rebuild", "sums"]);
    assert!(told[0].starts_with("would build version 1 of sums beside"), "{told:?}");
    assert!(told[0].contains("from 3 events"), "{told:?}");
    let kept = "and keep that for `everfold rollback sums`";
    assert_eq!(told[1], format!("would switch readers over from the build they see, {kept}"));
    let told = would(&shop, &["rebuild", "sums", "--no-promote"]);
    assert_eq!(told[1], "would leave readers where they are, until `everfold promote sums`");
    let told = would(&shop, &["rebuild", "sums", "--in-place"]);
    assert_eq!(
        told,
        ["would empty sums and fill version 1 again from 3 events; readers see it grow"]
    );
    let told = would(&shop, &["replay", "sums", "--to", "2"]);
    assert!(told[1].starts_with("would show it beside what readers see"), "{told:?}");
    dry(&shop, &["replay", "sums", "--to", "9"]).fails(1, "the log ends at 3");
    dry(&shop, &["promote", "sums"]).fails(1, "has nothing to promote");
    dry(&shop, &["rollback", "sums"]).fails(1, "has nothing to go back to");
    dry(&shop, &["rebuild", "sum"]).fails(1, "did you mean \"sums\"?");
    let told = would(&shop, &["snapshot", "sums"]);
    assert!(told[0].starts_with("would copy sums version 1 at position 3"), "{told:?}");
    assert_eq!(shop.all_rows().await, before);

    doubled(&shop, "inline");
    shop.run(&["rebuild", "sums", "--no-promote"]).done();
    let before = shop.all_rows().await;
    let told = would(&shop, &["promote", "sums"]);
    assert_eq!(told[0], "would go to version 2 of sums, which is built");
    assert_eq!(told[1], format!("would switch readers over from version 1, {kept}"));
    assert_eq!(shop.all_rows().await, before);
    shop.run(&["promote", "sums"]).done();
    let told = would(&shop, &["rollback", "sums", "--drop-old"]);
    assert_eq!(told[1], "would switch readers over from version 2, and drop that: no way back");
    let told = would(&shop, &["retire", "sums"]);
    assert!(told[0].starts_with("would drop version 1 (kept), 2 rows"), "{told:?}");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|8", "b|4"]);
}

async fn steering_is_told(shop: Shop) {
    given(&shop, INLINE);
    let before = shop.all_rows().await;
    let told = would(&shop, &["pause", "sums"]);
    assert_eq!(told, ["would pause sums: version 1 is active at position 3"]);
    dry(&shop, &["resume", "sums"]).fails(1, "is active, so there is nothing to resume");
    dry(&shop, &["pause", "sum"]).fails(1, "did you mean \"sums\"?");
    dry(&shop, &["rebuilds", "cancel", "sums"]).fails(1, "is not being rebuilt");
    assert_eq!(shop.all_rows().await, before);

    doubled(&shop, "inline");
    // Nobody works on it: it stands until somebody does.
    shop.run(&["rebuild", "sums", "--detach"]).exits(0);
    let before = shop.all_rows().await;
    for verb in ["pause", "cancel"] {
        let told = would(&shop, &["rebuilds", verb, "sums"]);
        assert!(told[0].starts_with(&format!("would {verb} the rebuild of sums: ")), "{told:?}");
    }
    let told = would(&shop, &["rebuild", "sums"]);
    assert!(told[0].starts_with("would join the rebuild that is under way: "), "{told:?}");
    assert_eq!(shop.all_rows().await, before);
    let done = shop.run(&["rebuilds", "pause", "sums", "--json"]).done().json();
    assert_eq!(done, serde_json::json!({ "projection": "sums", "done": "paused" }));
}

async fn what_is_put_aside_and_owed_is_told(shop: Shop) {
    given(&shop, "version = 1\nlifecycle = \"inline\"\non_error = \"dead-letter\"\n");
    shop.numbers("bad", &[("a", None), ("a", Some(1))]);
    let before = shop.all_rows().await;
    let told = would(&shop, &["dead-letters", "retry", "sums"]);
    assert_eq!(told, ["would try again 4  Counted  stream a  1 event behind it"]);
    let told = would(&shop, &["dead-letters", "discard", "sums", "4"]);
    assert_eq!(told, ["would give up 4  Counted  stream a  1 event behind it"]);
    dry(&shop, &["dead-letters", "retry", "sums", "9"])
        .fails(1, "has no dead letter at position 9");
    dry(&shop, &["dead-letters", "discard", "sums", "5"]).fails(1, "waits behind the dead letter");
    assert_eq!(would(&shop, &["skips", "drain", "sums"]), ["would do nothing"]);
    assert_eq!(shop.all_rows().await, before);

    shop.run(&["pause", "sums"]).done();
    shop.numbers("owed", &[("b", Some(1))]);
    let told = would(&shop, &["skips", "drain", "sums"]);
    assert!(told[0].starts_with("would apply 1 event that sums owes, in order"), "{told:?}");
    let owed: Value = shop.status("sums")["open_skips"].clone();
    assert_eq!(owed, 1);
}

/// Nobody is there to ask in a test, so that it is refused and says how to go on.
async fn what_is_destroyed_is_asked_about(shop: Shop) {
    given(&shop, INLINE);
    let asked = "nobody is there to ask: run it with --yes if so";
    let before = shop.all_rows().await;
    shop.run(&["rebuild", "sums", "--in-place"]).fails(2, asked);
    shop.run(&["rebuild", "sums", "--drop-old"]).fails(2, asked);
    shop.run(&["replay", "sums", "--from", "1", "--drop-old"]).fails(2, asked);
    assert_eq!(shop.all_rows().await, before);
    doubled(&shop, "inline");
    shop.run(&["rebuild", "sums", "--no-promote"]).done();
    let before = shop.all_rows().await;
    shop.run(&["promote", "sums", "--drop-old"]).fails(2, asked);
    shop.run(&["retire", "sums"]).fails(2, asked);
    assert_eq!(shop.all_rows().await, before);
    shop.run(&["--yes", "promote", "sums", "--drop-old"]).done();
    shop.run(&["rollback", "sums"]).fails(1, "has nothing to go back to");
}
