//! Rebuilds on this store.

use super::SqliteStore;
use crate::store::RebuildBackend;

impl RebuildBackend for SqliteStore {}
