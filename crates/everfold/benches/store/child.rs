//! This program again as another process, for what is measured of a process or between two.

use std::io::{BufRead, BufReader, Lines};
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};

use crate::{idle, latency, memory};

/// What a child process does.
pub(crate) enum Job {
    Memory(memory::Job),
    Follow(latency::Job),
    Idle(idle::Job),
}

impl Job {
    pub(crate) fn from_words(words: impl Iterator<Item = String>) -> anyhow::Result<Job> {
        let mut words = words.peekable();
        Ok(match words.peek().map(String::as_str) {
            Some("import" | "read" | "rebuild") => Job::Memory(memory::Job::from_words(words)?),
            Some("follow") => Job::Follow(latency::Job::from_words(words.skip(1))?),
            Some("idle") => Job::Idle(idle::Job::from_words(words.skip(1))?),
            other => bail!("{other:?} is no work for a child"),
        })
    }

    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match self {
            Job::Memory(job) => memory::run_child(job),
            Job::Follow(job) => job.run(),
            Job::Idle(job) => job.run(),
        }
    }
}

/// A running child, which says in lines what it has come to, and ends when it is not listened to
/// any more.
pub(crate) struct Child {
    process: process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    stdin: Option<ChildStdin>,
}

impl Child {
    pub(crate) fn start(words: &[&str]) -> anyhow::Result<Child> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--child")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().context("the child has no output")?;
        let stdin = process.stdin.take();
        Ok(Child { process, lines: BufReader::new(stdout).lines(), stdin })
    }

    /// What the child says next.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let line = tokio::task::block_in_place(|| self.lines.next());
        Ok(line.context("the child ended too early")??)
    }

    /// Lets the child end.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        drop(self.stdin.take());
        let status = tokio::task::block_in_place(|| self.process.wait())?;
        anyhow::ensure!(status.success(), "the child ended with {status}");
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended well is not there any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the child: waits until nobody listens any more.
pub(crate) fn wait_for_end() {
    let _ =
        tokio::task::block_in_place(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
}
