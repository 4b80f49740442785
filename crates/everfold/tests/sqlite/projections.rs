//! Processes that feed read models of one file are killed, and several share the work. At risk:
//! events applied twice, left out, or applied in another order. Guaranteed: the read model is what
//! a fold of the log by position gives, whoever died when.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::time::Duration;

use everfold::sqlite::{append_in, rusqlite};
use everfold::{
    ExpectedVersion, NewEvent, Position, Projection, ProjectionSettings, Runner, RunnerHandle,
    RunnerOptions, Store, StreamAppend,
};
use everfold_testkit::eventually;

use crate::fixture::{Place, child, child_file, url};

const STREAMS: u64 = 8;
const ACCOUNTS: u64 = 5;
const LONG: Duration = Duration::from_secs(60);

const CREATE: &str =
    "CREATE TABLE read_model.chains (account TEXT PRIMARY KEY, chain TEXT NOT NULL)";
const APPLY: &str = "INSERT INTO read_model.chains AS c (account, chain)
    SELECT data->>'account', group_concat(position, ',' ORDER BY position)
      FROM batch WHERE true GROUP BY data->>'account'
    ON CONFLICT (account) DO UPDATE SET chain = c.chain || ',' || EXCLUDED.chain";

/// For each account, across streams, the positions of its events in the order of application.
fn chains() -> everfold::ProjectionBuilder<everfold::SqlBody> {
    let mut settings = ProjectionSettings::default();
    settings.batch_events = 7;
    Projection::sql("chains", 1)
        .create(CREATE)
        .apply(APPLY)
        .events(["Moved"])
        .key_fields(["data.account"])
        .settings(settings)
}

fn moved(number: u64) -> NewEvent {
    let data = serde_json::json!({ "account": format!("a-{}", number % ACCOUNTS) });
    NewEvent::new("Moved", &data).unwrap()
}

fn stream(number: u64) -> String {
    format!("s-{}", number % STREAMS)
}

fn events(number: u64) -> [NewEvent; 3] {
    [moved(number), NewEvent::from_json("Other", "{}").unwrap(), moved(number + 1)]
}

fn append_of(number: u64) -> StreamAppend {
    StreamAppend::new(stream(number), ExpectedVersion::Any, events(number))
}

async fn fill(store: &Store, appends: u64) -> Position {
    let all: Vec<StreamAppend> = (0..appends).map(append_of).collect();
    let outcomes = store.append_many(all).await.unwrap();
    outcomes.into_iter().map(|outcome| outcome.unwrap().last_position).max().unwrap()
}

/// What the log says.
async fn folded(store: &Store) -> BTreeMap<String, String> {
    let mut chains: BTreeMap<String, String> = BTreeMap::new();
    for event in store.read_all().types(["Moved"]).collect().await.unwrap() {
        let data: serde_json::Value = event.data_as().unwrap();
        let chain = chains.entry(data["account"].as_str().unwrap().to_owned()).or_default();
        if !chain.is_empty() {
            chain.push(',');
        }
        chain.push_str(&event.position.to_string());
    }
    chains
}

/// What readers see.
fn shown(place: &Place) -> BTreeMap<String, String> {
    let connection = place.connect();
    let mut statement = connection.prepare("SELECT account, chain FROM read_model_chains").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

fn quick() -> RunnerOptions {
    let mut options = RunnerOptions::default();
    options.lease_ttl = Duration::from_millis(900);
    options.heartbeat = Duration::from_millis(200);
    options.standby_poll = Duration::from_millis(50);
    options
}

async fn run(store: &Store, projection: Projection) -> RunnerHandle {
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
async fn progress(store: &Store) -> u64 {
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

#[tokio::test]
async fn callers_transaction_applies_inline_sql_and_undoes_it() {
    let place = Place::new();
    let store = place.open().await;
    store.register(chains().inline().build().unwrap()).await.unwrap();
    let mut connection = place.connect();
    let immediate = rusqlite::TransactionBehavior::Immediate;

    let transaction = connection.transaction_with_behavior(immediate).unwrap();
    append_in(&transaction, &append_of(1)).unwrap();
    transaction.rollback().unwrap();
    assert!(shown(&place).is_empty());

    let transaction = connection.transaction_with_behavior(immediate).unwrap();
    append_in(&transaction, &append_of(1)).unwrap();
    let keyless = NewEvent::from_json("Moved", "{}").unwrap();
    let refused = StreamAppend::new("s-1", ExpectedVersion::Any, [moved(3), keyless]);
    let error = append_in(&transaction, &refused).unwrap_err();
    assert!(error.to_string().contains("data.account is missing or null"), "{error}");
    transaction.commit().unwrap();
    assert_eq!(shown(&place), folded(&store).await);
    assert_eq!(shown(&place).len(), 2, "the refused append left nothing behind");
}
