//! Withdrawing a projection: from one transaction on, appends, runners and readers know nothing of it.
//!
//! ```text
//!   turn of registrations ──> checkpoints, gates of all its generations ──> its row ──> all retired,
//!                                                                                      none active
//! ```
//!
//! Whoever registers it or makes a spare waits for the turn, whoever asks for a rebuild for the row, and
//! appends for the gates: each finds it as it was before, or gone. What is left is removed afterwards.

use tokio_postgres::types::Type;

use super::remove::{LOCK_CHECKPOINTS, LOCK_PROJECTION, RETIRE, TRIES};
use crate::error::{ProjectionError, StoreErrorKind};
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::projection::gates;
use crate::store::postgres::projection::register::TURN;
use crate::store::postgres::projection::transaction::{begin, finish};
use crate::store::postgres::projection::unit::{PostgresUnit, TIMEOUTS, statement};

const FIND: &str = "SELECT p.id, p.name FROM everfold.generations g \
    JOIN everfold.projections p ON p.id = g.projection WHERE g.id = $1";
/// Those that are not retired, and whether appends list them.
const LIST: &str = "SELECT g.id, g.lifecycle = 'inline' AND g.status NOT IN ('kept', 'spare') \
    FROM everfold.generations g WHERE g.projection = $1 AND g.status <> 'retired' ORDER BY g.id";
const LIST_REBUILDS: &str =
    "SELECT r.id FROM everfold.rebuilds r WHERE r.projection = $1 AND r.finished_at IS NULL";
const LIST_DEPENDENTS: &str = statement!("list_dependents_of_views");
const WITHDRAW: &str = "UPDATE everfold.projections SET active_generation = NULL WHERE id = $1";

pub(super) async fn withdraw(
    store: &PostgresStore,
    generation: i32,
    actor: &str,
) -> Result<(), ProjectionError> {
    let mut tries = 0;
    loop {
        let mut connection = store.engine.get().await?;
        let mut unit = begin(&mut connection, &store.options, TIMEOUTS).await?;
        let outcome = withdraw_in(&mut unit, generation, actor).await;
        let (outcome, end) = finish(unit, outcome).await;
        end.settle(&connection);
        tries += 1;
        match outcome {
            Err(ProjectionError::Store(error))
                if error.kind() == StoreErrorKind::Busy && tries < TRIES =>
            {
                drop(connection);
                gates::pause().await;
            }
            outcome => return outcome,
        }
    }
}

async fn withdraw_in(
    unit: &mut PostgresUnit<'_>,
    generation: i32,
    actor: &str,
) -> Result<(), ProjectionError> {
    unit.batch(TURN).await.map_err(QueryError::into_store_error)?;
    let rows = unit.ask(FIND, &[(&generation, Type::INT4)]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (projection, name): (i32, String) = (row.get(0), row.get(1));
    let of_it: [Param<'_>; 1] = [(&projection, Type::INT4)];
    check_rebuilds(unit, &name, &of_it).await?;
    check_dependents(unit, &name, &of_it).await?;
    let present = unit.ask(LIST, &of_it).await?;
    let present: Vec<(i32, bool)> = present.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (id, _) in &present {
        unit.ask(LOCK_CHECKPOINTS, &[(id, Type::INT4)]).await?;
    }
    let listed = present.iter().filter(|(_, listed)| *listed);
    let gates: Vec<String> = listed.map(|(id, _)| gates::all_for(*id)).collect();
    if !gates.is_empty() {
        // In short tries, as for any change of a status: whatever such a try waits for, appends do.
        let gates = format!("{}; {}", gates::TIMEOUTS, gates.join("; "));
        unit.batch(&gates).await.map_err(QueryError::into_store_error)?;
    }
    unit.ask(LOCK_PROJECTION, &of_it).await?;
    // Again: one may have begun meanwhile, and from here on none can.
    check_rebuilds(unit, &name, &of_it).await?;
    let reason = format!("{actor} removed the projection");
    for (id, _) in &present {
        let params: [Param<'_>; 3] =
            [(id, Type::INT4), (&actor, Type::TEXT), (&reason, Type::TEXT)];
        unit.ask(RETIRE, &params).await?;
    }
    unit.ask(WITHDRAW, &of_it).await?;
    Ok(())
}

async fn check_rebuilds(
    unit: &mut PostgresUnit<'_>,
    name: &str,
    of_it: &[Param<'_>],
) -> Result<(), ProjectionError> {
    let open = unit.ask(LIST_REBUILDS, of_it).await?;
    let Some(rebuild) = open.first().map(|row| row.get::<_, i32>(0)) else { return Ok(()) };
    let message = format!("has rebuild {rebuild} open; let it finish, or cancel it");
    Err(ProjectionError::Refused { projection: name.to_owned(), message })
}

/// Refuses before anything is done what could not be brought to its end.
async fn check_dependents(
    unit: &mut PostgresUnit<'_>,
    name: &str,
    of_it: &[Param<'_>],
) -> Result<(), ProjectionError> {
    let dependents = unit.ask(LIST_DEPENDENTS, of_it).await?;
    if dependents.is_empty() {
        return Ok(());
    }
    let dependents: Vec<String> = dependents.iter().map(|row| row.get(0)).collect();
    let message = format!(
        "cannot be removed, since this depends on what readers see of it: {}; drop or change that first",
        dependents.join(", ")
    );
    Err(ProjectionError::Refused { projection: name.to_owned(), message })
}
