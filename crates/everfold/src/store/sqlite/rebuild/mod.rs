//! Rebuilds on this store.

mod facts;

use futures::future::{BoxFuture, FutureExt};

use super::SqliteStore;
use crate::error::StoreError;
use crate::store::{Counted, GenerationFacts, RebuildBackend};

impl RebuildBackend for SqliteStore {
    fn generation_facts(&self) -> BoxFuture<'_, Result<Vec<GenerationFacts>, StoreError>> {
        self.pool.read(facts::generation_facts).boxed()
    }

    fn count_events(
        &self,
        types: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<Counted, StoreError>> {
        let count = move |connection: &rusqlite::Connection| {
            facts::count_events(connection, types.as_deref())
        };
        self.pool.read(count).boxed()
    }
}
