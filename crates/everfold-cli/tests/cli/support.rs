//! A folder to run the command in, and what came of it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use everfold::sqlite::rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// Generous: test machines are busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder of its own for one test; commands run inside it.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// A folder whose default store has these events, as `import` takes them.
    pub(crate) fn with_events(lines: &str) -> Folder {
        let folder = Folder::new();
        folder.write("given.jsonl", lines);
        folder.run(&["import", "given.jsonl"]).done();
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file, with the folders it is in.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// The default store, past everfold: for what somebody does to it by hand.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.file("everfold.db")).unwrap()
    }

    /// The command in this folder, untouched by the settings of whoever runs the tests.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everfold"));
        command.args(arguments).current_dir(self.path());
        command.env_remove("EVERFOLD_URL").env_remove("CLICOLOR_FORCE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        ended(self.command(arguments).spawn().unwrap())
    }

    pub(crate) fn run_with_stdin(&self, arguments: &[&str], stdin: &str) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = stdin.to_owned();
        // The command may end before it has read all of it.
        let writer = thread::spawn(move || drop(pipe.write_all(stdin.as_bytes())));
        let ran = ended(child);
        writer.join().unwrap();
        ran
    }
}

/// Waits for the end of a command, not for ever.
pub(crate) fn ended(mut child: Child) -> Ran {
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let code = wait(&mut child);
    Ran { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// The exit code, once there is one.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the command did not end within {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    })
}

/// The lines of a pipe as they come.
pub(crate) fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            if sender.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// What a command left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Ended well, without an error or a warning.
    #[track_caller]
    pub(crate) fn done(self) -> Ran {
        let ran = self.exits(0);
        assert!(!ran.stderr.contains("error") && !ran.stderr.contains("warning"), "{ran:#?}");
        ran
    }

    /// Ended badly, with an error on stderr and nothing on stdout.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, message: &str) -> Ran {
        let ran = self.exits(code);
        assert_eq!(ran.stdout, "", "{ran:#?}");
        ran.says(message)
    }

    /// Has this in its one error message.
    #[track_caller]
    pub(crate) fn says(self, message: &str) -> Ran {
        // A store that was made for it is told before.
        let mut lines = self.stderr.lines().skip_while(|line| line.starts_with("made a new store"));
        assert!(lines.next().is_some_and(|line| line.starts_with("error: ")), "{self:#?}");
        assert!(self.stderr.contains(message), "no \"{message}\" in {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn prints(self, text: &str) -> Ran {
        assert!(self.stdout.contains(text), "no \"{text}\" in {self:#?}");
        self
    }

    /// The one JSON value on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The JSON values on stdout, one a line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        json_lines(&self.stdout)
    }
}

#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// One field of many values.
pub(crate) fn field<'a>(values: &'a [Value], name: &str) -> Vec<&'a Value> {
    values.iter().map(|value| &value[name]).collect()
}

/// A line for `import`.
pub(crate) fn line(stream: &str, event_type: &str, data: &str) -> String {
    format!("{{\"stream_id\":\"{stream}\",\"type\":\"{event_type}\",\"data\":{data}}}\n")
}

/// Sends Ctrl-C to a command.
pub(crate) fn interrupt(child: &Child) {
    send(child, "INT");
}

/// Sends a signal to a command.
pub(crate) fn send(child: &Child, signal: &str) {
    let (signal, id) = (format!("-{signal}"), child.id().to_string());
    assert!(Command::new("kill").args([&signal, &id]).status().unwrap().success());
}
