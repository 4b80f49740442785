//! A process that feeds a read model is paused (SIGSTOP) for longer than its lease lives, and goes on
//! later. At risk: what another one applied meanwhile is applied again.
//!
//! Guaranteed: whoever lost its lease changes nothing. There is no server that could end the
//! transaction of a process that is paused in the middle of one: it holds the file. Others are told
//! so, and go on when it does, or when it is killed.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{ExpectedVersion, HandlerBatch, HandlerError, Projection, Store};
use everfold_testkit::eventually;

use crate::chains::{chains, events, fill, folded, shown, stream};
use crate::fixture::{Place, Tamed, child_file, url};
use crate::projections::{LONG, quick, run};

async fn shards_of(store: &Store, ending: &str) -> usize {
    let shards = store.projection("chains").await.unwrap().shards;
    shards.into_iter().filter_map(|shard| shard.owner).filter(|o| o.ends_with(ending)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_that_was_paused_is_taken_over_and_wakes_without_harm() {
    let place = Place::new();
    let store = place.open().await;
    let projection = || chains().shards(4).build().unwrap();
    store.register(projection()).await.unwrap();
    let first = Tamed::start("projections::child_runs", &place.file());
    let ending = first.ending();
    let first_has = async || shards_of(&store, &ending).await;
    for round in 0..3 {
        eventually("the first has shards", LONG, async || first_has().await > 0).await;
        let head = fill(&store, 20).await;
        store.wait_for("chains", head, LONG).await.unwrap();
        pause_between_transactions(&place, &first).await;
        let second = run(&place.open().await, projection()).await;
        let head = fill(&store, 30).await;
        eventually("the other takes over", LONG, async || first_has().await == 0).await;
        store.wait_for("chains", head, LONG).await.unwrap();
        let before = shown(&place);
        assert_eq!(before, folded(&store).await, "round {round}: taken over");

        // It wakes with leases that are not its own any more.
        first.signal("CONT");
        eventually("it has a share again", LONG, async || first_has().await == 2).await;
        assert_eq!(shown(&place), before, "round {round}: it changed nothing");
        let head = fill(&store, 30).await;
        store.wait_for("chains", head, LONG).await.unwrap();
        assert_eq!(shown(&place), folded(&store).await, "round {round}: together");
        second.stop().await;
    }
}

/// Stops it where it does not hold the file.
async fn pause_between_transactions(place: &Place, process: &Tamed) {
    eventually("it is paused outside of a transaction", LONG, async || {
        process.signal("STOP");
        let connection = place.connect();
        connection.busy_timeout(Duration::from_millis(100)).unwrap();
        let free = connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
        if !free {
            process.signal("CONT");
        }
        free
    })
    .await;
}

/// Stands still in the middle of its first batch, until there is this file.
struct Waiting(Mutex<Option<PathBuf>>);

impl SqliteHandler for Waiting {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let create = format!("CREATE TABLE {home}applied (n INTEGER PRIMARY KEY, position)");
        Ok(connection.execute_batch(&create)?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let insert = format!("INSERT INTO {}applied (position) VALUES (?1)", batch.home);
        for event in batch.events {
            connection.execute(&insert, [event.position.0.cast_signed()])?;
        }
        if let Some(go_on) = self.0.lock().unwrap().take() {
            let mut out = std::io::stdout().lock();
            writeln!(out, "in a batch").and_then(|()| out.flush())?;
            while !go_on.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

fn waiting(go_on: Option<PathBuf>) -> Projection {
    let waiting = Waiting(Mutex::new(go_on));
    Projection::sqlite_handler("applied", 1, waiting).events(["Moved"]).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is paused in the middle of a batch"]
async fn child_waits_in_a_batch() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    let go_on = Some(file.with_extension("go"));
    let runner = everfold::Runner::new(&store).projection(waiting(go_on)).options(quick());
    runner.start().await.unwrap().wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_that_is_paused_in_a_batch_holds_the_file_until_it_goes_on_or_dies() {
    for ends in ["CONT", "KILL"] {
        let place = Place::new();
        let store = place.open().await;
        store.register(waiting(None)).await.unwrap();
        fill(&store, 20).await;
        let mut paused = Tamed::start("paused_worker::child_waits_in_a_batch", &place.file());
        paused.until_it_says("in a batch", 1);
        paused.signal("STOP");

        let impatient =
            place.open_with(|options| options.request_timeout = Duration::from_millis(300)).await;
        let error = impatient.append(stream(1), ExpectedVersion::Any, events(1)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("holds the file"), "{error}");
        let late = tokio::spawn({
            let store = store.clone();
            async move { fill(&store, 20).await }
        });
        std::fs::write(place.file().with_extension("go"), "").unwrap();
        paused.signal(ends);
        late.await.unwrap();
        let other = run(&store, waiting(None)).await;
        let head = fill(&store, 20).await;
        store.wait_for("applied", head, LONG).await.unwrap();
        other.stop().await;

        let stored = store.read_all().types(["Moved"]).collect().await.unwrap();
        let stored: Vec<u64> = stored.iter().map(|event| event.position.0).collect();
        let connection = place.connect();
        let home = "SELECT home FROM everfold_generations";
        let home: String = connection.query_row(home, [], |row| row.get(0)).unwrap();
        let mut statement =
            connection.prepare(&format!("SELECT position FROM {home}applied ORDER BY n")).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        let applied: Vec<u64> = rows.map(|row| row.unwrap().cast_unsigned()).collect();
        assert_eq!(applied, stored, "{ends}");
    }
}
