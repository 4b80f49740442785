//! The application in each language, run as the README says: all print what it shows there, and leave
//! the same in the tables. `scripts/test` installs what they need.

use std::process::Command;

use everfold::{Projection, Runner, RunnerHandle, Store, StoreOptions};
use everfold_testkit::{TestDatabase, printed, shown};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
const README: &str = include_str!("../README.md");

/// A database as the README sets it up, and the runner that stands for `everfold run`.
async fn shop() -> (TestDatabase, RunnerHandle) {
    let database = TestDatabase::create().await;
    let mut options = StoreOptions::default();
    options.migrate = Some(true);
    let store = Store::open_with(&database.url(), options).await.unwrap();
    let schema = include_str!("../schema.sql");
    database.connect().await.batch_execute(schema).await.unwrap();
    let projections = Projection::load_all(FOLDER).unwrap();
    let runner = Runner::new(&store).projections(projections).start().await.unwrap();
    (database, runner)
}

/// Runs a program, and again on the same database: it prints as much, with the next numbers.
async fn runs(program: &str, arguments: &[&str]) {
    let (database, runner) = shop().await;
    let run = async || {
        let mut command = Command::new(program);
        command.args(arguments).arg(database.url()).current_dir(FOLDER);
        printed(command).await
    };
    let expected = shown(README, "python3 app.py");
    assert_eq!(run().await, expected);
    assert_tables(&database).await;
    assert_eq!(run().await.lines().count(), expected.lines().count());
    runner.stop().await;
}

async fn assert_tables(database: &TestDatabase) {
    let client = database.connect().await;
    let rows = async |sql: &str| -> Vec<String> {
        let rows = client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let orders = rows("SELECT format('%s %s %s', id, customer, status) FROM orders ORDER BY id");
    assert_eq!(orders.await, ["1 alice paid", "2 bob placed", "4 alice placed", "5 bob placed"]);
    let events = rows("SELECT stream_id || ' ' || type FROM everfold.read_all() ORDER BY position");
    let expected = [
        "order-1 OrderPlaced",
        "order-1 OrderPaid",
        "order-2 OrderPlaced",
        "order-4 OrderPlaced",
        "order-5 OrderPlaced",
    ];
    assert_eq!(events.await, expected);
    let mails = rows("SELECT replace(subject, ':', '') FROM mails ORDER BY id");
    assert_eq!(mails.await, expected, "one mail for each event, in their order");
    let customers = "SELECT format('%s %s %s', customer, orders, cents)
                     FROM read_model.orders_by_customer ORDER BY customer";
    assert_eq!(rows(customers).await, ["alice 2 900", "bob 2 1350"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn python_with_psycopg() {
    runs("/usr/bin/python3", &["app.py"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_with_node_postgres() {
    runs("node", &["app.js"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_with_sqlx() {
    runs(env!("CARGO_BIN_EXE_orders"), &[]).await;
}
