//! Projections that are removed, with all that is left of them, while appends go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everfold::{
    ExpectedVersion, MessageQuery, ProjectionError, RebuildOptions, RowOptions, Runner, Store,
};
use everfold_testkit::eventually;

use crate::chain::{LIMIT, quick};
use crate::fixture::{Fixture, append, counted, on_every_store};
use crate::rebuild::{count, expected, found, numbers};

on_every_store! {
    projection_is_removed_and_can_be_registered_anew,
    catch_up_projection_is_removed_under_its_runner,
    appends_go_on_while_their_projection_is_removed,
    projection_that_is_being_rebuilt_is_not_removed,
    version_that_is_being_built_goes_with_its_projection,
}

/// Whatever names of tables there are that belong to a generation.
async fn tables(fixture: &Fixture) -> Vec<String> {
    let names = match fixture.is_sqlite() {
        true => {
            "SELECT name, 1 FROM sqlite_schema WHERE name GLOB 'g[0-9]*' OR name GLOB 's[0-9]*' \
             OR name LIKE 'read_model%'"
        }
        false => {
            "SELECT n.nspname || '.' || c.relname AS name, 1 AS one FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v') \
             AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'everfold')"
        }
    };
    let rows = fixture.rows(names).await;
    rows.iter().map(|row| row[0].as_str().unwrap().to_owned()).collect()
}

async fn given(fixture: &Fixture, inline: bool) -> Store {
    let store = fixture.store().await;
    store.register(numbers(1, inline)).await.unwrap();
    count(&store, 0..10).await;
    store
}

async fn projection_is_removed_and_can_be_registered_anew(fixture: Fixture) {
    let store = given(&fixture, true).await;
    store.register(numbers(2, true)).await.unwrap();
    store.rebuild("numbers", RebuildOptions::default()).await.unwrap().finish().await.unwrap();
    store.snapshot_read_model("numbers").await.unwrap();
    store.pause("numbers").await.unwrap();
    count(&store, 10..12).await;
    assert!(!store.skips("numbers").await.unwrap().is_empty());
    assert!(!tables(&fixture).await.is_empty());

    let removed = store.remove_projection("numbers").await.unwrap();
    assert_eq!((removed.versions, removed.waits_for), (vec![1, 2], vec![]));
    assert_eq!(tables(&fixture).await, [] as [String; 0]);
    assert!(store.projections().await.unwrap().is_empty());
    let gone = store.read_model_rows("numbers", &RowOptions::default()).await;
    assert!(matches!(gone, Err(ProjectionError::Unknown { .. })), "{gone:?}");
    let again = store.remove_projection("numbers").await;
    assert!(matches!(again, Err(ProjectionError::Unknown { .. })), "{again:?}");
    for table in ["skips", "dead_letters", "checkpoints"] {
        let place = if fixture.is_sqlite() { "everfold_" } else { "everfold." };
        let rows = fixture.rows(&format!("SELECT count(*) AS n FROM {place}{table}")).await;
        assert_eq!(rows, [[0]], "{table}");
    }
    // Whoever appends notices nothing, also through a handle that carried it.
    count(&store, 12..14).await;

    // An earlier version than the last is a new projection now, filled with the events there are.
    let anew = store.register(numbers(1, true)).await.unwrap();
    assert!(anew.created);
    store.rebuild("numbers", RebuildOptions::default()).await.unwrap().finish().await.unwrap();
    count(&store, 14..16).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await);
}

async fn catch_up_projection_is_removed_under_its_runner(fixture: Fixture) {
    let store = given(&fixture, false).await;
    let runner = Runner::new(&store).projection(numbers(1, false)).options(quick("one"));
    let runner = runner.start().await.unwrap();
    let last = store.high_water_mark().await.unwrap();
    store.wait_for("numbers", last, LIMIT).await.unwrap();
    // The runner may be in the middle of a batch.
    count(&store, 10..30).await;
    store.remove_projection("numbers").await.unwrap();
    count(&store, 30..32).await;
    assert!(store.projections().await.unwrap().is_empty());
    eventually("its tables are gone", LIMIT, async || tables(&fixture).await.is_empty()).await;
    assert!(runner.failed().is_empty(), "nothing has failed: {:?}", runner.failed());
    runner.stop().await;
}

async fn appends_go_on_while_their_projection_is_removed(fixture: Fixture) {
    let store = given(&fixture, true).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, stop) = (store.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut stored = 0;
                while !stop.load(Ordering::Relaxed) {
                    let stream = format!("w-{writer}");
                    store.append(&stream, ExpectedVersion::Any, counted([stored])).await.unwrap();
                    stored += 1;
                }
                stored
            })
        })
        .collect();
    let before = store.high_water_mark().await.unwrap();
    eventually("writers write", LIMIT, async || {
        store.high_water_mark().await.unwrap().0 > before.0 + 20
    })
    .await;
    store.remove_projection("numbers").await.unwrap();
    let after = store.high_water_mark().await.unwrap();
    eventually("writers go on", LIMIT, async || {
        store.high_water_mark().await.unwrap().0 > after.0 + 20
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    // Those of `given`.
    let mut stored = 30;
    for writer in writers {
        stored += writer.await.unwrap();
    }
    assert_eq!(store.read_all().collect().await.unwrap().len() as u64, stored);
    eventually("its tables are gone", LIMIT, async || {
        // What somebody saw at that moment is dropped by the next who asks.
        match store.remove_projection("numbers").await {
            Ok(_) => {}
            Err(ProjectionError::Unknown { .. }) => return tables(&fixture).await.is_empty(),
            Err(other) => panic!("{other}"),
        }
        false
    })
    .await;
}

/// Whatever the runner would do next with a version that readers do not see yet.
async fn version_that_is_being_built_goes_with_its_projection(fixture: Fixture) {
    let store = given(&fixture, true).await;
    let runner = Runner::new(&store).projection(numbers(2, true)).options(quick("one"));
    let runner = runner.start().await.unwrap();
    assert_eq!(store.projections().await.unwrap().len(), 2);
    store.remove_projection("numbers").await.unwrap();
    assert!(store.projections().await.unwrap().is_empty());
    count(&store, 10..12).await;
    // Nothing brings it back: the runner has looked at what there is to fill several times by then.
    let looked = store.messages(&MessageQuery::default()).await.unwrap().len();
    eventually("its tables are gone", LIMIT, async || tables(&fixture).await.is_empty()).await;
    runner.stop().await;
    assert!(store.projections().await.unwrap().is_empty());
    assert!(store.rebuilds().await.unwrap().iter().all(|row| row.finished_at.is_some()));
    assert!(store.messages(&MessageQuery::default()).await.unwrap().len() >= looked);
    let asked = store.rebuild("numbers", RebuildOptions::default()).await;
    assert!(matches!(asked, Err(ProjectionError::Unknown { .. })), "{:?}", asked.err());
}

/// Somebody reads it while it is removed: he keeps what he sees, and the rest goes when he is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_a_report_may_see_are_dropped_when_it_has_ended() {
    let fixture = Fixture::postgres().await;
    let store = given(&fixture, false).await;
    let report = fixture.database().connect().await;
    let begin = "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ; \
        SELECT count(*) FROM read_model.numbers";
    report.batch_execute(begin).await.unwrap();
    let removed = store.remove_projection("numbers").await.unwrap();
    assert!(removed.waits_for[0].contains("report"), "{removed:?}");
    assert!(store.projections().await.unwrap().is_empty());
    assert!(store.is_being_removed("numbers").await.unwrap());
    // Its name is not free yet, and that is said.
    let anew = store.register(numbers(1, false)).await.unwrap_err().to_string();
    assert!(anew.contains("`everfold remove numbers`"), "{anew}");
    report.batch_execute("COMMIT").await.unwrap();
    // Whoever asks again goes on, as after a process that died in the middle.
    let removed = store.remove_projection("numbers").await.unwrap();
    assert_eq!((removed.versions, removed.waits_for), (vec![1], vec![]));
    assert_eq!(tables(&fixture).await, [] as [String; 0]);
    assert!(!store.is_being_removed("numbers").await.unwrap());
    assert!(store.register(numbers(1, false)).await.unwrap().created);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projection_that_others_views_depend_on_is_left_as_it_is() {
    let fixture = Fixture::postgres().await;
    let store = given(&fixture, true).await;
    let client = fixture.database().connect().await;
    let view = "CREATE VIEW public.report AS SELECT key FROM read_model.numbers";
    client.batch_execute(view).await.unwrap();
    let refused = store.remove_projection("numbers").await.unwrap_err().to_string();
    assert!(refused.contains("view report"), "{refused}");
    count(&store, 10..12).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await, "it is still fed and read");
    client.batch_execute("DROP VIEW public.report").await.unwrap();
    store.remove_projection("numbers").await.unwrap();
    assert_eq!(tables(&fixture).await, [] as [String; 0]);
}

async fn projection_that_is_being_rebuilt_is_not_removed(fixture: Fixture) {
    let store = given(&fixture, true).await;
    let mut slowly = RebuildOptions::default();
    slowly.events_per_second = Some(1);
    let rebuild = store.rebuild("numbers", slowly).await.unwrap();
    match store.remove_projection("numbers").await {
        Err(ProjectionError::Refused { message, .. }) => {
            assert!(message.contains("everfold rebuilds cancel numbers"), "{message}");
        }
        other => panic!("wanted a refusal, got {other:?}"),
    }
    append(&store, "a", counted([77])).await;
    assert_eq!(found(&fixture).await, expected(&store, "").await, "it is still fed");
    store.cancel_rebuild("numbers").await.unwrap();
    // It ends as cancelled, which whoever asked for it is told as an error.
    rebuild.finish().await.unwrap_err();
    store.remove_projection("numbers").await.unwrap();
    assert!(store.projections().await.unwrap().is_empty());
}
