//! The failure: whoever rebuilds a read model stands still at its n-th request for longer than its lease
//! lives. Another worker goes on and ends the rebuild, and a further one is built beside what readers
//! see. Then the first one goes on with that request, and with whatever it has in mind behind it.
//!
//! At risk: a status that is changed by somebody whose word does not count any more: what was built
//! later, or is kept to go back to, is retired.
//!
//! Guaranteed: every step is tied to the rebuild's epoch, so the late one changes nothing.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use everfold::Store;
use everfold_testkit::{Seed, eventually};
use futures::future::join_all;

use crate::rebuild_cut::places;
use crate::rebuild_lane::{Lane, Order, ask};
use crate::rebuild_stories::{differences, projection};
use crate::session::LIMIT;
use crate::workers::few_connections;

/// A statement of the switch, sent as text once by each worker.
const FLIP: &[u8] = b"UPDATE everfold.rebuilds SET flipped_at";
/// So long without a request: it does nothing any more.
const QUIET: Duration = Duration::from_millis(300);

/// Where it stands still.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At this request.
    At(u64),
    /// At this request behind the switch.
    BehindTheSwitch(u64),
}

impl Lane {
    /// Whether it came to stand still in the middle of a rebuild.
    async fn hold(&self, place: Place) -> bool {
        let asked = "SELECT count(*) FROM everfold.rebuilds";
        let (name, asked_before, ended_before) =
            (self.told.name, self.truth.number(asked).await, self.ended().await);
        let (proxy, victim) = self.victim().await;
        match place {
            Place::At(number) => proxy.stall_at_request(number),
            Place::BehindTheSwitch(number) => proxy.stall_at_request_after(FLIP, number),
        }
        // It works for as long as it is not told to leave.
        let working = tokio::spawn(async move {
            let _rebuild = ask(&victim, name, Order::Beside).await;
            std::future::pending::<()>().await;
        });
        let through =
            async || self.ended().await > ended_before && self.left_over().await.is_empty();
        eventually("it stands still or ends", LIMIT, async || {
            !proxy.is_waiting_for_message() || through().await
        })
        .await;
        let is_held = !proxy.is_waiting_for_message();
        if !is_held || self.truth.number(asked).await == asked_before {
            // It got through, or has not even asked for it.
            proxy.cut().await;
            working.abort();
            if !is_held {
                return false;
            }
            self.go_on(Order::Beside, ended_before).await;
            return false;
        }
        self.take_over(ended_before).await;
        self.build_only().await;
        let before = self.fingerprint().await;
        proxy.resume();
        let mut requests = 0;
        while proxy.requests() != requests {
            requests = proxy.requests();
            tokio::time::sleep(QUIET).await;
        }
        let after = self.fingerprint().await;
        assert_eq!(after, before, "{place:?}: it changed something");
        working.abort();
        proxy.cut().await;
        ask(&self.carrying, name, Order::Promote).await.unwrap().finish().await.unwrap();
        self.until_tidy().await;
        let (events, found, exact) = differences(&self.truth, self.told).await;
        assert!(exact, "{place:?}, {events} events: {found}");
        true
    }

    /// Another one goes on with the rebuild, if it is open.
    async fn take_over(&self, ended_before: i64) {
        // As the server does with transactions that nobody goes on with, after a time.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state <> 'idle' \
            AND application_name = 'rebuilder' AND datname = current_database()";
        self.truth.run(end).await;
        let expire = "UPDATE everfold.rebuilds SET expires_at = clock_timestamp() \
            WHERE finished_at IS NULL AND expires_at > clock_timestamp()";
        self.truth.run(expire).await;
        if self.ended().await > ended_before {
            return;
        }
        let other = Store::open_with(&self.database.url(), few_connections()).await.unwrap();
        other.register(projection(self.told.name)).await.unwrap();
        let rebuild = ask(&other, self.told.name, Order::Beside).await.unwrap();
        rebuild.finish().await.unwrap();
        self.until_tidy().await;
        other.close().await;
    }

    /// All that a rebuild may change; a spare generation is nobody's.
    async fn fingerprint(&self) -> Vec<Vec<Option<String>>> {
        let sql = "SELECT 'generation', id::text, status FROM everfold.generations
                WHERE status NOT IN ('spare', 'retired')
            UNION ALL SELECT 'projection', id::text, active_generation::text FROM everfold.projections
            UNION ALL SELECT 'rebuild', id::text, concat_ws(' ', phase, epoch, target, source, message)
                FROM everfold.rebuilds
            ORDER BY 1, 2";
        self.truth.rows(sql).await.unwrap()
    }
}

async fn held_at(name: &'static str, places: Vec<Place>, lanes: usize) {
    let begun = Instant::now();
    let (number, places) = (places.len(), Mutex::new(places.into_iter()));
    let work = async || {
        let lane = Lane::start(name, 100, false).await;
        let mut held = 0;
        loop {
            let next = places.lock().unwrap().next();
            let Some(place) = next else { break };
            held += usize::from(lane.hold(place).await);
        }
        lane.finish().await;
        held
    };
    let held: usize = join_all((0..lanes).map(|_| work())).await.into_iter().sum();
    println!("{name}: {held} of {number} workers stood still in time, {:?}", begun.elapsed());
    assert!(held >= number / 2, "only {held} of {number} stood still in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_goes_on_late_changes_nothing() {
    let mut seed = Seed::from_env_or_random();
    let places = places(160, &mut seed).into_iter().map(Place::At).collect();
    held_at("streams", places, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_goes_on_late_behind_the_switch_changes_nothing() {
    let places = (1..=14).map(Place::BehindTheSwitch).collect();
    held_at("streams", places, 3).await;
}
