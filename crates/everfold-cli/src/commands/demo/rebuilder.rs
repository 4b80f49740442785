//! The process that rebuilds: this program once more, as anybody would start it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, anyhow, bail};
use everfold::{RebuildProgress, Store};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// How long nobody else takes over from a rebuilder that gives no sign of life. Much shorter than
/// by default, since somebody watches and waits.
const LEASE: &str = "2s";
const SIGKILL: i32 = 9;

/// `everfold rebuild`, in a process of its own. Dropped, it is killed.
pub(super) struct Rebuilder {
    child: Child,
    pub(super) id: u32,
    said: JoinHandle<String>,
}

impl Rebuilder {
    pub(super) fn start(
        folder: &Path,
        url: &str,
        name: &str,
        rate: u64,
    ) -> anyhow::Result<Rebuilder> {
        let program = std::env::current_exe().context("this program cannot be found")?;
        let mut command = Command::new(&program);
        command.arg("--project").arg(folder).args(["rebuild", name, "--lease", LEASE]);
        command.args(["--rate", &rate.to_string()]);
        // Not as an argument, which others on the machine can see.
        command.env("EVERFOLD_URL", url).env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let id = child.id().unwrap_or_default();
        let mut stderr = child.stderr.take().context("the rebuilder has no stderr")?;
        let said = tokio::spawn(async move {
            let mut said = String::new();
            // What cannot be read is not told.
            let _ = stderr.read_to_string(&mut said).await;
            said
        });
        Ok(Rebuilder { child, id, said })
    }

    /// Ends it with SIGKILL, which it cannot notice; whether that is what ended it.
    pub(super) async fn kill(mut self) -> anyhow::Result<bool> {
        // Fails only if it has ended already, which its status tells.
        let _ = self.child.start_kill();
        let status = self.child.wait().await.context("the rebuilder cannot be waited for")?;
        if status.signal() == Some(SIGKILL) {
            return Ok(true);
        }
        self.outcome(status).await?;
        Ok(false)
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("the rebuilder cannot be looked at")
    }

    /// What became of one that has ended.
    pub(super) async fn outcome(self, status: ExitStatus) -> anyhow::Result<()> {
        if status.success() {
            return Ok(());
        }
        let said = self.said.await.unwrap_or_default();
        let error = said.lines().rfind(|line| line.starts_with("error: "));
        match error {
            Some(error) => Err(anyhow!("{}", error.trim_start_matches("error: "))
                .context("the rebuild has failed")),
            None => bail!("the rebuilder has ended with {status}: {said}"),
        }
    }
}

/// How the last rebuild of a projection stands.
pub(super) async fn progress(store: &Store, name: &str) -> anyhow::Result<Option<RebuildProgress>> {
    let all = store.rebuilds().await?;
    Ok(all.into_iter().find(|rebuild| rebuild.name == name))
}
