//! Who holds a lock on the file, as far as the system tells: Linux lists them in `/proc/locks`.
//!
//! In WAL mode the locks are ranges of bytes in the -shm file: 120 is the write lock, 123 to 127 are
//! those of read transactions (SQLite's file format, "WAL-index locks").

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Most of a command line that is shown.
const COMMAND_CHARS: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Write,
    Read,
}

/// A process that holds a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) pid: u32,
    command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "pid {}", self.pid),
            command => write!(f, "pid {} ({command})", self.pid),
        }
    }
}

/// Other processes that hold such a lock; none where that cannot be found out.
pub(super) fn holders(path: &Path, lock: Lock) -> Vec<Holder> {
    let Some(inode) = inode(&beside(path, "-shm")) else { return Vec::new() };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut pids: Vec<u32> = locks.lines().filter_map(|line| holder(line, inode, lock)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != std::process::id());
    pids.into_iter().map(|pid| Holder { pid, command: command(pid) }).collect()
}

/// The file that SQLite keeps beside the database, such as `-wal`.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|file| file.ino())
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<u64> {
    None
}

/// The process of a line such as `3: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`, if it holds the
/// lock on that file. Those who wait have `->` before the kind.
fn holder(line: &str, inode: u64, lock: Lock) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    (words.next()? == "POSIX").then_some(())?;
    let mode = words.nth(1)?;
    let pid = words.next()?.parse().ok()?;
    let file = words.next()?.rsplit(':').next()?.parse::<u64>().ok()?;
    let first = words.next()?.parse::<u64>().ok()?;
    let last = words.next()?.parse::<u64>().ok()?;
    let held = match lock {
        Lock::Write => mode == "WRITE" && (first..=last).contains(&120),
        Lock::Read => mode == "READ" && first <= 127 && last >= 123,
    };
    (held && file == inode).then_some(pid)
}

/// What a process was started as, on one line.
fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(COMMAND_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system_are_read() {
        let write = "1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120";
        assert_eq!(holder(write, 1234, Lock::Write), Some(4711));
        assert_eq!(holder(write, 1234, Lock::Read), None);
        assert_eq!(holder(write, 99, Lock::Write), None, "another file");
        let read = "2: POSIX  ADVISORY  READ 12 00:1f:1234 124 124";
        assert_eq!(holder(read, 1234, Lock::Read), Some(12));
        let open = "3: POSIX  ADVISORY  READ 12 00:1f:1234 128 128";
        assert_eq!(holder(open, 1234, Lock::Read), None, "open, and not in a transaction");
        let waits = "4: -> POSIX  ADVISORY  WRITE 13 08:01:1234 120 120";
        assert_eq!(holder(waits, 1234, Lock::Write), None);
        for line in ["", "5: FLOCK  ADVISORY  WRITE 1 08:01:1234 0 EOF", "6: POSIX"] {
            assert_eq!(holder(line, 1234, Lock::Write), None, "{line}");
        }
    }
}
