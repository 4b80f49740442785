//! Times that cannot be: an event of the future. (Machines whose clocks differ are beside the code: a
//! test has one machine.)

use super::Found;
use crate::shop::{Shop, on_both_stores};

on_both_stores! { event_of_the_future_is_told }

async fn event_of_the_future_is_told(shop: Shop) {
    shop.numbers("events", &[("a", Some(1))]);
    assert!(Found::by(&shop, &[], 0).of("clock").iter().all(|found| found["severity"] == "ok"));
    let tomorrow = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    let line = serde_json::json!({
        "stream_id": "a", "type": "Counted", "data": {}, "recorded_at": tomorrow.to_string(),
    });
    shop.folder.write("tomorrow.jsonl", &line.to_string());
    shop.run(&["import", "tomorrow.jsonl"]).exits(0);
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "clock", "the newest event, at position 2, was ");
    let day = tomorrow.strftime("%Y-%m-%d").to_string();
    assert!(message.contains(&format!("recorded at {day}")), "{message}");
    assert!(hint.starts_with("`timedatectl`"), "{hint}");
    shop.numbers("more", &[("a", Some(2))]);
    assert!(Found::by(&shop, &[], 0).of("clock").iter().all(|found| found["severity"] == "ok"));
}
