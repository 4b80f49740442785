//! What the store rests on: start-up checks, and the findings of `everfold doctor`.

use tokio_postgres::Row;

use super::connect::{Connection, Connections};
use super::types::Time;
use crate::Position;
use crate::diagnosis::{Diagnosis, Finding, MarkHolder};
use crate::error::{OpenError, StoreError};

const STARTUP_CHECKS: &str = "SELECT name, safe, message, hint FROM everfold.startup_checks()";
const HOLDERS: &str = "SELECT announced, pid, prepared, application, username, client, state, \
    since, query, extract(epoch FROM clock_timestamp() - since)::float8 \
    FROM everfold.high_water_mark_holders()";
const SERVER: &str = include_str!("../../../sql/postgres/statements/describe_server.sql");

/// Oldest supported server.
const SERVER_VERSION_MIN: i32 = 140_000;

/// Refuses to open a store whose events could be lost.
pub(super) async fn assert_safe(connections: &Connections) -> Result<(), OpenError> {
    let connection = connections.get().await?;
    for row in connection.query(STARTUP_CHECKS, &[]).await? {
        let safe: Option<bool> = row.get(1);
        if safe != Some(true) {
            return Err(OpenError::Unsafe { message: row.get(2), hint: row.get(3) });
        }
    }
    Ok(())
}

pub(super) async fn diagnose(connections: &Connections) -> Result<Diagnosis, StoreError> {
    let connection = connections.get().await?;
    let server = connection.query_one(SERVER, &[]).await?;
    let mut findings = server_findings(&server);
    findings.push(pooler_finding(connections.through_pooler()));
    findings.push(schema_finding(&super::schema::drift_of(&connection).await?));
    findings.extend(startup_findings(&connection).await?);
    let mark = connection.query_one("SELECT everfold.high_water_mark()", &[]).await;
    let high_water_mark = match mark {
        Ok(row) => Some(Position::from_stored(row.get(0))),
        Err(error) => {
            let (message, hint) = match error.to_string().split_once("; ") {
                Some((message, hint)) => (message.to_owned(), hint.to_owned()),
                None => (error.to_string(), "mend that first".to_owned()),
            };
            findings.push(Finding::problem("mark", message, hint));
            None
        }
    };
    let holders: Vec<MarkHolder> =
        connection.query(HOLDERS, &[]).await?.iter().map(holder).collect();
    findings.extend(holders.iter().filter_map(old_holder));
    Ok(Diagnosis {
        version: format!("PostgreSQL {}", server.get::<_, &str>("version")),
        high_water_mark,
        last_position: Position::from_stored(server.get("highest_position")),
        findings,
        holders,
    })
}

async fn startup_findings(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(STARTUP_CHECKS, &[]).await?;
    let finding = |row: &Row| {
        let check = match row.get::<_, &str>(0) {
            "sequence" => "sequence",
            "identity" => "identity",
            "positions" => "positions",
            "append only" => "append only",
            _ => "isolation",
        };
        match row.get::<_, Option<bool>>(1) {
            Some(true) => Finding::ok(check, row.get::<_, String>(2)),
            _ => Finding::problem(check, row.get::<_, String>(2), row.get::<_, String>(3)),
        }
    };
    Ok(rows.iter().map(finding).collect())
}

fn pooler_finding(through_pooler: bool) -> Finding {
    let message = match through_pooler {
        true => {
            "behind a pooler in transaction mode: unnamed statements, no wake-ups between processes"
        }
        false => "connected directly (or through a pooler in session mode)",
    };
    Finding::ok("pooler", message)
}

/// Server version, role, settings and privileges.
fn server_findings(server: &Row) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version: i32 = server.get("version_number");
    let version_text: &str = server.get("version");
    findings.push(match version >= SERVER_VERSION_MIN {
        true => Finding::ok("version", format!("PostgreSQL {version_text}")),
        false => Finding::problem(
            "version",
            format!("PostgreSQL {version_text} is too old"),
            "use PostgreSQL 14 or later",
        ),
    });
    findings.push(match server.get::<_, bool>("in_recovery") {
        false => Finding::ok("role", "primary: takes appends"),
        true => Finding::warning(
            "role",
            "standby: read only",
            "append on the primary; the mark here is the one that the primary published",
        ),
    });
    findings.push(privilege_finding(server));
    findings.extend(SETTINGS.map(|setting| setting_finding(server, &setting)));
    let prepared: i64 = server.get("prepared_transactions");
    findings.push(match prepared {
        0 => Finding::ok("prepared transactions", "none"),
        n => Finding::warning(
            "prepared transactions",
            format!("{n} prepared, the oldest for {:.0} s", server.get::<_, f64>("oldest_prepared_seconds")),
            "a prepared append holds the mark: COMMIT PREPARED or ROLLBACK PREPARED each of pg_prepared_xacts",
        ),
    });
    findings.extend(missing_roles(server));
    findings.push(function_finding(server));
    findings
}

fn privilege_finding(server: &Row) -> Finding {
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

/// A setting, the value that is dangerous, why, and what to set.
struct Setting {
    name: &'static str,
    bad: &'static str,
    danger: &'static str,
    advice: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        name: "fsync",
        bad: "off",
        danger: "a crash of the machine loses committed events",
        advice: "set fsync = on in postgresql.conf",
    },
    Setting {
        name: "full_page_writes",
        bad: "off",
        danger: "a crash can corrupt the database",
        advice: "set full_page_writes = on in postgresql.conf",
    },
    Setting {
        name: "synchronous_commit",
        bad: "off",
        danger: "a crash of the server loses the last committed events",
        advice: "set synchronous_commit = on, at least for the application's role",
    },
    Setting {
        name: "idle_in_transaction_session_timeout",
        bad: "0",
        danger: "an abandoned transaction that has appended holds the mark until somebody ends it",
        advice: "ALTER ROLE … SET idle_in_transaction_session_timeout = '60s' for the application's role",
    },
];

fn setting_finding(server: &Row, setting: &Setting) -> Finding {
    let value: &str = server.get(setting.name);
    let message = format!("{} = {value}", setting.name);
    match value == setting.bad {
        true => {
            let message = format!("{message}: {}", setting.danger);
            Finding::warning(setting.name, message, setting.advice)
        }
        false => Finding::ok(setting.name, message),
    }
}

fn schema_finding(drift: &[String]) -> Finding {
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

fn function_finding(server: &Row) -> Finding {
    match server.get::<_, &str>("functions_hash") == super::schema::functions_hash() {
        true => Finding::ok("functions", "of this version"),
        false => Finding::warning(
            "functions",
            "of another everfold version",
            "run `everfold schema apply` when all processes are of the new version",
        ),
    }
}

fn holder(row: &Row) -> MarkHolder {
    MarkHolder {
        holds_at: Position::from_stored(row.get::<_, i64>(0).max(0)),
        pid: row.get(1),
        prepared: row.get(2),
        application: row.get(3),
        user: row.get(4),
        client: row.get(5),
        state: row.get(6),
        since: row.get::<_, Option<Time>>(7).map(|time| time.0),
        query: row.get(8),
        seconds: row.get(9),
    }
}

/// An append that has been in flight for so long that somebody should look.
const OLD_SECONDS: f64 = 5.0;

fn old_holder(holder: &MarkHolder) -> Option<Finding> {
    let seconds = holder.seconds.filter(|&seconds| seconds > OLD_SECONDS)?;
    let (who, hint) = match (&holder.prepared, holder.pid) {
        (Some(gid), _) => (
            format!("prepared transaction '{gid}'"),
            format!("COMMIT PREPARED '{gid}' or ROLLBACK PREPARED '{gid}'"),
        ),
        (None, Some(pid)) => (
            format!(
                "pid {pid} ({}, {})",
                holder.application.as_deref().unwrap_or("no application name"),
                holder.state.as_deref().unwrap_or("unknown state")
            ),
            format!("end its transaction, or SELECT pg_terminate_backend({pid})"),
        ),
        (None, None) => return None,
    };
    let message =
        format!("{who} holds the high-water mark at {} for {seconds:.0} s", holder.holds_at);
    Some(Finding::warning("mark", message, hint))
}
