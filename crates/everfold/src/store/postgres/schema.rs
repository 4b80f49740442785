//! The schema: migrations, functions, and the comparison with what this version expects.
//!
//! Migrations are numbered and only go forward; each runs in a transaction of its own, behind a
//! lock that lets one process at a time do it. The functions are replaced as a whole whenever their
//! text has changed, under the registry gate, so that no append is half-way through when its
//! function changes. Waiting for the gate holds appends up, so it is tried for a moment at a time.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::poll_fn;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use super::connect::{Connection, Connections};
use super::error::{connect_error, store_error};
use super::target::Target;
use crate::error::{MigrateError, OpenError, StoreError, StoreErrorKind};
use crate::store::{AppliedSchema, jitter};

struct Migration {
    revision: u32,
    name: &'static str,
    sql: &'static str,
}

macro_rules! sql_file {
    ($path:literal) => {
        include_str!(concat!("../../../sql/postgres/", $path))
    };
}

const BOOTSTRAP: &str = sql_file!("migrations/0000_bootstrap.sql");

const MIGRATIONS: [Migration; 3] = [
    Migration { revision: 1, name: "events", sql: sql_file!("migrations/0001_events.sql") },
    Migration {
        revision: 2,
        name: "projections",
        sql: sql_file!("migrations/0002_projections.sql"),
    },
    Migration { revision: 3, name: "rebuilds", sql: sql_file!("migrations/0003_rebuilds.sql") },
];

/// In the order in which they need each other.
const FUNCTIONS: &[&str] = &[
    sql_file!("functions/010_uuid_v7.sql"),
    sql_file!("functions/015_locks.sql"),
    sql_file!("functions/020_append_checks.sql"),
    sql_file!("functions/025_inline.sql"),
    sql_file!("functions/030_append_event.sql"),
    sql_file!("functions/035_append_event_carrying.sql"),
    sql_file!("functions/040_append.sql"),
    sql_file!("functions/050_append_json.sql"),
    sql_file!("functions/060_append_group.sql"),
    sql_file!("functions/070_high_water_mark.sql"),
    sql_file!("functions/080_read.sql"),
    sql_file!("functions/100_import.sql"),
    sql_file!("functions/110_snapshots.sql"),
    sql_file!("functions/120_startup_checks.sql"),
    sql_file!("functions/200_shards.sql"),
    sql_file!("functions/210_leases.sql"),
    sql_file!("functions/220_status.sql"),
    sql_file!("functions/900_grants.sql"),
];

const DESCRIBE: &str = sql_file!("statements/describe_schema.sql");
const EXPECTED: &str = sql_file!("schema.txt");

/// One process at a time changes the schema. A single bigint key, which cannot meet the pairs of
/// integers that appends lock.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7310868735420886387)";

/// A paused process must not keep others from the schema, or appends from their gate, for ever.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// Raised with every release that changes the functions, so that an older process that is started
/// late does not put its own back.
const FUNCTIONS_REVISION: u32 = 1;

/// How long one try for the registry gate may hold appends up, and how often it is tried.
const GATE_TIMEOUT: &str = "SET LOCAL lock_timeout = '100ms'";
const GATE_TRIES: u32 = 60;
const GATE_PAUSE: Duration = Duration::from_millis(1_000);

/// The newest revision that this version knows.
fn known_revision() -> u32 {
    MIGRATIONS.iter().map(|migration| migration.revision).max().unwrap_or(0)
}

/// Tells whether the functions in the database are the ones of this version.
pub(super) fn functions_hash() -> String {
    let text = FUNCTIONS.concat();
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, text.as_bytes()).to_string()
}

/// The SQL that makes the schema from nothing.
pub(crate) fn sql() -> String {
    let mut sql = String::from("BEGIN;\n");
    sql.push_str(BOOTSTRAP);
    for migration in &MIGRATIONS {
        sql.push_str(migration.sql);
        sql.push_str(&record(migration));
    }
    FUNCTIONS.iter().for_each(|function| sql.push_str(function));
    sql.push_str(&format!("{};\nCOMMIT;\n", recorded_functions(&functions_hash())));
    sql
}

fn record(migration: &Migration) -> String {
    let Migration { revision, name, .. } = migration;
    format!("INSERT INTO everfold.migrations (revision, name) VALUES ({revision}, '{name}');\n")
}

/// Brings the schema to this version.
pub(crate) async fn apply(url: &str) -> Result<AppliedSchema, MigrateError> {
    let session = Session::open(url).await?;
    session.run(&format!("{BEGIN}; {LOCK}; {BOOTSTRAP}; COMMIT")).await?;
    let mut migrations = Vec::new();
    for migration in &MIGRATIONS {
        if session.migrate(migration).await? {
            migrations.push(format!("{:04}_{}", migration.revision, migration.name));
        }
    }
    let functions_replaced = session.replace_functions().await?;
    let warnings =
        std::mem::take(&mut *session.warnings.lock().expect("no panic while collecting"));
    Ok(AppliedSchema { migrations, functions_replaced, warnings })
}

/// Lines by which the database differs from what this version expects.
pub(crate) async fn drift(url: &str) -> Result<Vec<String>, MigrateError> {
    let session = Session::open(url).await?;
    session.require_revision().await?;
    Ok(differences(&session.describe().await?))
}

/// The same over a connection of a store.
pub(super) async fn drift_of(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let described = first_column(connection.client(), &describe_pinned()).await;
    Ok(differences(&described.map_err(store_error)?))
}

/// The description with names as they are under a search_path that finds none of ours, whatever
/// the session's own is, and whether or not a transaction is open.
fn describe_pinned() -> String {
    format!("SET LOCAL search_path = pg_catalog; {DESCRIBE}")
}

fn recorded_functions(hash: &str) -> String {
    format!(
        "UPDATE everfold.store SET functions_hash = '{hash}', \
         functions_revision = {FUNCTIONS_REVISION}"
    )
}

fn differences(found: &[String]) -> Vec<String> {
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let expected: BTreeSet<&str> = EXPECTED.lines().collect();
    let missing = expected.difference(&found).map(|line| format!("- {line}"));
    let unexpected = found.difference(&expected).map(|line| format!("+ {line}"));
    missing.chain(unexpected).collect()
}

/// Whether a difference is one that replacing the functions mends. Functions that somebody put
/// beside ours are theirs.
fn is_about_functions(difference: &str) -> bool {
    difference.starts_with("- function ") || difference.starts_with("+ public may ")
}

/// Refuses a database without the schema or with another revision of it.
pub(super) async fn check_revision(connections: &Connections) -> Result<(), OpenError> {
    let connection = connections.get().await?;
    let sql = "SELECT coalesce(max(revision), 0) FROM everfold.migrations";
    match connection.query_one(sql, &[]).await {
        Ok(row) => Ok(compare(row.get(0))?),
        Err(error) if error.kind() == StoreErrorKind::Missing => Err(MigrateError::Missing.into()),
        Err(error) => Err(error.into()),
    }
}

fn compare(found: i32) -> Result<(), MigrateError> {
    let (found, known) = (found.unsigned_abs(), known_revision());
    match found.cmp(&known) {
        _ if found == 0 => Err(MigrateError::Missing),
        Ordering::Less => Err(MigrateError::Older { found, needed: known }),
        Ordering::Greater => Err(MigrateError::Newer { found, known }),
        Ordering::Equal => Ok(()),
    }
}

/// A connection of its own for changing the schema, which collects the server's warnings. It sends
/// plain statements only, so that it also works through a pooler.
struct Session {
    client: Client,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Session {
    async fn open(url: &str) -> Result<Session, MigrateError> {
        let target = Target::parse(url)
            .map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))?;
        let connected = target.connect().await;
        let (client, mut connection) =
            connected.map_err(|error| connect_error(error, target.place()))?;
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&warnings);
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    let mut collected = collected.lock().expect("no panic while collecting");
                    collected.push(notice.message().to_owned());
                }
            }
        });
        Ok(Session { client, warnings })
    }

    async fn run(&self, sql: &str) -> Result<(), StoreError> {
        let outcome = self.client.batch_execute(sql).await.map_err(store_error);
        if outcome.is_err() {
            // What failed was a transaction; end it so that the session can go on.
            drop(self.client.batch_execute("ROLLBACK").await);
        }
        outcome
    }

    /// The first column of the first row, asked without preparing a statement.
    async fn value(&self, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
        Ok(first_column(&self.client, sql).await?.into_iter().next())
    }

    async fn revision(&self) -> Result<i32, MigrateError> {
        let sql = "SELECT coalesce(max(revision), 0) FROM everfold.migrations";
        match self.value(sql).await {
            Ok(found) => Ok(found.and_then(|found| found.parse().ok()).unwrap_or(0)),
            Err(error) if is_missing(&error) => Ok(0),
            Err(error) => Err(store_error(error).into()),
        }
    }

    async fn require_revision(&self) -> Result<(), MigrateError> {
        compare(self.revision().await?)
    }

    /// Runs a migration unless it has run; true if it did so now.
    async fn migrate(&self, migration: &Migration) -> Result<bool, MigrateError> {
        let failed = |source| MigrateError::Failed { revision: migration.revision, source };
        self.run(&format!("{BEGIN}; {LOCK}")).await?;
        let found = self.revision().await?.unsigned_abs();
        if found > known_revision() {
            self.run("ROLLBACK").await?;
            return Err(MigrateError::Newer { found, known: known_revision() });
        }
        if found >= migration.revision {
            self.run("COMMIT").await?;
            return Ok(false);
        }
        let sql = format!("{}\n{}\nCOMMIT", migration.sql, record(migration));
        self.run(&sql).await.map_err(failed)?;
        Ok(true)
    }

    /// Replaces the functions if they are of another version or were changed by hand; true if it
    /// did so now.
    async fn replace_functions(&self) -> Result<bool, MigrateError> {
        let hash = functions_hash();
        for _ in 0..GATE_TRIES {
            self.run(&format!("{BEGIN}; {LOCK}; {GATE_TIMEOUT}")).await?;
            if !self.functions_are_to_be_replaced(&hash).await? {
                self.run("COMMIT").await?;
                return Ok(false);
            }
            let gate = "SELECT pg_advisory_xact_lock('everfold.store'::regclass::oid::int, 0)";
            let functions = FUNCTIONS.concat();
            let done = recorded_functions(&hash);
            let replaced = self.run(&format!("{gate};\n{functions}\n;{done}; COMMIT")).await;
            match replaced {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == StoreErrorKind::Busy => {
                    tokio::time::sleep(jitter(GATE_PAUSE)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let message = "appends held the registry gate all the time; try again when fewer \
                       transactions stay open after an append";
        Err(StoreError::new(StoreErrorKind::Busy, message).into())
    }

    /// Ours are put in place of older ones, of others of the same revision, and of any that were
    /// changed by hand; newer ones are left to the version that brought them.
    async fn functions_are_to_be_replaced(&self, hash: &str) -> Result<bool, StoreError> {
        let column = "SELECT functions_revision || ' ' || functions_hash FROM everfold.store";
        let known = self.value(column).await.map_err(store_error)?.unwrap_or_default();
        let (revision, known_hash) = known.split_once(' ').unwrap_or(("0", ""));
        match revision.parse::<u32>().unwrap_or(0).cmp(&FUNCTIONS_REVISION) {
            Ordering::Greater => Ok(false),
            Ordering::Less => Ok(true),
            Ordering::Equal if known_hash != hash => Ok(true),
            Ordering::Equal => {
                let drift = differences(&self.describe().await?);
                Ok(drift.iter().any(|line| is_about_functions(line)))
            }
        }
    }

    async fn describe(&self) -> Result<Vec<String>, StoreError> {
        first_column(&self.client, &describe_pinned()).await.map_err(store_error)
    }
}

/// The first column of all rows, asked without preparing a statement.
async fn first_column(client: &Client, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let messages = client.simple_query(sql).await?;
    let values = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(values.collect())
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::UNDEFINED_TABLE) || code == Some(&SqlState::INVALID_SCHEMA_NAME)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn revisions_are_numbered_without_holes() {
        let revisions: Vec<u32> = MIGRATIONS.iter().map(|migration| migration.revision).collect();
        assert_eq!(revisions, (1..=known_revision()).collect::<Vec<_>>());
    }

    /// Every SQL file of the backend, with its path.
    fn sql_files() -> Vec<(PathBuf, String)> {
        let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sql/postgres")];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "sql") {
                    let sql = std::fs::read_to_string(&path).unwrap();
                    files.push((path, sql));
                }
            }
        }
        files
    }

    /// `SELECT last_value FROM sequence` is a torn read: it can show a value ahead of the true one.
    #[test]
    fn no_statement_reads_last_value_from_a_sequence() {
        for (path, sql) in sql_files() {
            let code: String =
                sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
            let code = code.replace("pg_sequence_last_value", "").replace("last_value(", "");
            assert!(!code.contains("last_value"), "reads last_value: {}", path.display());
        }
    }

    #[test]
    fn every_function_file_is_loaded() {
        let known = [FUNCTIONS.to_vec(), MIGRATIONS.iter().map(|m| m.sql).collect()].concat();
        for (path, sql) in sql_files() {
            let loaded = path.to_string_lossy().contains("/statements/")
                || sql == BOOTSTRAP
                || known.contains(&sql.as_str());
            assert!(loaded, "not in the list: {}", path.display());
        }
    }
}
