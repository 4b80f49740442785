//! Comparing a new generation with the one that readers see.
//!
//! In one transaction that is rolled back: the target's checkpoints are locked, so that nobody feeds it,
//! and it is brought to exactly the events that the source holds at that moment. Then the server compares
//! the tables.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use super::super::PostgresStore;
use super::super::connect::Param;
use super::super::projection::unit::PostgresUnit;
use super::looking::{at_one_moment, holding};
use super::rows::{self, Homes};
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::job::{Job, Task};
use crate::projection::projector::ApplyError;
use crate::rebuild::Comparison;
use crate::rebuild::compare::Lacks;
use crate::rebuild::holding::Trial;
use crate::store::{Comparing, jitter};

/// How long a source that is behind is waited for.
const BEHIND_MAX: Duration = Duration::from_secs(10);
/// How often it is begun anew because somebody moved a checkpoint just then.
const TRIES: u32 = 20;

const LOCK_TARGET: &str = "SELECT c.position FROM everfold.checkpoints c \
    WHERE c.generation = $1 ORDER BY c.shard FOR UPDATE";
/// What the source has left out of what the target has. Behind a dead letter it stays left out.
const LEFT_OUT: &str = "SELECT EXISTS (SELECT FROM everfold.skips s \
    WHERE s.generation = $1 AND s.position <= $2 AND NOT EXISTS (\
        SELECT FROM everfold.dead_letters d WHERE d.generation = $1 AND d.key = s.key))";
const HAS_LEASE: &str = "SELECT FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL";

/// What came of a look.
enum Looked {
    Compared(Comparison),
    /// The source does not have all that the target has.
    Behind(Lacks),
}

pub(super) async fn compare(
    store: &PostgresStore,
    comparing: &Comparing,
) -> Result<Comparison, ApplyError> {
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        let looked =
            at_one_moment(&store.engine, &store.options, async |unit| look(unit, comparing).await);
        match looked.await {
            Ok(Looked::Compared(comparison)) => return Ok(comparison),
            Ok(Looked::Behind(lacks)) if begun.elapsed() >= BEHIND_MAX => {
                let message = lacks.told(&comparing.target, &comparing.source, BEHIND_MAX);
                return Err(ApplyError::Refused { message, position: None });
            }
            Ok(Looked::Behind(_)) => {}
            Err(ApplyError::Store(error)) if is_moved(&error) && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(100) + jitter(Duration::from_millis(100))).await;
    }
}

async fn look(unit: &mut PostgresUnit<'_>, comparing: &Comparing) -> Result<Looked, ApplyError> {
    let Comparing { lease, target, source, projector, upcasters, examples } = comparing;
    let rows = unit.query(LOCK_TARGET, &[(&target.id, Type::INT4)]).await?;
    let has: Vec<_> = rows.iter().map(|row| crate::Position::from_stored(row.get(0))).collect();
    let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
    if unit.query(HAS_LEASE, &params).await?.is_empty() {
        return Err(ApplyError::LeaseLost);
    }
    let wanted = holding(unit, source).await?;
    let reached = has.iter().copied().max().unwrap_or_default();
    if wanted.lowest() < reached {
        return Ok(Looked::Behind(Lacks::Events));
    }
    let stored = reached.to_stored();
    let params: [Param<'_>; 2] = [(&source.id, Type::INT4), (&stored, Type::INT8)];
    if unit.query(LEFT_OUT, &params).await?[0].get(0) {
        return Ok(Looked::Behind(Lacks::Owed));
    }
    let own = holding(unit, target).await?;
    let job = Job::new(target.clone(), projector.clone(), upcasters.clone(), Task::Trial);
    let by = Job::new(source.clone(), projector.clone(), upcasters.clone(), Task::Trial);
    let trial = Trial { job: &job, has: &has, wanted: &wanted, wanted_by: &by };
    trial.fill(unit).await?;
    let homes = Homes {
        expected: &source.home,
        found: &target.home,
        kind: target.kind,
        only: None,
        examples: *examples,
    };
    let mut comparison = rows::compare(unit, &homes).await?;
    comparison.owed = wanted.owed.union(&own.owed).count() as u64;
    Ok(Looked::Compared(comparison))
}

/// Somebody has changed what was to be locked since the moment that is looked at.
fn is_moved(error: &StoreError) -> bool {
    error.code() == Some("40001") || error.kind() == StoreErrorKind::Busy
}
