use std::io::Read;

use crate::support::{Folder, ended, line, wait};

#[test]
fn help_has_a_purpose_and_examples() {
    let folder = Folder::new();
    for arguments in [
        &["--help"][..],
        &["init", "--help"],
        &["schema", "--help"],
        &["schema", "apply", "--help"],
        &["schema", "assert", "--help"],
        &["schema", "print", "--help"],
        &["append", "--help"],
        &["import", "--help"],
        &["export", "--help"],
        &["events", "--help"],
        &["test", "--help"],
        &["run", "--help"],
        &["status", "--help"],
        &["health", "--help"],
        &["wait", "--help"],
        &["pause", "--help"],
        &["resume", "--help"],
        &["dead-letters", "--help"],
        &["dead-letters", "list", "--help"],
        &["dead-letters", "retry", "--help"],
        &["dead-letters", "discard", "--help"],
        &["skips", "--help"],
        &["skips", "list", "--help"],
        &["doctor", "--help"],
        &["demo", "--help"],
        &["completions", "--help"],
    ] {
        let ran = folder.run(arguments).done();
        assert!(ran.stdout.contains("Examples:\n  everfold "), "{ran:#?}");
        assert!(ran.stdout.contains("Usage: everfold"), "{ran:#?}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let folder = Folder::new();
    for arguments in [
        &[][..],
        &["nonsense"],
        &["events", "--limit", "many"],
        &["events", "--backward"],
        &["events", "--new"],
        &["append", "--stream", "a"],
        &["append", "--type", "T"],
        &["append", "--stream", "a", "--type", "T", "--expected", "some"],
        &["append", "--stream", "a", "--type", "T", "--events", "-"],
        &["append", "--stream", "a", "--type", "T", "--id", "7"],
        &["export", "--resume"],
        &["schema"],
        &["wait"],
        &["wait", "a", "--timeout", "soon"],
        &["wait", "a", "--at", "-1"],
        &["pause"],
        &["resume"],
        &["dead-letters"],
        &["dead-letters", "retry"],
        &["dead-letters", "discard", "a"],
        &["skips"],
        &["health", "--skip-age", "old"],
        &["completions", "tcl"],
        &["demo", "--events", "0"],
    ] {
        let ran = folder.run(arguments).exits(2);
        assert_eq!(ran.stdout, "", "{arguments:?}");
        assert!(!ran.stderr.is_empty(), "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was created");
}

#[test]
fn completions_are_scripts_of_their_shell() {
    let folder = Folder::new();
    folder.run(&["completions", "bash"]).done().prints("complete -F _everfold");
    folder.run(&["completions", "zsh"]).done().prints("#compdef everfold");
    folder.run(&["completions", "fish"]).done().prints("complete -c everfold");
}

/// As in `everfold events | head`.
#[test]
fn reader_that_has_seen_enough_is_no_failure() {
    let lines: String = (0..5_000).map(|n| line("a", "T", &format!("{{\"n\":{n}}}"))).collect();
    let folder = Folder::with_events(&lines);
    for arguments in [
        &["events"][..],
        &["events", "--json"],
        &["events", "--follow"],
        &["export"],
        &["schema", "print"],
        &["doctor"],
    ] {
        let mut child = folder.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(wait(&mut child), Some(0), "{arguments:?}");
        let mut stderr = String::new();
        child.stderr.unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr, "", "{arguments:?}");
    }
}

#[test]
fn plain_output_has_no_colours() {
    let folder = Folder::with_events(&line("a", "T", "{}"));
    for arguments in [&["events"][..], &["doctor"]] {
        let ran = ended(folder.command(arguments).env("TERM", "xterm-256color").spawn().unwrap());
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:#?}");
    }
}
