//! Requests, leases, steering, and the target.

use std::time::Duration;

use super::{Bench, COLUMNS, TTL, request, totals};
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildFigures, RebuildLease, RebuildPhase, Wanted};
use crate::rebuild::{RebuildKind, RebuildPhase as Phase};
use crate::store::StatusChange;

fn inline(version: u32) -> Projection {
    Projection::sql("totals", version)
        .create(format!("CREATE TABLE read_model.totals ({COLUMNS})"))
        .apply("DELETE FROM read_model.totals WHERE false AND EXISTS (SELECT FROM batch)")
        .inline()
        .build()
        .expect("the projection is a good one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_once_are_one_rebuild_that_all_of_them_see() {
    let bench = Bench::new().await;
    let generation = bench.registered(totals(1, COLUMNS)).await;
    let ask = || {
        let request = request(&totals(1, COLUMNS), RebuildKind::Beside);
        bench.store.request_rebuild(request)
    };
    let outcomes = futures::future::join_all((0..8).map(|_| ask())).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    let first = bench.row().await;
    assert_eq!(first.source, Some(generation.id));
    assert_eq!((first.target, first.phase), (None, RebuildPhase::Requested));
    assert!(outcomes.iter().all(|(row, _)| row.id == first.id));
    assert_eq!(outcomes.iter().filter(|(_, joined)| !joined).count(), 1, "one of them began it");
    let recorded = "SELECT count(*) FROM everfold.system_messages WHERE kind = 'rebuild'";
    assert_eq!(bench.number(recorded).await, 1);

    bench.store.steer_rebuild(first.id, Wanted::Cancel, "ann".to_owned()).await.unwrap();
    let (next, joined) = ask().await.unwrap();
    assert!(!joined && next.id != first.id, "one that has ended is in nobody's way");
    assert_eq!(bench.store.rebuilds(true, 0).await.unwrap().len(), 1);
    let all = bench.store.rebuilds(false, 10).await.unwrap();
    assert_eq!(all.iter().map(|row| row.id).collect::<Vec<_>>(), [next.id, first.id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuild_of_what_is_not_there_is_refused() {
    let bench = Bench::new().await;
    let mut wanted = request(&totals(1, COLUMNS), RebuildKind::Beside);
    let error = bench.store.request_rebuild(wanted.clone()).await.unwrap_err();
    assert!(error.to_string().contains("register it first"), "{error}");
    let generation = bench.registered(totals(1, COLUMNS)).await;
    bench.run("UPDATE everfold.generations SET status = 'retired'").await;
    wanted.target = Some(generation.id);
    let error = bench.store.request_rebuild(wanted).await.unwrap_err();
    assert!(error.to_string().contains("is gone or being removed"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_one_workers_until_it_expires_and_then_fences_him_out() {
    let bench = Bench::new().await;
    let projection = totals(1, COLUMNS);
    bench.registered(projection.clone()).await;
    let first = bench.taken(&projection, RebuildKind::Beside).await;
    assert!(bench.take(first.rebuild).await.is_none(), "somebody works on it");
    let target = bench.store.make_target(first, projection.clone()).await.unwrap();
    let before = bench.store.target_leases(first).await.unwrap();
    assert_eq!(before.len(), target.shards as usize);

    let figures = RebuildFigures {
        phase: Some(Phase::Copying),
        events_done: 3,
        events_total: 10,
        message: Some("half way".to_owned()),
        report: None,
    };
    let row = bench.store.beat_rebuild(first, TTL, figures.clone()).await.unwrap().unwrap();
    assert_eq!((row.phase, row.events_done, row.events_total), (Phase::Copying, 3, 10));
    assert_eq!((row.message.as_deref(), row.is_owned), (Some("half way"), true));
    assert_eq!((row.target, row.owner), (Some(target.id), Some(first.worker)));

    bench.store.beat_rebuild(first, Duration::ZERO, figures.clone()).await.unwrap().unwrap();
    let second = bench.take(first.rebuild).await.expect("it has expired");
    assert!(second.epoch > first.epoch);
    assert!(bench.store.beat_rebuild(first, TTL, figures.clone()).await.unwrap().is_none());
    let lost = bench.store.target_leases(first).await;
    assert!(matches!(lost, Err(ApplyError::LeaseLost)), "{lost:?}");
    let after = bench.store.target_leases(second).await.unwrap();
    assert!(after.iter().zip(&before).all(|(after, before)| after.epoch > before.epoch));
    let ended =
        bench.store.end_rebuild(first, figures.clone(), "x".to_owned(), None).await.unwrap();
    assert!(!ended, "it is not his to end");
    let refused = bench.store.make_target(first, projection).await.unwrap_err();
    assert!(refused.to_string().contains("somebody else"), "{refused}");

    bench.store.leave_rebuild(second).await.unwrap();
    let third = bench.take(first.rebuild).await.expect("it was left");
    let figures = RebuildFigures { phase: Some(Phase::Done), ..figures };
    assert!(bench.store.end_rebuild(third, figures, "ann".to_owned(), None).await.unwrap());
    assert!(bench.take(first.rebuild).await.is_none(), "it has ended");
    let row = bench.row().await;
    assert_eq!((row.phase, row.finished_at.is_some()), (Phase::Done, true));
    let owned = "SELECT count(*) FROM everfold.checkpoints WHERE owner IS NOT NULL";
    assert_eq!(bench.number(owned).await, 0, "the shards are free at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_is_left_to_the_worker_if_there_is_one() {
    let bench = Bench::new().await;
    let projection = totals(1, COLUMNS);
    bench.registered(projection.clone()).await;
    let lease = bench.taken(&projection, RebuildKind::Beside).await;
    let target = bench.store.make_target(lease, projection.clone()).await.unwrap();
    let steer = |wanted| bench.store.steer_rebuild(lease.rebuild, wanted, "ann".to_owned());
    for wanted in [Wanted::Pause, Wanted::Run, Wanted::Cancel] {
        assert!(steer(wanted).await.unwrap());
        let row = bench.row().await;
        assert_eq!((row.wanted, row.finished_at), (wanted, None));
    }
    bench.store.leave_rebuild(lease).await.unwrap();
    assert!(steer(Wanted::Cancel).await.unwrap());
    let row = bench.row().await;
    assert_eq!((row.phase, row.finished_at.is_some()), (Phase::Cancelled, true));
    let status = format!("SELECT status FROM everfold.generations WHERE id = {}", target.id);
    assert_eq!(bench.texts(&status).await, ["retired"], "nobody wants it any more");
    assert!(!steer(Wanted::Run).await.unwrap(), "it has ended");
    let beat = bench.store.beat_rebuild(lease, TTL, RebuildFigures::default()).await.unwrap();
    assert!(beat.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_keeps_what_readers_see_and_what_was_there_before() {
    let bench = Bench::new().await;
    let projection = totals(1, COLUMNS);
    let generation = bench.registered(projection.clone()).await;
    // The one that was there before.
    bench.run("UPDATE everfold.projections SET active_generation = NULL").await;
    let mut wanted = request(&projection, RebuildKind::Beside);
    wanted.target = Some(generation.id);
    let (row, _) = bench.store.request_rebuild(wanted).await.unwrap();
    bench.store.steer_rebuild(row.id, Wanted::Cancel, "ann".to_owned()).await.unwrap();
    // One that was made, and that readers see: in place.
    let lease = bench.taken(&projection, RebuildKind::InPlace).await;
    let target = bench.store.make_target(lease, projection.clone()).await.unwrap();
    let seen = format!("UPDATE everfold.projections SET active_generation = {}", target.id);
    bench.run(&seen).await;
    bench.store.leave_rebuild(lease).await.unwrap();
    let steered = bench.store.steer_rebuild(lease.rebuild, Wanted::Cancel, "ann".to_owned()).await;
    assert!(!steered.unwrap(), "what readers saw is gone, so there is no way back");
    assert_eq!(
        bench.number("SELECT count(*) FROM everfold.rebuilds WHERE phase = 'cancelled'").await,
        1
    );
    let retired = "SELECT count(*) FROM everfold.generations WHERE status = 'retired'";
    assert_eq!(bench.number(retired).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_of_a_registered_version_is_beside_it_and_registration_finds_the_active_one() {
    for projection in [totals(1, COLUMNS), inline(1)] {
        let bench = Bench::new().await;
        let active = bench.registered(projection.clone()).await;
        assert_eq!(active.status, GenerationStatus::Active);
        let lease = bench.taken(&projection, RebuildKind::Beside).await;
        let target = bench.store.make_target(lease, projection.clone()).await.unwrap();
        assert_eq!((target.version, target.status), (1, GenerationStatus::Building));
        assert!(target.id > active.id && target.home != active.home && !target.is_active);
        assert_eq!(target.tables, active.tables);
        let same = bench.store.make_target(lease, projection.clone()).await.unwrap();
        assert_eq!(same.id, target.id, "asked for again, it is the same one");
        assert_eq!(bench.registered(projection.clone()).await.id, active.id);
        let leases = bench.store.target_leases(lease).await.unwrap();
        assert!(leases.iter().all(|lease| lease.position.0 == 0 && lease.epoch == 1), "{leases:?}");
        let mut changed = projection.clone();
        changed.definition.event_types = Some(vec!["Other".to_owned()]);
        let error = bench.store.make_target(lease, changed).await.unwrap_err();
        assert!(matches!(error, ProjectionError::Changed { .. }), "{error}");
    }
}

/// Nobody reads the projection yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_finds_neither_what_is_being_built_nor_the_past() {
    let bench = Bench::new().await;
    let projection = totals(1, COLUMNS);
    let first = bench.registered(projection.clone()).await;
    bench.run("UPDATE everfold.projections SET active_generation = NULL").await;
    for kind in [RebuildKind::AsOf, RebuildKind::Beside] {
        let lease = bench.taken(&projection, kind).await;
        let target = bench.store.make_target(lease, projection.clone()).await.unwrap();
        assert_eq!(bench.registered(projection.clone()).await.id, first.id, "{kind:?}");
        let built = RebuildFigures { phase: Some(Phase::Built), ..RebuildFigures::default() };
        bench.store.end_rebuild(lease, built, "ann".to_owned(), None).await.unwrap();
        let found = if kind == RebuildKind::AsOf { first.id } else { target.id };
        assert_eq!(bench.registered(projection.clone()).await.id, found, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_of_a_rebuild_that_was_taken_meanwhile_leaves_nothing_behind() {
    let bench = Bench::new().await;
    bench.registered(inline(1)).await;
    let lease = bench.taken(&inline(1), RebuildKind::Beside).await;
    // Holds the gate, so that the target is made but for its end.
    bench.run("BEGIN; SELECT everfold.append_event('a', NULL, 'T', '{}')").await;
    let making = tokio::spawn({
        let store = std::sync::Arc::clone(&bench.store);
        async move { store.make_target(lease, inline(1)).await }
    });
    let session = bench.database.connect().await;
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ExclusiveLock' \
        AND classid = 'everfold.store'::regclass \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    everfold_testkit::eventually("it waits for the gate", super::LIMIT, async || {
        super::number(&session, waits).await > 0
    })
    .await;
    // Its row is not locked for longer than a try.
    super::run(&session, "UPDATE everfold.rebuilds SET epoch = epoch + 1").await;
    bench.run("COMMIT").await;
    let error = making.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("somebody else"), "{error}");
    assert_eq!(bench.number("SELECT count(*) FROM everfold.generations").await, 1);
    let homes = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'everfold\\_%'";
    assert_eq!(bench.number(homes).await, 1);
}

fn change(generation: i32, to: GenerationStatus, rebuild: Option<RebuildLease>) -> StatusChange {
    let from = vec![GenerationStatus::Building];
    StatusChange { generation, from, to, reason: None, actor: "ann".to_owned(), rebuild }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_lost_a_rebuild_changes_no_status() {
    let bench = Bench::new().await;
    bench.registered(inline(1)).await;
    let first = bench.taken(&inline(1), RebuildKind::Beside).await;
    let target = bench.store.make_target(first, inline(1)).await.unwrap().id;
    bench.run("UPDATE everfold.rebuilds SET expires_at = clock_timestamp() - interval '1 s'").await;
    let second = bench.take(first.rebuild).await.expect("its lease has run out");
    let status = async || {
        let sql = format!("SELECT status FROM everfold.generations WHERE id = {target}");
        bench.texts(&sql).await.remove(0)
    };
    let fail =
        |lease| bench.store.change_status(change(target, GenerationStatus::Failed, Some(lease)));
    assert!(!fail(first).await.unwrap());
    assert_eq!(status().await, "building");

    // The end, and what becomes of the target, are one.
    let failed = RebuildFigures { phase: Some(RebuildPhase::Failed), ..RebuildFigures::default() };
    let end = |lease| {
        let given_up = change(target, GenerationStatus::Retired, None);
        bench.store.end_rebuild(lease, failed.clone(), "ann".to_owned(), Some(given_up))
    };
    assert!(!end(first).await.unwrap());
    assert_eq!((status().await.as_str(), bench.row().await.finished_at), ("building", None));
    // An append that has looked at it is not waited for.
    let gate = format!(
        "pg_advisory_xact_lock_shared('everfold.generations'::regclass::oid::int, {target})"
    );
    bench.run(&format!("BEGIN; SELECT {gate}")).await;
    assert!(end(second).await.unwrap());
    assert_eq!(status().await, "retired");
    assert!(bench.row().await.finished_at.is_some());
    assert!(!fail(second).await.unwrap(), "it has ended");
}
