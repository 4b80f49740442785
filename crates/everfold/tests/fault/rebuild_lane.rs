//! A store in which rebuilds are cut off at a chosen request, and gone on with by others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everfold::{
    ExpectedVersion, ProjectionError, Rebuild, RebuildOptions, Runner, RunnerHandle, Store,
};
use everfold_testkit::{Proxy, TestDatabase, eventually};
use tokio::task::JoinHandle;

use crate::rebuild_stories::{Told, differences, projection, state, told};
use crate::session::{LIMIT, Session, empty_store, open};
use crate::workers::{few_connections, moved, quick};

/// What is asked for, and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Beside,
    InPlace,
    /// Beside, while transactions hold a gate for longer than the fence waits.
    Unfenced,
    /// To what a rebuild without promotion has built before.
    Promote,
    Rollback,
}

fn options(order: Order) -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.in_place = order == Order::InPlace;
    if order == Order::Unfenced {
        options.fence_tries = 1;
        options.fence_timeout = Duration::from_millis(1);
    }
    options
}

pub(crate) async fn ask(
    store: &Store,
    name: &str,
    order: Order,
) -> Result<Rebuild, ProjectionError> {
    match order {
        Order::Promote => store.promote(name, options(order)).await,
        Order::Rollback => store.rollback(name, options(order)).await,
        _ => store.rebuild(name, options(order)).await,
    }
}

/// A store of its own in which rebuilds are cut, one after the other.
pub(crate) struct Lane {
    pub(crate) told: &'static Told,
    pub(crate) database: TestDatabase,
    pub(crate) truth: Session,
    pub(crate) carrying: Store,
    runner: RunnerHandle,
    appends: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    appended: Arc<AtomicU64>,
}

impl Lane {
    pub(crate) async fn start(name: &str, events: u64, gates_are_held: bool) -> Lane {
        let told = told(name);
        let database = empty_store().await;
        let carrying = open(&database.url()).await;
        carrying.register(projection(name)).await.unwrap();
        fill(&carrying, events).await;
        let mut options = quick();
        // Rebuilds are gone on with by those who are told to.
        options.rebuilds = 0;
        let runner = Runner::new(&carrying).projection(projection(name)).options(options);
        let runner = runner.start().await.unwrap();
        let truth = Session::open(&database.url()).await;
        let (stop, appended) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let by = |holds| {
            let (url, stop, appended) = (database.url(), stop.clone(), appended.clone());
            tokio::spawn(append(url, holds, stop, appended))
        };
        let holds = if gates_are_held { &[None, Some(0), Some(1)][..] } else { &[None] };
        let appends = holds.iter().map(|holds| by(*holds)).collect();
        Lane { told, database, truth, carrying, runner, appends, stop, appended }
    }

    /// A worker that goes through a proxy.
    pub(crate) async fn victim(&self) -> (Proxy, Store) {
        let address = self.database.server().address().unwrap();
        let proxy = Proxy::start(address).await.unwrap();
        let url = format!("{}?application_name=rebuilder", self.database.url_at(proxy.address()));
        let victim = Store::open_with(&url, few_connections()).await.unwrap();
        victim.register(projection(self.told.name)).await.unwrap();
        (proxy, victim)
    }

    pub(crate) async fn prepare(&self, order: Order) {
        if order == Order::Promote {
            self.build_only().await;
        }
    }

    /// Another worker goes on with it, or begins with it if it was never asked for.
    pub(crate) async fn go_on(&self, order: Order, ended_before: i64) {
        // What the server has got of it may still be under way; its last sign of life, say.
        let sessions = "SELECT count(*) FROM pg_stat_activity \
            WHERE application_name = 'rebuilder' AND datname = current_database()";
        let truth = &self.truth;
        eventually("the server is done", LIMIT, async || truth.number(sessions).await == 0).await;
        // Whoever had it is dead for sure, so nobody has to wait until the lease has run out.
        let expire = "UPDATE everfold.rebuilds SET expires_at = clock_timestamp() \
            WHERE finished_at IS NULL AND expires_at > clock_timestamp()";
        self.truth.run(expire).await;
        let other = Store::open_with(&self.database.url(), few_connections()).await.unwrap();
        if self.ended().await > ended_before {
            // It was removing what it had left behind, which is for any runner now.
            return self.tidy_up(&other).await;
        }
        other.register(projection(self.told.name)).await.unwrap();
        let rebuild = ask(&other, self.told.name, order).await.unwrap();
        let finished = tokio::time::timeout(LIMIT, rebuild.finish()).await;
        match finished {
            Ok(finished) => drop(finished.unwrap()),
            Err(_) => panic!("{order:?} is not gone on with: {}", state(&self.truth).await),
        }
        // It removes what is left in the background.
        self.until_tidy().await;
        other.close().await;
    }

    async fn tidy_up(&self, store: &Store) {
        let mut options = quick();
        options.rebuilds = 0;
        let runner = Runner::new(store).projection(projection(self.told.name)).options(options);
        let runner = runner.start().await.unwrap();
        self.until_tidy().await;
        runner.stop().await;
        store.close().await;
    }

    pub(crate) async fn build_only(&self) {
        let mut options = RebuildOptions::default();
        options.promote = false;
        let rebuild = self.carrying.rebuild(self.told.name, options).await.unwrap();
        rebuild.finish().await.unwrap();
    }

    pub(crate) async fn ended(&self) -> i64 {
        let sql = "SELECT count(*) FROM everfold.rebuilds WHERE finished_at IS NOT NULL";
        self.truth.number(sql).await
    }

    /// Nothing is there but what readers see, one to go back to, and one for next time.
    pub(crate) async fn until_tidy(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = self.left_over().await;
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left over: {left:?} {}", state(&self.truth).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn left_over(&self) -> Vec<Vec<Option<String>>> {
        let sql = "SELECT 'rebuild', id::text FROM everfold.rebuilds WHERE finished_at IS NULL
            UNION ALL SELECT status, count(*)::text FROM everfold.generations
                WHERE status <> 'retired' GROUP BY 1
                HAVING status NOT IN ('active', 'kept', 'spare') OR count(*) > 1
            UNION ALL SELECT 'schema', nspname FROM pg_namespace n
                WHERE nspname ~ '^everfold_[0-9]' AND NOT EXISTS (SELECT FROM everfold.generations g
                    WHERE g.home = n.nspname AND g.status <> 'retired')
            UNION ALL SELECT 'no schema', home FROM everfold.generations g
                WHERE status <> 'retired' AND NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = home)
            UNION ALL SELECT 'part', p.rebuild::text FROM everfold.rebuild_parts p
                JOIN everfold.rebuilds r ON r.id = p.rebuild
                LEFT JOIN everfold.generations g ON g.id = r.target AND g.status <> 'retired'
                WHERE NOT p.done OR g.id IS NULL
            UNION ALL SELECT 'checkpoint', c.generation::text FROM everfold.checkpoints c
                JOIN everfold.generations g ON g.id = c.generation WHERE g.status IN ('retired', 'spare')
            UNION ALL SELECT 'skip', s.position::text FROM everfold.skips s
                JOIN everfold.generations g ON g.id = s.generation WHERE g.status <> 'active'";
        self.truth.rows(sql).await.unwrap()
    }

    /// Stops the appends; nothing is owed then.
    pub(crate) async fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.appends {
            task.await.unwrap();
        }
        let owed = "SELECT count(*) FROM everfold.skips";
        let truth = &self.truth;
        eventually("nothing is owed", LIMIT, async || truth.number(owed).await == 0).await;
        let (_, found, exact) = differences(truth, self.told).await;
        assert!(exact, "in the end: {found}");
        self.runner.stop().await;
        self.appended.load(Ordering::Relaxed)
    }
}

async fn fill(store: &Store, events: u64) {
    for stream in 0..12 {
        let events: Vec<_> = (0..events / 12 + 1).map(|n| moved(n + 5 * stream)).collect();
        for some in events.chunks(500) {
            let stream = format!("s-{stream}");
            store.append(stream, ExpectedVersion::Any, some.to_vec()).await.unwrap();
        }
    }
}

/// Appends now and then, by plain SQL. Two that hold take turns to have a transaction open all the time.
async fn append(url: String, holds: Option<u64>, stop: Arc<AtomicBool>, appended: Arc<AtomicU64>) {
    let session = Session::open(&url).await;
    let pause = Duration::from_millis(40);
    let mut n = holds.unwrap_or(0);
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let stream = holds.map_or(format!("s-{}", n % 12), |number| format!("held-{number}"));
        let append = format!(
            "SELECT everfold.append_event('{stream}', NULL, 'Moved', '{{\"account\": \"a-{}\"}}')",
            n % 24
        );
        match holds {
            None => session.run(&append).await,
            Some(_) => {
                session.run(&format!("BEGIN; {append}")).await;
                tokio::time::sleep(pause).await;
                session.run("COMMIT").await;
            }
        }
        appended.fetch_add(1, Ordering::Relaxed);
        if holds.is_none() {
            tokio::time::sleep(pause / 4).await;
        }
    }
}
