//! A look at the rows of a read model, for people. Applications read the views with SQL of their own.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ProjectionError;
use crate::store::{RowQuery, Store};

/// Which rows [`Store::read_model_rows`] reads. The default: the first twenty of each table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowOptions {
    /// Only this table of the projection, without the schema.
    pub table: Option<String>,
    /// Only rows whose columns have these values, as text.
    pub equal: Vec<(String, String)>,
    /// Most rows of a table: 20.
    pub limit: usize,
}

impl Default for RowOptions {
    fn default() -> Self {
        RowOptions { table: None, equal: Vec::new(), limit: 20 }
    }
}

/// Rows of one table of a read model, as readers see it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ReadModelRows {
    /// The name that readers have for it, for example `read_model.cart_totals`.
    pub table: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// The rows in the order of the first column, each a JSON object with its columns in order. Numbers
    /// are as the database prints them, however many digits they have.
    pub rows: Vec<Box<RawValue>>,
    /// Whether there are more.
    pub more: bool,
}

impl Store {
    /// Reads rows of a read model, SQL tables and documents alike, as readers see them now.
    ///
    /// For a look: it orders by the first column and compares as text. An application reads the views
    /// with its own SQL, documents with [`Store::documents`].
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// use everfold::{ExpectedVersion, NewEvent, Projection, RowOptions, Store};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let store = Store::open(&url).await?;
    /// let carts = Projection::sql("carts", 1)
    ///     .create("CREATE TABLE read_model.carts (cart_id TEXT PRIMARY KEY, events BIGINT NOT NULL)")
    ///     .apply(
    ///         "INSERT INTO read_model.carts AS t (cart_id, events)
    ///          SELECT stream_id, COUNT(*) FROM batch WHERE true GROUP BY stream_id
    ///          ON CONFLICT (cart_id) DO UPDATE SET events = t.events + EXCLUDED.events",
    ///     );
    /// store.register(carts.inline().build()?).await?;
    /// store.append("cart-1", ExpectedVersion::Any, [NewEvent::from_json("Added", "{}")?]).await?;
    ///
    /// let tables = store.read_model_rows("carts", &RowOptions::default()).await?;
    /// assert_eq!(tables[0].columns, ["cart_id", "events"]);
    /// assert_eq!(tables[0].rows[0].get(), r#"{"cart_id":"cart-1","events":1}"#);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "sqlite"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if readers
    /// see no version of it, or it has no such table or column.
    pub async fn read_model_rows(
        &self,
        name: &str,
        options: &RowOptions,
    ) -> Result<Vec<ReadModelRows>, ProjectionError> {
        let refused = |message| ProjectionError::Refused { projection: name.to_owned(), message };
        let generation = self.generation_of(name).await?;
        if !generation.is_active {
            let status = generation.status;
            return Err(refused(format!("is {status}: there is no version that readers see yet")));
        }
        let is_wanted = |table: &&String| options.table.as_ref().is_none_or(|only| only == *table);
        let tables: Vec<String> = generation.tables.iter().filter(is_wanted).cloned().collect();
        if tables.is_empty() {
            let known = generation.tables.join(", ");
            let wanted = options.table.as_deref().unwrap_or_default();
            return Err(refused(match known.is_empty() {
                true => "has no tables of its own".to_owned(),
                false => format!("has no table \"{wanted}\"; there are: {known}"),
            }));
        }
        let mut found = Vec::new();
        for table in tables {
            let query = RowQuery {
                namespace: generation.namespace.clone(),
                version: generation.version,
                table,
                max: options.limit.saturating_add(1),
                equal: options.equal.clone(),
            };
            let mut rows = self.backend().rows(query).await?;
            let known = |column: &str| rows.columns.iter().any(|known| known == column);
            if let Some((column, _)) = options.equal.iter().find(|(column, _)| !known(column)) {
                let (table, columns) = (&rows.table, rows.columns.join(", "));
                return Err(refused(format!("has no column \"{column}\" in {table}: {columns}")));
            }
            rows.more = rows.rows.len() > options.limit;
            rows.rows.truncate(options.limit);
            found.push(rows);
        }
        Ok(found)
    }
}
