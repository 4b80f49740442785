//! PostgreSQL: a server that is out of connections or locks, or set up so that it hides trouble. Each on
//! a server of its own: what it is out of belongs to all databases.

use everfold::postgres::tokio_postgres::{self, Client, NoTls};
use everfold_testkit::{Cluster, ClusterOptions, eventually};

use super::Found;
use crate::shop::Shop;
use crate::support::{Folder, LIMIT, Ran};

/// As few connections as a server may have, three of them for superusers.
fn small() -> ClusterOptions {
    ClusterOptions::default()
        .setting("max_connections", "23")
        .setting("max_wal_senders", "0")
        .setting("max_prepared_transactions", "0")
        .setting("max_locks_per_transaction", "10")
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// So many more sessions of an application.
async fn sessions(url: &str, count: usize) -> Vec<Client> {
    let url = format!("{url}?application_name=leaky%20shop");
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(connect(&url).await.unwrap());
    }
    sessions
}

fn doctor(url: &str, arguments: &[&str]) -> Ran {
    Folder::new().run(&[&["--url", url, "doctor"], arguments].concat())
}

/// Sessions end a moment after their clients.
async fn until_gone(cluster: &Cluster, application: &str) {
    let admin = connect(&cluster.url("postgres")).await.unwrap();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    eventually("the sessions have ended", LIMIT, async || {
        admin.query_one(count, &[&application]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_locks_that_run_out_are_told() {
    let cluster = Cluster::start(small()).unwrap();
    let shop = Shop::on(&cluster).await;
    let admin = connect(&cluster.url("postgres")).await.unwrap();
    admin.batch_execute("CREATE ROLE app LOGIN; GRANT everfold_admin TO app").await.unwrap();
    let found = Found::by(&shop, &[], 0);
    found.is_ok("connections");
    found.is_ok("locks");

    // 20 are for everybody: these, the one above, and that of doctor itself.
    let app = cluster.url_as("app", None, shop.database().name());
    let mut taken = sessions(&app, 15).await;
    let found = Found::by(&shop, &[], 0);
    let (message, hint) =
        found.told("warning", "connections", " of 20 taken, 3 more for superusers");
    assert!(message.contains("; most by 15 of leaky shop (user app, idle)"), "{message}");
    assert!(hint.starts_with("SELECT pid, usename, application_name, state"), "{hint}");
    assert!(hint.contains("SELECT pg_terminate_backend(pid)"), "{hint}");
    taken.extend(sessions(&app, 3).await);
    Found::by(&shop, &[], 3).told("problem", "connections", " of 20 taken, 3 more for superusers");

    // Now an ordinary role gets none, and doctor has to say what to do without looking.
    taken.extend(sessions(&app, 1).await);
    for arguments in [&[][..], &["--json"]] {
        let ran = doctor(&app, arguments).exits(1).says("all connections are taken");
        let ran = ran.says("superuser_reserved_connections").says("GROUP BY");
        assert!(ran.stderr.contains("pg_terminate_backend"), "{ran:#?}");
    }
    // A superuser does.
    Found::by(&shop, &[], 3).told("problem", "connections", " of 20 taken, 3 more for superusers");
    drop(taken);
    until_gone(&cluster, "leaky shop").await;
    Found::by(&shop, &[], 0).is_ok("connections");

    // The limit of a role, and of a database.
    admin.batch_execute("ALTER ROLE app CONNECTION LIMIT 2").await.unwrap();
    let taken = sessions(&app, 2).await;
    let ran = doctor(&app, &[]).exits(1).says("too many connections for role \"app\"");
    ran.says("its CONNECTION LIMIT is reached").says("ALTER ROLE");
    drop(taken);
    until_gone(&cluster, "leaky shop").await;
    let ran = doctor(&app, &[]).exits(0);
    assert!(!ran.stdout.contains("that role app may have"), "one of two: {ran:#?}");
    // These and one of doctor, or two: the session in which it looks for a pooler may still be ending.
    admin.batch_execute("ALTER ROLE app CONNECTION LIMIT 10").await.unwrap();
    let taken = sessions(&app, 7).await;
    let ran = doctor(&app, &[]).exits(0).prints("of 10 that role app may have are taken");
    ran.prints("-> ALTER ROLE \"app\" CONNECTION LIMIT 20");
    let limit = format!("ALTER DATABASE {} CONNECTION LIMIT", shop.database().name());
    admin.batch_execute(&format!("{limit} 10")).await.unwrap();
    let ran = doctor(&app, &[]).exits(0).prints("of 10 that database everfold_test_");
    ran.prints("-> ALTER DATABASE \"everfold_test_");
    admin.batch_execute(&format!("{limit} 7")).await.unwrap();
    let ran = doctor(&app, &[]).exits(1).says("too many connections for database");
    ran.says("its CONNECTION LIMIT is reached").says("ALTER DATABASE");
    admin.batch_execute(&format!("{limit} -1")).await.unwrap();
    drop(taken);
    until_gone(&cluster, "leaky shop").await;

    // 10 for each of 23 connections.
    let greedy = connect(&shop.url()).await.unwrap();
    let lock = "SELECT pg_advisory_lock(n) FROM generate_series(1, 200) AS n";
    greedy.batch_execute(lock).await.unwrap();
    let found = Found::by(&shop, &[], 0);
    let (message, hint) = found.told("warning", "locks", "of 230 places in the lock table");
    assert!(message.starts_with("about 2"), "{message}");
    assert!(hint.contains("max_locks_per_transaction"), "{hint}");
    greedy.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    Found::by(&shop, &[], 0).is_ok("locks");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_and_slots_that_hurt_some_day_are_told() {
    let options = ClusterOptions::default()
        .setting("autovacuum", "off")
        .setting("track_activities", "off")
        .setting("synchronous_commit", "off")
        .setting("full_page_writes", "off");
    let cluster = Cluster::start(options).unwrap();
    let shop = Shop::on(&cluster).await;
    let found = Found::by(&shop, &[], 0);
    for (setting, danger, advice) in [
        ("fsync", "loses committed events", "ALTER SYSTEM SET fsync = on"),
        ("full_page_writes", "corrupt the database", "ALTER SYSTEM SET full_page_writes = on"),
        ("synchronous_commit", "loses the last committed events", "SET synchronous_commit = on"),
        (
            "idle_in_transaction_session_timeout",
            "holds the mark until somebody ends it",
            "SET idle_in_transaction_session_timeout = '60s'",
        ),
        ("autovacuum", "dead rows of checkpoints", "ALTER SYSTEM SET autovacuum = on"),
        ("track_activities", "who holds the mark", "ALTER SYSTEM SET track_activities = on"),
    ] {
        let (message, hint) = found.told("warning", setting, danger);
        assert!(message.starts_with(&format!("{setting} = ")), "{message}");
        assert!(hint.contains(advice), "{hint}");
    }
    found.is_ok("replication slots");

    let admin = connect(&cluster.url("postgres")).await.unwrap();
    let slot = "SELECT pg_create_physical_replication_slot('left_behind', true)";
    admin.batch_execute(slot).await.unwrap();
    for statement in ["ALTER SYSTEM SET autovacuum = on", "ALTER SYSTEM SET track_activities = on"]
    {
        admin.batch_execute(statement).await.unwrap();
    }
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("the server has read its settings", LIMIT, async || {
        let sql = "SELECT current_setting('autovacuum')";
        connect(&shop.url()).await.unwrap().query_one(sql, &[]).await.unwrap().get::<_, &str>(0)
            == "on"
    })
    .await;
    let found = Found::by(&shop, &[], 0);
    found.is_ok("autovacuum");
    found.is_ok("track_activities");
    let (message, hint) = found.told("warning", "replication slots", "from slot left_behind");
    assert!(message.contains("MiB of the server's log"), "{message}");
    let drop_slot = "SELECT pg_drop_replication_slot('left_behind')";
    assert!(hint.ends_with(drop_slot), "{hint}");
    admin.batch_execute(drop_slot).await.unwrap();
    Found::by(&shop, &[], 0).is_ok("replication slots");
}
