//! The read models as an application reads them: with SQL, on a connection of its own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use everfold::postgres::tokio_postgres::{Client, SimpleQueryMessage};
use everfold::sqlite::rusqlite::{self, OpenFlags};

use crate::project;

/// A writer that moves the log of the file may keep a reader from beginning for a moment.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) enum ReadModels {
    Postgres(Client),
    Sqlite(Arc<Mutex<rusqlite::Connection>>),
}

impl ReadModels {
    pub(super) async fn connect(url: &str) -> anyhow::Result<ReadModels> {
        match project::sqlite_path(url) {
            Some(path) => Self::open(path).with_context(|| format!("cannot read {url}")),
            None => Ok(ReadModels::Postgres(everfold::postgres::connect(url).await?)),
        }
    }

    fn open(path: &Path) -> rusqlite::Result<ReadModels> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(ReadModels::Sqlite(Arc::new(Mutex::new(connection))))
    }

    /// Rows of a read model as text. `rest` is what follows the table's name.
    pub(super) async fn rows(
        &self,
        columns: &[&str],
        table: &str,
        rest: &str,
    ) -> anyhow::Result<Vec<Vec<String>>> {
        let cast: Vec<String> = columns.iter().map(|c| format!("CAST({c} AS TEXT)")).collect();
        let (columns, cast) = (columns.len(), cast.join(", "));
        let rows = match self {
            ReadModels::Postgres(client) => {
                // No prepared statement: a pooler may be between.
                let sql = format!("SELECT {cast} FROM read_model.{table} {rest}");
                from_postgres(&client.simple_query(&sql).await?, columns)
            }
            ReadModels::Sqlite(connection) => {
                let sql = format!("SELECT {cast} FROM read_model_{table} {rest}");
                let connection = Arc::clone(connection);
                let read = move || {
                    let connection = connection.lock().expect("nothing panics with this locked");
                    from_sqlite(&connection, &sql, columns)
                };
                tokio::task::spawn_blocking(read).await??
            }
        };
        Ok(rows)
    }
}

fn from_postgres(messages: &[SimpleQueryMessage], columns: usize) -> Vec<Vec<String>> {
    let text = |row: &everfold::postgres::tokio_postgres::SimpleQueryRow| {
        (0..columns).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()
    };
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(text(row)),
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

fn from_sqlite(
    connection: &rusqlite::Connection,
    sql: &str,
    columns: usize,
) -> rusqlite::Result<Vec<Vec<String>>> {
    let mut statement = connection.prepare_cached(sql)?;
    let text = |row: &rusqlite::Row<'_>| {
        let cell = |column| row.get::<_, Option<String>>(column).map(Option::unwrap_or_default);
        (0..columns).map(cell).collect()
    };
    statement.query_map([], text)?.collect()
}
