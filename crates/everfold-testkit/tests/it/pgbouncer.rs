//! The pooler in transaction mode.

use everfold_testkit::{Cluster, ClusterOptions, PgBouncer, Server, TestDatabase};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::connect;

#[tokio::test]
async fn clients_share_the_server_connections_of_the_pool() {
    let database = TestDatabase::create().await;
    let pooler = PgBouncer::start_with_pool_size(Server::shared(), 1).unwrap();
    let (one, other) = (
        connect(&pooler.url(database.name())).await.unwrap(),
        connect(&pooler.url(database.name())).await.unwrap(),
    );
    let backend = "SELECT pg_backend_pid() AS pid";
    let pid = value(&one, backend, "pid").await;
    let other_pid = value(&other, backend, "pid").await;
    assert_eq!(other_pid, pid, "one connection served both clients");

    // The pooler's own console answers too, for tests that want to look inside.
    let console = connect(&pooler.url("pgbouncer")).await.unwrap();
    assert!(!value(&console, "SHOW POOLS", "pool_mode").await.is_empty());
    assert!(pooler.log().contains("process up"));
}

#[tokio::test]
async fn pooler_knows_the_password_of_the_server() {
    let cluster = Cluster::start(ClusterOptions::default().require_password()).unwrap();
    let pooler = PgBouncer::start(&cluster.server()).unwrap();
    let client = connect(&pooler.url("postgres")).await.unwrap();
    client.batch_execute("BEGIN; SELECT 1; COMMIT").await.unwrap();
}

#[tokio::test]
async fn pooler_that_is_gone_does_not_answer() {
    let pooler = PgBouncer::start(Server::shared()).unwrap();
    assert!(pooler.answers().await);
    let console = connect(&pooler.url("pgbouncer")).await.unwrap();
    // The console ends its own connection with the pooler.
    let _ = console.simple_query("SHUTDOWN").await;
    assert!(!pooler.answers().await);
}

#[tokio::test]
async fn pooler_is_gone_when_dropped() {
    let pooler = PgBouncer::start(Server::shared()).unwrap();
    let url = pooler.url("postgres");
    connect(&url).await.unwrap();
    drop(pooler);
    assert!(connect(&url).await.is_err());
}

/// One column of the first row of a query sent without a prepared statement.
async fn value(client: &Client, query: &str, column: &str) -> String {
    let messages = client.simple_query(query).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(column),
        _ => None,
    });
    row.unwrap().to_owned()
}
