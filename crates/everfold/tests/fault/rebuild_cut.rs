//! The failure: whoever rebuilds a read model dies at its n-th request to the server: the request never
//! arrives, or it is done and nobody hears of it. With `EVERFOLD_CUT_ALL=1` for every n up to the end of a
//! rebuild, otherwise for some that are drawn.
//!
//! At risk: a step that is half done and is taken for done, or is done twice by whoever goes on; tables,
//! parts and records that nobody removes.
//!
//! Guaranteed: another worker goes on from wherever it stood; in the end the read model is what a fold
//! of the log by position gives, and nothing is left over. Appends go on all the time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use everfold::ProjectionError;
use everfold_testkit::{Loss, Seed};
use futures::future::join_all;

use crate::rebuild_lane::{Lane, Order, ask};
use crate::rebuild_stories::differences;

/// How many of an order's requests are cut, unless all are.
const CUTS: u64 = 3;
const ALL: &str = "EVERFOLD_CUT_ALL";

impl Lane {
    /// How many requests an order takes.
    async fn count(&self, order: Order) -> u64 {
        self.prepare(order).await;
        let (proxy, victim) = self.victim().await;
        let before = proxy.requests();
        ask(&victim, self.told.name, order).await.unwrap().finish().await.unwrap();
        self.until_tidy().await;
        proxy.requests() - before
    }

    /// One order that is cut at the n-th request, and gone on with; false if it got through uncut.
    async fn cut(&self, order: Order, number: u64, loss: Loss) -> bool {
        self.prepare(order).await;
        let (name, ended_before) = (self.told.name, self.ended().await);
        let (proxy, victim) = self.victim().await;
        proxy.die_at_request(number, loss);
        let dies = async {
            while proxy.is_waiting_for_message() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let works = async {
            ask(&victim, name, order).await?.finish().await?;
            // What it removes behind it counts too.
            self.until_tidy().await;
            Ok::<(), ProjectionError>(())
        };
        let through = tokio::select! {
            () = dies => false,
            worked = works => {
                let through = proxy.is_waiting_for_message();
                assert!(worked.is_ok() || !through, "{order:?} failed uncut: {worked:?}");
                through
            }
        };
        drop((proxy, victim));
        if !through {
            self.go_on(order, ended_before).await;
        }
        let (events, found, exact) = differences(&self.truth, self.told).await;
        assert!(exact, "{order:?} cut at request {number} ({loss:?}), {events} events: {found}");
        !through
    }
}

/// At which of the requests that an order takes it is cut: at one of each of so many stretches of them,
/// drawn anew each time, or at all of them where [`ALL`] is set.
pub(crate) fn places(requests: u64, seed: &mut Seed) -> Vec<u64> {
    let stretches = if std::env::var_os(ALL).is_some() { requests } else { CUTS.min(requests) };
    let begin = |stretch: u64| 1 + stretch * requests / stretches;
    (0..stretches).map(|stretch| seed.within(begin(stretch)..begin(stretch + 1))).collect()
}

/// Cuts orders at their requests, in several stores at once.
async fn cut_at_requests(name: &'static str, orders: &[Order], loss: Loss, lanes: usize) {
    let held = orders.contains(&Order::Unfenced);
    // From 2,000 events on they are copied in parts.
    let events = if orders.contains(&Order::Promote) { 100 } else { 2_100 };
    let begun = Instant::now();
    let lanes = join_all((0..lanes).map(|_| Lane::start(name, events, held))).await;
    let (mut requests, mut seed) = (0, Seed::from_env_or_random());
    for order in orders {
        requests = requests.max(lanes[0].count(*order).await);
    }
    if orders.contains(&Order::Rollback) {
        for lane in &lanes[1..] {
            // Something to go back to.
            lane.count(Order::Promote).await;
        }
    }
    let places = Mutex::new(places(requests, &mut seed).into_iter());
    let work = async |lane: &Lane| {
        let mut cut = 0;
        loop {
            let Some(number) = places.lock().unwrap().next() else { return cut };
            for order in orders {
                cut += u64::from(lane.cut(*order, number, loss).await);
            }
        }
    };
    let cut: u64 = join_all(lanes.iter().map(work)).await.into_iter().sum();
    let mut appended = 0;
    for lane in lanes {
        appended += lane.finish().await;
    }
    println!(
        "{orders:?} of {name}, {requests} requests: {cut} workers lost with the {loss:?}, {appended} \
         appends meanwhile, {:?}",
        begun.elapsed()
    );
    assert!(cut >= CUTS / 2, "only {cut} cuts hit");
}

macro_rules! cut {
    ($($test:ident: $name:literal, [$($order:ident),+], $lanes:literal;)+) => { $(
        mod $test {
            use super::{Loss, Order, cut_at_requests};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn request_is_lost() {
                cut_at_requests($name, &[$(Order::$order),+], Loss::Request, $lanes).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn answer_is_lost() {
                cut_at_requests($name, &[$(Order::$order),+], Loss::Answer, $lanes).await;
            }
        }
    )+ };
}

cut! {
    documents_beside: "seen", [Beside], 6;
    sql_beside: "streams", [Beside], 3;
    sql_in_place: "streams", [InPlace], 3;
    sql_promoted_and_rolled_back: "streams", [Promote, Rollback], 3;
    sql_without_the_fence: "streams", [Unfenced], 3;
}
