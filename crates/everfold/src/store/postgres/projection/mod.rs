//! Projections on this store.

use super::PostgresStore;
use crate::store::ProjectionBackend;

impl ProjectionBackend for PostgresStore {}
