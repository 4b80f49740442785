//! How many connections and locks are left.

use tokio_postgres::Row;

use crate::diagnosis::Finding;
use crate::error::StoreError;
use crate::store::postgres::connect::Connection;
use crate::store::postgres::projection::names::quoted;

const COUNT: &str = statement!("count_connections");

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let row = connection.query_one(COUNT, &[]).await?;
    let mut findings = vec![taken(&row)];
    findings.extend(of_role(&row));
    findings.extend(of_database(&row));
    findings.push(locks(&row));
    Ok(findings)
}

/// Taken of those that an ordinary role may take.
fn taken(row: &Row) -> Finding {
    let [taken, most, reserved] = ["taken", "most", "reserved"].map(|name| row.get::<_, i64>(name));
    let takers: Vec<String> = row.get("takers");
    let message = format!("{taken} of {} taken, {reserved} more for superusers", most - reserved);
    let message = match share(taken, most - reserved) {
        Share::Plenty => return Finding::ok("connections", message),
        _ => format!("{message}; most by {}", takers.join(", ")),
    };
    let hint = "SELECT pid, usename, application_name, state, state_change FROM pg_stat_activity \
        ORDER BY state_change; then SELECT pg_terminate_backend(pid) for those that nobody needs; lower \
        pool_size, or raise max_connections";
    graded(share(taken, most - reserved), "connections", message, hint.to_owned())
}

fn of_role(row: &Row) -> Option<Finding> {
    let (taken, most): (i64, Option<i64>) = (row.get("of_role"), row.get("most_of_role"));
    let (most, role) = (most.filter(|most| *most >= 0)?, row.get::<_, &str>("role"));
    let message = format!("{taken} of {most} that role {role} may have are taken");
    let hint = format!("ALTER ROLE {} CONNECTION LIMIT {}", quoted(role), (most * 2).max(10));
    near_limit(share(taken, most), message, hint)
}

fn of_database(row: &Row) -> Option<Finding> {
    let (taken, most): (i64, Option<i64>) = (row.get("of_database"), row.get("most_of_database"));
    let (most, database) = (most.filter(|most| *most >= 0)?, row.get::<_, &str>("database"));
    let message = format!("{taken} of {most} that database {database} may have are taken");
    let hint =
        format!("ALTER DATABASE {} CONNECTION LIMIT {}", quoted(database), (most * 2).max(10));
    near_limit(share(taken, most), message, hint)
}

fn near_limit(share: Share, message: String, hint: String) -> Option<Finding> {
    (share != Share::Plenty).then(|| graded(share, "connections", message, hint))
}

/// A transaction that appends to many streams takes a lock for each, of a table that all share.
fn locks(row: &Row) -> Finding {
    let (taken, most): (i64, i64) = (row.get("locks"), row.get("most_locks"));
    let message = format!("about {taken} of {most} places in the lock table are taken");
    let hint = "SELECT pid, count(*) FROM pg_locks GROUP BY pid ORDER BY 2 DESC; append to fewer \
        streams in one transaction, or ALTER SYSTEM SET max_locks_per_transaction = 256 and restart";
    match share(taken, most) {
        Share::Plenty => Finding::ok("locks", message),
        share => graded(share, "locks", message, hint.to_owned()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Below 80 %.
    Plenty,
    /// Below 95 %.
    Little,
    /// The next one may be refused.
    Hardly,
}

fn share(taken: i64, most: i64) -> Share {
    match taken * 100 {
        part if part >= most * 95 => Share::Hardly,
        part if part >= most * 80 => Share::Little,
        _ => Share::Plenty,
    }
}

fn graded(share: Share, check: &'static str, message: String, hint: String) -> Finding {
    match share {
        Share::Hardly => Finding::problem(check, message, hint),
        _ => Finding::warning(check, message, hint),
    }
}
