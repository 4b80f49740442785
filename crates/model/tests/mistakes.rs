//! Each known mistake, switched on: the checker has to find what it violates. With `--nocapture` the
//! tests print how.

use std::io::{Write, stderr};

use everfold_model::{Mistake, find};

fn is_found(mistake: Mistake) {
    let found = find(mistake);
    let name = mistake.name();
    let steps = found.unwrap_or_else(|| panic!("{name}: no violation of: {}", mistake.violates()));
    println!("{name}, in {}\nviolated: {}\n{steps}", mistake.configuration(), mistake.violates());
    writeln!(stderr(), "model: {name}: found, in {} steps", steps.steps()).ok();
    assert!(steps.steps() > 0 && steps.steps() < 50, "{name}: {} steps", steps.steps());
}

macro_rules! mistakes {
    ($($test:ident $mistake:ident,)*) => {
        $(#[test]
        fn $test() {
            is_found(Mistake::$mistake);
        })*

        #[test]
        fn every_mistake_has_its_test() {
            let tested = [$(Mistake::$mistake),*];
            let missing: Vec<_> = Mistake::all().filter(|mistake| !tested.contains(mistake)).collect();
            assert!(missing.is_empty(), "without a test: {missing:?}");
        }
    };
}

mistakes! {
    status_read_in_the_statement_of_the_gate_is_found StatusWithTheGate,
    try_lock_with_silent_skip_is_found TryLock,
    flip_that_does_not_wait_is_found FlipWithoutWaiting,
    drain_without_key_rule_is_found DrainWithoutKeyRule,
    activation_on_close_is_found ActivationOnClose,
    unfenced_checkpoint_is_found UnfencedCheckpoint,
    missing_gate_is_found NoGate,
    missing_registry_gate_is_found NoRegistryGate,
    missing_key_lock_is_found NoKeyLock,
    rollback_to_an_unlisted_generation_is_found KeptNotListed,
    swap_without_the_registry_gate_is_found SwapWithoutRegistryGate,
    change_of_status_beside_a_batch_is_found StatusWithoutCheckpoint,
    flip_without_the_fence_and_without_waiting_is_found FlipWithoutHolders,
    flip_at_whatever_mark_is_found FlipAtAnyMark,
    keys_of_a_generation_being_built_are_needed BuildingKeysUnlocked,
    generation_kept_without_the_fence_is_found KeptWithoutTheFence,
    feeding_past_open_skips_is_found FeedPastOpenSkips,
    promotion_that_does_not_hold_the_old_checkpoint_is_found PromoteWithoutOldCheckpoint,
    retry_beside_a_batch_is_found RetryWithoutCheckpoint,
    late_announcement_is_found LateAnnouncement,
    announcement_that_outlives_its_savepoint_is_found AnnouncementRemembered,
    mark_that_looks_at_the_locks_first_is_found LocksBeforeSequence,
    worker_without_a_mark_is_found NoMark,
}
