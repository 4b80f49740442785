//! Verifying read models on this store.

use futures::future::{BoxFuture, FutureExt};

use super::super::SqliteStore;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::SystemMessage;
use crate::projection::projector::ApplyError;
use crate::rebuild::Verification;
use crate::store::{Verified, VerifyBackend, Verifying};

impl VerifyBackend for SqliteStore {
    fn verify(&self, _: Verifying) -> BoxFuture<'_, Result<Verified, ApplyError>> {
        async { Err(StoreError::new(StoreErrorKind::Other, "not built yet").into()) }.boxed()
    }
    fn record_verification(
        &self,
        _: i32,
        _: Verification,
        _: Option<SystemMessage>,
    ) -> BoxFuture<'_, Result<Verification, StoreError>> {
        async { Err(StoreError::new(StoreErrorKind::Other, "not built yet")) }.boxed()
    }
    fn verifications(
        &self,
        _: String,
        _: String,
        _: usize,
    ) -> BoxFuture<'_, Result<Vec<Verification>, StoreError>> {
        async { Err(StoreError::new(StoreErrorKind::Other, "not built yet")) }.boxed()
    }
}
