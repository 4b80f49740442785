//! Workers, in this process or as processes of their own, and what they keep: for each account the
//! positions of its events in the order in which they were applied. A lost, doubled or reordered
//! event shows, and can be named.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use everfold::{
    DocumentProjection, NewEvent, Pooler, Position, Projection, ProjectionBuilder,
    ProjectionSettings, RecordedEvent, Runner, RunnerHandle, RunnerOptions, SqlBody, Store,
    StoreOptions,
};
use everfold_testkit::eventually;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::checker::{ByKey, compare_keys};
use crate::session::{LIMIT, Session};
use crate::steady::{Pace, SteadyAppends};

/// Where a child process finds the store it works on.
const CHILD_URL: &str = "EVERFOLD_TEST_CHILD_URL";

const ACCOUNTS: u64 = 24;
const SHARDS: u32 = 8;

pub(crate) const CREATE: &str =
    "CREATE TABLE read_model.applied (account text PRIMARY KEY, positions bigint[] NOT NULL)";
const APPLY: &str = "INSERT INTO read_model.applied AS a (account, positions)
    SELECT data->>'account', array_agg(position ORDER BY position) FROM batch GROUP BY 1 ORDER BY 1
    ON CONFLICT (account) DO UPDATE SET positions = a.positions || EXCLUDED.positions";

/// The read model of these stories: accounts that events of several streams move.
pub(crate) fn applied() -> ProjectionBuilder<SqlBody> {
    Projection::sql("applied", 1)
        .create(CREATE)
        .apply(APPLY)
        .events(["Moved"])
        .key_fields(["data.account"])
        .settings(small_batches())
}

#[derive(Deserialize)]
pub(crate) enum Event {
    Moved {},
}

/// The same as a document: for its key, the positions in the order of application.
pub(crate) struct Seen;

impl DocumentProjection for Seen {
    type Event = Event;
    type Document = Vec<u64>;

    fn evolve(
        &self,
        seen: Option<Vec<u64>>,
        Event::Moved {}: &Event,
        recorded: &RecordedEvent,
    ) -> Option<Vec<u64>> {
        let mut seen = seen.unwrap_or_default();
        seen.push(recorded.position.0);
        Some(seen)
    }
}

pub(crate) fn sharded() -> Projection {
    applied().shards(SHARDS).build().expect("the projection is right")
}

pub(crate) fn small_batches() -> ProjectionSettings {
    let mut settings = ProjectionSettings::default();
    settings.batch_events = 20;
    settings
}

pub(crate) fn moved(account: u64) -> NewEvent {
    let data = json!({ "account": format!("a-{}", account % ACCOUNTS) });
    NewEvent::new("Moved", &data).expect("the data is JSON")
}

/// Appends that go on until they are stopped; every account in every stream.
pub(crate) fn start_appends(store: &Store) -> SteadyAppends {
    let pace = Pace::Every(Duration::from_millis(4));
    SteadyAppends::start_with(store, 4, pace, |appender, n| {
        (format!("s-{appender}"), moved(n + 5 * appender as u64))
    })
}

/// Stops them; the last position that was confirmed.
pub(crate) async fn stop_appends(appends: SteadyAppends) -> Position {
    let (confirmed, _) = appends.stop().await;
    confirmed.iter().map(|(_, done)| done.last_position).max().expect("something was appended")
}

/// Leases and signs of life at the pace of tests.
pub(crate) fn quick() -> RunnerOptions {
    let mut options = RunnerOptions::default();
    options.lease_ttl = Duration::from_millis(1_500);
    options.heartbeat = Duration::from_millis(300);
    options.standby_poll = Duration::from_millis(100);
    options.connections = 2;
    options
}

/// A handle with few connections, as one of many workers has it.
pub(crate) async fn open_worker(url: &str) -> Store {
    Store::open_with(url, few_connections()).await.expect("the store opens")
}

pub(crate) fn few_connections() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.pooler = Pooler::Direct;
    options.pool_size = 2;
    options.runner_pool_size = 3;
    options.connect_timeout = Duration::from_secs(2);
    options.request_timeout = Duration::from_secs(2);
    options
}

/// A worker of this process, called by its own name.
pub(crate) async fn run(store: &Store, name: &str, projection: Projection) -> RunnerHandle {
    let mut options = quick();
    options.worker_name = name.to_owned();
    Runner::new(store).projection(projection).options(options).start().await.expect("it runs")
}

/// A worker that is a process of its own; killed when it is dropped.
pub(crate) struct Worker {
    process: Child,
    /// The child ends cleanly when this is closed, and so when this process dies.
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Worker {
    /// Starts one that runs [`sharded`].
    pub(crate) fn start(url: &str) -> Worker {
        Worker::start_test("workers::child_runs", url, &[])
    }

    /// Starts this binary once more, running one ignored test.
    pub(crate) fn start_test(test: &str, url: &str, environment: &[(&str, &str)]) -> Worker {
        let binary = std::env::current_exe().expect("this binary has a path");
        let mut process = Command::new(binary)
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD_URL, url)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary can be started");
        let input = process.stdin.take();
        let output = lines(process.stdout.take().expect("its output is a pipe"));
        Worker { process, input, output }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line that the child prints.
    pub(crate) fn until_it_says(&mut self, wanted: &str) {
        loop {
            let line = self.output.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|_| panic!("the child did not say {wanted:?}"));
            // The name of its test may stand before it.
            if line.ends_with(wanted) {
                return;
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it was not told to end");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the child listens");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a child can be killed");
        self.process.wait().expect("a child can be waited for");
    }

    /// Stops it where it stands (SIGSTOP), until [`Worker::resume`].
    pub(crate) fn pause(&self) {
        signal(self.id(), "-STOP");
    }

    pub(crate) fn resume(&self) {
        signal(self.id(), "-CONT");
    }

    /// Lets it end cleanly.
    pub(crate) async fn leave(mut self) {
        self.input = None;
        let status = self.ended().await;
        assert!(status.success(), "a worker that was told to end failed: {status}");
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let process = &mut self.process;
        eventually("the child ends", LIMIT, async || process.try_wait().unwrap().is_some()).await;
        self.process.wait().expect("a child can be waited for")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a child prints, read as it comes so that the child never waits for us.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

pub(crate) fn signal(process: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(status.expect("there is a kill program").success(), "kill {signal} {process}");
}

/// The store that a child works on; `None` when its test is run by hand.
pub(crate) fn child_url() -> Option<String> {
    std::env::var(CHILD_URL).ok()
}

/// What the parent says, line by line, until it closes its end.
pub(crate) fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is killed and paused by other tests"]
async fn child_runs() {
    let Some(url) = child_url() else { return };
    let runner = loop {
        match start_runner(&url).await {
            Ok(runner) => break runner,
            // Its sessions are killed meanwhile.
            Err(error) => eprintln!("the child tries again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut orders = orders();
    while orders.recv().await.is_some() {}
    runner.stop().await;
}

async fn start_runner(url: &str) -> Result<RunnerHandle, everfold::Error> {
    let store = Store::open_with(url, few_connections()).await?;
    Ok(Runner::new(&store).projection(sharded()).options(quick()).start().await?)
}

/// What the log says.
pub(crate) async fn stored(truth: &Session) -> ByKey {
    let sql = "SELECT data->>'account', position FROM everfold.events \
        WHERE type = 'Moved' ORDER BY position";
    by_key(truth, sql).await
}

/// What readers see.
pub(crate) async fn shown(truth: &Session) -> ByKey {
    let sql = "SELECT account, p FROM read_model.applied, unnest(positions) WITH ORDINALITY AS u(p, n) \
        ORDER BY account, n";
    by_key(truth, sql).await
}

pub(crate) async fn by_key(truth: &Session, sql: &str) -> ByKey {
    let mut found = ByKey::new();
    for row in truth.rows(sql).await.expect("the database can be read") {
        let [Some(key), Some(position)] = row.as_slice() else { panic!("NULL in {row:?}") };
        found.entry(key.clone()).or_default().push(position.parse().expect("a number"));
    }
    found
}

/// Fails unless the read model is what a fold of the log gives; prints the figures.
pub(crate) async fn assert_exact(truth: &Session, story: &str) {
    let (stored, shown) = (stored(truth).await, shown(truth).await);
    let comparison = compare_keys(&stored, &shown);
    let events: usize = stored.values().map(Vec::len).sum();
    let takeovers = truth.number("SELECT sum(epoch) FROM everfold.checkpoints").await;
    let batches = truth.number("SELECT count(*) FROM everfold.run_log").await;
    println!("{story}: {events} events, {batches} batches, {takeovers} leases taken: {comparison}");
    assert!(comparison.is_exact(), "{comparison:?}");
    let overlaps = "SELECT count(*) FROM (SELECT from_position < max(to_position) OVER (
            PARTITION BY generation, shard ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            AS twice FROM everfold.run_log) b WHERE twice";
    assert_eq!(truth.number(overlaps).await, 0, "no two batches cover the same positions");
}

/// Waits until the shards have moved on.
pub(crate) async fn until_moved(truth: &Session) {
    let sum = "SELECT sum(position)::bigint FROM everfold.checkpoints";
    let before = truth.number(sum).await;
    eventually("the shards move", LIMIT, async || truth.number(sum).await > before).await;
}
