//! The projections of a project folder.
//!
//! ```text
//! projections/<name>/projection.toml     version, lifecycle, events, key …
//!                    create.sql          the tables            create.sqlite.sql  \ take over on
//!                    apply.sql           a batch of events     apply.sqlite.sql   / SQLite
//! upcasters/<Type>.<schema version>.sql  an expression over data; .sqlite.sql likewise
//! ```
//!
//! Upcasters belong to the project and go to every projection that wants their type.

mod settings;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Projection;
use super::builder::is_name;
use super::script::{Script, plain_text};
use super::sql::UpcasterScripts;
use crate::error::ProjectionError;
use crate::nearest::nearest;
use settings::{Settings, SettingsError};

const PROJECTIONS: &str = "projections";
const UPCASTERS: &str = "upcasters";
const SETTINGS: &str = "projection.toml";
const CREATE: &str = "create.sql";
const APPLY: &str = "apply.sql";
const CREATE_SQLITE: &str = "create.sqlite.sql";
const APPLY_SQLITE: &str = "apply.sqlite.sql";
const FILES: [&str; 5] = [SETTINGS, CREATE, APPLY, CREATE_SQLITE, APPLY_SQLITE];
/// Longest name of a projection.
const NAME_BYTES_MAX: usize = 40;

impl Projection {
    /// Reads the projections of a project: the folders in its folder `projections`, in the order of
    /// their names. A project without that folder has none.
    ///
    /// ```
    /// # let project = tempfile::tempdir()?;
    /// # let folder = project.path().join("projections/cart_totals");
    /// # std::fs::create_dir_all(&folder)?;
    /// # std::fs::write(folder.join("projection.toml"), "version = 1\nlifecycle = \"inline\"\n")?;
    /// # std::fs::write(folder.join("create.sql"), "CREATE TABLE read_model.carts (id TEXT)")?;
    /// # std::fs::write(folder.join("apply.sql"), "INSERT INTO read_model.carts SELECT stream_id FROM batch")?;
    /// # let project = project.path();
    /// let projections = everfold::Projection::load_all(project)?;
    /// assert_eq!(projections[0].name(), "cart_totals");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first thing that is wrong with them, with file and line: [`ProjectionError::File`] if a file cannot
    /// be read or used, [`ProjectionError::Invalid`] if a projection breaks a rule, [`ProjectionError::Sql`] if
    /// its SQL cannot be right.
    pub fn load_all(project: impl AsRef<Path>) -> Result<Vec<Projection>, ProjectionError> {
        let project = plain_path(project.as_ref());
        let upcasters = load_upcasters(&project.join(UPCASTERS))?;
        let mut projections = Vec::new();
        for folder in entries(&project.join(PROJECTIONS))? {
            if folder.is_dir() {
                projections.push(load(&folder, &upcasters)?);
            }
        }
        Ok(projections)
    }
}

/// Without `./` in front, for messages.
fn plain_path(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect()
}

fn load(folder: &Path, upcasters: &[UpcasterScripts]) -> Result<Projection, ProjectionError> {
    let name = file_name(folder);
    let invalid = |message: String| ProjectionError::Invalid { projection: name.clone(), message };
    if !is_name(&name, NAME_BYTES_MAX) {
        return Err(invalid(format!(
            "the folder {} cannot be a projection's name: lower case letters, digits and _, with a \
             letter first, at most {NAME_BYTES_MAX}; give it another",
            folder.display()
        )));
    }
    refuse_strangers(folder).map_err(invalid)?;
    let required = |file: &str| {
        let path = folder.join(file);
        let missing = || invalid(format!("{} is missing; add it", path.display()));
        read(&path)?.ok_or_else(missing)
    };
    let toml = required(SETTINGS)?;
    let postgres = [required(CREATE)?, required(APPLY)?];
    let sqlite = [read(&folder.join(CREATE_SQLITE))?, read(&folder.join(APPLY_SQLITE))?];
    let settings = Settings::parse(&toml.text).map_err(|SettingsError { line, message }| {
        invalid(format!("{} line {line}: {message}", toml.file.display()))
    })?;
    let builder = Projection::sql(name.clone(), settings.version);
    let built = settings.fill(builder).scripts(postgres, sqlite, upcasters.to_vec()).build();
    built.map_err(|error| match error {
        ProjectionError::Invalid { message, .. } => {
            invalid(format!("{}: {message}", toml.file.display()))
        }
        other => other,
    })
}

/// SQL and settings that would not be read are mistyped names, as a rule.
fn refuse_strangers(folder: &Path) -> Result<(), String> {
    for path in entries(folder).map_err(|error| error.to_string())? {
        let name = file_name(&path);
        let read_by_name = [".sql", ".toml"].iter().any(|end| name.ends_with(end));
        if !read_by_name || FILES.contains(&name.as_str()) {
            continue;
        }
        let meant = match nearest(&name, FILES) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("the files of a projection are {}", FILES.join(", ")),
        };
        return Err(format!("{} is not read; {meant}", path.display()));
    }
    Ok(())
}

fn load_upcasters(folder: &Path) -> Result<Vec<UpcasterScripts>, ProjectionError> {
    let mut found: Vec<UpcasterScripts> = Vec::new();
    let mut for_sqlite = Vec::new();
    for path in entries(folder)? {
        let name = file_name(&path);
        let Some(name) = name.strip_suffix(".sql") else { continue };
        let plain = name.strip_suffix(".sqlite");
        let (event_type, schema_version) = upcaster_name(&path, plain.unwrap_or(name))?;
        let Some(expression) = read(&path)? else { continue };
        if plain.is_some() {
            for_sqlite.push((event_type, schema_version, expression));
        } else {
            let expression_sqlite = None;
            found.push(UpcasterScripts {
                event_type,
                schema_version,
                expression,
                expression_sqlite,
            });
        }
    }
    for (event_type, schema_version, expression) in for_sqlite {
        let same = |step: &&mut UpcasterScripts| {
            step.event_type == event_type && step.schema_version == schema_version
        };
        match found.iter_mut().find(same) {
            Some(step) => step.expression_sqlite = Some(expression),
            None => {
                let beside = format!("{event_type}.{schema_version}.sql");
                let message = format!("there is no {beside} that this takes over from; add it");
                return Err(file_error(&expression.file, message));
            }
        }
    }
    Ok(found)
}

/// `<Type>.<schema version>`; a type may have dots of its own.
fn upcaster_name(path: &Path, name: &str) -> Result<(String, u32), ProjectionError> {
    let parts = name.rsplit_once('.').filter(|(event_type, _)| !event_type.is_empty());
    let parsed = parts.and_then(|(event_type, version)| {
        let version = version.parse().ok().filter(|version: &u32| *version > 0)?;
        Some((event_type.to_owned(), version))
    });
    parsed.ok_or_else(|| {
        let message = "an upcaster is called <event type>.<schema version>.sql, such as \
                       CustomerNamed.1.sql; give it such a name"
            .to_owned();
        file_error(path, message)
    })
}

/// The text of a file, `None` if it is not there.
fn read(path: &Path) -> Result<Option<Script>, ProjectionError> {
    match fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Script { file: path.to_owned(), text: plain_text(&text) })),
            Err(_) => Err(file_error(path, "it is not UTF-8; save it as UTF-8".to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_error(path, format!("it cannot be read: {error}"))),
    }
}

/// What is in a folder, by name; nothing if it is not there. Hidden files are left out.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, ProjectionError> {
    let refused = |error: io::Error| file_error(folder, format!("it cannot be read: {error}"));
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refused(error)),
    };
    let mut paths = Vec::new();
    for entry in listed {
        let path = entry.map_err(refused)?.path();
        if !file_name(&path).starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn file_error(file: &Path, message: String) -> ProjectionError {
    ProjectionError::File { file: file.display().to_string(), message }
}
