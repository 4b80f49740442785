//! The documents that an append may change, as they are in its transaction.
//!
//! The key of an inline document is its stream, which the append has locked: they are asked for in
//! the same round trip, behind the append, whatever comes of it.

use futures::future::join_all;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connect::{Connection, Param, QueryError};
use super::super::types::JsonString;
use super::due::Documents;
use super::write::{Run, table};
use crate::projection::generation::Generation;

/// What is asked for, for each generation that has documents.
pub(super) struct Loads<'a> {
    streams: &'a Vec<&'a str>,
    statements: Vec<(i32, String)>,
}

impl<'a> Loads<'a> {
    pub(super) fn new<'g>(
        generations: impl Iterator<Item = &'g Generation>,
        streams: &'a Vec<&'a str>,
    ) -> Self {
        // For a list the server makes a plan each time; for one value it keeps it.
        let wanted = if streams.len() == 1 { "= $1" } else { "= ANY ($1)" };
        let statement = |generation: &Generation| {
            let table = table(generation);
            let sql = format!("SELECT d.key::text, d.document FROM {table} d WHERE d.key {wanted}");
            (generation.id, sql)
        };
        Loads { streams, statements: generations.map(statement).collect() }
    }

    /// Makes sure that they are sent as soon as they are run.
    pub(super) async fn prepare(&self, connection: &Connection) -> Result<(), QueryError> {
        let kind = self.streams().1;
        for (_, sql) in &self.statements {
            connection.prepare(sql, std::slice::from_ref(&kind)).await?;
        }
        Ok(())
    }

    pub(super) async fn send(&self, session: &impl Run) -> Result<Documents, QueryError> {
        let params = [self.streams()];
        let asking = self.statements.iter().map(|(_, sql)| session.run(sql, &params));
        let mut documents = Documents::new();
        for ((generation, _), rows) in self.statements.iter().zip(join_all(asking).await) {
            for row in rows? {
                let (key, document) = read(&row).map_err(QueryError::Driver)?;
                documents.insert((*generation, key), document);
            }
        }
        Ok(documents)
    }

    fn streams(&self) -> Param<'_> {
        match self.streams.as_slice() {
            [stream] => (stream, Type::TEXT),
            _ => (self.streams, Type::TEXT_ARRAY),
        }
    }
}

fn read(row: &Row) -> Result<(String, String), tokio_postgres::Error> {
    Ok((row.try_get(0)?, row.try_get::<_, JsonString>(1)?.0))
}
