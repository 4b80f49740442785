//! The tables of a generation: made by its scripts, by the engine or by its handler, and shown to
//! readers by views.

use rusqlite::{Connection, OptionalExtension};

use super::apply::{guarded, offset, sqlite_handler};
use super::documents;
use super::names::view;
use super::plan::{Frame, physical, plan};
use super::views;
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::definition::{Body, Definition};
use crate::projection::projector::ApplyError;
use crate::projection::script::{Script, Scripts, SqlUpcaster, Statement, rules};
use crate::store::sqlite::error::{said, store_error};

const LIST_TABLES: &str = "SELECT substr(name, length(?1) + 1) FROM sqlite_schema \
    WHERE type = 'table' AND substr(name, 1, length(?1)) = ?1 ORDER BY name";
const FIND_PREFIX: &str = "SELECT name FROM sqlite_schema \
    WHERE substr(name, 1, length(?1)) = ?1 COLLATE NOCASE LIMIT 1";
const IS_THERE: &str = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE)";

/// Whatever has the prefix of a generation is dropped with it, so nothing else may have it.
pub(super) fn check_prefix(
    connection: &Connection,
    definition: &Definition,
    home: &str,
) -> Result<(), ProjectionError> {
    let there = connection.query_row(FIND_PREFIX, [home], |row| row.get::<_, String>(0)).optional();
    match there.map_err(store_error)? {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "the file has something called {name} already, where names that begin with {home} are \
                 to be those of this read model; rename it"
            );
            Err(invalid(definition, message))
        }
    }
}

/// Makes the tables and returns their names, without the prefix.
pub(super) fn create(
    connection: &Connection,
    projection: &Projection,
    home: &str,
) -> Result<Vec<String>, ProjectionError> {
    let definition = &projection.definition;
    match &definition.body {
        Body::Sql(scripts) => {
            let making = Making { connection, definition, home };
            rules::check_for_sqlite(&definition.name, &scripts.sqlite)?;
            let tables = making.run_create(&scripts.sqlite.create)?;
            making.check_upcasters(&scripts.sqlite.upcasters)?;
            making.check_apply(&scripts.sqlite)?;
            Ok(tables)
        }
        Body::Document { indexes } => {
            for sql in documents::create(&format!("{home}{}", definition.name), indexes) {
                connection.execute_batch(&sql).map_err(store_error)?;
            }
            Ok(vec![definition.name.clone()])
        }
        Body::Handler => set_up(connection, projection, home),
    }
}

/// Makes the views that readers use, of the generation that is active.
pub(super) fn show(
    connection: &Connection,
    definition: &Definition,
    home: &str,
    tables: &[String],
) -> Result<(), ProjectionError> {
    for table in tables {
        let name = view(&definition.namespace, table);
        let there = connection.query_row(IS_THERE, [&name], |row| row.get(0));
        if there.map_err(store_error)? {
            let message = format!(
                "the file has something called {name} already, where readers would look for the \
                 table {table}; rename one of them"
            );
            return Err(invalid(definition, message));
        }
        views::create(connection, &name, &format!("{home}{table}"), &[]).map_err(store_error)?;
    }
    Ok(())
}

fn set_up(
    connection: &Connection,
    projection: &Projection,
    home: &str,
) -> Result<Vec<String>, ProjectionError> {
    let definition = &projection.definition;
    let handler = sqlite_handler(&projection.projector);
    let set_up = |handler: &dyn crate::projection::SqliteHandler| {
        guarded(connection, || handler.set_up(home, connection))
    };
    match handler.and_then(set_up) {
        Ok(()) => {}
        Err(ApplyError::Store(error)) => return Err(error.into()),
        Err(ApplyError::Refused { message, .. } | ApplyError::Broken { message }) => {
            return Err(invalid(definition, format!("its set-up failed: {message}")));
        }
        Err(ApplyError::OutOfTime(_) | ApplyError::LeaseLost) => {
            unreachable!("registration has no time limit and holds no lease")
        }
    }
    let list = || -> Result<Vec<String>, rusqlite::Error> {
        connection.prepare(LIST_TABLES)?.query_map([home], |row| row.get(0))?.collect()
    };
    Ok(list().map_err(store_error)?)
}

fn invalid(definition: &Definition, message: String) -> ProjectionError {
    ProjectionError::Invalid { projection: definition.name.clone(), message }
}

/// The scripts of a SQL projection as they become a generation.
struct Making<'a> {
    connection: &'a Connection,
    definition: &'a Definition,
    home: &'a str,
}

impl Making<'_> {
    /// Runs `create.sql`, and returns the tables and views that it made.
    fn run_create(&self, script: &Script) -> Result<Vec<String>, ProjectionError> {
        let mut tables = Vec::new();
        for statement in self.statements(script)? {
            let sql = statement.rename_tables(|name| physical(self.home, name));
            self.connection
                .execute_batch(&sql)
                .map_err(|error| self.sql_error(script, &statement, &sql, error))?;
            let created = statement.created().filter(|created| created.in_read_model);
            tables.extend(created.map(|created| created.name));
        }
        Ok(tables)
    }

    /// Prepares each expression by itself, so that errors point into its own file.
    fn check_upcasters(&self, upcasters: &[SqlUpcaster]) -> Result<(), ProjectionError> {
        const BEFORE: &str = "SELECT (";
        for upcaster in upcasters {
            let script = &upcaster.expression;
            let sql = format!("{BEFORE}{}\n) FROM (SELECT '' AS data)", script.text);
            if let Err(error) = self.connection.prepare(&sql) {
                let line = sql[..offset(&error).unwrap_or(0).min(sql.len())].matches('\n').count();
                let line = u32::try_from(line).unwrap_or(0) + 1;
                return Err(self.wrong(script, line, &self.said(&error)));
            }
        }
        Ok(())
    }

    /// Prepares `apply.sql` in both forms.
    fn check_apply(&self, scripts: &Scripts) -> Result<(), ProjectionError> {
        let script = &scripts.apply;
        let frame = Frame {
            home: self.home,
            event_types: self.definition.event_types.as_deref(),
            key: &self.definition.key,
            shards: self.definition.shards,
        };
        let plan = plan(script, &scripts.upcasters, &frame)
            .map_err(|error| error.of(&self.definition.name, script))?;
        for planned in &plan.statements {
            for sql in [&planned.of_range, &planned.of_positions] {
                if let Err(error) = self.connection.prepare(sql) {
                    let line = planned.line(sql, offset(&error));
                    return Err(self.wrong(script, line, &self.said(&error)));
                }
            }
        }
        Ok(())
    }

    fn statements(&self, script: &Script) -> Result<Vec<Statement>, ProjectionError> {
        script.statements().map_err(|error| error.of(&self.definition.name, script))
    }

    fn sql_error(
        &self,
        script: &Script,
        statement: &Statement,
        sent: &str,
        error: rusqlite::Error,
    ) -> ProjectionError {
        let line = match offset(&error) {
            Some(offset) => statement.line_at_byte(sent, offset.min(sent.len())),
            None => statement.line,
        };
        self.wrong(script, line, &self.said(&error))
    }

    /// What SQLite said, with the tables under the names that the script has for them.
    fn said(&self, error: &rusqlite::Error) -> String {
        said(error).replace(self.home, "read_model.")
    }

    fn wrong(&self, script: &Script, line: u32, message: &str) -> ProjectionError {
        ProjectionError::Sql {
            projection: self.definition.name.clone(),
            file: script.file.display().to_string(),
            line,
            message: message.to_owned(),
        }
    }
}
