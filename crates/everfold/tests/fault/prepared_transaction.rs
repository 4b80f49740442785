//! The failure: an append is prepared for a two-phase commit, its session goes away, and the server
//! crashes before anyone settles it.
//!
//! At risk: the events that are committed later: nobody is connected who could hold the mark.
//!
//! Guaranteed: the announcement of a prepared append outlives session and server. The mark stays
//! below it, the diagnosis names it, and the mark goes on as soon as it is settled.

use everfold::Position;
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase};

use crate::checker::compare;
use crate::readers::Reader;
use crate::session::{Session, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_append_holds_the_mark_across_a_crash_until_it_is_settled() {
    let cluster = Cluster::start(ClusterOptions::default().with_fsync()).unwrap();
    for settle in ["COMMIT PREPARED 'shop-1'", "ROLLBACK PREPARED 'shop-1'"] {
        let database = TestDatabase::create_on(&cluster).await;
        open(&database.url()).await.close().await;
        let session = Session::open(&database.url()).await;
        let mut reader = Reader::default();
        assert_eq!(session.append("before").await, 1);
        session.run("BEGIN").await;
        assert_eq!(session.append("prepared").await, 2);
        session.run("PREPARE TRANSACTION 'shop-1'").await;
        drop(session);

        let session = Session::open(&database.url()).await;
        assert_eq!(session.append("after").await, 3);
        assert_eq!(reader.poll(&session).await, 1, "held with nobody connected");
        assert_named(&database, &session).await;

        cluster.crash().unwrap();
        cluster.start_again().unwrap();
        let session = Session::open(&database.url()).await;
        let late = session.append("after-crash").await;
        assert!(late > 3, "positions go on, perhaps after a gap: {late}");
        assert_eq!(reader.poll(&session).await, 1, "still held after the crash");
        assert_named(&database, &session).await;

        session.run(settle).await;
        assert_eq!(reader.poll(&session).await, late, "{settle}");
        let comparison = compare(&session.positions().await, &reader.seen);
        assert!(comparison.is_exact(), "{settle}: {comparison:?}");
    }
}

/// Both the SQL function and the diagnosis say who holds the mark.
async fn assert_named(database: &TestDatabase, session: &Session) {
    let sql = "SELECT announced, pid, prepared, since IS NOT NULL
        FROM everfold.high_water_mark_holders()";
    let holders = session.rows(sql).await.unwrap();
    let expected = [Some("1"), None, Some("shop-1"), Some("t")].map(|part| part.map(str::to_owned));
    assert_eq!(holders, [expected]);

    let diagnosis = open(&database.url()).await.diagnose().await.unwrap();
    let [holder] = diagnosis.holders.as_slice() else { panic!("{:?}", diagnosis.holders) };
    assert_eq!(holder.holds_at, Position(1));
    assert_eq!((holder.pid, holder.prepared.as_deref()), (None, Some("shop-1")));
    let warning =
        diagnosis.findings.iter().find(|finding| finding.check == "prepared transactions");
    let warning = warning.expect("prepared transactions are among the findings");
    assert!(warning.message.contains("1 prepared"), "{warning:?}");
}
