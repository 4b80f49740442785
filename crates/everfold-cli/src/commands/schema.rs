//! `everfold schema`.

use std::fmt;

use clap::{Args, Subcommand};
use everfold::{AppliedSchema, MigrateError};
use serde::Serialize;

use crate::cli::Global;
use crate::failure::{Outcome, describe};
use crate::output::{self, Output};
use crate::project::Target;

/// Create, update, check or print the store's schema
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  everfold schema apply --dry-run
  everfold schema apply
  everfold schema assert || echo \"somebody changed the database by hand\"
  everfold schema print --url postgres:// > schema.sql")]
pub(crate) enum Schema {
    Apply(Apply),
    Assert(Assert),
    Print(Print),
}

/// Bring the schema to the revision of this everfold
///
/// Safe to run from many processes at once, and beside running applications.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  everfold schema apply
  everfold schema apply --dry-run
  everfold schema apply --url postgres://admin@db/shop")]
pub(crate) struct Apply {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Check that the schema is the one of this everfold; exit with 3 if it is not
#[derive(Debug, Args)]
#[command(after_help = "\
Lines with - are missing in the database, lines with + are there and not expected.

Examples:
  everfold schema assert
  everfold schema assert --json --url postgres://app@db/shop")]
pub(crate) struct Assert {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Print the SQL that makes the schema from nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is opened; the URL only tells for which database.

Examples:
  everfold schema print --url postgres:// > schema.sql
  everfold schema print | less")]
pub(crate) struct Print {}

impl Schema {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Outcome> {
        let target = global.target()?;
        match self {
            Schema::Apply(command) if command.dry_run => command.tell(&target).await,
            Schema::Apply(command) => command.run(&target).await,
            Schema::Assert(command) => command.run(&target).await,
            Schema::Print(_) => print(&target),
        }
    }
}

#[derive(Serialize)]
struct Applied {
    store: String,
    migrations: Vec<String>,
    functions_replaced: bool,
    warnings: Vec<String>,
}

impl Apply {
    async fn run(&self, target: &Target) -> anyhow::Result<Outcome> {
        let schema = target.schema()?;
        let AppliedSchema { migrations, functions_replaced, mut warnings, .. } =
            schema.apply().await?;
        // What somebody changed by hand stays as it is, and should not go unnoticed.
        let differences = schema.drift().await?;
        if !differences.is_empty() {
            let lines = lines(differences.len());
            warnings.push(format!(
                "still different from what it should be: {lines}, see `everfold schema assert`"
            ));
        }
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        let store = target.location();
        output::print(&Applied { store, migrations, functions_replaced, warnings }, self.json)?;
        Ok(Outcome::Done)
    }

    async fn tell(&self, target: &Target) -> anyhow::Result<Outcome> {
        let would = match state(target).await? {
            State::Equal => Vec::new(),
            State::Drift(lines) => {
                let mut would = vec![
                    "replace functions of another everfold version, and leave changes by hand"
                        .to_owned(),
                ];
                would.extend(lines);
                would
            }
            State::Missing(_) => vec!["create the schema".to_owned()],
            State::Other(MigrateError::Older { found, needed }) => {
                vec![format!("migrate from revision {found} to {needed} and replace the functions")]
            }
            State::Other(error) => return Err(error.into()),
        };
        output::print(&DryRun { store: target.location(), would }, self.json)?;
        Ok(Outcome::Done)
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for migration in &self.migrations {
            writeln!(f, "applied migration {migration}")?;
        }
        if self.functions_replaced {
            writeln!(f, "replaced the functions")?;
        }
        if self.migrations.is_empty() && !self.functions_replaced {
            return write!(f, "the schema of {} is up to date, nothing was done", self.store);
        }
        write!(f, "the schema of {} is up to date", self.store)
    }
}

#[derive(Serialize)]
struct DryRun {
    store: String,
    would: Vec<String>,
}

impl fmt::Display for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.would.split_first() else {
            return write!(f, "the schema of {} is up to date, nothing to do", self.store);
        };
        write!(f, "would {first} ({})", self.store)?;
        rest.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// What the database has, compared with what this everfold expects.
enum State {
    Equal,
    Drift(Vec<String>),
    /// There is no schema; the text says where.
    Missing(String),
    Other(MigrateError),
}

async fn state(target: &Target) -> anyhow::Result<State> {
    if let Err(missing) = target.check_exists() {
        return Ok(State::Missing(missing.to_string()));
    }
    match target.schema()?.drift().await {
        Ok(lines) if lines.is_empty() => Ok(State::Equal),
        Ok(lines) => Ok(State::Drift(lines)),
        Err(error @ MigrateError::Missing) => Ok(State::Missing(error.to_string())),
        Err(MigrateError::Store(error)) => Err(error.into()),
        Err(error) => Ok(State::Other(error)),
    }
}

#[derive(Serialize)]
struct Asserted {
    store: String,
    equal: bool,
    differences: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Assert {
    async fn run(&self, target: &Target) -> anyhow::Result<Outcome> {
        let (differences, error) = match state(target).await? {
            State::Equal => (Vec::new(), None),
            State::Drift(lines) => (lines, None),
            State::Missing(message) => (Vec::new(), Some(message)),
            State::Other(error) => (Vec::new(), Some(describe(&error))),
        };
        let equal = differences.is_empty() && error.is_none();
        let asserted = Asserted { store: target.location(), equal, differences, error };
        if self.json || asserted.error.is_none() {
            output::print(&asserted, self.json)?;
        }
        if let Some(error) = &asserted.error {
            eprintln!("error: {error}");
        } else if !equal {
            let store = &asserted.store;
            let lines = lines(asserted.differences.len());
            eprintln!(
                "error: the schema of {store} differs in {lines}; put back what was changed \
                 by hand, `everfold schema print` shows how it should be"
            );
        }
        Ok(if equal { Outcome::Done } else { Outcome::Unhealthy })
    }
}

impl fmt::Display for Asserted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.equal {
            return write!(f, "the schema of {} is as expected", self.store);
        }
        f.write_str(&self.differences.join("\n"))
    }
}

fn lines(count: usize) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}

fn print(target: &Target) -> anyhow::Result<Outcome> {
    let mut output = Output::new();
    output.line(target.schema()?.sql().trim_end())?;
    output.flush()?;
    Ok(Outcome::Done)
}
