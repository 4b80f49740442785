//! What the store rests on: start-up checks, and the findings of `everfold doctor`.
//!
//! Every subject asks in a statement of its own, reads catalogs, estimates and the ends of indexes, and
//! takes no locks. What this role may not see is told as such, and hides nothing else.

/// The text of a statement.
macro_rules! statement {
    ($name:literal) => {
        include_str!(concat!("../../../../sql/postgres/statements/", $name, ".sql"))
    };
}

mod clock;
mod connections;
mod log;
mod mark;
mod read_models;
mod server;
mod session;
mod settings;
mod transactions;
mod vacuum;
mod waiting;

use tokio_postgres::Row;

use super::connect::{Connection, Connections};
use crate::Position;
use crate::diagnosis::{Diagnosis, Finding};
use crate::error::{OpenError, StoreError};
use crate::projection::HealthOptions;

pub(super) use mark::holders;

const STARTUP_CHECKS: &str = "SELECT name, safe, message, hint FROM everfold.startup_checks()";
const SERVER: &str = statement!("describe_server");

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

pub(super) async fn diagnose(
    connections: &Connections,
    options: &HealthOptions,
) -> Result<Diagnosis, StoreError> {
    let connection = connections.get().await?;
    let server = connection.query_one(SERVER, &[]).await?;
    let mut findings = server::findings(&server);
    findings.extend(settings::findings(&server));
    findings.push(server::pooler(connections.through_pooler()));
    findings.push(server::schema(&super::schema::drift_of(&connection).await?));
    findings.extend(startup_findings(&connection).await?);
    let (high_water_mark, unknown) = mark::high_water_mark(&connection).await;
    findings.extend(unknown);
    let holders = holders(&connection).await?;
    findings.extend(holders.iter().filter_map(|holder| mark::old_holder(holder, options)));
    findings.extend(told("waiting", waiting::sessions(&connection, options).await)?);
    findings.extend(told("gates", waiting::gates(&connection, options).await)?);
    findings.extend(told("connections", connections::findings(&connection).await)?);
    findings.extend(told("prepared transactions", transactions::prepared(&connection).await)?);
    findings.extend(told("transactions", transactions::long(&connection, options).await)?);
    findings.extend(told("replication slots", transactions::slots(&connection).await)?);
    findings.extend(told("vacuum", vacuum::findings(&connection).await)?);
    findings.extend(told("clock", clock::findings(&connection).await)?);
    findings.extend(told("log", log::findings(&connection, holders.is_empty()).await)?);
    findings.extend(told("read models", read_models::findings(&connection).await)?);
    Ok(Diagnosis {
        version: format!("PostgreSQL {}", server.get::<_, &str>("version")),
        high_water_mark,
        last_position: Position::from_stored(server.get("highest_position")),
        findings,
        holders,
    })
}

/// What was found out about a subject, or that it could not be looked at.
fn told(
    check: &'static str,
    outcome: Result<Vec<Finding>, StoreError>,
) -> Result<Vec<Finding>, StoreError> {
    match outcome {
        Err(error) if error.is_transient() => Err(error),
        Err(error) => Ok(vec![Finding::unseen(check, &error)]),
        told => told,
    }
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
