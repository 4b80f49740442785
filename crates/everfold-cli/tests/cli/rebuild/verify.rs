//! Comparing read models with the log.

use super::given;
use crate::run::INLINE;
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    row_that_was_changed_by_hand_is_found,
    drift_counts_while_readers_see_it,
    what_is_owed_is_drained_by_hand,
}

async fn row_that_was_changed_by_hand_is_found(shop: Shop) {
    given(&shop, INLINE);
    for scope in [&["--all"][..], &["--sample", "10"], &["--keys", "a", "b"], &[]] {
        let ran = shop.run(&[&["verify", "sums"], scope].concat()).done();
        ran.prints("all are as the log says");
    }
    shop.execute_in_read_model("sums", "UPDATE {table} SET n = 5 WHERE stream = 'a'").await;
    let ran = shop.run(&["verify", "sums", "--all"]).exits(3);
    ran.prints("EXPECTED").prints("1 differ").prints("n 4").prints("n 5");
    let json = shop.run(&["verify", "sums", "--keys", "a", "--json"]).exits(3).json();
    let difference = &json["examples"][0];
    assert_eq!((&json["equal"], &json["differences"]), (&false.into(), &1.into()));
    assert_eq!((&difference["expected"]["n"], &difference["found"]["n"]), (&4.into(), &5.into()));
    shop.run(&["status"]).exits(0).prints("drift: 1 row not as the log says");
    shop.run(&["health"]).exits(3).prints("drift: 1 row not as the log says");
    shop.run(&["verify", "sums", "--keys", "b"]).done();

    shop.run(&["rebuild", "sums"]).done();
    shop.run(&["verify", "sums", "--all"]).done();
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|4", "b|2"]);
    shop.run(&["health"]).done();
}

async fn drift_counts_while_readers_see_it(shop: Shop) {
    given(&shop, INLINE);
    shop.execute_in_read_model("sums", "UPDATE {table} SET n = 5 WHERE stream = 'a'").await;
    shop.run(&["verify", "sums", "--all"]).exits(3);
    shop.run(&["health"]).exits(3).prints("drift: 1 row not as the log says");

    shop.run(&["rebuild", "sums"]).done();
    shop.run(&["verify", "sums", "--all"]).done();
    shop.run(&["health"]).done().prints("healthy");
    shop.run(&["doctor"]).done();
    // Whoever thinks of going back is told what is there.
    shop.run(&["status"]).done().prints("drift while readers saw it: 1 row not as the log says");

    shop.run(&["rollback", "sums"]).done();
    shop.run(&["health"]).exits(3).prints("drift: 1 row not as the log says");
}

async fn what_is_owed_is_drained_by_hand(shop: Shop) {
    given(&shop, INLINE);
    shop.run(&["pause", "sums"]).done();
    shop.numbers("more", &[("a", Some(5)), ("b", Some(5))]);
    shop.run(&["resume", "sums"]).done();
    shop.run(&["skips", "drain", "sums"]).done().prints("2 events of sums settled");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|9", "b|7"]);
    let json = shop.run(&["skips", "drain", "sums", "--json"]).done().json();
    assert_eq!((&json["events"], &json["still_owed"]), (&0.into(), &0.into()));
}
