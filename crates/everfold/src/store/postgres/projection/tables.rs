//! The schema of a generation: made by its scripts, by the engine or by its handler, and shown to
//! readers by views.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type;

use super::apply::chain;
use super::deferred;
use super::functions::{self, Events};
use super::names::{quoted, readers, table};
use super::unit::PostgresUnit;
use crate::error::{ProjectionError, StoreError, StoreErrorKind};
use crate::projection::Projection;
use crate::projection::definition::{Body, Definition, Lifecycle};
use crate::projection::document::panic_message;
use crate::projection::projector::Projector;
use crate::projection::script::{Script, Scripts, Statement};
use crate::store::postgres::connect::{Param, QueryError};
use crate::store::postgres::error::store_error;

const LIST_TABLES: &str = "SELECT c.relname::text FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition ORDER BY 1";
/// What is retired and still has tables.
const IS_BEING_REMOVED: &str = "SELECT FROM everfold.generations g \
    JOIN everfold.projections p ON p.id = g.projection \
    JOIN pg_catalog.pg_namespace n ON n.nspname = g.home \
    WHERE p.namespace = $1 AND p.name = $2 AND g.status = 'retired' LIMIT 1";
const IS_THERE: &str = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";

/// Who owns and uses what registrations make.
#[derive(Debug, Clone)]
pub(in crate::store::postgres) struct Roles {
    /// Owns the functions that appends call.
    pub(in crate::store::postgres) store_owner: String,
    /// Whether to make everything as everfold_admin, so that all its members can manage it.
    pub(in crate::store::postgres) as_admin: bool,
    pub(in crate::store::postgres) has_writer: bool,
    pub(in crate::store::postgres) has_read_models: bool,
}

const READ_ROLES: &str = "SELECT pg_catalog.pg_get_userbyid(n.nspowner)::text, \
    EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'everfold_admin' \
        AND pg_catalog.pg_has_role(current_user, r.oid, 'MEMBER') \
        AND pg_catalog.has_database_privilege(r.oid, pg_catalog.current_database(), 'CREATE') \
        AND pg_catalog.has_schema_privilege(r.oid, 'read_model', 'CREATE')), \
    EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'everfold_writer'), \
    EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'everfold_read_models') \
    FROM pg_catalog.pg_namespace n WHERE n.nspname = 'everfold'";

impl Roles {
    pub(in crate::store::postgres) async fn read(
        unit: &mut PostgresUnit<'_>,
    ) -> Result<Roles, StoreError> {
        let rows = unit.ask(READ_ROLES, &[]).await?;
        let row = rows.first().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Missing, "the schema everfold is missing")
        })?;
        Ok(Roles {
            store_owner: row.get(0),
            as_admin: row.get(1),
            has_writer: row.get(2),
            has_read_models: row.get(3),
        })
    }
}

/// When the indexes are made that nothing needs while history is copied: those of `create.sql` that are
/// not unique, and all of a document table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::postgres) enum Indexes {
    Now,
    /// After the copy, which whoever makes the generation notes in it (`indexes_deferred`).
    Later,
    /// The same, but a document table has its key from the start: later, readers may be in the way.
    LaterButKeys,
}

/// A generation whose schema is being made.
pub(in crate::store::postgres) struct Making<'u, 'a> {
    pub(in crate::store::postgres) unit: &'u mut PostgresUnit<'a>,
    pub(in crate::store::postgres) projection: &'u Projection,
    pub(in crate::store::postgres) home: &'u str,
    pub(in crate::store::postgres) roles: &'u Roles,
    pub(in crate::store::postgres) indexes: Indexes,
}

impl Making<'_, '_> {
    fn definition(&self) -> &Definition {
        &self.projection.definition
    }

    /// Makes tables and functions, and returns the names of the tables.
    pub(in crate::store::postgres) async fn create(
        &mut self,
    ) -> Result<Vec<String>, ProjectionError> {
        let home = quoted(self.home);
        let owner = quoted(&self.roles.store_owner);
        self.run(&format!("CREATE SCHEMA {home}; GRANT USAGE ON SCHEMA {home} TO {owner}")).await?;
        let projection = self.projection;
        match &projection.definition.body {
            Body::Sql(scripts) => self.create_sql(&scripts.postgres).await?,
            Body::Document { indexes } => self.create_documents(indexes).await?,
            Body::Handler => self.set_up().await?,
        }
        self.let_writers_apply().await?;
        let rows = self.unit.ask(LIST_TABLES, &[(&self.home, Type::TEXT)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Clients that carry an inline projection in Rust write its tables in their own transaction.
    async fn let_writers_apply(&mut self) -> Result<(), ProjectionError> {
        let in_rust = !matches!(self.definition().body, Body::Sql(_));
        if !in_rust || self.definition().lifecycle != Lifecycle::Inline || !self.roles.has_writer {
            return Ok(());
        }
        let home = quoted(self.home);
        let sql = format!(
            "GRANT USAGE ON SCHEMA {home} TO everfold_writer; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {home} TO everfold_writer; \
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA {home} TO everfold_writer"
        );
        Ok(self.run(&sql).await?)
    }

    async fn create_sql(&mut self, scripts: &Scripts) -> Result<(), ProjectionError> {
        let projection = self.projection;
        let name = &projection.definition.name;
        self.run("SET LOCAL search_path = pg_catalog, pg_temp").await?;
        let parts = |script: &Script| script.statements().map_err(|error| error.of(name, script));
        let create = parts(&scripts.create)?;
        let later = deferred::statements(&create);
        for (place, statement) in create.iter().enumerate() {
            let sql = statement.map_tables(|name| table(self.home, name));
            if self.indexes != Indexes::Now && later.contains(&place) {
                // A mistake in it is to be found now, not when everything else is done.
                self.run("SAVEPOINT everfold_index").await?;
                self.try_statement(&scripts.create, statement, &sql).await?;
                let undo = "ROLLBACK TO SAVEPOINT everfold_index; RELEASE SAVEPOINT everfold_index";
                self.run(undo).await?;
            } else {
                self.try_statement(&scripts.create, statement, &sql).await?;
            }
        }
        for upcaster in &scripts.upcasters {
            let sql = functions::check_upcaster(&upcaster.expression.text);
            let whole = parts(&upcaster.expression)?;
            if let Some(first) = whole.first() {
                let lines = Lines { first: 1, at: first.line };
                self.try_sql(&upcaster.expression, lines, &sql).await?;
            }
        }
        let statements = parts(&scripts.apply)?;
        self.create_functions(scripts, &statements).await
    }

    async fn create_functions(
        &mut self,
        scripts: &Scripts,
        statements: &[Statement],
    ) -> Result<(), ProjectionError> {
        let definition = &self.projection.definition;
        let file = scripts.apply.file_in_project();
        for events in [Events::Range, Events::Positions, Events::One, Events::Part] {
            let mut made = Vec::new();
            for statement in statements {
                let sql = functions::statement(definition, scripts, self.home, statement, events)
                    .map_err(|error| error.of(&definition.name, &scripts.apply))?;
                if events == Events::Range {
                    let check = functions::check(&sql);
                    self.try_statement(&scripts.apply, statement, &check).await?;
                }
                made.push((statement.line, sql));
            }
            let signature = functions::signature(self.home, events);
            let create = functions::create(self.home, events, &file, &made);
            let lines = Lines { first: 1, at: 1 };
            self.try_sql(&scripts.apply, lines, &create).await?;
            let owner = quoted(&self.roles.store_owner);
            let rights = format!(
                "REVOKE ALL ON FUNCTION {signature} FROM PUBLIC; \
                 GRANT EXECUTE ON FUNCTION {signature} TO {owner}"
            );
            self.run(&rights).await?;
        }
        Ok(())
    }

    async fn create_documents(&mut self, indexes: &[String]) -> Result<(), ProjectionError> {
        let name = &self.definition().name;
        let key = match self.indexes {
            Indexes::Now | Indexes::LaterButKeys => "PRIMARY KEY",
            Indexes::Later => "NOT NULL",
        };
        let mut sql = format!(
            "CREATE TABLE {} (key text COLLATE \"C\" {key}, document jsonb NOT NULL, \
             position bigint NOT NULL, stream_version bigint NOT NULL)",
            table(self.home, name)
        );
        if self.indexes == Indexes::Now {
            for index in deferred::document_indexes(self.home, name, indexes) {
                sql.push_str("; ");
                sql.push_str(&index);
            }
        }
        Ok(self.run(&sql).await?)
    }

    async fn set_up(&mut self) -> Result<(), ProjectionError> {
        let projection = self.definition().name.clone();
        let Projector::PostgresHandler(handler) = &self.projection.projector else {
            let message = "its handler is for another kind of store; use one for PostgreSQL";
            return Err(ProjectionError::Invalid { projection, message: message.to_owned() });
        };
        let running = async { handler.set_up(self.home, self.unit.transaction()).await };
        let message = match AssertUnwindSafe(running).catch_unwind().await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => match error.downcast::<tokio_postgres::Error>() {
                Ok(error) => store_error(*error).to_string(),
                Err(error) => chain(&*error),
            },
            Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
        };
        self.unit.note_abort();
        Err(ProjectionError::Invalid {
            projection,
            message: format!("its set-up failed: {message}"),
        })
    }

    /// Makes the views that readers use, of the generation that is active.
    pub(in crate::store::postgres) async fn show(
        &mut self,
        tables: &[String],
    ) -> Result<(), ProjectionError> {
        let schema = readers(&self.definition().namespace);
        let mut sql = Vec::new();
        if !self.definition().namespace.is_empty() {
            sql.push(format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(&schema)));
            if self.roles.has_read_models {
                let grant =
                    format!("GRANT USAGE ON SCHEMA {} TO everfold_read_models", quoted(&schema));
                sql.push(grant);
            }
        }
        for name in tables {
            let view = table(&schema, name);
            let rows = self.unit.ask(IS_THERE, &[(&view, Type::TEXT)]).await?;
            if rows.first().is_some_and(|row| row.get(0)) {
                let projection = self.definition().name.clone();
                let namespace = self.definition().namespace.clone();
                let names: [Param<'_>; 2] = [(&namespace, Type::TEXT), (&projection, Type::TEXT)];
                let message = match self.unit.ask(IS_BEING_REMOVED, &names).await?.is_empty() {
                    true => format!(
                        "there is something called {schema}.{name} already, where readers would look \
                         for the table {name}; rename one of them"
                    ),
                    false => format!(
                        "what was removed of it is not gone yet, because somebody could still see it; \
                         end that with `everfold remove {projection}`, then try again"
                    ),
                };
                return Err(ProjectionError::Invalid { projection, message });
            }
            sql.push(format!("CREATE VIEW {view} AS SELECT * FROM {}", table(self.home, name)));
            if self.roles.has_read_models {
                sql.push(format!("GRANT SELECT ON {view} TO everfold_read_models"));
            }
        }
        Ok(self.run(&sql.join("; ")).await?)
    }

    async fn run(&mut self, sql: &str) -> Result<(), StoreError> {
        self.unit.batch(sql).await.map_err(QueryError::into_store_error)
    }

    /// Runs what was made of a statement; an error points to its line.
    async fn try_statement(
        &mut self,
        script: &Script,
        statement: &Statement,
        sql: &str,
    ) -> Result<(), ProjectionError> {
        self.try_sql(script, Lines { first: statement.line, at: statement.line }, sql).await
    }

    async fn try_sql(
        &mut self,
        script: &Script,
        lines: Lines,
        sql: &str,
    ) -> Result<(), ProjectionError> {
        let error = match self.unit.batch(sql).await {
            Ok(()) => return Ok(()),
            Err(QueryError::Driver(error)) => error,
            Err(error) => return Err(error.into_store_error().into()),
        };
        let Some(database) = error.as_db_error() else { return Err(store_error(error).into()) };
        let line = match database.position() {
            Some(ErrorPosition::Original(character)) => lines.of(sql, *character),
            _ => lines.at,
        };
        let message = match database.hint().or(database.detail()) {
            Some(more) => format!("{} ({more})", database.message()),
            None => database.message().to_owned(),
        };
        let store = store_error(error);
        if store.is_transient() || store.kind() == StoreErrorKind::ReadOnly {
            return Err(store.into());
        }
        Err(ProjectionError::Sql {
            projection: self.definition().name.clone(),
            file: script.file.display().to_string(),
            line,
            message,
        })
    }
}

/// Where what is sent stands in its file.
#[derive(Clone, Copy)]
struct Lines {
    /// The line of the file that the first line sent is.
    first: u32,
    /// The line for an error without a place.
    at: u32,
}

impl Lines {
    /// The line of a character, from 1, of what was sent.
    fn of(self, sent: &str, character: u32) -> u32 {
        let before = sent.chars().take(character.saturating_sub(1) as usize);
        self.first + u32::try_from(before.filter(|c| *c == '\n').count()).unwrap_or(0)
    }
}

/// Refuses tables that readers would take for those of another projection.
pub(in crate::store::postgres) async fn check_free(
    unit: &mut PostgresUnit<'_>,
    definition: &Definition,
    projection_id: i32,
    tables: &[String],
) -> Result<(), ProjectionError> {
    let sql = "SELECT t.name, p.name FROM everfold.generations g \
        JOIN everfold.projections p ON p.id = g.projection, unnest(g.tables) AS t(name) \
        WHERE g.status NOT IN ('retired', 'spare') AND p.namespace = $1 AND p.id <> $2 AND t.name = ANY ($3) LIMIT 1";
    let params: [Param<'_>; 3] = [
        (&definition.namespace, Type::TEXT),
        (&projection_id, Type::INT4),
        (&tables, Type::TEXT_ARRAY),
    ];
    match unit.ask(sql, &params).await?.first() {
        None => Ok(()),
        Some(row) => Err(ProjectionError::TableTaken {
            projection: definition.name.clone(),
            table: row.get(0),
            owner: row.get(1),
        }),
    }
}
