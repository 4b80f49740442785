//! The failure: the server dies in the middle of the load, without a checkpoint, and recovers from
//! its log. Sequences come back ahead of where they were, or, for positions that only rolled back
//! transactions drew, behind it: those positions are handed out again.
//!
//! At risk: appends that were confirmed; appends that were not, and are repeated; readers whose
//! checkpoint is a mark from before the crash, above positions that are handed out again after it.
//!
//! Guaranteed: what was confirmed is there, once; repeating what was not is safe; and a mark is
//! never above the highest visible position, so no checkpoint outlives a crash.

use everfold::{Severity, Store};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase};
use tokio::sync::watch;

use crate::checker::{assert_versions_without_holes, compare};
use crate::readers::{self, Reader};
use crate::session::{Session, append_sql, open, open_with};
use crate::steady::SteadyAppends;

const CRASHES: u64 = 3;
const APPENDERS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_append_survives_crashes_exactly_once() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    let database = TestDatabase::create_on(&cluster).await;
    let store = open_with(&database.url(), |options| options.append_retries_max = 0).await;
    let (end, last) = watch::channel(None);
    let follower = tokio::spawn(readers::by_follow(open(&database.url()).await, last.clone()));
    let by_mark = tokio::spawn(readers::by_mark(database.url(), last));
    let appends = SteadyAppends::start(&store, APPENDERS);

    for _ in 0..CRASHES {
        appends.until_confirmed(200).await;
        cluster.crash().unwrap();
        cluster.start_again().unwrap();
        let session = Session::open(&database.url()).await;
        let mark = session.mark().await;
        let highest = *session.positions().await.last().expect("events survived");
        assert!(mark <= highest, "the mark {mark} is above the highest event {highest}");
    }
    let (acknowledged, repeats) = appends.stop().await;

    let session = Session::open(&database.url()).await;
    let last = session.append("the-end").await;
    end.send_replace(Some(last));
    let stored = session.positions().await;
    let gaps = last - stored.len() as i64;
    println!(
        "{} events confirmed over {CRASHES} crashes, {repeats} tries repeated, {gaps} gaps",
        acknowledged.len()
    );
    assert!(repeats > 0, "the crashes hit no append");
    assert_eq!(stored.len(), acknowledged.len() + 1, "each once, and nothing else");
    for (id, appended) in &acknowledged {
        let sql = format!("SELECT position FROM everfold.events WHERE id = '{id}'");
        assert_eq!(session.numbers(&sql).await, [appended.first_position.0 as i64]);
    }
    assert_versions_without_holes(&session).await;
    for (name, reader) in [("Store::follow", follower), ("mark, then events", by_mark)] {
        let comparison = compare(&stored, &readers::finish(name, reader).await);
        println!("  {name}: {comparison}");
        assert!(comparison.is_exact(), "{name}: {comparison:?}");
    }
}

/// A server that writes to disk only what it must, so that a crash can lose the rest.
fn lazy_cluster() -> Cluster {
    let options = ClusterOptions::default()
        .with_fsync()
        .setting("wal_writer_delay", "10s")
        .setting("wal_level", "minimal")
        .setting("max_wal_senders", "0")
        .setting("autovacuum", "off");
    Cluster::start(options).unwrap()
}

/// The server may still write in time by chance; then the same is tried again.
const TRIES: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mark_from_before_a_crash_is_not_above_positions_handed_out_again() {
    let cluster = lazy_cluster();
    for _ in 0..TRIES {
        let database = TestDatabase::create_on(&cluster).await;
        open(&database.url()).await.close().await;
        let session = Session::open(&database.url()).await;
        let bound = ("least(handed_out, announced, visible)", "least(handed_out, announced)");
        session.alter("unbounded", "high_water_mark", &[bound]).await;
        let (mut ours, mut wrong) = (Reader::default(), Reader::default());
        assert_eq!(session.append("kept").await, 1);

        // Repeats of a stored event draw positions and store nothing; then all is rolled back.
        let draw = "DO $$ DECLARE known uuid := (SELECT id FROM everfold.events LIMIT 1); BEGIN
            FOR n IN 1 .. 300 LOOP
                PERFORM everfold.append_event('kept', NULL, 'Happened', '{}', id => known);
            END LOOP; END $$";
        session.run(&format!("BEGIN; {draw}; ROLLBACK")).await;
        let mark = session.number("SELECT unbounded.high_water_mark()").await;
        assert_eq!(mark, 301);
        wrong.read_to(&session, mark).await;
        assert_eq!(ours.poll(&session).await, 1, "nothing above 1 is visible");
        cluster.crash().unwrap();
        cluster.start_again().unwrap();

        let session = Session::open(&database.url()).await;
        let handed_out = "SELECT pg_sequence_last_value('everfold.events_position_seq')";
        let handed_out = session.number(handed_out).await;
        assert_eq!(ours.poll(&session).await, 1, "the jump to {handed_out} decides nothing");
        if handed_out >= mark {
            continue;
        }
        for _ in 0..20 {
            session.append("after").await;
        }
        ours.poll(&session).await;
        let mark = session.number("SELECT unbounded.high_water_mark()").await;
        wrong.read_to(&session, mark).await;
        let stored = session.positions().await;
        let (ours, wrong) = (compare(&stored, &ours.seen), compare(&stored, &wrong.seen));
        println!(
            "sequence 301 before the crash, {handed_out} after it: 20 new events, ours {ours}"
        );
        println!("  without the bound by the highest visible position: {wrong}");
        assert!(ours.is_exact(), "{ours:?}");
        assert_eq!(wrong.missed.len(), 20, "without the bound, all are below the checkpoint");
        return;
    }
    panic!("the sequence never came back behind where it was in {TRIES} crashes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_do_not_wait_for_the_disk_are_lost_by_the_same_crash() {
    let cluster = lazy_cluster();
    for _ in 0..TRIES {
        let database = TestDatabase::create_on(&cluster).await;
        let store = open(&database.url()).await;
        let session = Session::open(&database.url()).await;
        session.append("kept").await;
        let lazy = format!("SET synchronous_commit = off; {}", append_sql("everfold", "lost"));
        session.run(&lazy).await;
        assert_eq!(session.positions().await, [1, 2], "confirmed and visible");
        cluster.crash().unwrap();
        cluster.start_again().unwrap();

        let session = Session::open(&database.url()).await;
        if session.positions().await == [1] {
            let lazy = format!("ALTER DATABASE {} SET synchronous_commit = off", database.name());
            session.run(&lazy).await;
            store.close().await;
            assert_warned(&open(&database.url()).await).await;
            return;
        }
    }
    panic!("a crash never lost a commit that did not wait for the disk: the crash is too kind");
}

/// The diagnosis tells who has chosen to live with that.
async fn assert_warned(store: &Store) {
    let findings = store.diagnose().await.unwrap().findings;
    let finding = findings.iter().find(|finding| finding.check == "synchronous_commit");
    assert_eq!(finding.map(|finding| finding.severity), Some(Severity::Warning), "{findings:?}");
}
