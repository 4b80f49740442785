//! What every store must do, written once and run on SQLite, on PostgreSQL, and on PostgreSQL
//! through PgBouncer in transaction mode.

mod chain;
mod elsewhere;
mod fixture;

mod append;
mod append_many;
mod bank;
mod broken;
mod compare;
mod dead_letters;
mod decider;
mod document;
mod doors;
mod follow;
mod handler;
mod hanging;
mod import;
mod in_transaction;
mod inline;
mod leases;
mod limits;
mod model;
mod open;
mod out_of_step;
mod pausing;
mod places;
mod poison;
mod read;
mod rebuild;
mod refused;
mod register;
mod repeat;
mod roles;
mod runner;
mod schema;
mod scripts;
mod sharded;
mod snapshots;
mod spare;
mod sql;
mod testing;
mod tls;
mod upcast;
mod verify;
mod waiting;
