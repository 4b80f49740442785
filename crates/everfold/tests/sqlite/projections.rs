//! Processes that feed read models of one file are killed, and several share the work. At risk:
//! events applied twice, left out, or applied in another order. Guaranteed: the read model is what
//! a fold of the log by position gives, whoever died when.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::time::Duration;

use everfold::{ExpectedVersion, Projection, Runner, RunnerHandle, RunnerOptions, Store};
use everfold_testkit::eventually;

use crate::chains::{ACCOUNTS, STREAMS, chains, events, fill, folded, shown, stream};
use crate::fixture::{Place, child, child_file, url};

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn quick() -> RunnerOptions {
    let mut options = RunnerOptions::default();
    options.lease_ttl = Duration::from_millis(900);
    options.heartbeat = Duration::from_millis(200);
    options.standby_poll = Duration::from_millis(50);
    options
}

pub(crate) async fn run(store: &Store, projection: Projection) -> RunnerHandle {
    Runner::new(store).projection(projection).options(quick()).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_inline_appends() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().inline().build().unwrap()).await.unwrap();
    for _ in 0..3 {
        let mut writer = child("projections::child_appends", &place.file()).spawn().unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        let stored = lines.filter(|line| line == "stored").take(100).count();
        assert_eq!(stored, 100);
        writer.kill().unwrap();
        writer.wait().unwrap();
        let wanted = folded(&store).await;
        assert_eq!(wanted.len() as u64, ACCOUNTS);
        assert_eq!(shown(&place), wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is killed by another test"]
async fn child_appends() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    let writers = (0..STREAMS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (writer..).step_by(STREAMS as usize) {
                store.append(stream(number), ExpectedVersion::Any, events(number)).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "stored").and_then(|()| out.flush()).unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

/// How far all shards have come together.
pub(crate) async fn progress(store: &Store) -> u64 {
    let status = store.projection("chains").await.unwrap();
    status.shards.iter().map(|shard| shard.position.0).sum()
}

fn spawn_runner(place: &Place) -> Child {
    child("projections::child_runs", &place.file()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is killed by another test"]
async fn child_runs() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    let mut runner = run(&store, chains().shards(4).build().unwrap()).await;
    runner.wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_batches() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().shards(4).build().unwrap()).await.unwrap();
    for round in 1..=4 {
        fill(&store, 150).await;
        let before = progress(&store).await;
        let mut runner = spawn_runner(&place);
        // Each round somewhere else in the work.
        let moves = async || progress(&store).await > before + 40 * round;
        eventually("the shards move", LONG, moves).await;
        runner.kill().unwrap();
        runner.wait().unwrap();
    }
    let head = fill(&store, 10).await;
    let runner = run(&store, chains().shards(4).build().unwrap()).await;
    store.wait_for("chains", head, LONG).await.unwrap();
    assert_eq!(shown(&place), folded(&store).await);
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_the_shards_and_take_over_from_the_dead() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().shards(4).build().unwrap()).await.unwrap();
    fill(&store, 50).await;
    let mut dying = spawn_runner(&place);
    let mut staying = spawn_runner(&place);
    let owned = async |process: &Child| {
        let ending = format!(":{}", process.id());
        let shards = store.projection("chains").await.unwrap().shards;
        let owners = shards.into_iter().filter_map(|shard| shard.owner);
        owners.filter(|owner| owner.ends_with(&ending)).count()
    };
    let shared = async || owned(&dying).await == 2 && owned(&staying).await == 2;
    eventually("both have two shards", LONG, shared).await;
    dying.kill().unwrap();
    dying.wait().unwrap();
    let head = fill(&store, 50).await;
    store.wait_for("chains", head, LONG).await.unwrap();
    assert_eq!(owned(&staying).await, 4);
    assert_eq!(shown(&place), folded(&store).await);
    staying.kill().unwrap();
    staying.wait().unwrap();
}
