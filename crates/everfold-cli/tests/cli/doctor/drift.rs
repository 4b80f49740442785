//! Rows that are not as the log says, that could be doubled, or that are not there at all.

use super::{CATCH_UP, Found, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    drift_that_was_verified_is_told,
    table_without_a_key_is_told,
    table_that_was_dropped_is_told,
    view_that_was_dropped_is_told,
}

async fn drift_that_was_verified_is_told(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("b", Some(2))]);
    shop.execute_in_read_model("sums", "UPDATE {table} SET n = 5 WHERE stream = 'a'").await;
    Found::by(&shop, &[], 0).is_ok("projections");
    shop.run(&["verify", "sums", "--all"]).exits(3);
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "projections", "sums, drift: ");
    assert!(message.contains("1 row not as the log says, by the verification of 20"), "{message}");
    assert_eq!(hint, "`everfold rebuild sums`");
    shop.run(&["rebuild", "sums"]).done();
    shop.run(&["verify", "sums", "--all"]).done();
    Found::by(&shop, &[], 0).is_ok("projections");
}

/// A copy of each event, in a table that takes the same row twice.
async fn table_without_a_key_is_told(shop: Shop) {
    shop.projection(
        "moves",
        CATCH_UP,
        "CREATE TABLE read_model.moves (stream TEXT, n BIGINT)",
        "INSERT INTO read_model.moves SELECT stream_id, version FROM batch",
    );
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).exits(0);
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "read models", "table moves of moves ");
    assert!(message.contains("has neither primary key nor unique index"), "{message}");
    assert!(
        hint.starts_with("`everfold verify moves --all` finds rows that are doubled"),
        "{hint}"
    );
    // The doubled row is what that command finds.
    shop.execute_in_read_model("moves", "INSERT INTO {table} SELECT * FROM {table}").await;
    shop.run(&["verify", "moves", "--all"]).exits(3);

    let toml = CATCH_UP.replace('1', "2");
    shop.projection(
        "moves",
        &toml,
        "CREATE TABLE read_model.moves (stream TEXT, n BIGINT, PRIMARY KEY (stream, n))",
        "INSERT INTO read_model.moves SELECT stream_id, version FROM batch",
    );
    shop.run(&["rebuild", "moves"]).exits(0);
    Found::by(&shop, &[], 0).is_ok("read models");
}

async fn table_that_was_dropped_is_told(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &[], 0).is_ok("read models");
    let cascade = if shop.is_sqlite() { "" } else { " CASCADE" };
    shop.execute_in_read_model("sums", &format!("DROP TABLE {{table}}{cascade}")).await;
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "read models", "table sums of sums is gone");
    assert!(message.contains("dropped, or not restored"), "{message}");
    assert_eq!(hint, "`everfold rebuild sums`");
    shop.run(&["rebuild", "sums"]).exits(0);
    Found::by(&shop, &[], 0).is_ok("read models");
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
}

async fn view_that_was_dropped_is_told(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["run", "--once"]).done();
    let view = if shop.is_sqlite() { "read_model_sums" } else { "read_model.sums" };
    shop.execute(&format!("DROP VIEW {view}")).await;
    let found = Found::by(&shop, &[], 3);
    let (_, hint) = found.told("problem", "read models", "no view shows table sums of sums");
    assert_eq!(hint, "`everfold rebuild sums`");
    shop.run(&["rebuild", "sums"]).exits(0);
    Found::by(&shop, &[], 0).is_ok("read models");
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
}
