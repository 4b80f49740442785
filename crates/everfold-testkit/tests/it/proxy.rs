//! Connections that break at a chosen moment.

use std::time::Duration;

use everfold_testkit::{Loss, Proxy, TestDatabase, eventually};
use tokio_postgres::Client;

use crate::{LIMIT, MOMENT, connect, count};

struct Story {
    proxy: Proxy,
    database: TestDatabase,
    /// Connected through the proxy.
    client: Client,
    /// Connected directly.
    observer: Client,
}

impl Story {
    async fn begin() -> Story {
        let database = TestDatabase::create().await;
        let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
        let client = connect(&database.url_at(proxy.address())).await.unwrap();
        let observer = database.connect().await;
        observer.batch_execute("CREATE TABLE written (n int)").await.unwrap();
        Story { proxy, database, client, observer }
    }

    async fn connect_again(&self) -> Result<Client, tokio_postgres::Error> {
        connect(&self.database.url_at(self.proxy.address())).await
    }

    async fn written(&self) -> i64 {
        count(&self.observer, "written").await.unwrap()
    }
}

#[tokio::test]
async fn cut_closes_both_sides_and_new_connections_work() {
    let story = Story::begin().await;
    story.client.batch_execute("BEGIN; INSERT INTO written VALUES (1)").await.unwrap();

    story.proxy.cut().await;
    assert!(story.client.batch_execute("COMMIT").await.is_err());
    eventually("the server noticed", LIMIT, async || {
        let statement = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";
        story.observer.query_one(statement, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    assert_eq!(story.written().await, 0);

    let client = story.connect_again().await.unwrap();
    client.batch_execute("INSERT INTO written VALUES (2)").await.unwrap();
    assert_eq!(story.written().await, 1);
}

#[tokio::test]
async fn stall_holds_bytes_back_and_resume_delivers_them() {
    let story = Story::begin().await;
    story.proxy.stall();
    let mut insert = Box::pin(story.client.batch_execute("INSERT INTO written VALUES (1)"));
    assert!(tokio::time::timeout(MOMENT, &mut insert).await.is_err(), "no answer while stalled");
    assert_eq!(story.written().await, 0);
    let mut connecting = Box::pin(story.connect_again());
    assert!(tokio::time::timeout(MOMENT, &mut connecting).await.is_err());

    story.proxy.resume();
    insert.await.unwrap();
    connecting.await.unwrap();
    assert_eq!(story.written().await, 1);
}

#[tokio::test]
async fn stalled_connection_can_be_cut() {
    let story = Story::begin().await;
    story.proxy.stall();
    let mut query = Box::pin(story.client.simple_query("SELECT 1"));
    assert!(tokio::time::timeout(MOMENT, &mut query).await.is_err());
    story.proxy.cut().await;
    assert!(query.await.is_err());
}

#[tokio::test]
async fn refused_connections_leave_current_ones_alone() {
    let story = Story::begin().await;
    story.proxy.refuse().await;
    assert!(story.connect_again().await.is_err());
    story.client.batch_execute("INSERT INTO written VALUES (1)").await.unwrap();

    story.proxy.accept().await.unwrap();
    story.connect_again().await.unwrap();
    assert_eq!(story.written().await, 1);
}

#[tokio::test]
async fn connection_lost_after_commit_has_committed() {
    let mut story = Story::begin().await;
    story.proxy.cut_after_client_message(b"COMMIT");
    let transaction = story.client.transaction().await.unwrap();
    transaction.execute("INSERT INTO written VALUES (1)", &[]).await.unwrap();
    assert!(story.proxy.is_waiting_for_message());

    assert!(transaction.commit().await.is_err());
    assert!(!story.proxy.is_waiting_for_message());
    assert_eq!(story.written().await, 1);

    // Once only: the next commit is left alone.
    let mut client = story.connect_again().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO written VALUES (2)", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(story.written().await, 2);
}

#[tokio::test]
async fn connection_lost_before_commit_has_not_committed() {
    let mut story = Story::begin().await;
    story.proxy.cut_before_client_message(b"COMMIT");
    let transaction = story.client.transaction().await.unwrap();
    transaction.execute("INSERT INTO written VALUES (1)", &[]).await.unwrap();
    assert!(transaction.commit().await.is_err());
    assert_eq!(story.written().await, 0);
}

#[tokio::test]
async fn statement_that_was_spoiled_is_refused_and_the_connection_lives_on() {
    let story = Story::begin().await;
    story.proxy.spoil_client_message(b"INSERT INTO written");
    let insert = "INSERT INTO written VALUES (1)";
    let error = story.client.batch_execute(insert).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42601", "{error}");
    assert!(!story.proxy.is_waiting_for_message());
    assert_eq!(story.written().await, 0);
    // Once only.
    story.client.batch_execute(insert).await.unwrap();
    assert_eq!(story.written().await, 1);
}

#[tokio::test]
async fn request_longer_than_a_chunk_reaches_the_server_whole() {
    let story = Story::begin().await;
    let statement = "INSERT INTO written SELECT length($1::text)";
    let prepared = story.client.prepare(statement).await.unwrap();
    let text = format!("{}needle{}", "x".repeat(100_000), "y".repeat(1_000_000));

    story.proxy.cut_after_client_message(b"needle");
    assert!(story.client.execute(&prepared, &[&text]).await.is_err());
    assert_eq!(story.written().await, 1);
}

#[test]
fn bytes_flow_while_the_test_blocks_its_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (database, proxy) = runtime.block_on(async {
        let database = TestDatabase::create().await;
        let proxy = Proxy::start(database.server().address().unwrap()).await.unwrap();
        (database, proxy)
    });
    let url = database.url_at(proxy.address());
    let answer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = tokio::time::timeout(Duration::from_secs(20), connect(&url)).await;
            client.unwrap().unwrap().simple_query("SELECT 1").await.is_ok()
        })
    });
    assert!(answer.join().unwrap());
}

#[tokio::test]
async fn clients_that_die_at_a_request_are_gone_with_all_their_connections() {
    for (loss, written) in [(Loss::Request, 1), (Loss::Answer, 2)] {
        let story = Story::begin().await;
        let other = story.connect_again().await.unwrap();
        story.proxy.die_at_request(3, loss);
        story.client.batch_execute("INSERT INTO written VALUES (1)").await.unwrap();
        other.simple_query("SELECT 1").await.unwrap();
        assert!(story.proxy.is_waiting_for_message());
        assert!(story.client.batch_execute("INSERT INTO written VALUES (2)").await.is_err());
        assert!(!story.proxy.is_waiting_for_message());
        assert!(other.simple_query("SELECT 1").await.is_err(), "lost with the first");
        assert!(story.connect_again().await.is_err(), "and nobody comes back");
        eventually("the server is done", LIMIT, async || story.written().await == written).await;
    }
}

#[tokio::test]
async fn request_at_which_clients_are_paused_arrives_when_they_go_on() {
    let story = Story::begin().await;
    story.proxy.stall_at_request(2);
    story.client.batch_execute("INSERT INTO written VALUES (1)").await.unwrap();
    let mut insert = Box::pin(story.client.batch_execute("INSERT INTO written VALUES (2)"));
    assert!(tokio::time::timeout(MOMENT, &mut insert).await.is_err(), "no answer while paused");
    assert_eq!(story.written().await, 1);
    story.proxy.resume();
    insert.await.unwrap();
    assert_eq!(story.written().await, 2);
    story.client.batch_execute("INSERT INTO written VALUES (3)").await.unwrap();
    assert_eq!(story.written().await, 3);
}
