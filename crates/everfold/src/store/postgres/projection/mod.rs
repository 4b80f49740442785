//! Projections on this store.

use super::PostgresStore;
use crate::store::{Carried, ProjectionBackend};

impl ProjectionBackend for PostgresStore {
    fn carry(&self, carried: Carried) {
        self.inline.carry(carried);
    }
}
