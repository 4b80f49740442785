//! A model of everfold's protocols, of which a checker visits every state.
//!
//! Appends, workers, rebuilds and registrations are written down here statement by statement, as they
//! are in `docs/design.md`, each of them as an actor that may be interrupted, rolled back or paused
//! between any two statements. [`check`] visits all states that a small system of such actors can get
//! into and looks whether the guarantees hold in each. [`find`] does the same with one [`Mistake`]
//! switched on, and tells in plain words how it ends in a violation. `docs/model.md` has the results.
//!
//! # What is modelled
//!
//! - **READ COMMITTED.** A step is a statement. It sees what was committed when it began, and what its
//!   own transaction wrote; others see nothing of that before the commit. Where a statement can wait
//!   after it has looked (rows of skips, the mistake of reading a status while waiting for a gate),
//!   looking and going on are two steps.
//! - **Locks**: registry gate, gates of generations, streams, keys, checkpoint rows, rows of skips,
//!   announcements. All are held to the end of the transaction.
//! - **Positions** are drawn at the insert. Transactions end in any order, and a rollback leaves a gap.
//! - **Crash**: any transaction can be rolled back after any statement. That is also what time-outs and
//!   deadlocks come to. A worker or rebuilder forgets everything when that happens.
//! - **Pause and zombie**: any actor can be passed over for as long as one likes, and leases can be
//!   taken from whoever is not inside a transaction. He goes on with his old epoch.
//!
//! # What is not
//!
//! - Time, and with it how long anybody waits (G8). The checker may grant locks in any order, also in
//!   those that a queue would not.
//! - That a commit is visible before its locks are released: here both are one step. In between there
//!   is nothing to be had but a longer wait.
//! - REPEATABLE READ (which appends refuse), two-phase commit, a crash of the server that
//!   takes back a sequence, SQLite (where writers take turns).
//! - The policies `stop` and `skip`, and dead letters in rebuilds; several shards; batches that end
//!   before the mark.
//! - Views. Readers see whichever generation `projections.active_generation` names.
//!
//! # Where it stands in the code
//!
//! | here | there |
//! |---|---|
//! | `append` | `sql/postgres/functions/015_locks.sql`, `025_inline.sql`, `030_append_event.sql` and its relatives |
//! | `feed`: lease | `210_leases.sql`, `tick` |
//! | `feed`: mark | `070_high_water_mark.sql` |
//! | `feed`: batch | `src/projection/job/batch.rs`, `lock_checkpoint.sql`, `advance_checkpoint.sql` |
//! | `worker`: drain | `src/projection/job/drain.rs`, `210_leases.sql`, `take_skips` |
//! | `apply`: failure | `025_inline.sql`, `apply_inline_or_give_up`; `src/projection/job/apply.rs` |
//! | `retry` | `src/projection/job/retry.rs` |
//! | `pause` | `src/store/postgres/projection/operate.rs`, `change_status` |
//! | `registry` | `src/store/postgres/projection/register.rs`, `gates.rs` |
//! | `rebuild` | the protocol of rebuilds |

mod actions;
mod append;
mod apply;
mod bits;
mod check;
mod configuration;
mod configurations;
mod feed;
mod mistake;
mod note;
mod pause;
mod properties;
mod rebuild;
mod registry;
mod retry;
mod state;
mod story;
mod transaction;
mod worker;

pub use check::{Counterexample, Report, check, find};
pub use configuration::Configuration;
pub use mistake::Mistake;
