//! Every state of every configuration: all properties hold, and what could go wrong was reached.

use std::io::{Write, stderr};

use everfold_model::{Configuration, check};

fn holds(name: &str) {
    let configuration = Configuration::named(name).expect("the configuration is known");
    let report = check(&configuration);
    // Past the capture of output: how much was looked at belongs to the result.
    let seconds = report.time.as_secs_f64();
    writeln!(stderr(), "model: {name}: {} states in {seconds:.1} s", report.states).ok();
    let violated: Vec<String> =
        report.violated.iter().map(|(property, steps)| format!("{property}\n{steps}")).collect();
    assert!(violated.is_empty(), "{name}: violated: {}", violated.join("\n"));
    assert!(report.missed.is_empty(), "{name}: not reached: {:?}", report.missed);
}

macro_rules! configurations {
    ($($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            holds($name);
        })*

        #[test]
        fn every_configuration_has_its_test() {
            let tested = [$($name),*];
            let missing: Vec<_> =
                Configuration::all().map(|c| c.name()).filter(|name| !tested.contains(name)).collect();
            assert!(missing.is_empty(), "without a test: {missing:?}");
        }
    };
}

configurations! {
    an_append_meets_a_flip_behind_the_fence "append-and-flip",
    a_rollback_to_a_savepoint_leaves_no_decision_behind "savepoints",
    two_rebuilders_cannot_contradict_each_other "two-rebuilders",
    two_rebuilders_without_the_fence "two-rebuilders-without-fence",
    a_promotion_can_be_rolled_back_under_appends "promote-and-roll-back",
    a_kept_generation_settles_what_it_owes_first "kept-with-skips",
    a_flip_without_the_fence_loses_nothing "beside-without-fence",
    other_types_hold_the_mark_and_lose_nothing "other-types",
    the_old_generation_after_a_flip_without_the_fence "kept-without-fence",
    a_rollback_without_the_fence_loses_nothing "roll-back-without-fence",
    a_rebuild_in_place_loses_nothing "in-place",
    a_rebuild_in_place_without_the_fence_drains_in_order "in-place-without-fence",
    an_append_meets_a_registration "append-and-registration",
    old_code_and_new_share_a_stream "old-code",
    a_generation_is_paused_under_appends "pause-and-resume",
    two_streams_share_a_key "keys-across-streams",
    two_streams_share_a_key_without_the_fence "keys-across-streams-without-fence",
    a_dead_letter_holds_its_key_for_all_appends "held-keys",
    a_dead_letter_is_tried_again_beside_batches "dead-letters",
    a_worker_taken_for_dead_changes_nothing "worker-takeover",
    a_worker_beside_savepoints_misses_nothing "savepoints-and-mark",
    a_promotion_never_takes_readers_back "catch-up-promotion",
}
