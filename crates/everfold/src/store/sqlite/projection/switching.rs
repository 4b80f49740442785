//! What a switch of generations does in its transaction.

use std::time::Duration;

use super::unit::SqliteUnit;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::GenerationStatus;
use crate::projection::projector::ApplyError;
use crate::rebuild::row::RebuildLease;
use crate::store::{NewDeadLetters, OwnedRebuild, SwitchUnit};

fn missing<T>() -> Result<T, ApplyError> {
    Err(StoreError::new(StoreErrorKind::Other, "not built yet").into())
}

impl SwitchUnit for SqliteUnit<'_> {
    async fn own_rebuild(&mut self, _lease: &RebuildLease) -> Result<OwnedRebuild, ApplyError> {
        missing()
    }

    async fn lock_shards(&mut self, _generation: i32) -> Result<Vec<(u32, Position)>, ApplyError> {
        missing()
    }

    async fn lock_gates(
        &mut self,
        _registry: bool,
        _generations: &[i32],
        _timeout: Duration,
    ) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn status(&mut self, _generation: i32) -> Result<GenerationStatus, ApplyError> {
        missing()
    }

    async fn highest_position(&mut self) -> Result<Position, ApplyError> {
        missing()
    }

    async fn owes(&mut self, _generation: i32) -> Result<bool, ApplyError> {
        missing()
    }

    async fn new_dead_letters(
        &mut self,
        _target: i32,
        _source: Option<i32>,
    ) -> Result<Option<NewDeadLetters>, ApplyError> {
        missing()
    }

    async fn settle_skips(
        &mut self,
        _generation: i32,
        _after: Position,
        _up_to: Position,
        _actor: &str,
    ) -> Result<(), ApplyError> {
        missing()
    }

    async fn hold_skips(&mut self, _generation: i32, _up_to: Position) -> Result<(), ApplyError> {
        missing()
    }

    async fn write_status(
        &mut self,
        _generation: i32,
        _status: GenerationStatus,
        _reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        missing()
    }

    async fn release_shards(
        &mut self,
        _generation: i32,
        _to: Option<Position>,
    ) -> Result<(), ApplyError> {
        missing()
    }

    async fn show_generation(&mut self, _generation: i32) -> Result<(), ApplyError> {
        missing()
    }

    async fn note_flip(&mut self, _lease: &RebuildLease) -> Result<(), ApplyError> {
        missing()
    }
}
