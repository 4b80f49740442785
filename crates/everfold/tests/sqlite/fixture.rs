//! A folder with one store file, and this test binary as a process of its own.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use everfold::sqlite::rusqlite::Connection;
use everfold::{ExpectedVersion, NewEvent, Store, StoreOptions, StreamAppend};
use tempfile::TempDir;

/// Where a child process finds the file it works on.
const CHILD_FILE: &str = "EVERFOLD_TEST_CHILD_FILE";

/// A file of its own for each test, removed with it.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn url(&self) -> String {
        url(&self.file())
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.url()).await.unwrap()
    }

    pub(crate) async fn open_with(&self, set: impl FnOnce(&mut StoreOptions)) -> Store {
        let mut options = StoreOptions::default();
        set(&mut options);
        Store::open_with(&self.url(), options).await.unwrap()
    }

    /// A connection past everfold, as an application has it.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    /// A connection that holds the write lock until it commits or is dropped.
    pub(crate) fn lock(&self) -> Connection {
        let connection = self.connect();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        connection
    }
}

pub(crate) fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

pub(crate) fn event() -> NewEvent {
    NewEvent::from_json("Added", r#"{"n":1}"#).unwrap()
}

pub(crate) fn append(stream: &str, expected: impl Into<ExpectedVersion>) -> StreamAppend {
    StreamAppend::new(stream, expected, [event()])
}

/// This binary once more, running one ignored test whose name says that it is a child.
pub(crate) fn child(test: &str, file: &Path) -> Command {
    child_of(&std::env::current_exe().unwrap(), test, file)
}

pub(crate) fn child_of(binary: &Path, test: &str, file: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_FILE, file)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// The file that a child works on; `None` when its test is run by hand.
pub(crate) fn child_file() -> Option<PathBuf> {
    std::env::var_os(CHILD_FILE).map(PathBuf::from)
}

/// A child that is killed with its test.
pub(crate) struct Tamed {
    process: Child,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Tamed {
    pub(crate) fn start(test: &str, file: &Path) -> Tamed {
        let mut process = child(test, file).spawn().unwrap();
        let lines = process.stdout.take().map(|output| BufReader::new(output).lines());
        Tamed { process, lines }
    }

    /// Ends in its process number, as the names of workers do.
    pub(crate) fn ending(&self) -> String {
        format!(":{}", self.process.id())
    }

    /// Waits until it has said this so many times.
    pub(crate) fn until_it_says(&mut self, wanted: &str, times: usize) {
        let lines = self.lines.as_mut().unwrap().map(Result::unwrap);
        // The name of its test may stand before it.
        let said = lines.filter(|line| line.ends_with(wanted)).take(times).count();
        assert_eq!(said, times, "the child did not say {wanted:?}");
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let (signal, id) = (format!("-{signal}"), self.process.id().to_string());
        assert!(Command::new("kill").args([signal, id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Tamed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
