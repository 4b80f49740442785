//! Rebuilds on this store.

mod facts;

use futures::future::{BoxFuture, FutureExt};

use super::PostgresStore;
use crate::error::StoreError;
use crate::store::{Counted, GenerationFacts, RebuildBackend};

impl RebuildBackend for PostgresStore {
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
