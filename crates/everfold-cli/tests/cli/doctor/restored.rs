//! A log that is shorter than it was: its events come from an older backup than all the rest.

use super::{CATCH_UP, Found, INLINE};
use crate::shop::{Shop, on_both_stores};

on_both_stores! {
    catch_up_read_model_ahead_of_the_log_is_told,
    inline_read_model_ahead_of_the_log_is_told,
    event_that_is_owed_and_not_there_is_told,
}

/// As if the events had been restored from a backup of that moment, and nothing else.
async fn restore_events_up_to(shop: &Shop, position: u64) {
    let delete = format!("DELETE FROM everfold.events WHERE position > {position}");
    if !shop.is_sqlite() {
        let guard = |action: &str| {
            format!("ALTER TABLE everfold.events {action} TRIGGER events_refuse_change")
        };
        let sql = format!("{}; {delete}; {}", guard("DISABLE"), guard("ENABLE ALWAYS"));
        return shop.execute(&sql).await;
    }
    let connection = shop.folder.connect();
    let guard = "SELECT sql FROM sqlite_schema WHERE name = 'everfold_events_refuse_delete'";
    let guard: String = connection.query_row(guard, [], |row| row.get(0)).unwrap();
    let delete = delete.replace("everfold.", "everfold_");
    let sql = format!("DROP TRIGGER everfold_events_refuse_delete; {delete}; {guard};");
    connection.execute_batch(&sql).unwrap();
}

async fn catch_up_read_model_ahead_of_the_log_is_told(shop: Shop) {
    shop.sums("sums", CATCH_UP);
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2)), ("a", Some(3))]);
    shop.run(&["run", "--once"]).done();
    Found::by(&shop, &[], 0).is_ok("log");
    restore_events_up_to(&shop, 1).await;
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "projections", "sums, checkpoint: ");
    assert!(message.contains("checkpoint 3 is past the end of the log, 1"), "{message}");
    assert_eq!(hint, "`everfold rebuild sums`");
    shop.run(&["rebuild", "sums"]).exits(0);
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
    Found::by(&shop, &[], 0).is_ok("projections");
}

/// It has no checkpoint that could tell, but its verification knows how long the log was.
async fn inline_read_model_ahead_of_the_log_is_told(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2)), ("a", Some(3))]);
    shop.run(&["verify", "sums", "--all"]).done();
    Found::by(&shop, &[], 0).is_ok("log");
    restore_events_up_to(&shop, 1).await;
    let found = Found::by(&shop, &[], 3);
    let (message, hint) = found.told("problem", "log", "it ends at position 1, and ");
    let place = if shop.is_sqlite() { "everfold_verifications" } else { "everfold.verifications" };
    assert!(message.contains(&format!("{place} knows of position 3 of sums")), "{message}");
    assert!(hint.starts_with("`everfold rebuild sums`; `everfold verify sums --all`"), "{hint}");
    shop.run(&["verify", "sums", "--all"]).exits(3);
    shop.run(&["rebuild", "sums"]).exits(0);
    shop.run(&["verify", "sums", "--all"]).done();
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
    Found::by(&shop, &[], 0).is_ok("projections");
    shop.numbers("more", &[("a", Some(5))]);
    Found::by(&shop, &[], 0).is_ok("log");
}

/// A skip that is owed for an event that is not there any more.
async fn event_that_is_owed_and_not_there_is_told(shop: Shop) {
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("a", Some(1))]);
    shop.run(&["pause", "sums"]).done();
    shop.numbers("more", &[("a", Some(2))]);
    Found::by(&shop, &[], 0).is_ok("log");
    restore_events_up_to(&shop, 1).await;
    let (message, hint) = Found::by(&shop, &[], 3).told("problem", "log", " of sums: events were ");
    assert!(message.contains("skips knows of position 2"), "{message}");
    assert!(hint.starts_with("`everfold rebuild sums`"), "{hint}");
    shop.run(&["rebuild", "sums"]).exits(0);
    assert_eq!(shop.rows("sums", &["n"]).await, ["1"]);
    shop.numbers("yet-more", &[("a", Some(3))]);
    Found::by(&shop, &[], 0).is_ok("log");
}

/// Readers on standbys take what is below the published mark for decided.
#[tokio::test(flavor = "multi_thread")]
async fn published_mark_past_the_end_of_the_log_is_told() {
    let shop = Shop::postgres().await;
    shop.numbers("events", &[("a", Some(1)), ("a", Some(2))]);
    shop.execute("SELECT everfold.publish_high_water_mark()").await;
    Found::by(&shop, &[], 0).is_ok("log");
    restore_events_up_to(&shop, 1).await;
    let found = Found::by(&shop, &[], 3);
    let (_, hint) = found.told("problem", "log", "the mark that was published for standbys is 2");
    assert!(hint.contains("DELETE FROM everfold.published_mark"), "{hint}");
    shop.execute("DELETE FROM everfold.published_mark").await;
    Found::by(&shop, &[], 0).is_ok("log");
}

/// Where nothing else knows, the sequence does, if there is more missing than was rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn many_positions_without_events_at_the_end_are_a_warning() {
    let shop = Shop::postgres().await;
    shop.numbers("events", &[("a", Some(1))]);
    Found::by(&shop, &[], 0).is_ok("log");
    shop.execute("SELECT setval('everfold.events_position_seq', 2000)").await;
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "log", "it ends at position 1, and 1999 more ");
    assert!(message.contains("come from an older backup than the rest"), "{message}");
    assert!(hint.contains("`everfold verify NAME --all`"), "{hint}");
    shop.numbers("more", &[("a", Some(2))]);
    Found::by(&shop, &[], 0).is_ok("log");
}
