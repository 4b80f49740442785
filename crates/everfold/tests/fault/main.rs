//! Failure stories: what can go wrong around an event store on PostgreSQL, made to go wrong.
//!
//! One file a story. Each opens with the failure, what was at risk and what is guaranteed, and
//! holds its negative controls: the same fault against a deliberately wrong variant, which must be
//! caught, or the story proves nothing. Random loads print their seed; `EVERFOLD_SEED` replays it.
//! Figures are printed: `cargo test --test fault -- --nocapture`.

mod chain;
mod checker;
mod load;
mod readers;
mod rebuild_lane;
mod rebuild_load;
mod rebuild_stories;
mod rebuild_writers;
mod session;
mod steady;
mod workers;

mod busy_key;
mod busy_stream;
mod high_water_mark_controls;
mod high_water_mark_stress;
mod inline_connections;
mod inline_failures;
mod inline_gates;
mod lock_table_exhaustion;
mod old_code_appender;
mod overlapping_streams;
mod paused_worker;
mod prepared_transaction;
mod pristine_store;
mod racing_appends;
mod rebuild_cut;
mod rebuild_held;
mod rebuild_reports;
mod rebuild_under_load;
mod registration;
mod rolling_migration;
mod runner_sessions;
mod rust_workers_killed;
mod savepoints;
mod server_crash;
mod server_goes_away;
mod stall_report;
mod standby;
mod startup_checks;
mod torn_read;
mod unknown_outcome;
mod worker_and_server;
mod workers_killed;
