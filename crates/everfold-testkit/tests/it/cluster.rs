//! Private clusters: settings, crashes, passwords, standbys.

use everfold_testkit::{Cluster, ClusterOptions, Server, eventually};
use tokio_postgres::error::SqlState;

use crate::{LIMIT, connect, count, show};

#[tokio::test]
async fn cluster_starts_with_the_settings_asked_for() {
    let options =
        ClusterOptions::default().setting("work_mem", "7MB").setting("port_note.x", "o'k");
    let cluster = Cluster::start(options).unwrap();
    let client = connect(&cluster.url("postgres")).await.unwrap();

    for (setting, value) in [
        ("fsync", "off"),
        ("max_connections", "200"),
        ("max_prepared_transactions", "50"),
        ("work_mem", "7MB"),
        ("port_note.x", "o'k"),
        ("server_encoding", "UTF8"),
        ("lc_collate", "C"),
    ] {
        assert_eq!(show(&client, setting).await, value, "{setting}");
    }
    assert!(cluster.log().contains("database system is ready to accept connections"));
    assert!(cluster.bin_dir().join("postgres").is_file());
    assert!(cluster.data_dir().join("PG_VERSION").is_file());

    let socket =
        format!("host={} port={} user=postgres", cluster.folder().display(), cluster.port());
    assert_eq!(show(&connect(&socket).await.unwrap(), "work_mem").await, "7MB");
}

#[tokio::test]
async fn crash_keeps_what_was_committed() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    let client = connect(&cluster.url("postgres")).await.unwrap();
    assert_eq!(show(&client, "fsync").await, "on");
    client.batch_execute("CREATE TABLE kept AS SELECT generate_series(1, 1000)").await.unwrap();
    client.batch_execute("BEGIN; INSERT INTO kept VALUES (0)").await.unwrap();

    cluster.crash().unwrap();
    assert!(connect(&cluster.url("postgres")).await.is_err());
    eventually("the client notices the crash", LIMIT, async || client.is_closed()).await;

    cluster.start_again().unwrap();
    let client = connect(&cluster.url("postgres")).await.unwrap();
    assert_eq!(count(&client, "kept").await.unwrap(), 1000);
    assert!(cluster.log().contains("automatic recovery in progress"));
}

#[tokio::test]
async fn fast_restart_keeps_the_port_and_needs_no_recovery() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let client = connect(&cluster.url("postgres")).await.unwrap();
    client.batch_execute("CREATE TABLE kept AS SELECT 1").await.unwrap();

    cluster.restart_fast().unwrap();
    let client = connect(&cluster.url("postgres")).await.unwrap();
    assert_eq!(count(&client, "kept").await.unwrap(), 1);
    assert!(!cluster.log().contains("automatic recovery in progress"));
}

#[tokio::test]
async fn wrong_password_is_refused_where_one_is_required() {
    let cluster = Cluster::start(ClusterOptions::default().require_password()).unwrap();
    connect(&cluster.url("postgres")).await.unwrap();

    let wrong = cluster.url_as("postgres", Some("wrong"), "postgres");
    let error = connect(&wrong).await.map(drop).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_PASSWORD));

    let standby = cluster.standby().unwrap();
    connect(&standby.url("postgres")).await.unwrap();
}

#[tokio::test]
async fn standby_follows_and_can_be_promoted() {
    let primary = Cluster::start(ClusterOptions::default()).unwrap();
    let writer = connect(&primary.url("postgres")).await.unwrap();
    writer.batch_execute("CREATE TABLE followed AS SELECT 1").await.unwrap();
    let standby = primary.standby().unwrap();
    assert_ne!(standby.port(), primary.port());
    writer.batch_execute("INSERT INTO followed VALUES (2)").await.unwrap();

    let reader = connect(&standby.url("postgres")).await.unwrap();
    eventually("the standby has both rows", LIMIT, async || {
        count(&reader, "followed").await.unwrap() == 2
    })
    .await;
    let error = reader.batch_execute("INSERT INTO followed VALUES (3)").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));

    primary.crash().unwrap();
    standby.promote().unwrap();
    reader.batch_execute("INSERT INTO followed VALUES (3)").await.unwrap();
    assert_eq!(count(&reader, "followed").await.unwrap(), 3);
}

#[tokio::test]
async fn shared_server_is_one_for_all() {
    let urls = [Server::shared().maintenance_url(), Server::shared().maintenance_url()];
    assert_eq!(urls[0], urls[1]);
    connect(&urls[0]).await.unwrap();
}

#[test]
fn clusters_started_together_get_different_ports() {
    let start = || Cluster::start(ClusterOptions::default()).unwrap();
    let (one, other) = std::thread::scope(|scope| {
        let threads = [scope.spawn(start), scope.spawn(start)];
        let [one, other] = threads.map(|thread| thread.join().unwrap());
        (one, other)
    });
    assert_ne!(one.port(), other.port());
}
