//! Transactions that stay open: prepared ones, long ones, and slots that stand for them elsewhere.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::session::Session;
use crate::diagnosis::{Finding, since};
use crate::error::StoreError;
use crate::projection::HealthOptions;
use crate::store::postgres::connect::{Connection, Param};
use crate::store::postgres::projection::names::literal;
use crate::store::postgres::types::Time;

const PREPARED: &str = statement!("list_prepared_transactions");
const LONG: &str = statement!("list_long_transactions");
/// Without it the server does not say since when others' transactions are open.
const SEES_ALL: &str = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')";
const SLOTS: &str = statement!("list_idle_slots");

/// All that are prepared: nobody goes on with them but by name.
pub(super) async fn prepared(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(PREPARED, &[]).await?;
    if rows.is_empty() {
        return Ok(vec![Finding::ok("prepared transactions", "none")]);
    }
    Ok(rows.iter().map(prepared_finding).collect())
}

fn prepared_finding(row: &Row) -> Finding {
    let session = Session { prepared: row.get(0), ..Session::default() };
    let (owner, count): (&str, i64) = (row.get(1), row.get(4));
    let message = format!(
        "{count} prepared; {} of {owner} since {}",
        session.who(),
        since(row.get::<_, Time>(2).0, row.get(3))
    );
    Finding::warning("prepared transactions", message, session.end())
}

/// Those that keep vacuum from cleaning up, and locks from being given back.
pub(super) async fn long(
    connection: &Connection,
    options: &HealthOptions,
) -> Result<Vec<Finding>, StoreError> {
    let seconds = options.transaction_age.as_secs_f64();
    let params: [Param<'_>; 1] = [(&seconds, Type::FLOAT8)];
    let rows = connection.query(LONG, &params).await?;
    if !rows.is_empty() {
        return Ok(rows.iter().map(long_finding).collect());
    }
    let sees_all: bool = connection.query_one(SEES_ALL, &[]).await?.get(0);
    Ok(vec![match sees_all {
        true => Finding::ok("transactions", format!("none is open for more than {seconds:.0} s")),
        false => Finding::warning(
            "transactions",
            format!(
                "none of this role is open for more than {seconds:.0} s; those of others are not looked at"
            ),
            "look again as a member of pg_read_all_stats (GRANT pg_monitor TO …)",
        ),
    }])
}

fn long_finding(row: &Row) -> Finding {
    let session = Session {
        pid: row.get(0),
        application: row.get(1),
        user: row.get(2),
        state: row.get(3),
        query: row.get(4),
        ..Session::default()
    };
    let keeps = match row.get::<_, bool>(7) {
        true => ", and vacuum keeps for it what has died since",
        false => "",
    };
    let message = format!(
        "{} has a transaction open since {}{keeps}{}",
        session.who(),
        since(row.get::<_, Time>(5).0, row.get(6)),
        session.last_query()
    );
    Finding::warning("transactions", message, session.end())
}

/// A slot that nobody reads from keeps the log of the server, until the disk is full.
pub(super) async fn slots(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    let rows = connection.query(SLOTS, &[]).await?;
    if rows.is_empty() {
        return Ok(vec![Finding::ok("replication slots", "none is left behind")]);
    }
    Ok(rows.iter().map(slot_finding).collect())
}

fn slot_finding(row: &Row) -> Finding {
    let (name, keeps_rows): (&str, bool) = (row.get(0), row.get(2));
    let bytes = row.get::<_, Option<i64>>(3).unwrap_or(0).max(0);
    let rows = if keeps_rows { " and dead rows" } else { "" };
    let message = format!(
        "nobody reads from slot {name}, which keeps {:.1} MiB of the server's log{rows}",
        bytes as f64 / (1024.0 * 1024.0)
    );
    let hint = format!(
        "start the standby or consumer that it is for, or SELECT pg_drop_replication_slot({})",
        literal(name).trim_start()
    );
    Finding::warning("replication slots", message, hint)
}
