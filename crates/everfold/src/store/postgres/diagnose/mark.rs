//! The high-water mark, and who holds it.

use tokio_postgres::Row;

use super::session::Session;
use crate::Position;
use crate::diagnosis::{Finding, MarkHolder, held};
use crate::error::StoreError;
use crate::projection::HealthOptions;
use crate::store::postgres::connect::Connection;
use crate::store::postgres::types::Time;

const HOLDERS: &str = "SELECT announced, pid, prepared, application, username, client, state, \
    since, query, extract(epoch FROM clock_timestamp() - since)::float8 \
    FROM everfold.high_water_mark_holders()";

/// The mark, or why it cannot be read.
pub(super) async fn high_water_mark(
    connection: &Connection,
) -> (Option<Position>, Option<Finding>) {
    match connection.query_one("SELECT everfold.high_water_mark()", &[]).await {
        Ok(row) => (Some(Position::from_stored(row.get(0))), None),
        Err(error) => {
            let (message, hint) = match error.to_string().split_once("; ") {
                Some((message, hint)) => (message.to_owned(), hint.to_owned()),
                None => (error.to_string(), "mend that first".to_owned()),
            };
            (None, Some(Finding::problem("mark", message, hint)))
        }
    }
}

/// Who holds the mark, the lowest first.
pub(in crate::store::postgres) async fn holders(
    connection: &Connection,
) -> Result<Vec<MarkHolder>, StoreError> {
    Ok(connection.query(HOLDERS, &[]).await?.iter().map(holder).collect())
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
pub(super) fn old_holder(holder: &MarkHolder, options: &HealthOptions) -> Option<Finding> {
    let (seconds, severity) = held(holder.seconds, options.mark_held_for)?;
    if holder.pid.is_none() && holder.prepared.is_none() {
        return None;
    }
    let session = Session {
        pid: holder.pid,
        prepared: holder.prepared.clone(),
        application: holder.application.clone(),
        state: holder.state.clone(),
        ..Session::default()
    };
    let message = format!(
        "{} holds the high-water mark at {} for {seconds:.0} s",
        session.who(),
        holder.holds_at
    );
    Some(Finding::of(severity, "mark", message, session.end()))
}
