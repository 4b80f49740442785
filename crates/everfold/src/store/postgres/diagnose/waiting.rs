//! Who waits for whom: sessions for locks, and rebuilds for gates.

use tokio_postgres::Row;

use super::session::{Session, shown};
use crate::diagnosis::{Finding, held};
use crate::error::StoreError;
use crate::projection::HealthOptions;
use crate::store::postgres::connect::Connection;

const SESSIONS: &str = statement!("list_waiting_sessions");
const GATES: &str = statement!("list_gates_in_the_way");

/// Sessions that have waited for somebody else for a while.
pub(super) async fn sessions(
    connection: &Connection,
    options: &HealthOptions,
) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(SESSIONS, &[]).await?;
    let found: Vec<Finding> = rows.iter().filter_map(|row| session(row, options)).collect();
    Ok(or_nobody(found, "waiting", "nobody waits for a lock"))
}

fn session(row: &Row, options: &HealthOptions) -> Option<Finding> {
    let (seconds, severity) = held(row.get(3), options.mark_held_for)?;
    let holder = holder(row, 5);
    let application: Option<&str> = row.get(1);
    let message = format!(
        "pid {} ({}) has waited {seconds:.0} s for {}, which {} has{}",
        row.get::<_, i32>(0),
        application.filter(|name| !name.is_empty()).unwrap_or("no application name"),
        row.get::<_, &str>(4),
        holder.who(),
        shown(row.get(2))
    );
    Some(Finding::of(severity, "waiting", message, holder.end()))
}

/// Transactions that an open rebuild waits for, to begin or to switch.
pub(super) async fn gates(
    connection: &Connection,
    options: &HealthOptions,
) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(GATES, &[]).await?;
    let found: Vec<Finding> = rows.iter().filter_map(|row| gate(row, options)).collect();
    Ok(or_nobody(found, "gates", "no rebuild waits for a transaction"))
}

fn gate(row: &Row, options: &HealthOptions) -> Option<Finding> {
    let (seconds, severity) = held(row.get(2), options.mark_held_for)?;
    let holder = holder(row, 3);
    let message = format!(
        "{} holds a gate of {} for {seconds:.0} s; its rebuild ({}) waits{}",
        holder.who(),
        row.get::<_, &str>(0),
        row.get::<_, &str>(1),
        holder.last_query()
    );
    Some(Finding::of(severity, "gates", message, holder.end()))
}

/// Six columns from `first` on.
fn holder(row: &Row, first: usize) -> Session {
    Session {
        pid: row.get(first),
        prepared: row.get(first + 1),
        application: row.get(first + 2),
        user: row.get(first + 3),
        state: row.get(first + 4),
        query: row.get(first + 5),
    }
}

fn or_nobody(found: Vec<Finding>, check: &'static str, message: &str) -> Vec<Finding> {
    match found.is_empty() {
        true => vec![Finding::ok(check, message)],
        false => found,
    }
}
