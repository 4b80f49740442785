//! Snapshots of read models: copies of their tables with all that is needed to go on from there.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Position;
use crate::error::ProjectionError;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::projection::operator::operator;
use crate::store::Store;

/// A copy of a read model as it was at a moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReadModelSnapshot {
    /// Its number in the store.
    pub id: i32,
    /// The projection.
    pub name: String,
    /// The version it is of.
    pub version: u32,
    /// Every event that the projection wants up to here is in it, owed, or put aside.
    pub position: Position,
    /// How many rows it has.
    pub rows: u64,
    /// How much room its tables took when it was made, in bytes.
    pub bytes: u64,
    /// Who took it.
    pub taken_by: String,
    /// When.
    pub taken_at: Timestamp,
    /// The hash of the definition it is of.
    #[serde(skip)]
    pub(crate) definition_hash: String,
    /// The last position in it: that of its foremost shard.
    #[serde(skip)]
    pub(crate) reaches: Position,
}

/// An event that could not be applied, or waits behind one, as a snapshot keeps it.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptLetter {
    pub(crate) position: i64,
    pub(crate) key: String,
    pub(crate) behind: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) attempts: i32,
}

/// An event that is owed, as a snapshot keeps it.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone needs it"))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSkip {
    pub(crate) position: i64,
    pub(crate) key: String,
    pub(crate) reason: String,
}

impl Store {
    /// Copies what readers see of a projection, as it is at one moment, so that [`Store::replay`] can
    /// begin there. Appends and runners go on; those of an inline projection wait for a moment, 100 ms at
    /// most. Of each projection the newest few are kept
    /// ([`snapshots_kept`](crate::ProjectionSettings::snapshots_kept)).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let snapshot = store.snapshot_read_model("carts").await?;
    /// assert_eq!(snapshot.rows, 2);
    /// assert_eq!(snapshot.position, store.high_water_mark().await?);
    ///
    /// assert_eq!(store.read_model_snapshots("carts").await?, [snapshot.clone()]);
    /// store.drop_read_model_snapshot("carts", snapshot.id).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if
    /// readers see no version of it, or it is being filled in place.
    pub async fn snapshot_read_model(
        &self,
        name: &str,
    ) -> Result<ReadModelSnapshot, ProjectionError> {
        let generation = Arc::new(self.generation_of(name).await?);
        self.snapshot_as(generation, operator()).await
    }

    pub(crate) async fn snapshot_as(
        &self,
        generation: Arc<Generation>,
        actor: String,
    ) -> Result<ReadModelSnapshot, ProjectionError> {
        if !generation.is_active {
            return Err(ProjectionError::Refused {
                projection: generation.name.clone(),
                message: "has no version that readers see, so there is nothing to copy".to_owned(),
            });
        }
        if generation.status == GenerationStatus::Rebuilding {
            return Err(ProjectionError::Refused {
                projection: generation.name.clone(),
                message: "is being filled in place; copy it when that has ended".to_owned(),
            });
        }
        let taken = self.backend().take_snapshot(Arc::clone(&generation), actor).await?;
        let kept = generation.settings.snapshots_kept.max(1) as usize;
        for older in self.snapshots_of(&generation).await?.into_iter().skip(kept) {
            self.backend().drop_snapshot(older.id).await?;
        }
        Ok(taken)
    }

    pub(crate) async fn snapshots_of(
        &self,
        generation: &Generation,
    ) -> Result<Vec<ReadModelSnapshot>, ProjectionError> {
        let (namespace, name) = (generation.namespace.clone(), generation.name.clone());
        Ok(self.backend().snapshots(namespace, name).await?)
    }

    /// The snapshots of a projection, the newest first.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection.
    pub async fn read_model_snapshots(
        &self,
        name: &str,
    ) -> Result<Vec<ReadModelSnapshot>, ProjectionError> {
        self.generations_of(name).await?;
        let namespace = self.options().namespace.clone();
        Ok(self.backend().snapshots(namespace, name.to_owned()).await?)
    }

    /// Drops a snapshot, with its tables.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if it has no
    /// such snapshot.
    pub async fn drop_read_model_snapshot(
        &self,
        name: &str,
        id: i32,
    ) -> Result<(), ProjectionError> {
        let known = self.read_model_snapshots(name).await?;
        if !known.iter().any(|snapshot| snapshot.id == id) {
            return Err(ProjectionError::Refused {
                projection: name.to_owned(),
                message: format!(
                    "has no snapshot {id}; `everfold snapshots {name}` shows those there are"
                ),
            });
        }
        Ok(self.backend().drop_snapshot(id).await?)
    }
}
