//! The guard: removes a private folder and ends its servers once the test process is gone.
//!
//! Destructors do not run for statics, after `exit`, or under SIGKILL. The kernel however always
//! closes the pipe we hold, and the guard waits at its other end. It has its own process group, so
//! that Ctrl-C in a terminal reaches the tests and not the one who cleans up after them.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// Watches one folder. Dropping it cleans up and returns when that is done.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts to watch `folder`, which must be an absolute path without symbolic links.
    pub(crate) fn watch(folder: &Path) -> anyhow::Result<Guard> {
        let shell = Command::new("/bin/sh")
            .args(["-c", include_str!("guard.sh")])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("FOLDER", folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("could not start the guard (/bin/sh)")?;
        Ok(Guard { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes our end of the pipe first.
        let _ = self.shell.wait();
    }
}
