//! PostgreSQL: sessions and prepared transactions that hold what others need.

use everfold::postgres::tokio_postgres::Client;
use everfold_testkit::{TestDatabase, eventually};

use super::{CATCH_UP, Found, INLINE, eventually_found};
use crate::shop::Shop;
use crate::support::LIMIT;

const APPEND: &str =
    "SELECT everfold.append('a', NULL, '[{\"type\": \"Counted\", \"data\": {\"n\": 1}}]')";
/// Whatever is held is a problem at once, not after a minute.
const AT_ONCE: [&str; 2] = ["--mark-held-for", "0"];

/// A session with a name, inside a transaction, and its pid.
async fn in_transaction(database: &TestDatabase, application: &str) -> (Client, i32) {
    let client = database.connect().await;
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let begin = format!("SET application_name = '{application}'; BEGIN");
    client.batch_execute(&begin).await.unwrap();
    (client, pid)
}

/// Runs the statement that a hint ends with, as an operator would.
async fn follow(shop: &Shop, hint: &str) {
    let (_, statement) = hint.split_once(", or ").unwrap();
    shop.execute(statement).await;
}

async fn until_ok(shop: &Shop, arguments: &[&str], check: &str) {
    eventually("it is fine again", LIMIT, async || {
        let json = shop.run(&[&["doctor", "--json"], arguments].concat()).json();
        let findings = json["findings"].as_array().unwrap();
        let mut of = findings.iter().filter(|finding| finding["check"] == check);
        of.all(|finding| finding["severity"] == "ok")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_holds_the_mark_is_named() {
    let shop = Shop::postgres().await;
    let (client, pid) = in_transaction(shop.database(), "forgetful shop").await;
    client.batch_execute(APPEND).await.unwrap();
    shop.numbers("events", &[("b", Some(2))]);
    let found = Found::by(&shop, &AT_ONCE, 3);
    let who = format!("pid {pid} (forgetful shop, idle in transaction) holds the high-water mark");
    let (message, hint) = found.told("problem", "mark", &who);
    assert!(message.contains("high-water mark at 0 for "), "{message}");
    assert_eq!(hint, format!("end its transaction, or SELECT pg_terminate_backend({pid})"));
    found.text.prints("idle in transaction, since ").prints("query: SELECT everfold.append(");
    assert_eq!(found.json["holders"][0]["pid"], pid);
    follow(&shop, &hint).await;
    eventually("the mark goes on", LIMIT, async || {
        shop.run(&[&["doctor"][..], &AT_ONCE].concat()).stdout.contains("high-water mark  2")
    })
    .await;
    let found = Found::by(&shop, &AT_ONCE, 0);
    assert!(found.of("mark").is_empty(), "{:#}", found.json);
}

/// The read model stands still, its runner lives, and the cause is a session of somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn projection_that_stands_still_is_told_with_its_worker_and_who_holds_the_mark() {
    let shop = Shop::postgres().await;
    shop.sums("sums", CATCH_UP);
    let running = shop.start(&[]);
    eventually("it has its lease", LIMIT, async || shop.owners("sums")[0].is_some()).await;
    let worker = shop.owners("sums").remove(0).unwrap();
    let (client, pid) = in_transaction(shop.database(), "forgetful shop").await;
    client.batch_execute(APPEND).await.unwrap();
    shop.number_of_long_ago("b", Some(2), std::time::Duration::from_secs(3_600));
    let found = Found::by(&shop, &AT_ONCE, 3);
    found.told("problem", "projections", "1 event behind, and it does not move");
    let (message, hint) =
        found.told("warning", "projections", "sums, standing: shard 0 stands at ");
    assert!(message.contains(&format!(", run by {worker} since 20")), "{message}");
    assert!(message.contains(", lease until 20"), "{message}");
    assert_eq!(hint, "`everfold status sums`");
    let (_, hint) = found.told("problem", "mark", &format!("pid {pid} (forgetful shop, "));
    follow(&shop, &hint).await;
    shop.run(&["wait", "sums", "--timeout", "20"]).done();
    Found::by(&shop, &AT_ONCE, 0).is_ok("projections");
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_transaction_that_holds_the_mark_is_named() {
    let shop = Shop::postgres().await;
    Found::by(&shop, &[], 0).is_ok("prepared transactions");
    let (client, _) = in_transaction(shop.database(), "two phases").await;
    let gid = format!("order's {}", shop.database().name());
    let quoted = gid.replace('\'', "''");
    client.batch_execute(&format!("{APPEND}; PREPARE TRANSACTION '{quoted}'")).await.unwrap();
    let found = Found::by(&shop, &AT_ONCE, 3);
    let (message, hint) = found.told("warning", "prepared transactions", "1 prepared; ");
    assert!(message.contains(&format!("prepared transaction '{quoted}' of ")), "{message}");
    assert!(message.contains(" since 20"), "{message}");
    let commands = format!("COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}'");
    assert_eq!(hint, commands);
    let held = format!("prepared transaction '{quoted}' holds the high-water mark at 0");
    let (_, hint) = found.told("problem", "mark", &held);
    assert_eq!(hint, commands);
    shop.execute(&format!("ROLLBACK PREPARED '{quoted}'")).await;
    Found::by(&shop, &AT_ONCE, 0).is_ok("prepared transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn append_that_waits_for_a_stream_is_told_with_who_has_it() {
    let shop = Shop::postgres().await;
    Found::by(&shop, &AT_ONCE, 0).is_ok("waiting");
    let (holder, holder_pid) = in_transaction(shop.database(), "slow shop").await;
    holder.batch_execute(APPEND).await.unwrap();
    let (waiter, waiter_pid) = in_transaction(shop.database(), "patient shop").await;
    let waits = tokio::spawn(async move { waiter.batch_execute(APPEND).await });
    let (message, hint) = eventually_found(
        &shop,
        &AT_ONCE,
        3,
        "problem",
        "waiting",
        &format!("pid {waiter_pid} (patient shop) has waited "),
    );
    let has = format!("s for a stream, which pid {holder_pid} (slow shop, idle in transaction");
    assert!(message.contains(&has), "{message}");
    assert!(message.contains(": SELECT everfold.append('a', NULL, "), "{message}");
    assert_eq!(hint, format!("end its transaction, or SELECT pg_terminate_backend({holder_pid})"));
    follow(&shop, &hint).await;
    waits.await.unwrap().unwrap();
    until_ok(&shop, &AT_ONCE, "waiting").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_keeps_a_rebuild_from_going_on_is_named() {
    let shop = Shop::postgres().await;
    shop.sums("sums", INLINE);
    shop.run(&["run", "--once"]).done();
    shop.numbers("events", &[("b", Some(2))]);
    let (client, pid) = in_transaction(shop.database(), "long checkout").await;
    client.batch_execute(APPEND).await.unwrap();
    Found::by(&shop, &AT_ONCE, 3).is_ok("gates");
    let rebuild = shop.start_command(&["rebuild", "sums"], "");
    let (message, hint) = eventually_found(
        &shop,
        &AT_ONCE,
        3,
        "problem",
        "gates",
        &format!("pid {pid} (long checkout, idle in transaction"),
    );
    assert!(message.contains("holds a gate of sums for "), "{message}");
    assert!(
        message.contains("; its rebuild (") && message.contains(") waits: SELECT"),
        "{message}"
    );
    assert_eq!(hint, format!("end its transaction, or SELECT pg_terminate_backend({pid})"));
    // The rebuild says so itself.
    let (message, hint) =
        eventually_found(&shop, &AT_ONCE, 3, "warning", "projections", "sums, rebuild: ");
    assert!(message.contains(&format!("process {pid}")), "{message}");
    assert_eq!(hint, "`everfold rebuilds sums`");
    shop.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    let (code, said) = rebuild.ended();
    assert_eq!(code, Some(0), "{said}");
    Found::by(&shop, &AT_ONCE, 0).is_ok("gates");
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_that_stays_open_is_named() {
    let shop = Shop::postgres().await;
    Found::by(&shop, &[], 0).is_ok("transactions");
    let (client, pid) = in_transaction(shop.database(), "nightly report").await;
    for sql in
        ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM everfold.events"]
    {
        client.batch_execute(sql).await.unwrap();
    }
    Found::by(&shop, &[], 0).is_ok("transactions");
    let at_once = ["--transaction-age", "0"];
    let found = Found::by(&shop, &at_once, 0);
    let who = format!("pid {pid} (nightly report, idle in transaction, user ");
    let (message, hint) = found.told("warning", "transactions", &who);
    assert!(message.contains(") has a transaction open since 20"), "{message}");
    assert!(message.contains(", and vacuum keeps for it what has died since"), "{message}");
    assert!(message.ends_with("SELECT count(*) FROM everfold.events"), "{message}");
    assert_eq!(hint, format!("end its transaction, or SELECT pg_terminate_backend({pid})"));
    follow(&shop, &hint).await;
    until_ok(&shop, &at_once, "transactions").await;
}
