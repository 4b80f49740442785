//! A private folder in which one server lives, and the way programs are run in it.
//!
//! PostgreSQL and PgBouncer refuse to run as root, so as root the folder belongs to `nobody` and
//! programs run as `nobody`. As any other user they simply run.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};

use crate::guard::Guard;

/// User and group `nobody`, who own nothing else that matters.
const NOBODY: u32 = 65534;

/// Longest folder in which PostgreSQL can still make its socket (`sun_path` holds 107 bytes).
const PATH_BYTES_MAX: usize = 80;

/// A guarded folder: gone, with everything that runs in it, when dropped or when we are.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _guard: Guard,
}

impl Folder {
    pub(crate) fn create(prefix: &str) -> anyhow::Result<Folder> {
        let base = base_folder()?;
        let temporary = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&base)
            .with_context(|| format!("could not make a folder in {}", base.display()))?;
        if is_root()? {
            chown(temporary.path(), Some(NOBODY), Some(NOBODY))
                .context("could not give the folder to nobody")?;
        }
        let guard = Guard::watch(temporary.path())?;
        Ok(Folder { path: temporary.keep(), _guard: guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that the servers can read, whatever our file mode mask is.
    pub(crate) fn write(&self, file: &Path, text: &str) -> anyhow::Result<()> {
        fs::write(file, text).with_context(|| format!("could not write {}", file.display()))?;
        if is_root()? {
            chown(file, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    /// A command that works inside the folder, as a user the servers accept.
    ///
    /// The working folder is how the guard recognises what it has to end.
    pub(crate) fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = if is_root()? {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}"));
            command.arg("--clear-groups").arg("--").arg(program);
            command
        } else {
            Command::new(program)
        };
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").current_dir(&self.path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// Runs a command to its end; the error tells what it printed.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Output { status, stdout, stderr } = command
        .output()
        .with_context(|| format!("could not run {}", command.get_program().display()))?;
    if !status.success() {
        bail!(
            "{command:?} ended with {status}\n{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
    }
    Ok(())
}

/// The temporary folder of the system, or `/tmp` where that one is too long or closed to `nobody`.
fn base_folder() -> anyhow::Result<PathBuf> {
    for candidate in [std::env::temp_dir(), PathBuf::from("/tmp")] {
        let Ok(base) = fs::canonicalize(&candidate) else {
            continue;
        };
        let fits = base.as_os_str().len() + "/everfold-pgbouncer-XXXXXX".len() <= PATH_BYTES_MAX;
        if fits && (!is_root()? || is_open_to_all(&base)) {
            return Ok(base);
        }
    }
    bail!("no usable temporary folder: make /tmp accessible to all users")
}

fn is_open_to_all(path: &Path) -> bool {
    path.ancestors().all(|folder| {
        fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    })
}

/// Whether we are root, asked of the kernel without unsafe code.
fn is_root() -> anyhow::Result<bool> {
    let metadata = fs::metadata("/proc/self").context("the harness needs /proc (Linux)")?;
    Ok(metadata.uid() == 0)
}
