//! The programs, run as the README says, on both stores: each prints what it shows there.

use std::process::Command;

use everfold::Schema;
use everfold_testkit::{TestDatabase, printed, shown};

const README: &str = include_str!("../README.md");

async fn prints_what_the_readme_shows(name: &str, program: &str) {
    let expected = shown(README, &format!("cargo run --bin {name}"));
    assert_eq!(printed(Command::new(program)).await, expected, "on SQLite");

    let database = TestDatabase::create().await;
    Schema::of(&database.url()).unwrap().apply().await.unwrap();
    let mut on_postgres = Command::new(program);
    on_postgres.arg(database.url());
    assert_eq!(printed(on_postgres).await, expected, "on PostgreSQL");
}

#[tokio::test]
async fn first_steps() {
    prints_what_the_readme_shows("first_steps", env!("CARGO_BIN_EXE_first_steps")).await;
}

#[tokio::test]
async fn decider() {
    prints_what_the_readme_shows("decider", env!("CARGO_BIN_EXE_decider")).await;
}

#[tokio::test]
async fn carts() {
    prints_what_the_readme_shows("carts", env!("CARGO_BIN_EXE_carts")).await;
}
