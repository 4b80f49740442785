//! What a switch of generations does in its transaction.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::gates;
use super::unit::{PostgresUnit, statement};
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::rebuild::row::{RebuildLease, Wanted};
use crate::store::postgres::connect::Param;
use crate::store::{NewDeadLetters, OwnedRebuild, SwitchUnit};

const OWN_REBUILD: &str = "SELECT wanted, flipped_at IS NOT NULL FROM everfold.rebuilds \
    WHERE id = $1 AND epoch = $2 AND finished_at IS NULL FOR UPDATE";
const LOCK_SHARDS: &str = "SELECT shard, position FROM everfold.checkpoints \
    WHERE generation = $1 ORDER BY shard FOR UPDATE";
const STATUS: &str = "SELECT status FROM everfold.generations WHERE id = $1";
const HIGHEST: &str = "SELECT coalesce(max(position), 0) FROM everfold.events";
const MARK: &str = "SELECT everfold.high_water_mark()";
const OWES: &str = "SELECT EXISTS (SELECT FROM everfold.skips s WHERE s.generation = $1 \
    AND s.position <= (SELECT min(c.position) FROM everfold.checkpoints c WHERE c.generation = $1) \
    AND NOT EXISTS (SELECT FROM everfold.dead_letters d WHERE d.generation = $1 AND d.key = s.key))";
const NEW_DEAD_LETTERS: &str = "SELECT count(*), min(t.position) FROM everfold.dead_letters t \
    WHERE t.generation = $1 AND t.behind IS NULL AND NOT EXISTS (\
        SELECT FROM everfold.dead_letters s WHERE s.generation = $2 AND s.position = t.position)";
const SETTLE_SKIPS: &str = statement!("settle_skips");
const HOLD_SKIPS: &str = statement!("hold_skips");
const WRITE_STATUS: &str = "UPDATE everfold.generations \
    SET status = $2, reason = $3, status_since = clock_timestamp() WHERE id = $1";
const RELEASE_SHARDS: &str = "UPDATE everfold.checkpoints SET position = greatest(position, $2), \
    moved_at = clock_timestamp(), epoch = epoch + 1, owner = NULL, expires_at = NULL, attempts = 0, \
    failure = NULL WHERE generation = $1";
const SHOW: &str = "UPDATE everfold.projections SET active_generation = $1 \
    WHERE id = (SELECT projection FROM everfold.generations WHERE id = $1)";
const NOTE_FLIP: &str = "UPDATE everfold.rebuilds SET flipped_at = clock_timestamp(), \
    phase = 'draining' WHERE id = $1 AND epoch = $2 RETURNING id";

impl SwitchUnit for PostgresUnit<'_> {
    async fn own_rebuild(&mut self, lease: &RebuildLease) -> Result<OwnedRebuild, ApplyError> {
        let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
        let rows = self.query(OWN_REBUILD, &params).await?;
        let row = rows.first().ok_or(ApplyError::LeaseLost)?;
        let wanted = known(Wanted::from_stored(row.get(0)), row.get(0))?;
        Ok(OwnedRebuild { wanted, flipped: row.get(1) })
    }

    async fn lock_shards(&mut self, generation: i32) -> Result<Vec<(u32, Position)>, ApplyError> {
        let rows = self.query(LOCK_SHARDS, &[(&generation, Type::INT4)]).await?;
        let shard = |row: &tokio_postgres::Row| {
            (row.get::<_, i32>(0).unsigned_abs(), Position::from_stored(row.get(1)))
        };
        Ok(rows.iter().map(shard).collect())
    }

    async fn lock_gates(
        &mut self,
        registry: bool,
        generations: &[i32],
        timeout: Duration,
    ) -> Result<(), ApplyError> {
        gates::fence(self, registry, generations, timeout).await
    }

    async fn status(&mut self, generation: i32) -> Result<GenerationStatus, ApplyError> {
        let rows = self.query(STATUS, &[(&generation, Type::INT4)]).await?;
        let Some(row) = rows.first() else {
            let message = format!("there is no generation {generation} any more");
            return Err(StoreError::new(StoreErrorKind::Other, message).into());
        };
        known(GenerationStatus::from_stored(row.get(0)), row.get(0))
    }

    async fn highest_position(&mut self) -> Result<Position, ApplyError> {
        let rows = self.query(HIGHEST, &[]).await?;
        Ok(Position::from_stored(rows.first().expect("an aggregate has a row").get(0)))
    }

    async fn high_water_mark(&mut self) -> Result<Position, ApplyError> {
        let rows = self.query(MARK, &[]).await?;
        Ok(Position::from_stored(rows.first().expect("a function has an answer").get(0)))
    }

    async fn owes(&mut self, generation: i32) -> Result<bool, ApplyError> {
        let rows = self.query(OWES, &[(&generation, Type::INT4)]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn new_dead_letters(
        &mut self,
        target: i32,
        source: Option<i32>,
    ) -> Result<Option<NewDeadLetters>, ApplyError> {
        let params: [Param<'_>; 2] = [(&target, Type::INT4), (&source, Type::INT4)];
        let rows = self.query(NEW_DEAD_LETTERS, &params).await?;
        let row = rows.first().expect("an aggregate has a row");
        let first: Option<i64> = row.get(1);
        let count = row.get::<_, i64>(0).unsigned_abs();
        Ok(first.map(|first| NewDeadLetters { count, first: Position::from_stored(first) }))
    }

    async fn settle_skips(
        &mut self,
        generation: i32,
        after: Position,
        up_to: Position,
        actor: &str,
    ) -> Result<(), ApplyError> {
        let (after, up_to) = (after.to_stored(), up_to.to_stored());
        let params: [Param<'_>; 4] = [
            (&generation, Type::INT4),
            (&after, Type::INT8),
            (&up_to, Type::INT8),
            (&actor, Type::TEXT),
        ];
        self.query(SETTLE_SKIPS, &params).await.map(drop)
    }

    async fn hold_skips(&mut self, generation: i32, up_to: Position) -> Result<(), ApplyError> {
        let up_to = up_to.to_stored();
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&up_to, Type::INT8)];
        self.query(HOLD_SKIPS, &params).await.map(drop)
    }

    async fn write_status(
        &mut self,
        generation: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        let status = status.as_str();
        let params: [Param<'_>; 3] =
            [(&generation, Type::INT4), (&status, Type::TEXT), (&reason, Type::TEXT)];
        self.query(WRITE_STATUS, &params).await.map(drop)
    }

    async fn release_shards(
        &mut self,
        generation: i32,
        to: Option<Position>,
    ) -> Result<(), ApplyError> {
        let to = to.map(Position::to_stored);
        let params: [Param<'_>; 2] = [(&generation, Type::INT4), (&to, Type::INT8)];
        self.query(RELEASE_SHARDS, &params).await.map(drop)
    }

    async fn show_generation(&mut self, generation: i32) -> Result<(), ApplyError> {
        self.query(SHOW, &[(&generation, Type::INT4)]).await.map(drop)
    }

    async fn note_flip(&mut self, lease: &RebuildLease) -> Result<(), ApplyError> {
        let params: [Param<'_>; 2] = [(&lease.rebuild, Type::INT4), (&lease.epoch, Type::INT8)];
        let noted = self.query(NOTE_FLIP, &params).await?;
        if noted.is_empty() { Err(ApplyError::LeaseLost) } else { Ok(()) }
    }
}

fn known<T>(word: Option<T>, stored: &str) -> Result<T, ApplyError> {
    word.ok_or_else(|| {
        let message =
            format!("the registry has the word \"{stored}\", which this version does not know");
        StoreError::new(StoreErrorKind::Other, message).into()
    })
}
