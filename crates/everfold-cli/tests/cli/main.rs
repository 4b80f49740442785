//! The command from outside: the real binary, its exit codes, and what it writes where.

mod append;
mod demo;
mod docs;
mod doctor;
mod dry_run;
mod events;
mod export;
mod import;
mod init;
mod postgres;
mod project;
mod rebuild;
mod run;
mod schema;
mod shop;
mod show;
mod support;
mod testing;
mod usage;
