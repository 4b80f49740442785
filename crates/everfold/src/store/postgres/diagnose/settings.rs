//! Settings of the server and of this role that lose events or hide trouble.

use tokio_postgres::Row;

use crate::diagnosis::Finding;
use crate::store::postgres::projection::names::quoted;

/// A setting, the value that is dangerous, why, and what to set, where `{role}` is this role.
struct Setting {
    name: &'static str,
    bad: &'static str,
    danger: &'static str,
    advice: &'static str,
}

const SETTINGS: [Setting; 6] = [
    Setting {
        name: "fsync",
        bad: "off",
        danger: "a crash of the machine loses committed events",
        advice: "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
    },
    Setting {
        name: "full_page_writes",
        bad: "off",
        danger: "a crash can corrupt the database",
        advice: "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
    },
    Setting {
        name: "synchronous_commit",
        bad: "off",
        danger: "a crash of the server loses the last committed events",
        advice: "ALTER ROLE {role} SET synchronous_commit = on, and likewise for the role of each application",
    },
    Setting {
        name: "idle_in_transaction_session_timeout",
        bad: "0",
        danger: "an abandoned transaction that has appended holds the mark until somebody ends it",
        advice: "ALTER ROLE {role} SET idle_in_transaction_session_timeout = '60s', and likewise for the \
            role of each application",
    },
    Setting {
        name: "autovacuum",
        bad: "off",
        danger: "dead rows of checkpoints and read models pile up, and the transaction numbers run out",
        advice: "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
    },
    Setting {
        name: "track_activities",
        bad: "off",
        danger: "who holds the mark can be named, but not what he does nor since when",
        advice: "ALTER SYSTEM SET track_activities = on; SELECT pg_reload_conf()",
    },
];

pub(super) fn findings(server: &Row) -> Vec<Finding> {
    let role = quoted(server.get("user"));
    SETTINGS.iter().map(|setting| finding(setting, server.get(setting.name), &role)).collect()
}

fn finding(setting: &Setting, value: &str, role: &str) -> Finding {
    let message = format!("{} = {value}", setting.name);
    match value == setting.bad {
        true => {
            let message = format!("{message}: {}", setting.danger);
            Finding::warning(setting.name, message, setting.advice.replace("{role}", role))
        }
        false => Finding::ok(setting.name, message),
    }
}
