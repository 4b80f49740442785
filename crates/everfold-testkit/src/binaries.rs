//! Where the PostgreSQL and PgBouncer programs are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";

/// The folder of the PostgreSQL server programs: `$EVERFOLD_PG_BIN`, then Debian's newest version,
/// then `PATH`.
pub(crate) fn postgres_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EVERFOLD_PG_BIN") {
        let folder = PathBuf::from(folder);
        if !is_postgres_folder(&folder) {
            bail!("EVERFOLD_PG_BIN={} has no initdb, postgres and pg_ctl", folder.display());
        }
        return fs::canonicalize(&folder).context("EVERFOLD_PG_BIN cannot be read");
    }
    let mut folders = debian_folders();
    folders.extend(path_folders());
    folders.into_iter().find(|folder| is_postgres_folder(folder)).context(
        "no PostgreSQL server programs found: install them (Debian: apt-get install postgresql) \
         or set EVERFOLD_PG_BIN to the folder that holds initdb, postgres and pg_ctl",
    )
}

/// The `pgbouncer` program, which Debian keeps outside an ordinary user's `PATH`.
pub(crate) fn pgbouncer() -> anyhow::Result<PathBuf> {
    std::iter::once(PathBuf::from("/usr/sbin"))
        .chain(path_folders())
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.is_file())
        .context("no pgbouncer found: install it (Debian: apt-get install pgbouncer)")
}

/// A lone `pg_ctl` in `PATH` may belong to something else, so the three must sit together.
fn is_postgres_folder(folder: &Path) -> bool {
    ["initdb", "postgres", "pg_ctl"].iter().all(|program| folder.join(program).is_file())
}

fn debian_folders() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DEBIAN_VERSIONS) else {
        return Vec::new();
    };
    let mut versions: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    let folder = |version: u32| Path::new(DEBIAN_VERSIONS).join(version.to_string()).join("bin");
    versions.into_iter().map(folder).collect()
}

fn path_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect()
}
