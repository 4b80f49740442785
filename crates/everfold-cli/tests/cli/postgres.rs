//! The same command on PostgreSQL: what only a server can do.

use everfold_testkit::{Cluster, ClusterOptions, TestDatabase, free_port};

use crate::shop::Shop;
use crate::support::{Folder, LIMIT, Ran, interrupt, lines, wait};

/// Runs the command on a database.
fn run(database: &TestDatabase, arguments: &[&str]) -> Ran {
    run_at(&database.url(), arguments)
}

fn run_at(url: &str, arguments: &[&str]) -> Ran {
    Folder::new().run(&[&["--url", url], arguments].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn function_changed_by_hand_is_a_difference() {
    let database = TestDatabase::create().await;
    run(&database, &["schema", "apply", "--dry-run"]).exits(0).prints("would create the schema");
    let applied = run(&database, &["schema", "apply"]).exits(0);
    applied.prints("applied migration 0001_events").prints("replaced the functions");
    run(&database, &["schema", "apply"]).exits(0).prints("nothing was done");
    run(&database, &["schema", "assert"]).exits(0).prints("is as expected");

    let client = database.connect().await;
    let change = "CREATE OR REPLACE FUNCTION everfold.high_water_mark() RETURNS bigint \
                  LANGUAGE sql VOLATILE AS $$ SELECT max(position) FROM everfold.events $$";
    client.batch_execute(change).await.unwrap();
    let ran = run(&database, &["schema", "assert"]).exits(3).says("differs in");
    assert!(
        ran.stdout.lines().all(|line| line.starts_with("- ") || line.starts_with("+ ")),
        "{ran:#?}"
    );
    ran.prints("high_water_mark");
    let json = run(&database, &["schema", "assert", "--json"]).exits(3).json();
    assert_eq!(json["equal"], false);
    assert!(json["differences"].to_string().contains("high_water_mark"));
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_schema_run_by_hand_is_as_expected() {
    let database = TestDatabase::create().await;
    let sql = run(&database, &["schema", "print"]).exits(0).stdout;
    database.connect().await.batch_execute(&sql).await.unwrap();
    run(&database, &["schema", "assert"]).exits(0).prints("is as expected");
}

#[tokio::test(flavor = "multi_thread")]
async fn database_without_the_schema_is_told_what_to_do() {
    let database = TestDatabase::create().await;
    for arguments in [&["events"][..], &["append", "--stream", "a", "--type", "T"]] {
        run(&database, arguments)
            .fails(1, "no everfold schema")
            .says("run `everfold schema apply`");
    }
    run(&database, &["schema", "assert"]).fails(3, "no everfold schema");
    let ran = run(&database, &["doctor"]).exits(1).says("run `everfold schema apply`");
    ran.prints(database.name());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_in_and_come_out() {
    let database = TestDatabase::create().await;
    let folder = Folder::new();
    let url = database.url();
    folder.run(&["init", "shop", "--url", &url]).exits(0).prints("everfold import");
    assert!(folder.read("shop/everfold.toml").contains(&format!("url = \"{url}\"")));
    let project = |arguments: &[&str]| folder.run(&[&["--project", "shop"], arguments].concat());
    project(&["import", "shop/events.sample.jsonl"]).exits(0).prints("stored    10");
    project(&["append", "--stream", "cart-1002", "--type", "Reopened", "--expected", "3"]).exits(0);
    project(&["append", "--stream", "cart-1002", "--type", "Reopened", "--expected", "3"])
        .fails(1, "expected 3, actual 4");
    let events = project(&["events", "--json"]).exits(0).json_lines();
    assert_eq!(events.len(), 11);

    let copy = Folder::new();
    let exported = project(&["export"]).exits(0).stdout;
    copy.run_with_stdin(&["import", "-", "--name", "copy"], &exported).done();
    let copied = copy.run(&["export"]).done().json_lines();
    for (copied, event) in copied.iter().zip(&events) {
        let without_position = |event: &serde_json::Value| {
            let mut event = event.clone();
            event.as_object_mut().unwrap().remove("position");
            event
        };
        assert_eq!(without_position(copied), without_position(event));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_the_transaction_that_holds_the_mark() {
    let database = TestDatabase::create().await;
    run(&database, &["schema", "apply"]).exits(0);
    run(&database, &["append", "--stream", "a", "--type", "T"]).exits(0);
    run(&database, &["doctor"]).exits(0).prints("nothing holds the high-water mark");

    let client = database.connect().await;
    let append = "SET application_name = 'forgetful shop'; BEGIN; \
                  SELECT everfold.append('cart-1', NULL, '[{\"type\": \"T\", \"data\": 1}]')";
    client.batch_execute(append).await.unwrap();
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    // The query that is shown is the last one of the session.
    client
        .batch_execute("SELECT everfold.append('cart-1', NULL, '[{\"type\": \"T\", \"data\": 2}]')")
        .await
        .unwrap();
    run(&database, &["append", "--stream", "b", "--type", "T"]).exits(0);

    let ran = run(&database, &["doctor"]).exits(0).prints("high-water mark  1");
    let ran = ran.prints(&format!("pid {pid}, application forgetful shop, user "));
    let ran = ran.prints("idle in transaction, since ").prints("query: SELECT everfold.append(");
    ran.prints("holds it at 1");
    let holder = run(&database, &["doctor", "--json"]).exits(0).json()["holders"][0].clone();
    assert_eq!((&holder["pid"], &holder["holds_at"]), (&pid.into(), &1.into()));
    assert_eq!(holder["application"], "forgetful shop");

    client.batch_execute("COMMIT").await.unwrap();
    run(&database, &["doctor"]).exits(0).prints("high-water mark  4");
}

#[tokio::test(flavor = "multi_thread")]
async fn mark_that_stands_still_is_unhealthy() {
    let shop = Shop::postgres().await;
    shop.sums("sums", "version = 1\nlifecycle = \"catch-up\"\n");
    shop.run(&["run", "--once"]).exits(0);
    let client = shop.database().connect().await;
    let append =
        "BEGIN; SELECT everfold.append('a', NULL, '[{\"type\": \"T\", \"data\": {\"n\": 1}}]')";
    client.batch_execute(append).await.unwrap();
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    shop.numbers("events", &[("b", Some(2))]);
    shop.run(&["health"]).exits(0);
    let ran = shop.run(&["health", "--mark-held-for", "0"]).exits(3);
    ran.prints("problem  the store  mark: ").prints(&format!("the session with pid {pid}"));
    shop.run(&["wait", "sums", "--timeout", "0"]).fails(3, "did not reach position 2");
    client.batch_execute("COMMIT").await.unwrap();
    shop.run(&["run", "--once"]).exits(0);
    shop.run(&["health", "--mark-held-for", "0"]).exits(0).prints("healthy");
    assert_eq!(shop.rows("sums", &["stream", "n"]).await, ["a|1", "b|2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_is_not_safe_is_unhealthy() {
    let database = TestDatabase::create().await;
    run(&database, &["schema", "apply"]).exits(0);
    let client = database.connect().await;
    let sequence: String = client
        .query_one("SELECT pg_get_serial_sequence('everfold.events', 'position')", &[])
        .await
        .unwrap()
        .get(0);
    client.batch_execute(&format!("ALTER SEQUENCE {sequence} CACHE 20")).await.unwrap();
    run(&database, &["events"]).fails(1, "the store is not safe to use");
    run(&database, &["doctor"])
        .exits(3)
        .says("the store is not safe to use")
        .prints(database.name());
    run(&database, &["schema", "assert"]).exits(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_password_and_missing_database_are_told() {
    let cluster = Cluster::start(ClusterOptions::default().require_password()).unwrap();
    let url = cluster.url_as("postgres", Some("guessed"), "postgres");
    for arguments in [&["events"][..], &["schema", "apply"], &["schema", "assert"]] {
        let ran = run_at(&url, arguments).fails(1, "check user and password");
        assert!(!ran.stderr.contains("guessed"), "{ran:#?}");
        assert_eq!(ran.stderr.matches("authentication failed").count(), 1, "said once: {ran:#?}");
    }
    let ran = run_at(&url, &["doctor"]).exits(1).says("check user and password");
    let ran = ran.prints("postgres://postgres:***@");
    assert!(!ran.stdout.contains("guessed"), "{ran:#?}");

    let folder = Folder::new();
    folder.run(&["init", "--url", &cluster.url("postgres")]).exits(0).prints("set EVERFOLD_URL");
    assert!(!folder.read("everfold.toml").lines().any(|line| line.starts_with("url")));

    run_at(&cluster.url("nowhere"), &["events"]).fails(1, "create the database, or check its name");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_down_is_told() {
    let port = free_port().unwrap();
    let url = format!("postgres://me@127.0.0.1:{port}/shop");
    for arguments in [&["events"][..], &["schema", "apply"], &["schema", "assert"]] {
        let ran = run_at(&url, arguments).fails(1, "is the server running");
        assert_eq!(ran.stderr.matches("refused").count(), 1, "said once: {ran:#?}");
    }
    run_at(&url, &["doctor"]).exits(1).says("is the server running").prints(&port.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_outlives_a_restart_of_the_server_and_says_so() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let url = cluster.url("postgres");
    let append = ["append", "--stream", "a", "--type", "T"];
    run_at(&url, &["schema", "apply"]).exits(0);
    run_at(&url, &append).exits(0);

    let folder = Folder::new();
    let mut follow = folder.command(&["--url", &url, "events", "--follow"]).spawn().unwrap();
    let events = lines(follow.stdout.take().unwrap());
    let warnings = lines(follow.stderr.take().unwrap());
    assert!(events.recv_timeout(LIMIT).unwrap().contains("a@1"));
    cluster.crash().unwrap();
    assert!(warnings.recv_timeout(LIMIT).unwrap().starts_with("warning: "));
    cluster.start_again().unwrap();
    run_at(&url, &append).exits(0);
    assert!(events.recv_timeout(LIMIT).unwrap().contains("a@2"));
    interrupt(&follow);
    assert_eq!(wait(&mut follow), Some(0));
}
