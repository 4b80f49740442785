//! Several `everfold run` at once.

use std::collections::HashSet;

use everfold_testkit::eventually;

use super::CATCH_UP;
use crate::shop::{Shop, on_both_stores};
use crate::support::LIMIT;

on_both_stores! {
    two_share_the_shards_and_one_takes_over,
    many_at_once_apply_everything_once,
}

async fn two_share_the_shards_and_one_takes_over(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}shards = 4\n"));
    let first = shop.start(&[]);
    eventually("the first runs all", LIMIT, async || {
        shop.owners("sums").iter().all(Option::is_some)
    })
    .await;
    let second = shop.start(&[]);
    let names =
        |owners: &[Option<String>]| owners.iter().flatten().cloned().collect::<HashSet<_>>();
    eventually("both run some", LIMIT, async || names(&shop.owners("sums")).len() == 2).await;

    let streams: Vec<String> = (0..40).map(|n| format!("s-{n}")).collect();
    let numbers: Vec<_> = streams.iter().map(|stream| (stream.as_str(), Some(7))).collect();
    shop.numbers("first", &numbers);
    shop.run(&["wait", "sums", "--timeout", "50"]).done();
    first.stop();
    eventually("the second has all", LIMIT, async || {
        let owners = shop.owners("sums");
        owners.iter().all(Option::is_some) && names(&owners).len() == 1
    })
    .await;
    shop.numbers("second", &numbers);
    shop.run(&["wait", "sums", "--timeout", "50"]).done();
    let mut expected: Vec<_> = streams.iter().map(|stream| format!("{stream}|14|2")).collect();
    expected.sort();
    assert_eq!(shop.rows("sums", &["stream", "n", "v"]).await, expected);
    second.stop();
}

/// Schedulers that overlap, all of them registering at the same time too.
async fn many_at_once_apply_everything_once(shop: Shop) {
    shop.sums("sums", &format!("{CATCH_UP}shards = 3\nbatch_events = 50\n"));
    let numbers: Vec<_> =
        (0..900_i64).map(|n| (["a", "b", "c"][n as usize % 3], Some(n))).collect();
    shop.numbers("events", &numbers);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| shop.run(&["run", "--once"]).exits(0));
        }
    });
    let sum = |from: i64| -> i64 { (0..300).map(|n| from + 3 * n).sum() };
    let expected: Vec<_> =
        [("a", 0), ("b", 1), ("c", 2)].map(|(s, n)| format!("{s}|{}|300", sum(n))).to_vec();
    assert_eq!(shop.rows("sums", &["stream", "n", "v"]).await, expected);
}
