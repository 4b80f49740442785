//! A database per test.

use everfold_testkit::{Cluster, ClusterOptions, Server, TestDatabase};

use crate::connect;

#[tokio::test]
async fn databases_are_apart_and_dropped_with_their_sessions() {
    let database = TestDatabase::create().await;
    let other = TestDatabase::create().await;
    let client = database.connect().await;
    client.batch_execute("CREATE TABLE mine ()").await.unwrap();
    assert!(other.connect().await.batch_execute("TABLE mine").await.is_err());
    let row = client.query_one("SELECT current_database()", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), database.name());

    let (name, url) = (database.name().to_owned(), database.url());
    drop(database);
    assert!(connect(&url).await.is_err());
    assert_eq!(databases_named(Server::shared(), &name).await, 0);
    assert_eq!(databases_named(Server::shared(), other.name()).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_databases_can_be_created_at_once() {
    let all = futures::future::join_all((0..8).map(|_| TestDatabase::create())).await;
    for database in &all {
        assert!(database.connect().await.simple_query("SELECT 1").await.is_ok());
    }
}

#[tokio::test]
async fn database_outlives_a_crash_of_its_cluster_and_the_cluster_itself() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    cluster.crash().unwrap();
    cluster.start_again().unwrap();
    database.connect().await;
    drop(cluster);
    drop(database);
}

async fn databases_named(server: &Server, name: &str) -> i64 {
    let client = connect(&server.maintenance_url()).await.unwrap();
    let statement = "SELECT count(*) FROM pg_database WHERE datname = $1";
    client.query_one(statement, &[&name]).await.unwrap().get(0)
}
