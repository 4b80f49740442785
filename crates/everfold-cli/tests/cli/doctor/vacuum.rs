//! PostgreSQL: dead rows that nobody removes, and transaction numbers that run out for it.

use std::process::Command;

use everfold_testkit::{Cluster, ClusterOptions};

use super::{Found, eventually_found};
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn table_that_is_not_vacuumed_is_named() {
    let shop = Shop::postgres().await;
    let found = Found::by(&shop, &[], 0);
    found.is_ok("vacuum");
    found.is_ok("wraparound");
    shop.execute("ALTER TABLE everfold.stream_snapshots SET (autovacuum_enabled = off)").await;
    let (message, hint) =
        Found::by(&shop, &[], 0).told("warning", "vacuum", "everfold.stream_snapshots has ");
    assert!(message.contains("never vacuumed: autovacuum is off for it"), "{message}");
    let mend = "ALTER TABLE everfold.stream_snapshots RESET (autovacuum_enabled); \
                VACUUM (ANALYZE) everfold.stream_snapshots";
    assert_eq!(hint, mend);
    let die = "INSERT INTO everfold.stream_snapshots (stream_id, name, version, state_version, state) \
               SELECT 's' || n, 'cart', 1, 1, '{}' FROM generate_series(1, 12000) AS n; \
               DELETE FROM everfold.stream_snapshots";
    shop.execute(die).await;
    let part = "everfold.stream_snapshots has about 12000 dead rows and 0 live ones";
    eventually_found(&shop, &[], 0, "warning", "vacuum", part);

    // Where autovacuum may come, it has not come yet.
    shop.execute(
        "ALTER TABLE everfold.stream_snapshots RESET (autovacuum_enabled); \
         ALTER TABLE everfold.stream_snapshots SET (autovacuum_vacuum_threshold = 1000000000)",
    )
    .await;
    let (message, hint) = Found::by(&shop, &[], 0).told("warning", "vacuum", part);
    assert!(message.ends_with(", never vacuumed"), "{message}");
    let vacuum = "VACUUM (ANALYZE, VERBOSE) everfold.stream_snapshots";
    assert!(hint.starts_with(vacuum), "{hint}");
    shop.execute(vacuum).await;
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    while Found::by(&shop, &[], 0).of("vacuum")[0]["severity"] != "ok" {
        assert!(std::time::Instant::now() < deadline, "vacuum is not seen");
    }
    Found::by(&shop, &[], 0).is_ok("vacuum");
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_numbers_that_run_out_are_told() {
    let options = ClusterOptions::default()
        .setting("autovacuum", "off")
        .setting("autovacuum_freeze_max_age", "2000000000");
    let cluster = Cluster::start(options).unwrap();
    let shop = Shop::on(&cluster).await;
    Found::by(&shop, &[], 0).is_ok("wraparound");
    cluster.skip_transactions_to(1_200_000_000).unwrap();
    let (message, _) = Found::by(&shop, &[], 0).told("warning", "wraparound", "of 2147483648");
    assert!(message.starts_with("the oldest transaction number is 1199"), "{message}");
    cluster.skip_transactions_to(1_700_000_000).unwrap();
    let (message, hint) = Found::by(&shop, &[], 3).told("problem", "wraparound", "of 2147483648");
    assert!(message.ends_with("at the end the server takes no more appends"), "{message}");
    assert!(hint.ends_with("then `vacuumdb --all`"), "{hint}");
    let mut vacuum = Command::new(cluster.bin_dir().join("vacuumdb"));
    vacuum.args(["--freeze", "--all", "--quiet", "--host=127.0.0.1", "--username=postgres"]);
    let vacuumed = vacuum.arg(format!("--port={}", cluster.port())).status().unwrap();
    assert!(vacuumed.success());
    Found::by(&shop, &[], 0).is_ok("wraparound");
}
