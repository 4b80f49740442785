//! Rebuilds of a file that several processes share. At risk: events that come in through one process
//! while another one builds the read model again or switches it over. Guaranteed: what readers see is
//! the fold of the log, whoever appends, rebuilds, or is killed.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    ExpectedVersion, HandlerBatch, HandlerError, Projection, RebuildOptions, RebuildPhase, Store,
};
use everfold_testkit::eventually;

use crate::chains::{APPLY, CREATE, append_of, chains, events, fill, folded, shown, stream};
use crate::fixture::{Place, Tamed, child_file, url};

const LIMIT: Duration = Duration::from_secs(60);
const APPENDS: u64 = 400;

fn options() -> RebuildOptions {
    let mut options = RebuildOptions::default();
    options.compare = false;
    options
}

fn inline_chains(version: u32) -> Projection {
    let more = if version == 1 { "" } else { "\n-- another version" };
    let body = Projection::sql("chains", version).create(CREATE).apply(format!("{APPLY}{more}"));
    body.events(["Moved"]).key_fields(["data.account"]).inline().build().unwrap()
}

async fn rebuild(store: &Store, options: RebuildOptions) {
    let progress = store.rebuild("chains", options).await.unwrap().finish().await.unwrap();
    assert_eq!(progress.phase, RebuildPhase::Done);
}

fn number(place: &Place, sql: &str) -> i64 {
    place.connect().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn change(place: &Place, sql: &str) {
    let connection = place.connect();
    connection.busy_timeout(LIMIT).unwrap();
    connection.execute(sql, []).unwrap();
}

/// Everything that belongs to generations, by the prefix of its name.
fn homes(place: &Place) -> Vec<String> {
    let connection = place.connect();
    let sql = "SELECT DISTINCT substr(name, 1, instr(name, '_') - 1) FROM sqlite_schema \
        WHERE name GLOB 'g[0-9]*_*' ORDER BY 1";
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Appends through a handle of its own until it is told to stop.
struct Appender {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<Duration>,
}

impl Appender {
    async fn start(place: &Place) -> Self {
        let store = place.open().await;
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&done));
        let task = tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            for number in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let begun = Instant::now();
                store.append(stream(number), ExpectedVersion::Any, events(number)).await.unwrap();
                longest = longest.max(begun.elapsed());
                counted.fetch_add(1, Ordering::SeqCst);
            }
            longest
        });
        Appender { stop, done, task }
    }

    /// Waits until some more were stored.
    async fn go_on(&self) {
        let goal = self.done.load(Ordering::SeqCst) + 5;
        eventually("appends go on", LIMIT, async || self.done.load(Ordering::SeqCst) >= goal).await;
    }

    async fn stop(self) -> Duration {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_handle_appends_while_another_rebuilds_and_switches() {
    let place = Place::new();
    let store = place.open().await;
    store.register(inline_chains(1)).await.unwrap();
    fill(&store, APPENDS).await;
    let appender = Appender::start(&place).await;
    rebuild(&store, options()).await;
    appender.go_on().await;
    let mut in_place = options();
    in_place.in_place = true;
    rebuild(&store, in_place).await;
    appender.go_on().await;
    store.register(inline_chains(2)).await.unwrap();
    rebuild(&store, options()).await;
    appender.go_on().await;
    for _ in 0..2 {
        store.rollback("chains", options()).await.unwrap().finish().await.unwrap();
        appender.go_on().await;
        store.promote("chains", options()).await.unwrap().finish().await.unwrap();
        appender.go_on().await;
    }
    let longest = appender.stop().await;
    assert_eq!(shown(&place), folded(&store).await, "longest append {longest:?}");
    assert_eq!(number(&place, "SELECT count(*) FROM everfold_skips"), 0, "nothing is left over");
    assert_eq!(
        number(
            &place,
            "SELECT max(version) FROM everfold_generations g \
        JOIN everfold_projections p ON p.active_generation = g.id"
        ),
        2
    );

    let retired = store.retire("chains").await.unwrap();
    assert!(retired.waits_for.is_empty());
    assert_eq!(homes(&place).len(), 1, "what readers see is all there is");
    assert_eq!(shown(&place), folded(&store).await);
}

/// For each event a row: whether it was called replayed.
struct Noted;

impl SqliteHandler for Noted {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let create = format!("CREATE TABLE {home}noted (position INTEGER PRIMARY KEY, replayed)");
        Ok(connection.execute_batch(&create)?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let insert = format!("INSERT INTO {}noted VALUES (?1, ?2)", batch.home);
        for event in batch.events {
            connection.execute(&insert, (event.position.0.cast_signed(), batch.replayed))?;
        }
        Ok(())
    }
}

fn noted() -> Projection {
    Projection::sqlite_handler("noted", 1, Noted).inline().build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_handles_apply_in_rust_to_a_generation_from_the_switch_on() {
    let place = Place::new();
    let (store, other) = (place.open().await, place.open().await);
    store.register(noted()).await.unwrap();
    other.register(noted()).await.unwrap();
    for number in 0..20 {
        other.append(stream(number), ExpectedVersion::Any, events(number)).await.unwrap();
    }
    for round in 1..=2 {
        store.rebuild("noted", options()).await.unwrap().finish().await.unwrap();
        for number in 0..5 {
            other.append(stream(number), ExpectedVersion::Any, events(number)).await.unwrap();
        }
        assert_eq!(number(&place, "SELECT count(*) FROM everfold_skips"), 0, "round {round}");
        let log = number(&place, "SELECT count(*) FROM everfold_events");
        assert_eq!(number(&place, "SELECT count(*) FROM read_model_noted"), log);
        let live = number(&place, "SELECT count(*) FROM read_model_noted WHERE NOT replayed");
        assert_eq!(live, 15, "what came after the switch is live");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_and_gone_on_with_by_another_process() {
    let place = Place::new();
    let store = place.open().await;
    store.register(inline_chains(1)).await.unwrap();
    fill(&store, APPENDS).await;
    let appender = Appender::start(&place).await;
    let mut done = 0;
    for round in 0..3 {
        let mut child = Tamed::start("rebuilds::child_rebuilds", &place.file());
        child.until_it_says("worked", 3);
        child.kill();
        let rows = store.rebuilds().await.unwrap();
        assert_eq!(rows.len(), 1, "the same one each time");
        assert!(rows[0].finished_at.is_none() && rows[0].events_done > done, "round {round}");
        done = rows[0].events_done;
        // Its time is over.
        change(&place, "UPDATE everfold_rebuilds SET expires_at = 0");
    }
    // The last one may go as fast as it can.
    change(
        &place,
        "UPDATE everfold_rebuilds SET options = json_set(options, '$.events_per_second', NULL)",
    );
    let rebuild = store.rebuild("chains", options()).await.unwrap();
    assert!(rebuild.joined());
    let progress = rebuild.finish().await.unwrap();
    assert_eq!(progress.phase, RebuildPhase::Done);
    appender.go_on().await;
    appender.stop().await;
    assert_eq!(shown(&place), folded(&store).await);
    assert_eq!(homes(&place).len(), 2, "the old one is kept, and nothing else");
    let kept = "SELECT count(*) FROM everfold_generations WHERE status = 'kept'";
    assert_eq!(number(&place, kept), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is killed by another test"]
async fn child_rebuilds() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    store.register(inline_chains(1)).await.unwrap();
    let mut slowly = options();
    slowly.events_per_second = Some(60);
    let rebuild = store.rebuild("chains", slowly).await.unwrap();
    let mut last = rebuild.progress().events_done;
    let mut progress = std::pin::pin!(rebuild);
    while let Some(now) = futures::StreamExt::next(&mut progress).await {
        if now.events_done > last {
            last = now.events_done;
            let mut out = std::io::stdout().lock();
            writeln!(out, "worked").and_then(|()| out.flush()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn catch_up_generations_are_switched_under_appends_too() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().build().unwrap()).await.unwrap();
    fill(&store, APPENDS).await;
    let runner = everfold::Runner::new(&store).projection(chains().build().unwrap());
    let runner = runner.start().await.unwrap();
    let appender = Appender::start(&place).await;
    for _ in 0..2 {
        rebuild(&store, options()).await;
        appender.go_on().await;
    }
    store.rollback("chains", options()).await.unwrap().finish().await.unwrap();
    appender.go_on().await;
    appender.stop().await;
    let last = store.append_many(vec![append_of(1)]).await.unwrap().remove(0).unwrap();
    store.wait_for("chains", last.last_position, LIMIT).await.unwrap();
    assert_eq!(shown(&place), folded(&store).await);
    runner.stop().await;
}
