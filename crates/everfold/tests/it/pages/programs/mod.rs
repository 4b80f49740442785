//! Whole programs of the pages, each run by itself in a folder of its own, where it prints what its page
//! says.

#[allow(dead_code, reason = "an example shows more than it uses")]
mod first_steps;
#[allow(dead_code, reason = "an example shows more than it uses")]
mod quick_start;

use std::path::Path;
use std::process::Command;

#[test]
fn quick_start_prints_what_its_page_says() {
    let page = include_str!("../../../../../../docs/start/rust.md");
    let said = page.split("```text printed\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(printed("quick_start_program"), said);
}

#[test]
fn first_steps_print_the_two_events() {
    let said = "1 ItemAdded { sku: \"A1\", quantity: 2 }\n2 CheckedOut\n";
    assert_eq!(printed("first_steps_program"), said);
}

#[test]
#[ignore = "run by quick_start_prints_what_its_page_says, in a folder of its own"]
fn quick_start_program() {
    quick_start::run().unwrap();
}

#[test]
#[ignore = "run by first_steps_print_the_two_events, in a folder of its own"]
fn first_steps_program() {
    first_steps::run().unwrap();
}

/// What one of the programs above prints, without what the harness prints around it.
fn printed(program: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("pages::programs::{program}"), "--ignored", "--nocapture"]);
    let ran = command.current_dir(&folder).output().unwrap();
    let all = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{all}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(Path::new(folder.path()).join("shop.db").exists(), "it has made its store there");
    let of_harness = |line: &&str| {
        line.is_empty()
            || *line == "ok"
            || *line == "running 1 test"
            || line.starts_with("test result")
    };
    let lines = all.lines().map(|line| line.strip_prefix(&begins(program)).unwrap_or(line));
    lines.filter(|line| !of_harness(line)).map(|line| format!("{line}\n")).collect()
}

/// The harness announces a test on the line where its output begins.
fn begins(program: &str) -> String {
    format!("test pages::programs::{program} ... ")
}
