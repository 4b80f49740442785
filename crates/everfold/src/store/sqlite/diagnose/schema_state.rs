//! Whether the schema is the one that this version expects.

use rusqlite::Connection;

use crate::diagnosis::Finding;
use crate::store::sqlite::schema;

pub(super) fn finding(connection: &Connection) -> Result<Finding, rusqlite::Error> {
    let revision = schema::revision(connection)?.unwrap_or(0);
    let needed = schema::newest_revision();
    if revision != needed {
        return Ok(Finding::problem(
            "schema",
            format!("revision {revision}, this everfold needs {needed}"),
            "run `everfold schema apply` with the newest everfold in use",
        ));
    }
    let differences = schema::differences(connection)?;
    Ok(match differences.as_slice() {
        [] => Finding::ok("schema", format!("revision {revision}, as it was made")),
        [first, ..] => Finding::warning(
            "schema",
            format!("revision {revision}, {} lines differ: {first}", differences.len()),
            "see `everfold schema assert`",
        ),
    })
}
