//! What the figures were measured on.

use std::path::Path;

use crate::Bench;
use crate::measure::counted;

/// One line for above the tables.
pub(crate) async fn describe(bench: &Bench) -> anyhow::Result<String> {
    let cores = std::thread::available_parallelism()?;
    let folder = std::env::temp_dir();
    let mut parts = vec![counted(cores.get(), "core")];
    if let Some(server) = &bench.server {
        parts.push(server.describe().await?);
    }
    parts.push(format!("SQLite {}", rusqlite::version()));
    parts.push(format!("files on {}", file_system(&folder)?));
    parts.push(counted(bench.arguments.repeats, "repeat"));
    parts.push(format!("appends counted for {:?}", bench.arguments.run_time()));
    let warning = if bench.arguments.quick { " (quick: not for quoting)" } else { "" };
    Ok(format!("{}{warning}", parts.join(", ")))
}

/// The kind of the file system that holds a folder: on tmpfs, fsync costs nothing.
fn file_system(folder: &Path) -> anyhow::Result<String> {
    let folder = std::fs::canonicalize(folder)?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let holding = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        folder.starts_with(place).then_some((place.len(), kind))
    });
    // Of several on one place, the last one mounted is the one that is seen.
    Ok(holding.max_by_key(|(length, _)| *length).map_or("unknown", |(_, kind)| kind).to_owned())
}
