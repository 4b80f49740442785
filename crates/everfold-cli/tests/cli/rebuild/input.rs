//! What cannot be done, and is told.

use everfold::{DocumentProjection, Projection, RecordedEvent, Store};

use super::given;
use crate::run::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    what_is_not_there_is_told,
    changes_without_a_new_version_are_refused,
    nothing_under_way_cannot_be_steered,
    arguments_that_make_no_sense_are_refused,
    projection_in_rust_needs_a_process_that_carries_it,
}

async fn what_is_not_there_is_told(shop: Shop) {
    given(&shop, INLINE);
    for arguments in [
        &["rebuild", "sum"][..],
        &["promote", "sum"],
        &["rollback", "sum"],
        &["--yes", "retire", "sum"],
        &["rebuilds", "sum"],
        &["rebuilds", "pause", "sum"],
        &["rebuilds", "cancel", "sum"],
        &["skips", "drain", "sum"],
        &["verify", "sum"],
        &["snapshot", "sum"],
        &["snapshots", "sum"],
        &["replay", "sum", "--from", "1"],
    ] {
        shop.run(arguments).fails(1, "did you mean \"sums\"?");
    }
    shop.run(&["promote", "sums"])
        .fails(1, "has nothing to promote; build it with `everfold rebuild sums`");
    shop.run(&["rollback", "sums"]).fails(1, "has nothing to go back to");
    shop.run(&["--yes", "retire", "sums"]).fails(1, "has nothing to retire");
    shop.run(&["skips", "drain", "sums"]).done().prints("sums owes nothing");
    shop.run(&["snapshots"]).done().prints("no snapshots");
    shop.run(&["snapshots", "drop", "sums", "7"]).fails(1, "has no snapshot 7");
    let replay = shop.run(&["replay", "sums", "--to", "4000"]);
    replay.fails(1, "cannot be as of position 4000: the log ends at 3");
}

async fn changes_without_a_new_version_are_refused(shop: Shop) {
    given(&shop, CATCH_UP);
    let file = "projections/sums/apply.sql";
    shop.folder.write(file, &shop.folder.read(file).replace("SUM(", "2 * SUM("));
    let ran = shop.run(&["rebuild", "sums"]);
    ran.fails(1, "version 1 was changed (apply.sql) since it was registered; raise its version");
    shop.run(&["rebuilds"]).done().prints("no rebuilds");
}

async fn nothing_under_way_cannot_be_steered(shop: Shop) {
    given(&shop, CATCH_UP);
    for verb in ["pause", "resume", "cancel"] {
        shop.run(&["rebuilds", verb, "sums"]).fails(1, "is not being rebuilt");
    }
}

async fn arguments_that_make_no_sense_are_refused(shop: Shop) {
    given(&shop, CATCH_UP);
    for (arguments, message) in [
        (&["rebuild", "sums", "--in-place", "--no-promote"][..], "cannot be used with"),
        (&["rebuild", "sums", "--rate", "0"], "invalid value '0'"),
        (&["rebuild", "sums", "--memory", "much"], "is not a size"),
        (&["rebuild", "sums", "--fence-timeout", "soon"], "is not a time"),
        (&["verify", "sums", "--all", "--sample", "3"], "cannot be used with"),
        (&["verify", "sums", "--keys"], "a value is required"),
        (&["replay", "sums"], "--from <POSITION>"),
    ] {
        shop.run(arguments).fails(2, message);
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Numbers {
    Counted { n: i64 },
}

struct Last;

impl DocumentProjection for Last {
    type Event = Numbers;
    type Document = i64;

    fn evolve(&self, _: Option<i64>, event: &Numbers, _: &RecordedEvent) -> Option<i64> {
        let Numbers::Counted { n } = event;
        Some(*n)
    }
}

async fn projection_in_rust_needs_a_process_that_carries_it(shop: Shop) {
    given(&shop, CATCH_UP);
    let url = match shop.is_sqlite() {
        true => format!("sqlite:{}", shop.folder.file("everfold.db").display()),
        false => shop.url(),
    };
    let store = Store::open(&url).await.unwrap();
    store.register(Projection::document("last", 1, Last).build().unwrap()).await.unwrap();
    let refusal = "is written in Rust, and no live process carries version 1";
    shop.run(&["rebuild", "last"]).fails(1, refusal);
    shop.run(&["rebuilds"]).done().prints("no rebuilds");
    shop.run(&["verify", "last"]).fails(1, "is written in Rust");
    let plan = shop.run(&["plan"]).done();
    plan.prints("not in the project")
        .prints("written in Rust: processes that have its code feed it");
    store.close().await;
}
