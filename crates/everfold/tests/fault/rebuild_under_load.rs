//! The failure: read models are rebuilt again and again, beside, in place and back, while sixteen
//! writers of every kind append; meanwhile the rebuilders are killed at any moment and their sessions
//! ended, or they are paused for longer than their lease lives and go on beside whoever took over, or
//! the server crashes; once all of it goes through a pooler in transaction mode.
//!
//! At risk: an event lost, doubled or reordered at a switch; a reader with an old snapshot who sees a
//! read model vanish; appends that wait for long, or fail.
//!
//! Guaranteed: after each switch and at the end the read model is what a fold of the log by position
//! gives, but for what is owed by a record of it; in the end nothing is owed, and exactly what was
//! answered is in the log. Readers that began before a switch go on to see what they saw.

use std::time::{Duration, Instant};

use everfold_testkit::{Cluster, ClusterOptions, PgBouncer, Seed, TestDatabase};

use crate::rebuild_load::Load;
use crate::rebuild_stories::{CHILD, STORY, TURN, differences_in, ended, state};
use crate::session::{LIMIT, Session, empty_store};
use crate::workers::Worker;

/// What goes wrong in the middle of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pain {
    /// The rebuilder is killed; another one is started.
    Kill,
    /// Its sessions are ended.
    EndSessions,
    /// It stands still until another one has taken over, then goes on.
    Pause,
    /// The server crashes and recovers.
    Crash,
}

/// Rebuilds under load, with what is done to whoever works on them.
struct Rounds<'a> {
    load: Load,
    cluster: Option<&'a Cluster>,
    child_url: String,
    child: Worker,
    /// Paused once, and alive.
    zombies: Vec<Worker>,
    seed: Seed,
    switches: usize,
    /// How often each kind of trouble came before the end of a rebuild.
    pains: Vec<(Pain, usize)>,
}

impl<'a> Rounds<'a> {
    fn begin(load: Load, cluster: Option<&'a Cluster>) -> Rounds<'a> {
        let child_url = format!("{}?application_name=rebuilder", load.url);
        let child = start(&child_url, load.told.name);
        let (zombies, pains) = (Vec::new(), Vec::new());
        let seed = Seed::from_env_or_random();
        Rounds { load, cluster, child_url, child, zombies, seed, switches: 0, pains }
    }

    /// One rebuild, with these troubles on its way, as far as it does not end before.
    async fn round(&mut self, order: &str, pains: &[Pain]) {
        let old = Session::open(&self.load.direct).await;
        // A report that begins now and looks at the read model after the switch.
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        let before = old.number("SELECT count(*) FROM everfold.events").await;
        let ended_before = ended(&self.load.truth).await;
        if order == "in-place" {
            self.load.is_in_place(true);
        }
        self.child.tell(order);
        let deadline = Instant::now() + LIMIT * 2;
        let mut pains = pains.iter();
        while ended(&self.load.truth).await == ended_before {
            let (name, truth) = (self.load.told.name, &self.load.truth);
            assert!(
                Instant::now() < deadline,
                "{order} of {name} does not end: {}",
                state(truth).await
            );
            tokio::time::sleep(Duration::from_millis(self.seed.within(20..300))).await;
            if ended(truth).await != ended_before {
                break;
            }
            if let Some(pain) = pains.next() {
                self.strike(*pain, order, ended_before).await;
            }
        }
        for zombie in self.zombies.drain(..) {
            zombie.leave().await;
        }
        self.load.is_in_place(false);
        self.switches += 1;
        self.compare(order, old, before).await;
    }

    async fn compare(&self, order: &str, old: Session, before: i64) {
        let (told, round) = (self.load.told, self.switches);
        if told.is_inline() && order != "in-place" && !old.is_closed() {
            let (_, found, exact) = differences_in(&old, told).await;
            assert!(exact, "{order} ({round}): a report of before, {before} events: {found}");
        }
        drop(old);
        self.load.assert_exact(&format!("after {order} ({round})")).await;
    }

    async fn strike(&mut self, pain: Pain, order: &str, ended_before: i64) {
        match pain {
            Pain::Kill => {
                self.child.kill();
                self.child = start(&self.child_url, self.load.told.name);
                if ended(&self.load.truth).await == ended_before {
                    self.child.tell(order);
                }
            }
            Pain::EndSessions => {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'rebuilder' AND datname = current_database()";
                self.load.truth.number(end).await;
            }
            Pain::Pause => self.pause(order, ended_before).await,
            Pain::Crash => {
                let cluster = self.cluster.expect("a server of its own can crash");
                tokio::task::block_in_place(|| {
                    cluster.crash().unwrap();
                    cluster.start_again().unwrap();
                });
                self.load.truth = Session::reopen(&self.load.direct).await;
            }
        }
        match self.pains.iter_mut().find(|(known, _)| *known == pain) {
            Some((_, number)) => *number += 1,
            None => self.pains.push((pain, 1)),
        }
    }

    /// The paused one goes on as soon as another has the rebuild, and works beside it.
    async fn pause(&mut self, order: &str, ended_before: i64) {
        let epoch = "SELECT coalesce(sum(epoch), 0)::bigint FROM everfold.rebuilds";
        let before = self.load.truth.number(epoch).await;
        self.child.pause();
        let mut other = start(&self.child_url, self.load.told.name);
        if ended(&self.load.truth).await == ended_before {
            other.tell(order);
        }
        let deadline = Instant::now() + LIMIT;
        while self.load.truth.number(epoch).await == before
            && ended(&self.load.truth).await == ended_before
        {
            assert!(
                Instant::now() < deadline,
                "nobody takes over: {}",
                state(&self.load.truth).await
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(self.seed.within(0..200))).await;
        self.child.resume();
        self.zombies.push(std::mem::replace(&mut self.child, other));
    }

    async fn end(self) {
        self.child.leave().await;
        let what: Vec<String> =
            self.pains.iter().map(|(pain, number)| format!("{number} x {pain:?}")).collect();
        self.load.finish(&format!("{} switches, {}", self.switches, what.join(", "))).await;
    }
}

fn start(url: &str, story: &str) -> Worker {
    Worker::start_test(CHILD, url, &[(STORY, story)])
}

const ORDERS: [&str; 3] = ["beside", "rollback", "in-place"];

/// Rebuilders are killed, and sessions ended, now and then until a rebuild gets through.
async fn killed(name: &'static str, rounds: usize) {
    let _turn = TURN.lock().await;
    let database = empty_store().await;
    let load = Load::start(name, &database, &database.url()).await;
    let mut story = Rounds::begin(load, None);
    for round in 0..rounds {
        let number = if story.seed.chance(0.3) { 0 } else { story.seed.within(1..4) };
        let pain = |_| if story.seed.chance(0.6) { Pain::Kill } else { Pain::EndSessions };
        let pains: Vec<Pain> = (0..number).map(pain).collect();
        story.round(ORDERS[round % 3], &pains).await;
    }
    story.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_sql_by_stream() {
    killed("streams", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_sql_with_keys_across_streams() {
    killed("applied", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_documents() {
    killed("seen", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_sql_in_shards() {
    killed("later", 3).await;
}

async fn paused(name: &'static str) {
    let _turn = TURN.lock().await;
    let database = empty_store().await;
    let load = Load::start(name, &database, &database.url()).await;
    let mut story = Rounds::begin(load, None);
    for order in ORDERS {
        story.round(order, &[Pain::Pause]).await;
    }
    story.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilders_of_sql_that_are_paused_and_go_on_change_nothing() {
    paused("streams").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilders_of_documents_that_are_paused_and_go_on_change_nothing() {
    paused("seen").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_crashes_in_the_middle_of_rebuilds_loses_nothing() {
    let _turn = TURN.lock().await;
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    for (name, orders) in [("applied", &ORDERS[..]), ("seen", &ORDERS[..1])] {
        let database = TestDatabase::create_on(&cluster).await;
        let load = Load::start(name, &database, &database.url()).await;
        let mut story = Rounds::begin(load, Some(&cluster));
        for order in orders {
            story.round(order, &[Pain::Crash]).await;
        }
        story.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_pooler_in_transaction_mode() {
    let _turn = TURN.lock().await;
    for (name, orders) in
        [("streams", &ORDERS[..]), ("seen", &ORDERS[..1]), ("later", &ORDERS[..1])]
    {
        let database = empty_store().await;
        let pooler = PgBouncer::start_with_pool_size(database.server(), 30).unwrap();
        let load = Load::start(name, &database, &pooler.url(database.name())).await;
        let mut story = Rounds::begin(load, None);
        for order in orders {
            story.round(order, &[]).await;
        }
        story.end().await;
    }
}
