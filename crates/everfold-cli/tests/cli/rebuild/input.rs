//! What cannot be done, and is told.

use super::given;
use crate::run::{CATCH_UP, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    what_is_not_there_is_told,
    changes_without_a_new_version_are_refused,
    nothing_under_way_cannot_be_steered,
    arguments_that_make_no_sense_are_refused,
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
