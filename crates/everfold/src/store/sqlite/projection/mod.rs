//! Projections on this store.

use super::SqliteStore;
use crate::store::ProjectionBackend;

impl ProjectionBackend for SqliteStore {}
