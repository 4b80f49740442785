use std::io::Write;
use std::process::Stdio;

use everfold_testkit::eventually_blocking;
use serde_json::json;

use crate::support::{Folder, LIMIT, field, json_lines, line, wait};

fn numbered(count: usize) -> Vec<String> {
    let stream = |n| format!("cart-{}", n % 97);
    (1..=count).map(|n| line(&stream(n), "Counted", &format!("{{\"n\":{n}}}"))).collect()
}

#[test]
fn import_broken_in_the_middle_goes_on_when_it_is_mended() {
    let folder = Folder::new();
    let mut lines = numbered(9_000);
    let whole = std::mem::replace(&mut lines[4_710], "{\"stream_id\":\"cart-1\",\"ty\n".to_owned());
    folder.write("events.jsonl", &lines.concat());
    let ran = folder.run(&["import", "events.jsonl"]).fails(1, "line 4711: ");
    assert!(ran.stderr.contains("run the import again"), "{ran:#?}");
    assert!(ran.stderr.contains("import \"events.jsonl\" stopped"), "{ran:#?}");
    // That the store is new, and the error.
    assert_eq!(ran.stderr.lines().count(), 2, "{ran:#?}");
    assert_eq!(folder.run(&["events"]).done().stdout.lines().count(), 4_710);

    lines[4_710] = whole;
    folder.write("events.jsonl", &lines.concat());
    let mended = folder.run(&["import", "events.jsonl", "--json"]).done().json();
    let bytes = lines.concat().len();
    assert_eq!(
        mended,
        json!({
            "name": "events.jsonl", "stored": 4_290, "repeated": 0, "resumed_after": 4_710,
            "lines": 9_000, "bytes": bytes
        })
    );
    let events = folder.run(&["events", "--json"]).done().json_lines();
    let numbers: Vec<_> = events.iter().map(|event| event["data"]["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=9_000).collect::<Vec<_>>());
}

#[test]
fn killed_import_goes_on_behind_its_last_transaction() {
    let folder = Folder::new();
    let lines = numbered(12_000);
    let arguments = ["import", "-", "--name", "pipe", "--json"];
    folder.run(&["schema", "apply"]).done();
    let mut child = folder.command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    // Kept open, so that the import cannot end by itself.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines[..7_000].concat().as_bytes()).unwrap();
    eventually_blocking("a transaction is stored", LIMIT, || {
        !folder.run(&["events", "--limit", "1"]).done().stdout.is_empty()
    });
    child.kill().unwrap();
    child.wait().unwrap();

    let resumed = folder.run_with_stdin(&arguments, &lines.concat()).done().json();
    let before = resumed["resumed_after"].as_u64().unwrap();
    assert!((1..=7_000).contains(&before), "{resumed}");
    assert_eq!(resumed["stored"], 12_000 - before);
    let events = folder.run(&["events", "--json"]).done().json_lines();
    let numbers: Vec<_> = events.iter().map(|event| event["data"]["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=12_000).collect::<Vec<_>>());
}

#[test]
fn finished_import_stores_nothing_again() {
    let folder = Folder::new();
    folder.write("events.jsonl", &numbered(10).concat());
    let first = folder.run(&["import", "events.jsonl"]).done();
    assert!(
        first.stdout.contains("stored    10") && !first.stdout.contains("resumed"),
        "{first:#?}"
    );
    let again = folder.run(&["import", "events.jsonl"]).done();
    again.prints("stored    0").prints("resumed   after line 10");
    assert_eq!(folder.run(&["events"]).done().stdout.lines().count(), 10);
}

#[test]
fn other_file_under_the_same_name_is_refused() {
    let folder = Folder::new();
    folder.write("events.jsonl", &numbered(3).concat());
    folder.run(&["import", "events.jsonl"]).done();
    folder.write("events.jsonl", &line("other", "T", "{}").repeat(3));
    folder.run(&["import", "events.jsonl"]).fails(1, "give this file a name of its own");
    folder.run(&["import", "events.jsonl", "--name", "second"]).done();
}

#[test]
fn stdin_needs_a_name() {
    let folder = Folder::new();
    let lines = numbered(3).concat();
    folder.run_with_stdin(&["import", "-"], &lines).fails(2, "--name");
    folder.run_with_stdin(&["import", "-", "--name", "three"], &lines).done().prints("stored    3");
    let again = folder.run_with_stdin(&["import", "-", "--name", "three", "--json"], &lines);
    assert_eq!(again.done().json()["resumed_after"], 3);
}

#[test]
fn failed_import_does_not_wait_for_the_rest_of_stdin() {
    let folder = Folder::new();
    let arguments = ["import", "-", "--name", "pipe"];
    let mut child = folder.command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    // Kept open, as by a writer that has more to say.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"this is not an event\n").unwrap();
    assert_eq!(wait(&mut child), Some(1));
}

#[test]
fn versions_are_kept_or_given_anew() {
    let folder = Folder::new();
    let text = "{\"stream_id\":\"a\",\"type\":\"T\",\"data\":1,\"version\":7}\n";
    folder.write("late.jsonl", text);
    folder.run(&["import", "late.jsonl"]).fails(1, "line 1: ");
    folder.run(&["import", "late.jsonl", "--renumber"]).done();
    let events = folder.run(&["events", "--json"]).done().json_lines();
    assert_eq!(field(&events, "version"), [1]);
}

#[test]
fn file_that_is_not_there_creates_no_store() {
    let folder = Folder::new();
    folder.run(&["import", "missing.jsonl"]).fails(1, "cannot read missing.jsonl");
    folder.run(&["import", "."]).exits(1);
    assert!(!folder.file("everfold.db").exists());
}

#[test]
fn export_imported_elsewhere_is_the_same() {
    let folder = Folder::new();
    let lines = [
        line("a", "T", r#"{"n":1.10,"big":123456789012345678901234567890,"text":"ü\n😀"}"#),
        line("b", "U", "null"),
        line("a", "T", r#"[1e400,-0,"\u0001"]"#),
    ];
    folder.write("given.jsonl", &lines.concat());
    folder.run(&["import", "given.jsonl"]).done();
    let mut arguments = vec!["append", "--stream", "b", "--type", "V", "--schema-version", "4"];
    arguments.extend(["--metadata", r#"{"k":[1,2]}"#]);
    folder.run(&arguments).done();
    let exported = folder.run(&["export"]).done().stdout;
    assert_eq!(exported.lines().count(), 4);

    let other = Folder::new();
    other.run_with_stdin(&["import", "-", "--name", "copy"], &exported).done();
    assert_eq!(other.run(&["export"]).done().stdout, exported);
}

#[test]
fn progress_goes_to_stderr_and_the_result_to_stdout() {
    let folder = Folder::new();
    folder.write("events.jsonl", &numbered(100).concat());
    let ran = folder.run(&["import", "events.jsonl", "--json"]).done();
    assert_eq!(json_lines(&ran.stdout).len(), 1);
}
