//! The schema: numbered migrations, forward only, and what a fresh install looks like.
//!
//! Each migration runs in a transaction of its own that holds the write lock and records itself
//! there, so any number of processes may start at once: one does the work, the others find it done.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::connection::{absolute, in_transaction, open_readable, open_writable};
use super::error::store_error;
use crate::error::{MigrateError, OpenError};
use crate::options::StoreOptions;
use crate::store::AppliedSchema;

const LIST_SCHEMA: &str = include_str!("../../../sql/sqlite/statements/list_schema.sql");
const READ_REVISION: &str = include_str!("../../../sql/sqlite/statements/read_revision.sql");
const RECORD_MIGRATION: &str = include_str!("../../../sql/sqlite/statements/record_migration.sql");
const READ_SEQUENCE: &str = include_str!("../../../sql/sqlite/statements/read_sequence.sql");

/// The dump of a fresh install.
const SCHEMA: &str = include_str!("../../../sql/sqlite/schema.sql");

struct Migration {
    name: &'static str,
    sql: &'static str,
}

/// In order: the first one leads to revision 1.
const MIGRATIONS: &[Migration] = &[
    Migration {
        name: "0001_events",
        sql: include_str!("../../../sql/sqlite/migrations/0001_events.sql"),
    },
    Migration {
        name: "0002_projections",
        sql: include_str!("../../../sql/sqlite/migrations/0002_projections.sql"),
    },
    Migration {
        name: "0003_rebuilds",
        sql: include_str!("../../../sql/sqlite/migrations/0003_rebuilds.sql"),
    },
];

/// The revision that this version needs.
pub(super) fn newest_revision() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("migrations are few")
}

/// Brings the schema of a file to this version's revision; makes the file if it is not there.
pub(crate) async fn apply(path: &Path) -> Result<AppliedSchema, MigrateError> {
    let path = absolute(path);
    blocking(move || {
        let patience = default_patience();
        let connection = open_writable(&path, true, patience)?;
        let migrations = migrate(&connection, patience)?;
        Ok(AppliedSchema { migrations, functions_replaced: false, warnings: Vec::new() })
    })
    .await
}

/// The differences between a file and a fresh install, one line each.
pub(crate) async fn drift(path: &Path) -> Result<Vec<String>, MigrateError> {
    let path = absolute(path);
    blocking(move || {
        let connection = open_readable(&path, default_patience())?;
        check_revision(&connection)?;
        Ok(differences(&connection).map_err(store_error)?)
    })
    .await
}

/// The SQL that makes the schema from nothing.
pub(crate) fn sql() -> String {
    let mut sql = String::new();
    for (migration, revision) in MIGRATIONS.iter().zip(1..) {
        let Migration { name, sql: body } = migration;
        sql.push_str(&format!(
            "BEGIN IMMEDIATE;\n{body}\nINSERT INTO everfold_migrations (revision, name) \
             VALUES ({revision}, '{name}');\nCOMMIT;\n"
        ));
    }
    sql
}

fn default_patience() -> Duration {
    StoreOptions::default().request_timeout
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MigrateError> + Send + 'static,
) -> Result<T, MigrateError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(super::closed().into()),
        },
    }
}

/// Runs the migrations that are missing and returns their names.
pub(super) fn migrate(
    connection: &Connection,
    patience: Duration,
) -> Result<Vec<String>, MigrateError> {
    let mut done = Vec::new();
    // Usually nothing is missing, and then no lock is taken.
    while known_revision(connection)? < newest_revision() {
        done.extend(migrate_once(connection, patience)?);
    }
    Ok(done)
}

/// Runs the next migration, unless somebody else was faster.
fn migrate_once(
    connection: &Connection,
    patience: Duration,
) -> Result<Option<String>, MigrateError> {
    in_transaction(connection, patience, |connection| {
        let revision = known_revision(connection)? + 1;
        let Some(migration) = MIGRATIONS.get(revision as usize - 1) else {
            return Ok(None);
        };
        let run = || {
            connection.execute_batch(migration.sql)?;
            connection.execute(RECORD_MIGRATION, (revision, migration.name))
        };
        match run() {
            Ok(_) => Ok(Some(migration.name.to_owned())),
            Err(error) => Err(MigrateError::Failed { revision, source: store_error(error) }),
        }
    })
}

/// The revision of the file, 0 if it has no schema; an error if this version does not know it.
fn known_revision(connection: &Connection) -> Result<u32, MigrateError> {
    let found = revision(connection).map_err(store_error)?.unwrap_or(0);
    let known = newest_revision();
    if found > known {
        return Err(MigrateError::Newer { found, known });
    }
    Ok(found)
}

/// The revision of the file, `None` if it has no schema.
pub(super) fn revision(connection: &Connection) -> Result<Option<u32>, rusqlite::Error> {
    let exists =
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'everfold_migrations'";
    match connection.query_row(exists, [], |_| Ok(())).optional()? {
        Some(()) => connection.query_row(READ_REVISION, [], |row| row.get(0)),
        None => Ok(None),
    }
}

/// Whether the file has the revision that this version needs.
pub(super) fn check_revision(connection: &Connection) -> Result<(), MigrateError> {
    match known_revision(connection)? {
        0 => Err(MigrateError::Missing),
        found if found < newest_revision() => {
            Err(MigrateError::Older { found, needed: newest_revision() })
        }
        _ => Ok(()),
    }
}

/// What events depend on, looked at whenever a store is opened.
pub(super) fn assert_safe(connection: &Connection) -> Result<(), OpenError> {
    let (sequence, highest) = sequence(connection).map_err(store_error)?;
    if highest > sequence {
        return Err(OpenError::Unsafe {
            message: format!(
                "position {highest} is stored, but only {sequence} were handed out: the next event \
                 could get a position that readers have passed"
            ),
            hint: "sqlite_sequence was changed by hand: set the row of everfold_events to the \
                   highest position"
                .to_owned(),
        });
    }
    let differences = differences(connection).map_err(store_error)?;
    let missing = differences.iter().find(|line| line.starts_with("- everfold_events"));
    match missing {
        Some(line) => Err(OpenError::Unsafe {
            message: format!("the table of events is not as it was made: {line}"),
            hint: "see `everfold schema assert`, and put back what is missing".to_owned(),
        }),
        None => Ok(()),
    }
}

/// The highest position handed out, and the highest stored.
pub(super) fn sequence(connection: &Connection) -> Result<(i64, i64), rusqlite::Error> {
    connection.query_row(READ_SEQUENCE, [], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Tables, indexes and triggers by name: the kind of thing, and its SQL.
type Objects = BTreeMap<String, (String, String)>;

/// Lines that stand in a fresh install and not in this file (`-`), or the other way round (`+`).
pub(super) fn differences(connection: &Connection) -> Result<Vec<String>, rusqlite::Error> {
    let actual: Objects =
        objects(connection)?.into_iter().map(|(kind, name, sql)| (name, (kind, sql))).collect();
    Ok(compare(&parse(SCHEMA), &actual))
}

/// Kind, name and SQL of what is in the file, in the order of the dump.
fn objects(connection: &Connection) -> Result<Vec<(String, String, String)>, rusqlite::Error> {
    let mut statement = connection.prepare(LIST_SCHEMA)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// Reads a dump: every object stands behind a line `-- kind name`.
fn parse(dump: &str) -> Objects {
    dump.split("\n-- ")
        .skip(1)
        .filter_map(|part| {
            let (head, sql) = part.split_once('\n')?;
            let (kind, name) = head.split_once(' ')?;
            let sql = sql.trim().trim_end_matches(';');
            Some((name.to_owned(), (kind.to_owned(), sql.to_owned())))
        })
        .collect()
}

fn compare(expected: &Objects, actual: &Objects) -> Vec<String> {
    let mut names: Vec<&String> = expected.keys().chain(actual.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let lines = |objects: &Objects, name: &String| -> Vec<String> {
        let sql = objects.get(name).map_or("", |(_, sql)| sql.as_str());
        sql.lines().map(|line| format!("{name}: {}", line.trim())).collect()
    };
    let mut differences = Vec::new();
    for name in names {
        let (expected, actual) = (lines(expected, name), lines(actual, name));
        let missing = expected.iter().filter(|line| !actual.contains(line));
        let added = actual.iter().filter(|line| !expected.contains(line));
        differences.extend(missing.map(|line| format!("- {line}")));
        differences.extend(added.map(|line| format!("+ {line}")));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        migrate(&connection, Duration::from_secs(1)).unwrap();
        connection
    }

    fn dump(connection: &Connection) -> String {
        let mut dump = "-- Dump of a fresh install, made and compared by a test of src/store/sqlite/schema.rs.\n\
             -- Change a migration, not this file.\n"
            .to_owned();
        for (kind, name, sql) in objects(connection).unwrap() {
            dump.push_str(&format!("\n-- {kind} {name}\n{sql};\n"));
        }
        dump
    }

    #[test]
    fn schema_file_is_the_dump_of_a_fresh_install() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/sqlite/schema.sql");
        let dump = dump(&fresh());
        if std::env::var_os("EVERFOLD_UPDATE").is_some() {
            std::fs::write(path, &dump).unwrap();
        }
        let file = std::fs::read_to_string(path).unwrap();
        assert!(
            file == dump,
            "sql/sqlite/schema.sql is not what the migrations make; \
             run this test with EVERFOLD_UPDATE=1 to write it anew, and look at the change"
        );
    }

    #[test]
    fn fresh_install_has_no_differences() {
        assert_eq!(differences(&fresh()).unwrap(), [""; 0]);
    }

    #[test]
    fn missing_changed_and_added_objects_are_differences() {
        let connection = fresh();
        connection
            .execute_batch(
                "DROP TRIGGER everfold_events_refuse_delete;
                 CREATE INDEX mine ON everfold_events (recorded_at);
                 CREATE TABLE orders (id TEXT);
                 ALTER TABLE everfold_imports ADD COLUMN note TEXT;",
            )
            .unwrap();
        let found = differences(&connection).unwrap();
        let with = |start: &str| found.iter().filter(|line| line.starts_with(start)).count();
        assert!(with("- everfold_events_refuse_delete: ") > 0, "{found:#?}");
        assert_eq!(with("+ mine: CREATE INDEX mine"), 1, "{found:#?}");
        assert_eq!(with("+ everfold_imports: "), 1, "{found:#?}");
        assert_eq!(found.iter().filter(|line| line.contains("orders")).count(), 0, "{found:#?}");
    }

    #[test]
    fn sql_run_by_hand_makes_the_same_schema() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&sql()).unwrap();
        check_revision(&connection).unwrap();
        assert_eq!(dump(&connection), dump(&fresh()));
        assert_eq!(migrate(&connection, Duration::ZERO).unwrap(), [""; 0]);
    }

    #[test]
    fn older_newer_and_missing_schemas_are_told_apart() {
        let connection = Connection::open_in_memory().unwrap();
        assert!(matches!(check_revision(&connection), Err(MigrateError::Missing)));
        let connection = fresh();
        connection.execute(RECORD_MIGRATION, (99, "from the future")).unwrap();
        let error = migrate(&connection, Duration::ZERO).unwrap_err();
        assert!(matches!(error, MigrateError::Newer { found: 99, .. }), "{error}");
    }

    #[test]
    fn store_without_its_guards_is_not_safe() {
        let breaks = [
            ("DROP TRIGGER everfold_events_refuse_update", "everfold_events_refuse_update"),
            ("DROP INDEX everfold_events_type_position_idx", "type_position_idx"),
        ];
        for (sql, wanted) in breaks {
            let connection = fresh();
            assert_safe(&connection).unwrap();
            connection.execute_batch(sql).unwrap();
            let message = assert_safe(&connection).unwrap_err().to_string();
            assert!(message.contains(wanted), "{message}");
        }
        let connection = fresh();
        connection
            .execute_batch(
                "INSERT INTO everfold_events
                     (stream_id, version, type, schema_version, data, metadata, id)
                 VALUES ('a', 1, 'T', 1, '{}', '{}', '0199a0c0-0000-7000-8000-000000000001');
                 DELETE FROM sqlite_sequence;",
            )
            .unwrap();
        let message = assert_safe(&connection).unwrap_err().to_string();
        assert!(message.contains("only 0 were handed out"), "{message}");
    }

    #[test]
    fn events_cannot_be_changed_or_removed() {
        let connection = fresh();
        connection
            .execute_batch(
                "INSERT INTO everfold_events
                     (stream_id, version, type, schema_version, data, metadata, id)
                 VALUES ('a', 1, 'T', 1, '{}', '{}', '0199a0c0-0000-7000-8000-000000000001');",
            )
            .unwrap();
        for sql in ["UPDATE everfold_events SET type = 'U'", "DELETE FROM everfold_events"] {
            let error = connection.execute(sql, []).unwrap_err().to_string();
            assert!(error.contains("events are append only"), "{error}");
        }
    }
}
