//! The project folder, and which store a command works on.
//!
//! The URL is that of `--url`, else of `EVERFOLD_URL`, else `[store] url` in `everfold.toml`, else
//! the SQLite file `everfold.db` in the project folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use everfold::{Schema, Store, StoreOptions};
use serde::Deserialize;

use crate::cli::Global;

/// The project's settings.
pub(crate) const PROJECT_FILE: &str = "everfold.toml";
/// The store of a project that names no other.
pub(crate) const DEFAULT_STORE: &str = "everfold.db";
const URL_VARIABLE: &str = "EVERFOLD_URL";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFile {
    #[serde(default)]
    store: StoreSection,
    #[serde(default)]
    project: ProjectSection,
    #[serde(default)]
    test: TestSection,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectSection {
    namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreSection {
    url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestSection {
    url: Option<String>,
}

/// The store that was asked for, and who named it.
#[derive(Clone)]
pub(crate) struct Target {
    url: String,
    origin: Origin,
    /// That of the project's projections.
    namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Option,
    Variable,
    File(PathBuf),
    Default,
}

impl Global {
    /// The project folder.
    pub(crate) fn folder(&self) -> &Path {
        self.project.as_deref().unwrap_or(Path::new("."))
    }

    /// The store to work on.
    ///
    /// # Errors
    /// If the project folder or its settings cannot be used.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        self.target_in(self.folder())
    }

    /// The store to work on with another project folder.
    pub(crate) fn target_in(&self, folder: &Path) -> anyhow::Result<Target> {
        let target = self.target_to_be_in(folder)?;
        if target.origin == Origin::Default && !folder.is_dir() {
            let folder = folder.display();
            bail!("no project folder at {folder}; create it with `everfold init {folder}`");
        }
        Ok(target)
    }

    /// The same with a folder that need not be there yet.
    pub(crate) fn target_to_be_in(&self, folder: &Path) -> anyhow::Result<Target> {
        let file = folder.join(PROJECT_FILE);
        let settings = read_project_file(&file)?;
        let namespace = settings.project.namespace.unwrap_or_default();
        if let Some(url) = &self.url {
            return Ok(Target { url: url.clone(), origin: Origin::Option, namespace });
        }
        if let Some(url) = std::env::var_os(URL_VARIABLE).filter(|url| !url.is_empty()) {
            let url = url.into_string().map_err(|_| anyhow!("{URL_VARIABLE} is not UTF-8"))?;
            return Ok(Target { url, origin: Origin::Variable, namespace });
        }
        if let Some(url) = settings.store.url {
            let url = relative_to(&url, folder)?;
            return Ok(Target { url, origin: Origin::File(file), namespace });
        }
        let file = match folder == Path::new(".") {
            true => PathBuf::from(DEFAULT_STORE),
            false => folder.join(DEFAULT_STORE),
        };
        Ok(Target { url: sqlite_url(&file)?, origin: Origin::Default, namespace })
    }
}

impl Target {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Where the store is, without a password.
    pub(crate) fn location(&self) -> String {
        without_password(&self.url)
    }

    /// Opens the store to read it: nothing is created or changed.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Store> {
        self.check_exists()?;
        let mut options = reading();
        options.namespace.clone_from(&self.namespace);
        self.open_with(options).await
    }

    /// Opens the store to write to it; a SQLite file is created if it is not there.
    pub(crate) async fn open_or_create(&self) -> anyhow::Result<Store> {
        let mut options = StoreOptions::default();
        options.namespace.clone_from(&self.namespace);
        let is_new = sqlite_path(&self.url).is_some_and(|path| !path.exists());
        let store = self.open_with(options).await?;
        if is_new {
            // It may be a mistyped path, or the wrong folder.
            eprintln!("made a new store at {}", self.location());
        }
        Ok(store)
    }

    /// An error says who named the store, where it was not the one who typed the command.
    async fn open_with(&self, options: StoreOptions) -> anyhow::Result<Store> {
        let opened = Store::open_with(&self.url, options).await;
        match &self.origin {
            Origin::Variable => opened.context("the store that EVERFOLD_URL names"),
            Origin::File(file) => {
                opened.with_context(|| format!("the store that {} names", file.display()))
            }
            Origin::Option | Origin::Default => Ok(opened?),
        }
    }

    /// The namespace of the project's projections; empty for the default one.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn schema(&self) -> anyhow::Result<Schema> {
        Ok(Schema::of(&self.url)?)
    }

    /// Refuses a SQLite file that is not there, so that reading does not leave an empty one.
    pub(crate) fn check_exists(&self) -> anyhow::Result<()> {
        match sqlite_path(&self.url) {
            Some(path) if !path.exists() => bail!(
                "no store at {}; create one with `everfold init`, or name another with --url or --project",
                self.location()
            ),
            _ => Ok(()),
        }
    }
}

/// Where tests make their stores: beside the one that `--url` names, or else `[test] url`; `None`: in
/// SQLite files. The project's own store is not theirs to use.
///
/// # Errors
/// If the project folder or its settings cannot be used.
pub(crate) fn test_url(global: &Global) -> anyhow::Result<Option<String>> {
    let folder = global.folder();
    if !folder.is_dir() {
        bail!("no project folder at {}", folder.display());
    }
    let settings = read_project_file(&folder.join(PROJECT_FILE))?;
    match (&global.url, settings.test.url) {
        (Some(url), _) => Ok(Some(url.clone())),
        (None, Some(url)) => relative_to(&url, folder).map(Some),
        (None, None) => Ok(None),
    }
}

/// Options that change nothing in the store.
pub(crate) fn reading() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.create = false;
    options.migrate = Some(false);
    options
}

/// A file that is not there has no settings.
fn read_project_file(file: &Path) -> anyhow::Result<ProjectFile> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ProjectFile::default()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let message = error.message().replace('\n', ", ");
        anyhow!("{} line {line}: {message}; mend it or leave it out", file.display())
    })
}

/// The file of a SQLite URL, or `None` for another kind.
pub(crate) fn sqlite_path(url: &str) -> Option<&Path> {
    let path = url.strip_prefix("sqlite:")?;
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

pub(crate) fn sqlite_url(path: &Path) -> anyhow::Result<String> {
    let path = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("sqlite:{path}"))
}

/// A relative SQLite path in a file is meant from that file's folder.
fn relative_to(url: &str, folder: &Path) -> anyhow::Result<String> {
    match sqlite_path(url) {
        Some(path) if is_relative_file(path) => sqlite_url(&folder.join(path)),
        _ => Ok(url.to_owned()),
    }
}

fn is_relative_file(path: &Path) -> bool {
    path.is_relative() && path != Path::new("") && path != Path::new(":memory:")
}

/// The URL as it may be shown: `user:secret@` becomes `user:***@`, `password=…` likewise. A
/// password may hold what a URL should not, so it ends at the last `@`.
fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let rest = match (rest.find(':'), rest.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => format!("{}:***{}", &rest[..colon], &rest[at..]),
        _ => rest.to_owned(),
    };
    let rest = match rest.split_once("password=") {
        Some((before, secret)) => {
            let end = secret.find(['&', ' ']).unwrap_or(secret.len());
            format!("{before}password=***{}", &secret[end..])
        }
        None => rest,
    };
    format!("{scheme}{rest}")
}

/// Whether the URL holds a password.
pub(crate) fn has_password(url: &str) -> bool {
    without_password(url) != url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("postgres://u:secret@h:1/db", "postgres://u:***@h:1/db"),
            ("postgres://u:se@cret@h/db", "postgres://u:***@h/db"),
            ("postgres://u:se/cr?et@h/db", "postgres://u:***@h/db"),
            ("postgres:host=h password=s user=u", "postgres:host=h password=*** user=u"),
            ("postgres://h:5432/db", "postgres://h:5432/db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres:///db?password=s&user=u", "postgres:///db?password=***&user=u"),
            ("sqlite:a.db", "sqlite:a.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn relative_files_are_meant_from_the_folder_of_the_settings() {
        let folder = Path::new("/srv/shop");
        for (url, resolved) in [
            ("sqlite:shop.db", "sqlite:/srv/shop/shop.db"),
            ("sqlite://shop.db", "sqlite:/srv/shop/shop.db"),
            ("sqlite:/var/shop.db", "sqlite:/var/shop.db"),
            ("sqlite:", "sqlite:"),
            ("postgres://db/shop", "postgres://db/shop"),
        ] {
            assert_eq!(relative_to(url, folder).unwrap(), resolved);
        }
    }
}
