//! What `apply.sql` may do: change rows of the projection's own tables, from the events of `batch`.

use super::super::{Script, ScriptError, Statement};
use super::{check_statement, refuse};

const CHANGES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"];

pub(super) fn check_apply(script: &Script, tables: &[String]) -> Result<(), ScriptError> {
    let statements = script.statements()?;
    for statement in &statements {
        check_statement(statement)?;
        check_change(statement)?;
        check_tables(statement, tables)?;
    }
    if !statements.iter().any(|statement| statement.uses("batch")) {
        let message = "it does not look at any event; select them from the relation batch";
        return Err(ScriptError { line: 1, message: message.to_owned() });
    }
    Ok(())
}

fn check_change(statement: &Statement) -> Result<(), ScriptError> {
    let does = statement.main_keyword();
    if !CHANGES.contains(&does.as_str()) {
        let does = if does.is_empty() { "this" } else { &does };
        return refuse(
            statement,
            format!("{does} is not for applying events; use INSERT, UPDATE, DELETE or MERGE"),
        );
    }
    if statement.has_word("RETURNING") {
        let message = "nobody reads what RETURNING gives here; leave it out, or put the statement into \
                       WITH and use its rows";
        return refuse(statement, message.to_owned());
    }
    Ok(())
}

fn check_tables(statement: &Statement, tables: &[String]) -> Result<(), ScriptError> {
    if let Some(table) = statement.tables().iter().find(|table| !tables.contains(table)) {
        return refuse(
            statement,
            format!(
                "read_model.{table} is not made by this projection's create.sql; a projection \
                 sees its own tables only"
            ),
        );
    }
    match statement.written().into_iter().find(|written| !written.in_read_model) {
        Some(written) => refuse(
            statement,
            format!(
                "{name} is written to, and is outside the read model; a projection writes to \
                 its own tables only: read_model.{name}",
                name = written.name
            ),
        ),
        None => Ok(()),
    }
}

/// What holds on SQLite besides.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
pub(super) fn check_for_sqlite(script: &Script) -> Result<(), ScriptError> {
    let statements = script.statements()?;
    for statement in &statements {
        if statement.main_keyword() == "MERGE" {
            let message = "SQLite has no MERGE; write an apply.sqlite.sql beside it with INSERT … ON \
                           CONFLICT";
            return refuse(statement, message.to_owned());
        }
    }
    super::check_sqlite_parameters(&statements)
}
