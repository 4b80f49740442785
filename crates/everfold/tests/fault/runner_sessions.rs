//! The failure: the server ends the sessions of a runner, again and again, wherever they are between
//! the read of a batch and its commit.
//!
//! At risk: a batch that is applied and not counted, or counted and not applied; a broken connection
//! that is used again and stops a projection for good.
//!
//! Guaranteed: read model and checkpoint move together or not at all, and a runner goes on with another
//! connection.

use everfold::{ExpectedVersion, Projection, Runner, StoreOptions};
use everfold_testkit::eventually;

use crate::session::{LIMIT, Session, empty_store, event, open_with};

/// Kills until every event is applied, and at least so often.
const KILLS_MIN: i64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runner_whose_sessions_are_ended_applies_every_event_once() {
    let database = empty_store().await;
    let appends = open_with(&database.url(), |_| {}).await;
    // Told from the appends' sessions by its name.
    let url = format!("{}?application_name=runner", database.url());
    let store = open_with(&url, |options: &mut StoreOptions| options.notify = false).await;
    let projection = Projection::sql("applied", 1)
        .create("CREATE TABLE read_model.applied (position BIGINT PRIMARY KEY)")
        .apply("INSERT INTO read_model.applied SELECT position FROM batch")
        .build()
        .unwrap();
    let runner = Runner::new(&store).projection(projection).start().await.unwrap();
    let session = Session::open(&database.url()).await;
    let kill = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'runner') killed";
    let mut kills = 0;
    let mut last = None;
    while kills < KILLS_MIN {
        for n in 0..5 {
            let stream = format!("s{n}");
            last = Some(appends.append(stream, ExpectedVersion::Any, [event("e")]).await.unwrap());
        }
        kills += session.number(kill).await;
    }
    let last = last.expect("something was appended").last_position.0;
    let applied = "SELECT count(*) FROM read_model.applied";
    eventually("every event is applied", LIMIT, async || {
        session.number(applied).await
            == session.number("SELECT count(*) FROM everfold.events").await
    })
    .await;
    let checkpoint = "SELECT position FROM everfold.checkpoints";
    eventually("the checkpoint is there", LIMIT, async || {
        session.number(checkpoint).await >= i64::try_from(last).unwrap()
    })
    .await;
    println!("{kills} sessions of the runner were ended");
    runner.stop().await;
}
