use crate::support::{Folder, interrupt, json_lines, lines, wait};

#[test]
fn demo_adds_up_and_leaves_nothing() {
    let folder = Folder::new();
    let mut command = folder.command(&["demo", "--events", "3000", "--seconds", "30"]);
    command.env("TMPDIR", folder.path()).env("EVERFOLD_URL", "sqlite:not-this.db");
    let ran = crate::support::ended(command.spawn().unwrap()).done();
    let ran = ran.prints("appended   3,000 events by 8 writers");
    let ran = ran.prints("missed 0, doubled 0, out of order 0, holes 0");
    let ran = ran.prints("read back  3,000 events, vanished 0").prints("everything adds up");
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 100), "{ran:#?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is gone");
}

#[test]
fn kept_store_has_the_events() {
    let folder = Folder::new();
    let arguments = ["demo", "--events", "500", "--seconds", "30", "--keep", "kept", "--json"];
    let ran = folder.run(&arguments).done();
    let report = ran.json();
    for count in ["appended", "in_log", "followed"] {
        assert_eq!(report[count], 500, "{ran:#?}");
    }
    assert!(report["conflicts_refused"].as_u64().unwrap() > 0, "{ran:#?}");
    assert_eq!(report["conflicts_accepted"], 0);
    assert!(ran.stderr.contains("look around: everfold --project kept events"), "{ran:#?}");
    let exported = folder.run(&["--project", "kept", "export"]).done();
    assert_eq!(json_lines(&exported.stdout).len(), 500);
    folder.run(&arguments).fails(1, "exists already");
}

#[test]
fn named_store_is_written_to_only_when_that_is_confirmed() {
    let folder = Folder::new();
    let arguments = ["demo", "--events", "100", "--url", "sqlite:mine.db"];
    folder.run(&arguments).fails(2, "run it with --yes");
    assert!(!folder.file("mine.db").exists());
    folder.run(&[&arguments[..], &["--yes"]].concat()).done().prints("everything adds up");
    folder.run(&[&arguments[..], &["--yes"]].concat()).done().prints("appended   100 events");
    folder.run(&[&arguments[..], &["--yes", "--keep", "x"]].concat()).fails(2, "--keep");
}

#[test]
fn interrupted_demo_leaves_nothing() {
    let folder = Folder::new();
    let mut command = folder.command(&["demo", "--events", "100000000", "--seconds", "300"]);
    let mut child = command.env("TMPDIR", folder.path()).spawn().unwrap();
    let progress = lines(child.stderr.take().unwrap());
    let line = progress.recv_timeout(crate::support::LIMIT).unwrap();
    assert!(line.starts_with("demo: "), "{line}");
    interrupt(&child);
    assert_eq!(wait(&mut child), Some(1));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is gone");
}
