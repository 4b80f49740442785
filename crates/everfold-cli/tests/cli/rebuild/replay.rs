//! Snapshots of read models, and what is built from them.

use super::given;
use crate::run::INLINE;
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    replay_begins_with_a_snapshot_and_ends_with_the_log,
    state_of_a_position_is_shown_beside_what_readers_see,
}

async fn replay_begins_with_a_snapshot_and_ends_with_the_log(shop: Shop) {
    given(&shop, INLINE);
    let taken = shop.run(&["snapshot", "sums", "--json"]).done().json();
    assert_eq!((&taken["position"], &taken["rows"]), (&3.into(), &2.into()), "{taken:#}");
    assert!(taken["bytes"].as_u64().unwrap() >= 4096, "{taken:#}");
    shop.numbers("more", &[("b", Some(10))]);
    shop.execute_in_read_model("sums", "UPDATE {table} SET n = 77").await;
    shop.run(&["replay", "sums", "--from", "3"]).done().prints("readers see version 1 of sums now");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|12"]);
    let listed = shop.run(&["rebuilds", "--json"]).done().json_lines();
    // One event is behind the snapshot: the others were not applied again.
    assert_eq!((&listed[0]["kind"], &listed[0]["events_done"]), (&"replay".into(), &1.into()));
    shop.run(&["verify", "sums", "--all"]).done();
    shop.run(&["snapshots", "sums"]).done().prints("POSITION").prints("sums").prints("KiB");
    let id = taken["id"].to_string();
    shop.run(&["snapshots", "drop", "sums", &id]).fails(2, "nobody is there to ask");
    let would = shop.run(&["snapshots", "drop", "sums", &id, "--dry-run"]).done();
    would.prints("would drop snapshot");
    shop.run(&["--yes", "snapshots", "drop", "sums", &id]).done().prints("dropped snapshot");
    shop.run(&["snapshots"]).done().prints("no snapshots");
}

async fn state_of_a_position_is_shown_beside_what_readers_see(shop: Shop) {
    given(&shop, INLINE);
    let ran = shop.run(&["replay", "sums", "--to", "2"]).done();
    ran.prints("sums is built as it was").prints("`everfold retire sums` drops them");
    assert_eq!(shop.rows("sums_at_2", &["stream", "n"]).await, ["a|1", "b|2"]);
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["--yes", "retire", "sums"]).done();
    shop.run(&["health"]).done();
}
