use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;

use crate::support::{Folder, LIMIT, ended, field, interrupt, line, lines, wait};

fn shop() -> Folder {
    let lines = [
        line("cart-1", "ItemAdded", r#"{"n":1}"#),
        line("cart-2", "ItemAdded", r#"{"n":2}"#),
        line("cart-1", "CheckedOut", r#"{"n":3}"#),
        line("cart-1", "ItemAdded", r#"{"n":4}"#),
    ];
    Folder::with_events(&lines.concat())
}

fn positions(folder: &Folder, arguments: &[&str]) -> Vec<u64> {
    let ran = folder.run(&[&["events", "--json"], arguments].concat()).done();
    assert_eq!(ran.stderr, "");
    ran.json_lines().iter().map(|event| event["position"].as_u64().unwrap()).collect()
}

#[test]
fn event_is_one_line_of_text() {
    let ran = shop().run(&["events"]).done();
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 4);
    let words: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(words.len(), 5, "{ran:#?}");
    assert_eq!(
        (words[0], words[2], words[3], words[4]),
        ("3", "cart-1@2", "CheckedOut", "{\"n\":3}")
    );
    assert!(words[1].ends_with('Z'), "{ran:#?}");
}

#[test]
fn json_lines_are_those_of_export() {
    let folder = shop();
    let events = folder.run(&["events", "--json"]).done().stdout;
    assert_eq!(events, folder.run(&["export"]).done().stdout);
}

#[test]
fn events_are_selected_by_stream_type_and_position() {
    let folder = shop();
    assert_eq!(positions(&folder, &[]), [1, 2, 3, 4]);
    assert_eq!(positions(&folder, &["--limit", "2"]), [1, 2]);
    assert_eq!(positions(&folder, &["--limit", "0"]), [0u64; 0]);
    assert_eq!(positions(&folder, &["--from", "2", "--limit", "2"]), [2, 3]);
    assert_eq!(positions(&folder, &["--stream", "cart-1"]), [1, 3, 4]);
    assert_eq!(positions(&folder, &["--stream", "cart-1", "--from", "2"]), [3, 4]);
    assert_eq!(positions(&folder, &["--type", "ItemAdded"]), [1, 2, 4]);
    let both = ["--stream", "cart-1", "--type", "ItemAdded", "--limit", "2"];
    assert_eq!(positions(&folder, &both), [1, 4]);
    assert_eq!(positions(&folder, &["--stream", "nobody"]), [0u64; 0]);
}

#[test]
fn stream_is_shown_backward() {
    let folder = shop();
    assert_eq!(positions(&folder, &["--stream", "cart-1", "--backward"]), [4, 3, 1]);
    assert_eq!(positions(&folder, &["--stream", "cart-1", "--backward", "--limit", "1"]), [4]);
    assert_eq!(positions(&folder, &["--stream", "cart-1", "--backward", "--from", "3"]), [3, 1]);
    let typed = ["--stream", "cart-1", "--backward", "--type", "CheckedOut"];
    assert_eq!(positions(&folder, &typed), [3]);
}

/// A `--follow` under way.
struct Follow {
    child: Child,
    lines: Receiver<String>,
}

impl Follow {
    fn start(folder: &Folder, arguments: &[&str]) -> Follow {
        let arguments = [&["events", "--json", "--follow"], arguments].concat();
        let mut child = folder.command(&arguments).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        Follow { child, lines }
    }

    fn next(&self) -> u64 {
        let line = self.lines.recv_timeout(LIMIT).expect("an event is followed");
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["position"].as_u64().unwrap()
    }

    /// Sends Ctrl-C and returns the exit code.
    fn interrupt(mut self) -> Option<i32> {
        interrupt(&self.child);
        let code = wait(&mut self.child);
        assert!(self.lines.recv().is_err(), "no more events");
        code
    }
}

#[test]
fn follow_shows_what_another_process_appends_until_ctrl_c() {
    let folder = shop();
    let follow = Follow::start(&folder, &["--from", "4"]);
    assert_eq!(follow.next(), 4);
    for position in 5..8 {
        folder.run(&["append", "--stream", "cart-3", "--type", "T"]).done();
        assert_eq!(follow.next(), position);
    }
    assert_eq!(follow.interrupt(), Some(0));
}

#[test]
fn follow_of_one_stream_shows_each_of_its_events_once() {
    let folder = shop();
    let follow = Follow::start(&folder, &["--stream", "cart-1", "--type", "ItemAdded"]);
    assert_eq!([follow.next(), follow.next()], [1, 4]);
    for (stream, event_type) in
        [("cart-2", "ItemAdded"), ("cart-1", "CheckedOut"), ("cart-1", "ItemAdded")]
    {
        folder.run(&["append", "--stream", stream, "--type", event_type]).done();
    }
    assert_eq!(follow.next(), 7);
    assert_eq!(follow.interrupt(), Some(0));
}

#[test]
fn follow_with_a_limit_ends_by_itself() {
    let folder = shop();
    let follow = folder.command(&["events", "--json", "--follow", "--limit", "5"]).spawn().unwrap();
    folder.run(&["append", "--stream", "cart-1", "--type", "T"]).done();
    let events = ended(follow).done().json_lines();
    assert_eq!(field(&events, "position"), [1, 2, 3, 4, 5]);
}

/// What the command writes on a terminal of 60 columns.
fn on_terminal(folder: &Folder, no_color: bool) -> String {
    let line = format!("stty rows 24 cols 60; '{}' events", env!("CARGO_BIN_EXE_everfold"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(folder.path());
    command.env_remove("EVERFOLD_URL").env_remove("NO_COLOR").env("TERM", "xterm-256color");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command.spawn().unwrap()).exits(0).stdout
}

#[test]
fn lines_are_shortened_to_the_width_of_the_terminal() {
    let data = format!("{{\"text\":\"{}\"}}", "x".repeat(200));
    let folder = Folder::with_events(&line("a", "T", &data).repeat(3));
    let plain = on_terminal(&folder, true);
    let lines: Vec<_> = plain.lines().map(str::trim_end).collect();
    assert_eq!(lines.len(), 3, "{plain}");
    for line in lines {
        assert_eq!(line.chars().count(), 60, "{line}");
        assert!(line.ends_with('…') && !line.contains('\u{1b}'), "{line}");
    }
    assert!(on_terminal(&folder, false).contains('\u{1b}'));
    let piped = folder.run(&["events"]).done().stdout;
    assert!(piped.lines().all(|line| line.contains(&data)), "{piped}");
}

#[test]
fn control_characters_are_not_sent_to_the_terminal() {
    let folder = Folder::new();
    folder.run(&["append", "--stream", "a\u{1b}[2J", "--type", "T\u{7}"]).done();
    let ran = folder.run(&["events"]).done();
    assert!(ran.stdout.contains("a\\u{1b}[2J@1") && !ran.stdout.contains('\u{1b}'), "{ran:#?}");
}
