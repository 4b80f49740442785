//! The failure: the connection of an append that applies inline projections in Rust is lost, before
//! or after any of the requests it consists of; or one of these requests alone is refused, while the
//! server goes on with those behind it.
//!
//! At risk: the event is stored and its documents are not, and since a repeat with the same ids finds
//! it stored, it would never be applied; or it is applied twice.
//!
//! Guaranteed: the event and everything that inline projections make of it are stored together or not
//! at all, and a retry with the same ids leaves exactly one of each.

use std::collections::BTreeMap;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use everfold::postgres::{PostgresHandler, tokio_postgres};
use everfold::{
    AppendError, DocumentProjection, ExpectedVersion, HandlerBatch, HandlerError, Pooler,
    Projection, RecordedEvent, Store, StreamAppend,
};
use everfold_testkit::{Proxy, TestDatabase, eventually};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::session::{LIMIT, Session, empty_store, event, open, open_with};
use crate::steady::SteadyAppends;
use crate::workers::{Worker, child_url, orders};

#[derive(Deserialize)]
enum Event {
    Happened { token: String },
}

/// For each stream the tokens of its events, in the order of application.
struct Folded;

impl DocumentProjection for Folded {
    type Event = Event;
    type Document = Vec<String>;

    fn evolve(
        &self,
        before: Option<Vec<String>>,
        Event::Happened { token }: &Event,
        _: &RecordedEvent,
    ) -> Option<Vec<String>> {
        let mut tokens = before.unwrap_or_default();
        tokens.push(format!("folded {token}"));
        Some(tokens)
    }
}

/// The same, row by row.
struct Handled;

impl PostgresHandler for Handled {
    fn set_up<'a>(
        &'a self,
        home: &'a str,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let create = format!(
                "CREATE TABLE {home}.handled (n bigint GENERATED ALWAYS AS IDENTITY, stream text, token text)"
            );
            Ok(transaction.batch_execute(&create).await?)
        })
    }

    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let insert = format!("INSERT INTO {}.handled (stream, token) VALUES ", batch.home);
            for recorded in batch.events {
                let Some(Event::Happened { token }) = recorded.decode()? else { continue };
                let values = format!("('{}', 'handled {token}')", recorded.stream_id);
                transaction.batch_execute(&format!("{insert}{values}")).await?;
            }
            Ok(())
        })
    }
}

/// What the handle carries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Carries {
    Documents,
    Handler,
    Both,
}

impl Carries {
    fn projections(self) -> Vec<Projection> {
        let mut found = Vec::new();
        if self != Carries::Handler {
            found.push(Projection::document("folded", 1, Folded).inline().build().unwrap());
        }
        if self != Carries::Documents {
            let handled = Projection::postgres_handler("handled", 1, Handled).events(["Happened"]);
            found.push(handled.inline().build().unwrap());
        }
        found
    }

    /// A part of each request of an append with this token, in the order in which they are sent.
    fn requests(self, token: &str) -> Vec<String> {
        let begin = match self {
            Carries::Documents => "BEGIN ISOLATION LEVEL",
            _ => "START TRANSACTION",
        };
        let mut requests = vec![begin.to_owned(), format!("\"{token}\"")];
        if self != Carries::Documents {
            requests.push(format!("handled {token}"));
        }
        if self != Carries::Handler {
            requests.push(format!("folded {token}"));
        }
        // Not that of READ COMMITTED.
        requests.push("COMMIT\0".to_owned());
        requests
    }
}

/// Tokens by stream.
type Tokens = BTreeMap<String, Vec<String>>;

/// A handle behind a proxy, and a session that sees the truth.
struct Scene {
    database: TestDatabase,
    proxy: Proxy,
    store: Store,
    truth: Session,
    carries: Carries,
}

impl Scene {
    async fn new(carries: Carries, pooler: Pooler, retries: u32) -> Scene {
        let database = empty_store().await;
        let direct = open(&database.url()).await;
        for projection in carries.projections() {
            direct.register(projection).await.unwrap();
        }
        direct.close().await;
        let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
        let store = open_with(&database.url_at(proxy.address()), |options| {
            options.append_retries_max = retries;
            options.pooler = pooler;
        })
        .await;
        for projection in carries.projections() {
            assert!(!store.register(projection).await.unwrap().created);
        }
        let truth = Session::open(&database.url()).await;
        Scene { database, proxy, store, truth, carries }
    }

    async fn tokens(&self, sql: &str) -> Tokens {
        let mut found = Tokens::new();
        for row in self.truth.rows(sql).await.unwrap() {
            let [Some(stream), Some(token)] = row.as_slice() else { panic!("NULL in {row:?}") };
            found.entry(stream.clone()).or_default().push(token.clone());
        }
        found
    }

    /// What is stored, after a look at whether every read model shows just that and owes nothing.
    async fn stored(&self, when: &str) -> Tokens {
        let log = "SELECT stream_id, data->>'token' FROM everfold.events ORDER BY position";
        let log = self.tokens(log).await;
        let mut shown = Vec::new();
        if self.carries != Carries::Handler {
            let sql = "SELECT key, token FROM read_model.folded, jsonb_array_elements_text(document) \
                WITH ORDINALITY AS t(token, n) ORDER BY key, n";
            shown.push(("folded ", self.tokens(sql).await));
        }
        if self.carries != Carries::Documents {
            let sql = "SELECT 'everfold.generations', home FROM everfold.generations WHERE kind = 'handler'";
            let home = self.tokens(sql).await.remove("everfold.generations").unwrap().remove(0);
            let sql = format!("SELECT stream, token FROM {home}.handled ORDER BY n");
            shown.push(("handled ", self.tokens(&sql).await));
        }
        for (prefix, shown) in shown {
            let wanted: Tokens = log
                .iter()
                .map(|(stream, tokens)| {
                    let tokens = tokens.iter().map(|token| format!("{prefix}{token}"));
                    (stream.clone(), tokens.collect())
                })
                .collect();
            assert_eq!(shown, wanted, "{when}: events and what was made of them");
        }
        let owed = "SELECT count(*) FROM everfold.skips";
        assert_eq!(self.truth.number(owed).await, 0, "{when}: nothing is owed");
        log
    }
}

/// Appends over a connection that is lost at each of its requests.
async fn lose_connections(carries: Carries, pooler: Pooler) {
    let scene = Scene::new(carries, pooler, 0).await;
    scene.store.append("s", ExpectedVersion::Any, [event("first")]).await.unwrap();
    let mut expected = 1;
    for request in 0..carries.requests("").len() {
        for answered in [true, false] {
            let token = format!("t-{request}-{answered}");
            let pattern = carries.requests(&token).remove(request);
            let when = format!("{carries:?}, {pattern}, answered: {answered}");
            match answered {
                true => scene.proxy.cut_after_client_message(pattern.as_bytes()),
                false => scene.proxy.cut_before_client_message(pattern.as_bytes()),
            }
            let event = event(&token);
            let lost = scene.store.append("s", ExpectedVersion::Any, [event.clone()]).await;
            let Err(AppendError::Store(error)) = lost else { panic!("{when}: {lost:?}") };
            assert!(error.is_transient(), "{when}: {error}");
            assert!(!scene.proxy.is_waiting_for_message(), "{when}: it was lost");
            let stored = scene.stored(&when).await.remove("s").unwrap();
            let committed = answered && pattern == "COMMIT\0";
            assert_eq!(stored.len(), expected + usize::from(committed), "{when}");

            expected += 1;
            let again = scene.store.append("s", ExpectedVersion::Any, [event]).await.unwrap();
            let stored = scene.stored(&when).await.remove("s").unwrap();
            assert_eq!((stored.len(), again.version.0 as usize), (expected, expected), "{when}");
            assert_eq!(stored.last(), Some(&token), "{when}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_lost_at_any_request_leaves_event_and_documents_or_neither() {
    lose_connections(Carries::Documents, Pooler::Direct).await;
    lose_connections(Carries::Documents, Pooler::Transaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_lost_at_any_request_leaves_event_and_what_a_handler_wrote_or_neither() {
    lose_connections(Carries::Handler, Pooler::Direct).await;
    lose_connections(Carries::Both, Pooler::Transaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_to_many_streams_over_lost_connections_are_stored_and_applied_once() {
    for carries in [Carries::Documents, Carries::Both] {
        let scene = Scene::new(carries, Pooler::Direct, 5).await;
        let mut appended = 0;
        for request in 0..carries.requests("").len() {
            for answered in [true, false] {
                let token = format!("t-{request}-{answered}-b");
                let pattern = carries.requests(&token).remove(request);
                match answered {
                    true => scene.proxy.cut_after_client_message(pattern.as_bytes()),
                    false => scene.proxy.cut_before_client_message(pattern.as_bytes()),
                }
                let many = ["a", "b", "c"].map(|stream| {
                    let event = event(&format!("t-{request}-{answered}-{stream}"));
                    StreamAppend::new(stream, ExpectedVersion::Any, [event])
                });
                let outcomes = scene.store.append_many(many).await.unwrap();
                assert!(!scene.proxy.is_waiting_for_message(), "{pattern}: it was lost");
                appended += 1;
                for outcome in outcomes {
                    assert_eq!(outcome.unwrap().version.0, appended, "{pattern}");
                }
                let stored = scene.stored(&pattern).await;
                assert_eq!(stored.len(), 3);
                assert!(
                    stored.values().all(|tokens| tokens.len() as u64 == appended),
                    "{stored:?}"
                );
            }
        }
    }
}

/// The requests of an append are sent without waiting for each other's answers. If the server
/// refuses the first one only (a query that is cancelled, say), it has no transaction to put the
/// others in, and each of them would be committed alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_whose_transaction_did_not_begin_is_not_stored_without_its_documents() {
    for pooler in [Pooler::Direct, Pooler::Transaction] {
        let scene = Scene::new(Carries::Documents, pooler, 0).await;
        for (n, stream) in ["s", "s", "t"].into_iter().enumerate() {
            let event = event(&format!("t-{n}"));
            let append = || scene.store.append(stream, ExpectedVersion::Any, [event.clone()]);
            scene.proxy.spoil_client_message(b"BEGIN ISOLATION");
            let refused = append().await;
            assert!(!scene.proxy.is_waiting_for_message());
            assert!(refused.is_err(), "{refused:?}");
            let stored = scene.stored(&format!("{pooler:?}, event {n}, refused")).await;
            assert_eq!(stored.values().flatten().count(), n, "nothing of it is stored");
            append().await.unwrap();
            let stored = scene.stored(&format!("{pooler:?}, event {n}")).await;
            assert_eq!(stored.values().flatten().count(), n + 1);
        }
    }
}

/// Bytes that hang or are lost anywhere in the appends, not at a chosen request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_over_a_broken_network_are_stored_and_applied_once() {
    for carries in [Carries::Documents, Carries::Both] {
        let scene = Scene::new(carries, Pooler::Direct, 3).await;
        let url = scene.database.url_at(scene.proxy.address());
        let impatient = open_with(&url, |options| {
            options.migrate = None;
            options.request_timeout = Duration::from_millis(700);
            options.connect_timeout = Duration::from_millis(700);
        })
        .await;
        for projection in carries.projections() {
            impatient.register(projection).await.unwrap();
        }
        let appends = SteadyAppends::start(&impatient, 4);
        for stall in [true, false, true, false] {
            appends.until_confirmed(20).await;
            if stall {
                scene.proxy.stall();
                let hangs = async || impatient.high_water_mark().await.is_err();
                eventually("the server does not answer", LIMIT, hangs).await;
                scene.proxy.resume();
            } else {
                scene.proxy.cut().await;
            }
        }
        appends.until_confirmed(20).await;
        let (confirmed, repeated) = appends.stop().await;
        let stored = scene.stored(&format!("{carries:?}")).await;
        let stored: usize = stored.values().map(Vec::len).sum();
        println!("{carries:?}: {stored} events stored, {repeated} tries repeated by the caller");
        assert_eq!(stored, confirmed.len());
    }
}

/// Says where it is, once, and waits until it is told to go on.
struct Waits(Mutex<Option<mpsc::Receiver<()>>>);

impl Waits {
    fn here(&self) {
        if let Some(orders) = self.0.lock().unwrap().take() {
            println!("in an append");
            let _ = orders.recv();
        }
    }
}

impl DocumentProjection for Waits {
    type Event = Event;
    type Document = Vec<String>;

    fn evolve(
        &self,
        before: Option<Vec<String>>,
        event: &Event,
        recorded: &RecordedEvent,
    ) -> Option<Vec<String>> {
        tokio::task::block_in_place(|| self.here());
        Folded.evolve(before, event, recorded)
    }
}

impl PostgresHandler for Waits {
    fn apply<'a>(
        &'a self,
        batch: HandlerBatch<'a>,
        transaction: &'a tokio_postgres::Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            Handled.apply(batch, transaction).await?;
            tokio::task::block_in_place(|| self.here());
            Ok(())
        })
    }
}

const CARRIED: &str = "EVERFOLD_TEST_CARRIED";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that is paused in the middle of an append"]
async fn child_waits_in_an_append() {
    let Some(url) = child_url() else { return };
    let store = open_with(&url, |options| {
        options.migrate = None;
        options.request_timeout = Duration::from_secs(2);
    })
    .await;
    let (go_on, wait) = mpsc::channel();
    let waits = Waits(Mutex::new(Some(wait)));
    let projection = match std::env::var(CARRIED).unwrap().as_str() {
        "Documents" => Projection::document("folded", 1, waits).inline().build().unwrap(),
        _ => Projection::postgres_handler("handled", 1, waits)
            .events(["Happened"])
            .inline()
            .build()
            .unwrap(),
    };
    store.register(projection).await.unwrap();
    let mut orders = orders();
    tokio::spawn(async move {
        orders.recv().await;
        let _ = go_on.send(());
    });
    store.append("s", ExpectedVersion::Any, [event("paused")]).await.unwrap();
    println!("it is stored");
}

/// The paused one holds its stream and the high-water mark; the server ends its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_is_paused_in_an_append_holds_nobody_up_for_ever() {
    for carries in [Carries::Documents, Carries::Handler] {
        let scene = Scene::new(carries, Pooler::Direct, 0).await;
        let url = scene.database.url();
        let environment = [(CARRIED, format!("{carries:?}"))];
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        let test = "inline_connections::child_waits_in_an_append";
        let mut paused = Worker::start_test(test, &url, &environment);
        paused.until_it_says("in an append");
        paused.pause();
        // To the same stream.
        let append = scene.store.append("s", ExpectedVersion::Any, [event("other")]);
        let outcome = tokio::time::timeout(LIMIT, append).await;
        let appended = outcome.expect("the server ends the other").unwrap();
        let mark = scene.store.high_water_mark().await.unwrap();
        assert_eq!(mark, appended.last_position, "the mark is not held either");
        scene.stored(&format!("{carries:?}, paused")).await;

        paused.resume();
        paused.tell("go on");
        paused.until_it_says("it is stored");
        assert!(paused.ended().await.success());
        let stored = scene.stored(&format!("{carries:?}, gone on")).await;
        assert_eq!(stored["s"], ["other", "paused"], "{carries:?}");
    }
}
