//! What the SQL of a projection must obey, as far as it can be seen without a database: mistakes are
//! told with file and line before anything is registered.

use super::{Script, ScriptError, Scripts, SqlUpcaster, Statement};
use crate::error::ProjectionError;

/// Longest name of a table, so that it fits PostgreSQL's limit.
const TABLE_BYTES_MAX: usize = 63;
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
/// What `apply` may do.
const CHANGES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"];

/// Checks the scripts of one dialect.
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

/// Returns the names under `read_model` that the script makes.
fn check_create(script: &Script) -> Result<Vec<String>, ScriptError> {
    let mut made = Vec::new();
    let mut has_table = false;
    for statement in script.statements()? {
        check_statement(&statement)?;
        let Some(created) = statement.created() else { continue };
        let name = &created.name;
        match created.what.as_str() {
            "TABLE" | "VIEW" | "SEQUENCE" | "TYPE" if !created.in_read_model => {
                let what = created.what.to_lowercase();
                return refuse(
                    &statement,
                    format!(
                        "the {what} {name} is outside the read model; call it read_model.{name}"
                    ),
                );
            }
            "TABLE" if !is_table_name(name) => {
                return refuse(
                    &statement,
                    format!(
                        "the table name \"{name}\" is not allowed: lower case letters, digits and _, \
                         with a letter first, at most {TABLE_BYTES_MAX}"
                    ),
                );
            }
            "INDEX" if created.in_read_model => {
                return refuse(
                    &statement,
                    format!("an index is where its table is; call it {name}, without read_model"),
                );
            }
            _ => {}
        }
        has_table |= created.what == "TABLE";
        if created.in_read_model {
            made.push(created.name);
        }
    }
    if !has_table {
        let message = "it makes no table; begin with CREATE TABLE read_model.<table> (…)";
        return Err(ScriptError { line: 1, message: message.to_owned() });
    }
    Ok(made)
}

fn check_apply(script: &Script, tables: &[String]) -> Result<(), ScriptError> {
    let statements = script.statements()?;
    for statement in &statements {
        check_statement(statement)?;
        let does = statement.main_keyword();
        if !CHANGES.contains(&does.as_str()) {
            let does = if does.is_empty() { "this" } else { &does };
            return refuse(
                statement,
                format!("{does} is not for applying events; use INSERT, UPDATE, DELETE or MERGE"),
            );
        }
        if let Some(table) = statement.tables().iter().find(|table| !tables.contains(table)) {
            return refuse(
                statement,
                format!(
                    "read_model.{table} is not made by this projection's create.sql; a projection \
                     sees its own tables only"
                ),
            );
        }
    }
    if !statements.iter().any(|statement| statement.uses("batch")) {
        let message = "it does not look at any event; select them from the relation batch";
        return Err(ScriptError { line: 1, message: message.to_owned() });
    }
    Ok(())
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
        Some(parameter) => refuse(
            statement,
            format!("{parameter} is a parameter, and nobody gives it a value; write the value"),
        ),
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

fn is_table_name(name: &str) -> bool {
    crate::projection::builder::is_name(name, TABLE_BYTES_MAX)
}

fn refuse<T>(statement: &Statement, message: String) -> Result<T, ScriptError> {
    Err(ScriptError { line: statement.line, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str, text: &str) -> Script {
        Script::given(name, text)
    }

    #[track_caller]
    fn refused(create: &str, apply: &str, upcasters: &[(u32, &str)], expected: &str) {
        let step = |(version, text): &(u32, &str)| SqlUpcaster {
            event_type: "T".to_owned(),
            schema_version: *version,
            expression: script("upcaster", text),
        };
        let scripts = Scripts {
            create: script("create", create),
            apply: script("apply", apply),
            upcasters: upcasters.iter().map(step).collect(),
        };
        match (check("p", &scripts), expected) {
            (Ok(()), "") => {}
            (Ok(()), _) => panic!("not refused: {create} / {apply} / {upcasters:?}"),
            (Err(error), _) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{error}");
            }
        }
    }

    const CREATE: &str = "CREATE TABLE read_model.a (x TEXT);\nCREATE INDEX i ON read_model.a (x);";
    const APPLY: &str = "INSERT INTO read_model.a SELECT type FROM batch";

    #[test]
    fn good_scripts_pass() {
        refused(CREATE, APPLY, &[(1, "data"), (2, "(data -> 'a') -- old\n")], "");
        let staged = "INSERT INTO read_model.b SELECT 1 FROM batch; DELETE FROM read_model.a;";
        refused(&format!("{CREATE} CREATE TABLE read_model.b (y TEXT)"), staged, &[], "");
    }

    #[test]
    fn create_makes_tables_in_the_read_model() {
        for (create, expected) in [
            ("", "create:1: it makes no table"),
            ("-- nothing", "it makes no table"),
            (
                "\nCREATE TABLE a (x TEXT)",
                "create:2: the table a is outside the read model; call it",
            ),
            ("CREATE TEMP TABLE a (x TEXT)", "outside the read model"),
            ("CREATE TABLE public.a (x TEXT)", "the table a is outside the read model"),
            ("CREATE TABLE read_model.\"A\" (x TEXT)", "the table name \"A\" is not allowed"),
            ("CREATE TABLE read_model.\"a\"\"; DROP\" (x TEXT)", "is not allowed"),
            (
                "CREATE TABLE read_model.a (x TEXT);\nCREATE INDEX read_model.i ON a (x)",
                "create:2: an index",
            ),
            ("BEGIN; CREATE TABLE read_model.a (x TEXT)", "BEGIN is not allowed"),
            ("CREATE TABLE read_model.a (x TEXT); commit", "COMMIT is not allowed"),
        ] {
            refused(create, APPLY, &[], expected);
        }
    }

    #[test]
    fn apply_changes_own_tables_from_the_batch() {
        for (apply, expected) in [
            ("", "apply:1: it does not look at any event"),
            ("DELETE FROM read_model.a -- batch", "it does not look at any event"),
            ("SELECT * FROM batch", "SELECT is not for applying events"),
            ("WITH b AS (SELECT * FROM batch) SELECT 1", "SELECT is not for applying events"),
            ("TRUNCATE read_model.a", "TRUNCATE is not for applying events"),
            ("DROP TABLE read_model.a", "DROP is not for applying events"),
            ("(SELECT 1)", "this is not for applying events"),
            (
                "INSERT INTO read_model.a SELECT x FROM\nbatch;\nDELETE FROM read_model.c",
                "apply:3: read_model.c is not made",
            ),
            ("INSERT INTO read_model.a SELECT $1 FROM batch", "$1 is a parameter"),
            ("SET search_path = public", "SET is not allowed"),
            ("DELETE FROM read_model.a WHERE x = 'a", "apply:1: the string"),
        ] {
            refused(CREATE, apply, &[], expected);
        }
    }

    #[test]
    fn upcaster_is_one_expression() {
        for (upcasters, expected) in [
            (&[(1, "")][..], "upcaster:1: an upcaster is one SQL expression"),
            (&[(1, "data; DROP TABLE x")], "an upcaster is one SQL expression"),
            (&[(1, "data) FROM x WHERE (true")], "do not match"),
            (&[(1, "(data")], "do not match"),
            (&[(1, "data -- )\n || ')'")], ""),
            (&[(1, "data"), (3, "data")], "add the one from 2"),
            (&[(1, "data"), (1, "data")], "two upcasters from schema version 1"),
        ] {
            refused(CREATE, APPLY, upcasters, expected);
        }
    }
}
