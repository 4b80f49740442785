//! The failure: reports, in REPEATABLE READ, that go on while readers are switched over and what they
//! look at is removed.
//!
//! At risk: a report that sees nothing, or half of a read model, because its snapshot is from before the
//! switch and the view, or the tables behind it, are from after it.
//!
//! Guaranteed: a report sees in its view exactly the events that are in its snapshot, but for those that
//! are owed, however often it looks; what it looks at is removed after it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use everfold::RebuildOptions;
use everfold_testkit::{Seed, eventually};
use tokio::task::JoinHandle;

use crate::rebuild_load::Load;
use crate::rebuild_stories::{TURN, Told, differences_in, projection};
use crate::session::{LIMIT, Session, empty_store};
use crate::workers::open_worker;

/// Somebody who reports all the time, beside whatever happens.
pub(crate) struct Reporter {
    task: JoinHandle<Reported>,
    stop: Arc<AtomicBool>,
    /// A rebuild in place is under way: who begins now sees what is filled already.
    pub(crate) in_place: Arc<AtomicBool>,
}

/// What a reporter has seen.
#[derive(Default)]
pub(crate) struct Reported {
    pub(crate) reports: u64,
    /// The longest that an append has waited for a gate at some look.
    pub(crate) gate: Duration,
}

impl Reporter {
    pub(crate) fn start(url: &str, told: &'static Told) -> Reporter {
        let (stop, in_place) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let run = report(url.to_owned(), told, stop.clone(), in_place.clone());
        Reporter { task: tokio::spawn(run), stop, in_place }
    }

    pub(crate) async fn stop(self) -> Reported {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every report saw a whole read model")
    }
}

async fn report(
    url: String,
    told: &'static Told,
    stop: Arc<AtomicBool>,
    in_place: Arc<AtomicBool>,
) -> Reported {
    let mut seed = Seed::from_env_or_random();
    let mut seen = Reported::default();
    let mut session = Session::reopen(&url).await;
    while !stop.load(Ordering::Relaxed) {
        match one_report(&session, told, &in_place, &mut seed).await {
            Ok(whole) => seen.reports += u64::from(whole),
            // The server has crashed.
            Err(_) => session = Session::reopen(&url).await,
        }
        // A view that is always held can never be changed, and rebuilds wait for that.
        for _ in 0..25 {
            let waits = session.try_numbers(WAITS).await.unwrap_or_default();
            let longest = waits.first().copied().unwrap_or_default().unsigned_abs();
            seen.gate = seen.gate.max(Duration::from_micros(longest));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    seen
}

/// How long an append has been waiting for a gate, by the server's clock, in microseconds: a client that
/// gets no processor for a while is not counted.
const WAITS: &str = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)) * 1e6, 0)::bigint \
    FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND mode = 'ShareLock' \
    AND classid = 'everfold.generations'::regclass::oid";

/// Looks several times in one snapshot; false if the read model is being filled in place.
async fn one_report(
    session: &Session,
    told: &Told,
    in_place: &AtomicBool,
    seed: &mut Seed,
) -> Result<bool, tokio_postgres::Error> {
    session.try_run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    let events = session.try_numbers("SELECT count(*) FROM everfold.events").await?[0];
    let whole = !in_place.load(Ordering::SeqCst);
    for look in 0..seed.within(1..3) {
        let differ = session.try_numbers(&differing(told)).await?[0];
        assert!(
            !whole || differ == 0,
            "look {look} of a report at {events} events: {differ} keys differ"
        );
        tokio::time::sleep(Duration::from_millis(seed.within(10..80))).await;
    }
    session.try_run("COMMIT").await?;
    Ok(whole)
}

/// How many keys do not have exactly the events of the log, in order, without those owed. Of one that
/// catches up, some at the end may be missing.
fn differing(told: &Told) -> String {
    let Told { name, key, shown, .. } = told;
    let differs = match told.is_inline() {
        true => "l.positions IS DISTINCT FROM v.positions",
        false => "l.positions[1 : cardinality(v.positions)] IS DISTINCT FROM v.positions",
    };
    format!(
        "SELECT count(*) FROM (SELECT {key} AS key, array_agg(position ORDER BY position) AS positions
              FROM everfold.events e WHERE type = 'Moved' AND NOT EXISTS (
                SELECT FROM everfold.skips s JOIN everfold.projections p ON p.active_generation = s.generation
                 WHERE s.position = e.position AND p.name = '{name}') GROUP BY 1) l
          FULL JOIN (SELECT key, array_agg(p::bigint) AS positions FROM ({shown}) AS v(key, p) GROUP BY 1) v
         USING (key) WHERE {differs} AND (v.positions IS NOT NULL OR {})",
        told.is_inline()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_report_looks_at_is_removed_after_it() {
    let _turn = TURN.lock().await;
    let database = empty_store().await;
    let load = Load::start("streams", &database, &database.url()).await;
    let (told, url) = (load.told, database.url());
    let homes =
        "SELECT count(*) FROM pg_namespace n JOIN everfold.generations g ON g.home = n.nspname
        WHERE g.status = 'retired'";
    let mut reports = Vec::new();
    for _ in 0..4 {
        let report = Session::open(&url).await;
        report.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        // It has looked at the log, and will look at the read model.
        report.number("SELECT count(*) FROM everfold.events").await;
        reports.push(report);
    }
    let store = open_worker(&url).await;
    store.register(projection(told.name)).await.unwrap();
    let last = reports.pop().expect("there are four");
    for (switches, report) in (1..).zip(reports) {
        let rebuild = store.rebuild(told.name, RebuildOptions::default()).await.unwrap();
        rebuild.finish().await.unwrap();
        let (events, found, exact) = differences_in(&report, told).await;
        assert!(exact, "after {switches} switches a report at {events} events: {found}");
        report.run("COMMIT").await;
    }
    assert!(load.truth.number(homes).await > 0, "what the last report began with is there");
    let (events, found, exact) = differences_in(&last, told).await;
    assert!(exact, "behind a removal a report at {events} events: {found}");
    last.run("COMMIT").await;
    // With the next rebuild all goes that nobody sees any more.
    let rebuild = store.rebuild(told.name, RebuildOptions::default()).await.unwrap();
    rebuild.finish().await.unwrap();
    eventually("nothing is left", LIMIT, async || load.truth.number(homes).await == 0).await;
    load.finish("4 switches").await;
}
