//! The project folder that the demo makes and leaves, and its store.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use everfold::{MigrateError, OpenError, Schema, Store};

use crate::commands::init;
use crate::project::{self, DEFAULT_STORE, PROJECT_FILE, reading};

macro_rules! template {
    ($name:literal, $file:literal) => {
        ($name, include_str!(concat!("../../templates/", $file)))
    };
}

/// What the folder begins with: version 1 of both read models.
const FILES: [(&str, &str); 9] = [
    template!("README.md", "demo/README.md"),
    template!("projections/cart_totals/projection.toml", "projections/cart_totals/projection.toml"),
    template!("projections/cart_totals/create.sql", "projections/cart_totals/create.sql"),
    template!("projections/cart_totals/apply.sql", "projections/cart_totals/apply.sql"),
    template!("projections/bestsellers/projection.toml", "demo/bestsellers/projection.toml"),
    template!("projections/bestsellers/create.sql", "demo/bestsellers/create.sql"),
    template!("projections/bestsellers/apply.sql", "demo/bestsellers/apply.sql"),
    template!("tests/bestsellers.toml", "demo/tests/bestsellers.toml"),
    template!("tests/cart_totals.toml", "tests/cart_totals.toml"),
];

/// What becomes of `cart_totals` while the shop is open.
const CHANGED: [(&str, &str); 4] = [
    template!("projections/cart_totals/create.sql", "demo/cart_totals/create.sql"),
    template!("projections/cart_totals/apply.sql", "demo/cart_totals/apply.sql"),
    template!("projections/cart_totals/projection.toml", "demo/cart_totals/projection.toml"),
    template!("tests/cart_totals.toml", "demo/tests/cart_totals.toml"),
];

pub(super) struct Project {
    pub(super) folder: PathBuf,
    pub(super) url: String,
    /// Later commands find the store by the folder alone.
    pub(super) url_is_kept: bool,
}

impl Project {
    /// Makes folder and store, after looking that nobody has something there already.
    pub(super) async fn make(folder: PathBuf, url: Option<&str>) -> anyhow::Result<Project> {
        refuse_existing(&folder)?;
        let url_given = url.is_some();
        let url = match url {
            Some(url) => url.to_owned(),
            None => project::sqlite_url(&folder.join(DEFAULT_STORE))?,
        };
        if url_given {
            refuse_used(&url).await?;
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        // The store comes first: where it fails, no files are left that claim it is there.
        for warning in Schema::of(&url)?.apply().await?.warnings {
            eprintln!("warning: {warning}");
        }
        let kept = if url_given { init::url_to_keep(&url, &folder)? } else { None };
        let url_is_kept = kept.is_some() || !url_given;
        init::write(&folder, PROJECT_FILE, &init::settings(kept.as_deref()))?;
        for (name, text) in FILES {
            init::write(&folder, name, text)?;
        }
        Ok(Project { folder, url, url_is_kept })
    }

    /// Writes version 2 of `cart_totals` over version 1.
    pub(super) fn change(&self) -> anyhow::Result<()> {
        for (name, text) in CHANGED {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// A command of this program that works on the project, as it can be typed.
    pub(super) fn command(&self, arguments: &str) -> String {
        let program = std::env::args().next().unwrap_or_else(|| "everfold".to_owned());
        let current = std::env::current_dir().unwrap_or_default();
        let program = Path::new(&program);
        let program = program.strip_prefix(&current).unwrap_or(program);
        format!("{} --project {} {arguments}", program.display(), self.folder.display())
    }
}

/// Nothing that is there is touched; an empty folder will do.
fn refuse_existing(folder: &Path) -> anyhow::Result<()> {
    let is_empty = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => folder.symlink_metadata().is_err(),
    };
    if is_empty {
        return Ok(());
    }
    let folder = folder.display();
    bail!(
        "{folder} is there already, and nothing is overwritten; go on in it (`everfold --project \
         {folder} status`), remove it, or name another folder (`everfold demo DIR`)"
    )
}

/// The demo's events could not be removed again from somebody's store.
async fn refuse_used(url: &str) -> anyhow::Result<()> {
    if project::sqlite_path(url).is_some_and(|path| !path.exists()) {
        return Ok(());
    }
    let store = match Store::open_with(url, reading()).await {
        Ok(store) => store,
        Err(OpenError::Schema(MigrateError::Missing)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let used = match (store.last_position().await?.0, store.projections().await?.len()) {
        (0, 0) => None,
        (0, projections) => Some(format!("{projections} projections")),
        _ => Some("events".to_owned()),
    };
    let location = store.location();
    store.close().await;
    match used {
        None => Ok(()),
        Some(used) => bail!(
            "the store at {location} has {used} already, and nothing was written to it: what the demo \
             appends could not be removed again; name a database that is empty (`createdb \
             everfold_demo`, for example), or leave --url out for a SQLite file of its own"
        ),
    }
}
