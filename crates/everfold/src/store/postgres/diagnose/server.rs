//! Version, role, privileges, and whether the schema is the one that this version expects.

use tokio_postgres::Row;

use crate::diagnosis::Finding;
use crate::store::postgres::schema::functions_hash;

/// Oldest supported server.
const SERVER_VERSION_MIN: i32 = 140_000;

pub(super) fn findings(server: &Row) -> Vec<Finding> {
    let mut findings = vec![version(server), role(server), privileges(server)];
    findings.extend(missing_roles(server));
    findings.push(functions(server));
    findings
}

fn version(server: &Row) -> Finding {
    let version: i32 = server.get("version_number");
    let text: &str = server.get("version");
    match version >= SERVER_VERSION_MIN {
        true => Finding::ok("version", format!("PostgreSQL {text}")),
        false => Finding::problem(
            "version",
            format!("PostgreSQL {text} is too old"),
            "use PostgreSQL 14 or later",
        ),
    }
}

fn role(server: &Row) -> Finding {
    match server.get::<_, bool>("in_recovery") {
        false => Finding::ok("role", "primary: takes appends"),
        true => Finding::warning(
            "role",
            "standby: read only",
            "append on the primary; the mark here is the one that the primary published",
        ),
    }
}

fn privileges(server: &Row) -> Finding {
    let user: &str = server.get("user");
    let (reads, appends): (bool, bool) = (server.get("may_read"), server.get("may_append"));
    let may = match (reads, appends) {
        (true, true) => "read and append",
        (true, false) => "only read",
        (false, true) => "only append",
        (false, false) => {
            return Finding::problem(
                "privileges",
                format!("{user} may neither read nor append"),
                format!("GRANT everfold_writer TO {user}"),
            );
        }
    };
    Finding::ok("privileges", format!("{user} may {may}"))
}

fn missing_roles(server: &Row) -> Option<Finding> {
    let missing: Vec<&str> = server.get("missing_roles");
    if missing.is_empty() {
        return None;
    }
    let hint = format!(
        "as a user who may: CREATE ROLE {}; then run `everfold schema apply`",
        missing.join("; CREATE ROLE ")
    );
    Some(Finding::warning("roles", format!("missing: {}", missing.join(", ")), hint))
}

fn functions(server: &Row) -> Finding {
    match server.get::<_, &str>("functions_hash") == functions_hash() {
        true => Finding::ok("functions", "of this version"),
        false => Finding::warning(
            "functions",
            "of another everfold version",
            "run `everfold schema apply` when all processes are of the new version",
        ),
    }
}

pub(super) fn pooler(through_pooler: bool) -> Finding {
    let message = match through_pooler {
        true => {
            "behind a pooler in transaction mode: unnamed statements, no wake-ups between processes"
        }
        false => "connected directly (or through a pooler in session mode)",
    };
    Finding::ok("pooler", message)
}

pub(super) fn schema(drift: &[String]) -> Finding {
    match drift {
        [] => Finding::ok("schema", "as this version expects"),
        [first, ..] => Finding::warning(
            "schema",
            format!(
                "differs from what this version expects in {} lines, first: {first}",
                drift.len()
            ),
            "look with `everfold schema assert`; `everfold schema apply` restores functions",
        ),
    }
}
