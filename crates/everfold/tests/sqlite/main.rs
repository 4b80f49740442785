//! What only the SQLite store has: one file that several handles and processes share, with one
//! writer at a time. What both stores promise is in `tests/it`.
#![cfg(feature = "sqlite")]

mod blocked_handler;
mod chains;
mod closing;
mod crash;
mod files;
mod fixture;
mod groups;
mod in_transaction;
mod inline_killed;
mod migrate;
mod paused_worker;
mod processes;
mod projections;
mod read;
mod rebuilds;
mod rolled_back;
mod sql_projections;
