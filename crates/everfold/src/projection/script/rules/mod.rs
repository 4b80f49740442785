//! What the SQL of a projection must obey, as far as it can be seen without a database: mistakes are
//! told with file and line before anything is registered.

mod apply;
mod create;
#[cfg(test)]
mod tests;

use super::{ScriptError, Scripts, SqlUpcaster, Statement};
use crate::error::ProjectionError;
use apply::check_apply;
use create::check_create;

/// What changes the transaction or the session, which are everfold's.
const NOT_ALLOWED: [&str; 24] = [
    "BEGIN",
    "START",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "RELEASE",
    "PREPARE",
    "EXECUTE",
    "DEALLOCATE",
    "SET",
    "RESET",
    "DISCARD",
    "LISTEN",
    "NOTIFY",
    "UNLISTEN",
    "VACUUM",
    "PRAGMA",
    "ATTACH",
    "DETACH",
    "COPY",
    "CALL",
    "DO",
];
/// Checks the scripts of one dialect, by what holds on both kinds of store. What PostgreSQL alone
/// refuses it says itself, when a projection is registered.
///
/// # Errors
/// The first thing that is wrong, with file and line.
pub(crate) fn check(projection: &str, scripts: &Scripts) -> Result<(), ProjectionError> {
    let Scripts { create, apply, upcasters } = scripts;
    let tables = check_create(create).map_err(|error| error.of(projection, create))?;
    check_apply(apply, &tables).map_err(|error| error.of(projection, apply))?;
    for (index, upcaster) in upcasters.iter().enumerate() {
        let earlier = index.checked_sub(1).map(|before| &upcasters[before]);
        check_upcaster(upcaster, earlier)
            .map_err(|error| error.of(projection, &upcaster.expression))?;
    }
    Ok(())
}

/// Checks scripts for SQLite by what holds there alone: one text may serve both stores, or be meant
/// for PostgreSQL.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
pub(crate) fn check_for_sqlite(projection: &str, scripts: &Scripts) -> Result<(), ProjectionError> {
    let Scripts { create, apply, upcasters } = scripts;
    create::check_for_sqlite(create).map_err(|error| error.of(projection, create))?;
    apply::check_for_sqlite(apply).map_err(|error| error.of(projection, apply))?;
    for SqlUpcaster { expression, .. } in upcasters {
        check_sqlite_parameters(&expression.statements().unwrap_or_default())
            .map_err(|error| error.of(projection, expression))?;
    }
    Ok(())
}

#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
fn check_sqlite_parameters(statements: &[Statement]) -> Result<(), ScriptError> {
    for statement in statements {
        if let Some(parameter) = statement.sqlite_parameter() {
            return refuse_parameter(statement, parameter);
        }
    }
    Ok(())
}

fn refuse_parameter(statement: &Statement, parameter: &str) -> Result<(), ScriptError> {
    refuse(
        statement,
        format!("{parameter} is a parameter, and nobody gives it a value; write the value"),
    )
}

fn check_statement(statement: &Statement) -> Result<(), ScriptError> {
    let keyword = statement.keyword();
    if NOT_ALLOWED.contains(&keyword.as_str()) {
        return refuse(
            statement,
            format!("{keyword} is not allowed: everfold runs this in a transaction of its own"),
        );
    }
    match statement.parameter() {
        Some(parameter) => refuse_parameter(statement, parameter),
        None => Ok(()),
    }
}

/// An upcaster is one expression that cannot get out of the parentheses it is put into, and its
/// type has one for each schema version from the first to the last.
fn check_upcaster(
    upcaster: &SqlUpcaster,
    earlier: Option<&SqlUpcaster>,
) -> Result<(), ScriptError> {
    let SqlUpcaster { event_type, schema_version, expression } = upcaster;
    let statements = expression.statements()?;
    let [statement] = statements.as_slice() else {
        let message = "an upcaster is one SQL expression over data, such as data || '{\"a\": 1}'";
        return Err(ScriptError { line: 1, message: message.to_owned() });
    };
    check_statement(statement)?;
    if !statement.is_balanced() {
        return refuse(statement, "the parentheses of this expression do not match".to_owned());
    }
    let before = earlier.filter(|earlier| earlier.event_type == *event_type);
    match before.map(|before| before.schema_version) {
        Some(before) if before == *schema_version => refuse(
            statement,
            format!("{event_type} has two upcasters from schema version {before}; leave one out"),
        ),
        Some(before) if before + 1 != *schema_version => refuse(
            statement,
            format!(
                "{event_type} has upcasters from schema versions {before} and {schema_version} and \
                 none between; add the one from {}",
                before + 1
            ),
        ),
        _ => Ok(()),
    }
}

fn refuse<T>(statement: &Statement, message: String) -> Result<T, ScriptError> {
    Err(ScriptError { line: statement.line, message })
}
