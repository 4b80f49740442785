//! Waiting until a projection has reached a position: read-your-writes.

use std::time::Duration;

use tokio::time::Instant;

use super::generation::GenerationStatus;
use super::registry::unknown;
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::store::{Reach, Store, jitter};

/// First pause between two looks; it doubles while nothing happens.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Store {
    /// Waits until a projection shows everything up to a position: that is what an append returned
    /// as its last position. Exact: no event at or below it is missing, owed or put aside.
    ///
    /// Dropping the future stops waiting, and changes nothing.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use everfold::{ExpectedVersion, NewEvent, Projection, Runner};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let carts = Projection::document("carts", 1, Carts).build()?;
    /// let runner = Runner::new(&store).projection(carts).start().await?;
    ///
    /// let added = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
    /// let stored = store.append("cart-1", ExpectedVersion::Any, [added]).await?;
    /// store.wait_for("carts", stored.last_position, Duration::from_secs(30)).await?;
    /// assert_eq!(store.documents::<Cart>("carts").get("cart-1").await?, Some(Cart { items: 2 }));
    /// runner.stop().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::NotReached`] with where it stands and why, if it does not get there in
    /// time; [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Store`] if the
    /// database refuses or cannot be reached.
    pub async fn wait_for(
        &self,
        name: &str,
        position: Position,
        timeout: Duration,
    ) -> Result<(), ProjectionError> {
        match self.reach_within(name, position, timeout).await? {
            None => Ok(()),
            Some(reach) => Err(ProjectionError::NotReached {
                projection: name.to_owned(),
                position,
                waited: timeout,
                reason: reason(&reach, position),
            }),
        }
    }

    /// As [`Store::wait_for`], for whoever rather reads something old than nothing: whether it got
    /// there in time.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let mark = store.high_water_mark().await?;
    /// assert!(store.wait_for_or_stale("carts", mark, Duration::from_secs(30)).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection; [`ProjectionError::Store`] if the
    /// database refuses or cannot be reached.
    pub async fn wait_for_or_stale(
        &self,
        name: &str,
        position: Position,
        timeout: Duration,
    ) -> Result<bool, ProjectionError> {
        Ok(self.reach_within(name, position, timeout).await?.is_none())
    }

    /// The position of the last event that is stored, which may be above the high-water mark: what to
    /// wait for if nothing older will do.
    ///
    /// # Errors
    /// If the database refuses or cannot be reached.
    pub async fn last_position(&self) -> Result<Position, StoreError> {
        Ok(self.backend().heads().await?.highest)
    }

    /// `None` once it is reached, else how far it was at the last look.
    async fn reach_within(
        &self,
        name: &str,
        position: Position,
        timeout: Duration,
    ) -> Result<Option<Reach>, ProjectionError> {
        let deadline = Instant::now() + timeout;
        let mut moved = self.hub().watch();
        let mut pause = PAUSE_MIN;
        loop {
            moved.borrow_and_update();
            let reach = self.reach(name, position).await?;
            if reach.has_reached(position) {
                return Ok(None);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(Some(reach));
            }
            let until = (now + jitter(pause)).min(deadline);
            match tokio::time::timeout_at(until, moved.changed()).await {
                // A runner of this handle has moved: look at once.
                Ok(_) => pause = PAUSE_MIN,
                Err(_) => pause = (pause * 2).min(PAUSE_MAX),
            }
        }
    }

    async fn reach(&self, name: &str, position: Position) -> Result<Reach, ProjectionError> {
        let namespace = self.options().namespace.clone();
        match self.backend().reach(namespace, name.to_owned(), position).await {
            Ok(Some(reach)) => Ok(reach),
            Ok(None) => {
                // Names to suggest, for those who may see them.
                let all = self.backend().generations().await.unwrap_or_default();
                let here = all.iter().filter(|g| g.namespace == self.options().namespace);
                Err(unknown(name, here.map(|generation| generation.name.as_str())))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Reach {
    fn has_reached(&self, position: Position) -> bool {
        self.position >= position && self.owed == 0 && self.status != GenerationStatus::Building
    }
}

fn reason(reach: &Reach, position: Position) -> String {
    let Reach { position: at, owed, status, reason } = reach;
    let mut said = match owed {
        _ if *at < position => format!("it is {status} at position {at}"),
        0 => format!("it is {status}"),
        1 => format!("it is {status}; 1 event at or below that is owed or put aside"),
        owed => format!("it is {status}; {owed} events at or below that are owed or put aside"),
    };
    if let Some(reason) = reason {
        said.push_str(": ");
        said.push_str(reason);
    }
    said
}
