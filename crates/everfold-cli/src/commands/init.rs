//! `everfold init`.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use crate::cli::Global;
use crate::dry_run::{self, DryRun};
use crate::failure::{Outcome, Usage};
use crate::output;
use crate::project::{self, Origin, PROJECT_FILE};

const SAMPLE_FILE: &str = "events.sample.jsonl";

macro_rules! template {
    ($name:literal) => {
        ($name, include_str!(concat!("../templates/", $name)))
    };
}

/// Files that are the same in every project.
const TEMPLATES: [(&str, &str); 11] = [
    template!("events.sample.jsonl"),
    template!("README.md"),
    template!("projections/cart_totals/projection.toml"),
    template!("projections/cart_totals/create.sql"),
    template!("projections/cart_totals/apply.sql"),
    template!("projections/events_per_day/projection.toml"),
    template!("projections/events_per_day/create.sql"),
    template!("projections/events_per_day/apply.sql"),
    template!("projections/events_per_day/apply.sqlite.sql"),
    template!("tests/cart_totals.toml"),
    template!("tests/events_per_day.toml"),
];

/// Make a project folder: settings, sample events, two projections with tests, and a store
#[derive(Debug, Args)]
#[command(after_help = "\
Files that are there already are never overwritten.

Examples:
  everfold init shop
  everfold init shop --dry-run
  everfold init shop --url postgres://app@db/shop")]
pub(crate) struct Init {
    /// The folder, made if it is not there [default: --project, or the current folder]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    dry: DryRun,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Made {
    folder: String,
    store: String,
    files: Vec<String>,
    /// Commands to go on with, to be run inside the folder.
    next: Vec<String>,
    #[serde(skip)]
    url_is_left_out: bool,
}

impl Init {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        if self.folder.is_some() && global.project.is_some() {
            let message = "name the folder once: as DIR or with --project";
            return Err(Usage(message.to_owned()).into());
        }
        let folder = self.folder.as_deref().unwrap_or_else(|| global.folder());
        refuse_existing(folder)?;
        if self.dry.dry_run {
            let store = global.target_to_be_in(folder)?.location();
            let folder = folder.display();
            let would = std::iter::once(format!("make the schema of everfold in {store}"));
            let would = would.chain(files().map(|file| format!("write {folder}/{file}")));
            return dry_run::tell(would.collect(), self.json);
        }
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let target = global.target_in(folder)?;
        // The store comes first: where it fails, no files are left that claim it is there.
        for warning in target.schema()?.apply().await?.warnings {
            eprintln!("warning: {warning}");
        }
        let url = match target.origin() {
            Origin::Option => url_to_keep(target.url(), folder)?,
            _ => None,
        };
        write(folder, PROJECT_FILE, &settings(url.as_deref()))?;
        for (name, text) in TEMPLATES {
            write(folder, name, text)?;
        }
        let made = Made {
            folder: folder.display().to_string(),
            store: target.location(),
            files: files().map(str::to_owned).collect(),
            next: [
                "test",
                &format!("import {SAMPLE_FILE}"),
                "run --once",
                "status",
                "show cart_totals",
            ]
            .map(|command| format!("everfold {command}"))
            .to_vec(),
            url_is_left_out: url.is_none() && *target.origin() != Origin::Default,
        };
        output::print(&made, self.json)?;
        Ok(Outcome::Done)
    }
}

/// Every file of a new project.
fn files() -> impl Iterator<Item = &'static str> {
    std::iter::once(PROJECT_FILE).chain(TEMPLATES.into_iter().map(|(name, _)| name))
}

fn refuse_existing(folder: &Path) -> anyhow::Result<()> {
    let existing: Vec<_> =
        files().filter(|file| folder.join(file).symlink_metadata().is_ok()).collect();
    if existing.is_empty() {
        return Ok(());
    }
    bail!(
        "{} has {} already, and nothing is overwritten; name another folder, or move them away",
        folder.display(),
        existing.join(", ")
    )
}

/// A URL that was given, as the settings get it: never one with a password.
pub(super) fn url_to_keep(url: &str, folder: &Path) -> anyhow::Result<Option<String>> {
    if project::has_password(url) {
        return Ok(None);
    }
    let Some(path) = project::sqlite_path(url) else {
        return Ok(Some(url.to_owned()));
    };
    // Given from the current folder, kept from the project's.
    let (path, folder) = (std::path::absolute(path)?, std::path::absolute(folder)?);
    project::sqlite_url(path.strip_prefix(&folder).unwrap_or(&path)).map(Some)
}

/// The text of `everfold.toml`.
pub(super) fn settings(url: Option<&str>) -> String {
    let line = match url {
        Some(url) => format!("url = {}", toml::Value::from(url)),
        None => {
            "# url = \"sqlite:everfold.db\"\n# url = \"postgres://user@host/database\"".to_owned()
        }
    };
    include_str!("../templates/everfold.toml").replace("{url}", &line)
}

/// Writes a file that is not there yet, with the folders it is in.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the folder {}", parent.display()))?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Folders are said once, not with every file in them.
        let top = |file: &String| match file.split_once('/') {
            Some((folder, _)) => format!("{folder}/"),
            None => file.clone(),
        };
        let mut parts: Vec<String> = self.files.iter().map(top).collect();
        parts.dedup();
        writeln!(f, "made a project in {}: {}", self.folder, parts.join(", "))?;
        writeln!(f, "the store is {}", self.store)?;
        if self.url_is_left_out {
            writeln!(
                f,
                "its URL is not kept in {PROJECT_FILE}: set EVERFOLD_URL for later commands"
            )?;
        }
        write!(f, "\nnext:")?;
        if self.folder != "." {
            write!(f, "\n  cd {}", self.folder)?;
        }
        self.next.iter().try_for_each(|command| write!(f, "\n  {command}"))
    }
}
