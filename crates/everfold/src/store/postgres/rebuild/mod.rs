//! Rebuilds on this store.

mod compare;
mod facts;
mod looking;
mod rows;

use futures::future::{BoxFuture, FutureExt};

use super::PostgresStore;
use crate::error::StoreError;
use crate::projection::projector::ApplyError;
use crate::rebuild::Comparison;
use crate::store::{Comparing, Counted, GenerationFacts, RebuildBackend};

impl RebuildBackend for PostgresStore {
    fn compare(&self, comparing: Comparing) -> BoxFuture<'_, Result<Comparison, ApplyError>> {
        async move { compare::compare(self, &comparing).await }.boxed()
    }

    fn generation_facts(&self) -> BoxFuture<'_, Result<Vec<GenerationFacts>, StoreError>> {
        facts::generation_facts(&self.connections).boxed()
    }

    fn count_events(
        &self,
        types: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<Counted, StoreError>> {
        facts::count_events(&self.connections, types).boxed()
    }
}
