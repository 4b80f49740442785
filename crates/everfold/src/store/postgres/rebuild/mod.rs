//! Rebuilds on this store.

use super::PostgresStore;
use crate::store::RebuildBackend;

impl RebuildBackend for PostgresStore {}
