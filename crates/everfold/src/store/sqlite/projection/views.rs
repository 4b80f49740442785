//! The views that readers use, and what a switch to another generation does to them.
//!
//! A view is replaced in the transaction of the switch, so that whoever reads sees the old read model
//! or the new one; a reader with an older snapshot has the older schema too.
//!
//! - Columns that stay, or to which new ones are added at the end, keep the name of the view. On the
//!   way back a view goes on to have the columns that were added, without values.
//! - Columns that do not fit get a view of their own, `read_model_<table>_v<version>`, which this version
//!   keeps from then on. The old name goes on to show the old generation until that is removed.
//! - A table that only the old generation has is shown until that is removed, too.

use rusqlite::{Connection, OptionalExtension};

use super::names::{identifier, view};
use super::registry::json_or_null;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::sqlite::error::{said, store_error};

const READ: &str = "SELECT p.namespace, p.id, g.version, g.home, g.tables \
    FROM everfold_generations g JOIN everfold_projections p ON p.id = g.projection WHERE g.id = ?1";
const LIST_HOMES: &str =
    "SELECT home FROM everfold_generations WHERE projection = ?1 AND home <> ''";
const ACTIVATE: &str = "UPDATE everfold_projections SET active_generation = ?2 WHERE id = ?1";
const FIND: &str = "SELECT type, sql FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE \
    AND type IN ('table', 'view', 'index')";
const LIST_COLUMNS: &str = "SELECT name, type FROM pragma_table_info(?1) ORDER BY cid";
const LIST_VIEWS: &str = "SELECT name FROM sqlite_schema WHERE type = 'view' \
    AND lower(substr(sql, -length(?1))) = lower(?1)";

/// Lets readers see a generation. The transaction holds the write lock.
pub(in crate::store::sqlite) fn switch(
    connection: &Connection,
    generation: i32,
) -> Result<(), StoreError> {
    let shown = Shown::read(connection, generation).map_err(store_error)?;
    let shown = shown.ok_or_else(|| {
        let message = format!("there is no generation {generation} to show to readers");
        StoreError::new(StoreErrorKind::Other, message)
    })?;
    let activate = || connection.prepare_cached(ACTIVATE)?.execute((shown.projection, generation));
    activate().map_err(store_error)?;
    shown.tables.iter().try_for_each(|table| shown.show(connection, table))
}

/// Makes a view of a table, with columns that it does not have. Columns are named, so that the view
/// stays what it is.
pub(super) fn create(
    connection: &Connection,
    name: &str,
    table: &str,
    missing: &[String],
) -> Result<(), rusqlite::Error> {
    let columns = columns(connection, table)?;
    let columns = columns.iter().map(|column| identifier(&column.name));
    let missing = missing.iter().map(|name| format!("NULL AS {}", identifier(name)));
    let columns: Vec<String> = columns.chain(missing).collect();
    connection.execute_batch(&format!(
        "CREATE VIEW {} AS SELECT {}{}",
        identifier(name),
        columns.join(", "),
        from(table)
    ))
}

/// Drops the views that show a table of a generation.
pub(in crate::store::sqlite) fn drop_of(
    connection: &Connection,
    table: &str,
) -> Result<(), rusqlite::Error> {
    let names: Vec<String> = connection
        .prepare_cached(LIST_VIEWS)?
        .query_map([from(table)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    names.iter().try_for_each(|name| drop_view(connection, name))
}

fn drop_view(connection: &Connection, name: &str) -> Result<(), rusqlite::Error> {
    connection.execute_batch(&format!("DROP VIEW {}", identifier(name)))
}

/// How every view of ours ends, by which it is found.
fn from(table: &str) -> String {
    format!(" FROM {}", identifier(table))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    /// As it was declared; empty if it was not.
    declared: String,
}

fn columns(connection: &Connection, table: &str) -> Result<Vec<Column>, rusqlite::Error> {
    let column = |row: &rusqlite::Row<'_>| Ok(Column { name: row.get(0)?, declared: row.get(1)? });
    connection.prepare_cached(LIST_COLUMNS)?.query_map([table], column)?.collect()
}

/// The columns of a view; none if the table behind it was dropped, so that nobody can read it anyway.
fn columns_shown(connection: &Connection, view: &str) -> Result<Vec<Column>, rusqlite::Error> {
    match columns(connection, view) {
        Err(error) if said(&error).starts_with("no such table") => Ok(Vec::new()),
        columns => columns,
    }
}

/// Columns of a view that a table lacks at its end; `None` if the table cannot be shown by it.
fn lacking(view: &[Column], table: &[Column]) -> Option<Vec<String>> {
    let declared_alike = |one: &str, other: &str| {
        one.is_empty() || other.is_empty() || one.eq_ignore_ascii_case(other)
    };
    let alike = view.iter().zip(table).all(|(one, other)| {
        one.name.eq_ignore_ascii_case(&other.name) && declared_alike(&one.declared, &other.declared)
    });
    alike.then(|| view.iter().skip(table.len()).map(|column| column.name.clone()).collect())
}

/// The generation that is to be shown.
struct Shown {
    namespace: String,
    projection: i32,
    version: u32,
    home: String,
    tables: Vec<String>,
    /// Of all generations of the projection.
    homes: Vec<String>,
}

/// What is there under a name.
enum There {
    Nothing,
    /// A view of a generation of this projection.
    Ours,
    Another,
}

impl Shown {
    fn read(connection: &Connection, generation: i32) -> Result<Option<Self>, rusqlite::Error> {
        let mut statement = connection.prepare_cached(READ)?;
        let read = statement.query_row([generation], |row| {
            Ok(Shown {
                namespace: row.get(0)?,
                projection: row.get(1)?,
                version: row.get(2)?,
                home: row.get(3)?,
                tables: json_or_null(row, 4)?.unwrap_or_default(),
                homes: Vec::new(),
            })
        });
        let Some(mut shown) = read.optional()? else { return Ok(None) };
        shown.homes = connection
            .prepare_cached(LIST_HOMES)?
            .query_map([shown.projection], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        Ok(Some(shown))
    }

    fn there(
        &self,
        connection: &Connection,
        name: &str,
        table: &str,
    ) -> Result<There, rusqlite::Error> {
        let columns = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default()))
        };
        let found = connection.prepare_cached(FIND)?.query_row([name], columns).optional()?;
        let Some((kind, sql)) = found else { return Ok(There::Nothing) };
        let sql = sql.to_ascii_lowercase();
        let shows =
            |home: &String| sql.ends_with(&from(&format!("{home}{table}")).to_ascii_lowercase());
        Ok(match kind == "view" && self.homes.iter().any(shows) {
            true => There::Ours,
            false => There::Another,
        })
    }

    fn show(&self, connection: &Connection, table: &str) -> Result<(), StoreError> {
        let plain = view(&self.namespace, table);
        let own = view(&self.namespace, &format!("{table}_v{}", self.version));
        let look = |name: &str| self.there(connection, name, table).map_err(store_error);
        // A name that this version once had to take stays its name.
        if matches!(look(&own)?, There::Ours) {
            drop_view(connection, &own).map_err(store_error)?;
            return self.create(connection, &own, table);
        }
        match look(&plain)? {
            There::Nothing => self.create(connection, &plain, table),
            There::Another => Err(taken(&plain, table)),
            There::Ours if self.replace(connection, &plain, table)? => Ok(()),
            There::Ours => match look(&own)? {
                There::Nothing => self.create(connection, &own, table),
                _ => Err(taken(&own, table)),
            },
        }
    }

    fn create(&self, connection: &Connection, name: &str, table: &str) -> Result<(), StoreError> {
        create(connection, name, &format!("{}{table}", self.home), &[]).map_err(store_error)
    }

    /// Lets a view of ours show the table; `false` if its columns do not fit.
    fn replace(
        &self,
        connection: &Connection,
        name: &str,
        table: &str,
    ) -> Result<bool, StoreError> {
        let table = format!("{}{table}", self.home);
        let replace = || -> Result<bool, rusqlite::Error> {
            let (before, now) = (columns_shown(connection, name)?, columns(connection, &table)?);
            let Some(missing) = lacking(&before, &now) else { return Ok(false) };
            drop_view(connection, name)?;
            create(connection, name, &table, &missing)?;
            Ok(true)
        };
        replace().map_err(store_error)
    }
}

fn taken(name: &str, table: &str) -> StoreError {
    let message = format!(
        "the file has something called {name} already, where readers would look for the table {table}; \
         rename one of them"
    );
    StoreError::new(StoreErrorKind::Other, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(columns: &[(&str, &str)]) -> Vec<Column> {
        let column = |(name, declared): &(&str, &str)| Column {
            name: (*name).to_owned(),
            declared: (*declared).to_owned(),
        };
        columns.iter().map(column).collect()
    }

    #[test]
    fn columns_fit_if_the_shorter_list_begins_the_longer() {
        let one = listed(&[("a", "TEXT")]);
        let two = listed(&[("a", "text"), ("b", "INTEGER")]);
        assert_eq!(lacking(&one, &one), Some(vec![]));
        assert_eq!(lacking(&one, &two), Some(vec![]));
        assert_eq!(lacking(&two, &one), Some(vec!["b".to_owned()]));
        assert_eq!(lacking(&one, &listed(&[("a", "INTEGER")])), None);
        assert_eq!(lacking(&two, &listed(&[("b", "INTEGER"), ("a", "TEXT")])), None);
        // A column without values has no declared type.
        assert_eq!(lacking(&listed(&[("a", "TEXT"), ("b", "")]), &two), Some(vec![]));
    }
}
