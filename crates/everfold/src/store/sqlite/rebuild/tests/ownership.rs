//! Who may work on a rebuild, and on what it fills.

use super::*;

#[test]
fn second_request_finds_the_first_until_that_has_ended() {
    let connection = fresh();
    let projection = plain(1);
    let active = known(&connection, &projection);
    let (first, joined) = asked(&connection, &projection);
    assert!(!joined);
    assert_eq!((first.source, first.target), (Some(active.id), None));
    assert_eq!(first.options, StoredOptions::default());
    let (second, joined) = asked(&connection, &projection);
    assert!(joined);
    assert_eq!(second.id, first.id);

    let lease = taken(&connection, first.id, 1, TTL);
    let figures = RebuildFigures { phase: Some(RebuildPhase::Failed), ..Default::default() };
    assert!(lease::end(&connection, lease, &figures, "worker").unwrap());
    assert!(!lease::end(&connection, lease, &figures, "worker").unwrap(), "it has ended");
    let (third, joined) = asked(&connection, &projection);
    assert!(!joined);
    let listed = |open| rows::list(&connection, None, open, 10).unwrap();
    let ids = |rows: Vec<RebuildRow>| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(listed(true)), [third.id]);
    assert_eq!(ids(listed(false)), [third.id, first.id]);

    let unheard = RebuildRequest { name: "unheard".to_owned(), ..request(&projection) };
    let error = rows::request(&connection, &unheard).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Missing);
}

#[test]
fn lease_is_one_workers_until_it_expires_and_a_zombie_changes_nothing() {
    let connection = fresh();
    let projection = plain(1);
    known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    let first = taken(&connection, row.id, 1, TTL);
    let two = Uuid::from_u128(2);
    assert_eq!(lease::take(&connection, row.id, two, "two", TTL).unwrap(), None);

    let target = target::make(&connection, first, &projection).unwrap();
    let again = target::make(&connection, first, &projection).unwrap();
    assert_eq!(again.id, target.id, "one is made for a rebuild");
    assert_eq!(target.status, GenerationStatus::Building);
    let of_first = lease::target_leases(&connection, first).unwrap().unwrap();
    assert_eq!(of_first.len(), 2);

    // Its time is over.
    lease::beat(&connection, first, Duration::ZERO, &RebuildFigures::default()).unwrap().unwrap();
    let second = taken(&connection, row.id, 2, TTL);
    let of_second = lease::target_leases(&connection, second).unwrap().unwrap();
    let higher = of_first.iter().zip(&of_second).all(|(old, new)| new.epoch > old.epoch);
    assert!(higher, "batches of the first are fenced off: {of_first:?} {of_second:?}");

    let figures = RebuildFigures { events_done: 99, ..Default::default() };
    assert!(lease::beat(&connection, first, TTL, &figures).unwrap().is_none());
    assert!(!lease::end(&connection, first, &figures, "zombie").unwrap());
    assert!(lease::target_leases(&connection, first).unwrap().is_none());
    assert!(target::make(&connection, first, &projection).is_err());
    lease::leave(&connection, first).unwrap();
    let row = rows::find(&connection, row.id).unwrap().unwrap();
    assert_eq!((row.events_done, row.owner, row.is_owned), (0, Some(two), true));

    lease::leave(&connection, second).unwrap();
    taken(&connection, row.id, 3, TTL);
}

#[test]
fn runners_leave_alone_what_a_rebuild_fills() {
    let connection = fresh();
    let projection = plain(1);
    let active = known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    // The worker of the rebuild is a runner too.
    let held = taken(&connection, row.id, 1, TTL);
    let target = target::make(&connection, held, &projection).unwrap();
    let both = [active.id, target.id];
    assert_eq!(tick(&connection, 1, &both), [active.id, active.id]);
    let before = lease::target_leases(&connection, held).unwrap().unwrap();
    assert_eq!(tick(&connection, 2, &both), [] as [i32; 0]);
    assert_eq!(lease::target_leases(&connection, held).unwrap().unwrap(), before);

    let flip = "UPDATE everfold_rebuilds SET flipped_at = '2001-01-01T00:00:00.000000Z'";
    connection.execute(flip, []).unwrap();
    lease::leave(&connection, held).unwrap();
    assert!(tick(&connection, 2, &both).contains(&target.id), "readers see it: it is fed");
}

#[test]
fn registration_finds_what_readers_see_among_generations_of_a_version() {
    let connection = fresh();
    let projection = plain(1);
    let active = known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    let held = taken(&connection, row.id, 1, TTL);
    let target = target::make(&connection, held, &projection).unwrap();
    assert_ne!(target.home, active.home);
    assert_eq!(known(&connection, &projection).id, active.id);

    let read = "UPDATE everfold_projections SET active_generation = ?1";
    connection.execute(read, [target.id]).unwrap();
    assert_eq!(known(&connection, &projection).id, target.id);
}

#[test]
fn target_is_made_only_of_what_was_asked_for() {
    let connection = fresh();
    let projection = plain(1);
    known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    let held = taken(&connection, row.id, 1, TTL);
    let changed = totals(1, "CREATE TABLE read_model.totals (stream text, more text)");
    for other in [changed, plain(2)] {
        let error = target::make(&connection, held, &other).unwrap_err().to_string();
        assert!(error.contains("not what rebuild"), "{error}");
    }
}

#[test]
fn rebuild_that_nobody_works_on_is_cancelled_at_once() {
    let connection = fresh();
    let projection = plain(1);
    known(&connection, &projection);
    let (row, _) = asked(&connection, &projection);
    let held = taken(&connection, row.id, 1, TTL);
    assert!(rows::steer(&connection, row.id, Wanted::Cancel, "me").unwrap());
    let row = rows::find(&connection, row.id).unwrap().unwrap();
    assert_eq!((row.wanted, row.finished_at), (Wanted::Cancel, None), "its worker sees to it");

    lease::leave(&connection, held).unwrap();
    assert!(rows::steer(&connection, row.id, Wanted::Cancel, "me").unwrap());
    let row = rows::find(&connection, row.id).unwrap().unwrap();
    assert_eq!(row.phase, RebuildPhase::Cancelled);
    assert!(row.finished_at.is_some());
    assert!(lease::beat(&connection, held, TTL, &RebuildFigures::default()).unwrap().is_none());
    assert!(!rows::steer(&connection, row.id, Wanted::Run, "me").unwrap(), "it has ended");
}
