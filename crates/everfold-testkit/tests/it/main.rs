//! Tests of the harness itself, against real servers.

mod cluster;
mod database;
mod guard;
mod pgbouncer;
mod proxy;

use std::time::Duration;

use tokio_postgres::{Client, Error, NoTls};

/// Longest wait for something that normally takes moments; machines that run tests are busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Long enough that an answer would have come, short enough to wait for its absence.
const MOMENT: Duration = Duration::from_millis(300);

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn count(client: &Client, table: &str) -> Result<i64, Error> {
    Ok(client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await?.get(0))
}

async fn show(client: &Client, setting: &str) -> String {
    client.query_one(&format!("SHOW {setting}"), &[]).await.unwrap().get(0)
}
