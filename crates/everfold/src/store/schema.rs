//! The schema of a store: made, updated, compared and printed without opening it.

use super::StoreUrl;
#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "sqlite")]
use super::sqlite;
use crate::error::{MigrateError, OpenError};

/// The schema of a store, apart from an open handle: to create, update, check or print it.
///
/// ```
/// use everfold::Schema;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
/// # let (_folder, url) = url();
/// let schema = Schema::of(&url)?;
/// let applied = schema.apply().await?;
/// assert!(!applied.migrations.is_empty()); // all of them: the file is new
///
/// assert!(schema.apply().await?.migrations.is_empty()); // there is nothing left to do
/// assert!(schema.drift().await?.is_empty()); // and nobody has changed it by hand
/// assert!(schema.sql().contains("CREATE TABLE"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Schema {
    url: StoreUrl,
}

/// What [`Schema::apply`] did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct AppliedSchema {
    /// The migrations that were run, by name.
    pub migrations: Vec<String>,
    /// Whether the functions in the database were replaced, because they are of another version or
    /// were changed by hand.
    pub functions_replaced: bool,
    /// What the database wanted said, for example a role that may not be created.
    pub warnings: Vec<String>,
}

impl Schema {
    /// The schema of the store at a URL. Nothing is opened yet.
    ///
    /// # Errors
    /// If the URL is not understood.
    pub fn of(url: &str) -> Result<Schema, OpenError> {
        Ok(Schema { url: StoreUrl::parse(url)? })
    }

    /// Where the store is, without a password.
    #[must_use]
    pub fn location(&self) -> String {
        self.url.to_string()
    }

    /// Brings the schema to this version's revision. Safe to run from many processes at once and
    /// beside a running application: a try holds appends up for 100 ms at most.
    ///
    /// # Errors
    /// [`MigrateError::Newer`] if the schema is newer than this version: upgrade;
    /// [`MigrateError::Failed`] if a migration fails, which is rolled back;
    /// [`MigrateError::Store`] if the database refuses or cannot be reached.
    pub async fn apply(&self) -> Result<AppliedSchema, MigrateError> {
        match &self.url {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => postgres::schema::apply(url).await,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(path) => sqlite::schema::apply(path).await,
        }
    }

    /// Compares the database with what this version expects and returns the differences, one line
    /// each: `-` is missing there, `+` is there and not expected. Empty means equal.
    ///
    /// # Errors
    /// [`MigrateError::Missing`], [`MigrateError::Older`] or [`MigrateError::Newer`] if there is no schema
    /// of this version's revision to compare with; [`MigrateError::Store`] if the database refuses or
    /// cannot be reached.
    pub async fn drift(&self) -> Result<Vec<String>, MigrateError> {
        match &self.url {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => postgres::schema::drift(url).await,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(path) => sqlite::schema::drift(path).await,
        }
    }

    /// The SQL that makes the schema from nothing, for whoever wants to run it by hand. Nothing is opened
    /// for it: `postgres://` alone is URL enough.
    #[must_use]
    pub fn sql(&self) -> String {
        match &self.url {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(_) => postgres::schema::sql(),
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(_) => sqlite::schema::sql(),
        }
    }
}
