//! What `create.sql` may do: make tables, indexes and views, and put first rows into them. On
//! PostgreSQL also what goes with tables: types, domains, sequences, statistics, comments.
//!
//! Functions and triggers are refused. The body of a function is text, in which `read_model.<table>`
//! cannot be mapped to the generation; and whatever changes a read model stands in `apply.sql`.

use super::super::effect::Created;
use super::super::{Script, ScriptError, Statement};
use super::{check_statement, refuse};
use crate::projection::builder::is_name;

/// Longest name of a table, so that it fits PostgreSQL's limit.
const TABLE_BYTES_MAX: usize = 63;
/// What may be created on both stores.
const ON_BOTH: [&str; 3] = ["TABLE", "INDEX", "VIEW"];
/// What may be created on PostgreSQL besides.
const ON_POSTGRES: [&str; 4] = ["TYPE", "DOMAIN", "SEQUENCE", "STATISTICS"];
const ALLOWED: &str = "create.sql may CREATE TABLE, INDEX and VIEW and INSERT first rows; on \
    PostgreSQL also CREATE TYPE, DOMAIN, SEQUENCE and STATISTICS, ALTER TABLE and COMMENT ON";

/// Returns the names under `read_model` that the script makes.
pub(super) fn check_create(script: &Script) -> Result<Vec<String>, ScriptError> {
    let mut made = Vec::new();
    let mut has_table = false;
    for statement in script.statements()? {
        check_statement(&statement)?;
        match statement.keyword().as_str() {
            "CREATE" => {
                let Some(created) = check_created(&statement)? else { continue };
                has_table |= created.what == "TABLE";
                if created.in_read_model {
                    made.push(created.name);
                }
            }
            "INSERT" | "WITH" if statement.main_keyword() == "INSERT" => {
                check_first_rows(&statement, &made)?;
            }
            "ALTER" => check_altered(&statement, &made)?,
            "COMMENT" => {}
            keyword => {
                let keyword = if keyword.is_empty() { "this" } else { keyword };
                return refuse(&statement, format!("{keyword} may not stand here: {ALLOWED}"));
            }
        }
    }
    if !has_table {
        let message = "it makes no table; begin with CREATE TABLE read_model.<table> (…)";
        return Err(ScriptError { line: 1, message: message.to_owned() });
    }
    Ok(made)
}

fn check_created(statement: &Statement) -> Result<Option<Created>, ScriptError> {
    let what = statement.creates();
    if ["FUNCTION", "PROCEDURE", "TRIGGER", "AGGREGATE", "RULE"].contains(&what.as_str()) {
        return refuse(
            statement,
            format!(
                "CREATE {what} may not stand here: what changes a read model, or is computed for it, \
                 stands in apply.sql"
            ),
        );
    }
    if !ON_BOTH.contains(&what.as_str()) && !ON_POSTGRES.contains(&what.as_str()) {
        return refuse(statement, format!("CREATE {what} may not stand here: {ALLOWED}"));
    }
    if ["TEMP", "TEMPORARY"].iter().any(|word| statement.word(1) == *word) {
        let message = "what is temporary is gone with the session; leave TEMP out".to_owned();
        return refuse(statement, message);
    }
    // Statistics and indexes may go without a name.
    let Some(created) = statement.created() else { return Ok(None) };
    check_name(statement, &created)?;
    Ok(Some(created))
}

fn check_name(statement: &Statement, created: &Created) -> Result<(), ScriptError> {
    let Created { what, name, in_read_model, .. } = created;
    match what.as_str() {
        "INDEX" if *in_read_model => refuse(
            statement,
            format!("an index is where its table is; call it {name}, without read_model"),
        ),
        "INDEX" => Ok(()),
        _ if !in_read_model => {
            let what = what.to_lowercase();
            refuse(
                statement,
                format!("the {what} {name} is outside the read model; call it read_model.{name}"),
            )
        }
        "TABLE" | "VIEW" if !is_name(name, TABLE_BYTES_MAX) => {
            let what = what.to_lowercase();
            refuse(
                statement,
                format!(
                    "the {what} name \"{name}\" is not allowed: lower case letters, digits and _, \
                     with a letter first, at most {TABLE_BYTES_MAX}"
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Rows that are there before the first event.
fn check_first_rows(statement: &Statement, made: &[String]) -> Result<(), ScriptError> {
    if statement.uses("batch") {
        let message = "there are no events yet when this runs; select them from batch in apply.sql";
        return refuse(statement, message.to_owned());
    }
    let other = |written: &super::super::effect::Written| {
        !written.in_read_model || !made.contains(&written.name)
    };
    match statement.written().into_iter().find(other) {
        Some(written) => refuse(
            statement,
            format!(
                "{} is not a table that was made above; first rows go into those",
                written.name
            ),
        ),
        None => Ok(()),
    }
}

fn check_altered(statement: &Statement, made: &[String]) -> Result<(), ScriptError> {
    let altered = statement.altered_table().filter(|table| made.contains(table));
    if altered.is_none() {
        let message =
            "only tables that were made above may be altered: ALTER TABLE read_model.<table>";
        return refuse(statement, message.to_owned());
    }
    for word in ["RENAME", "SCHEMA", "OWNER"] {
        if statement.has_word(word) {
            return refuse(
                statement,
                format!("{word} may not be altered: everfold gives name, schema and owner"),
            );
        }
    }
    Ok(())
}

/// What holds on SQLite besides.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
pub(super) fn check_for_sqlite(script: &Script) -> Result<(), ScriptError> {
    let statements = script.statements()?;
    for statement in &statements {
        let keyword = statement.keyword();
        let what = if keyword == "CREATE" { statement.creates() } else { String::new() };
        let on_postgres = ON_POSTGRES.contains(&what.as_str());
        if on_postgres || ["ALTER", "COMMENT"].contains(&keyword.as_str()) {
            let does = format!("{keyword} {what}");
            return refuse(
                statement,
                format!(
                    "{} is for PostgreSQL alone; write a create.sqlite.sql beside it that does \
                     without",
                    does.trim_end()
                ),
            );
        }
        if what != "INDEX" {
            continue;
        }
        if statement.created().is_none() {
            return refuse(statement, "an index needs a name here; give it one".to_owned());
        }
        if statement.tables().is_empty() {
            let message =
                "an index is made on read_model.<table>; put read_model. before the table";
            return refuse(statement, message.to_owned());
        }
    }
    super::check_sqlite_parameters(&statements)
}
