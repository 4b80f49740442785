//! SQL projections without files: the same SQL, given in Rust.

use super::Projection;
use super::builder::ProjectionBuilder;
use super::definition::{Body, Definition};
use super::projector::Projector;
use super::script::{Script, Scripts, SqlScripts, SqlUpcaster, rules};
use crate::error::ProjectionError;
use crate::upcast::Upcasters;

/// What the builder of a projection in SQL has more than others: [create](ProjectionBuilder::create),
/// [apply](ProjectionBuilder::apply), [upcaster](ProjectionBuilder::upcaster), and the same for SQLite.
#[derive(Debug, Clone, Default)]
pub struct SqlBody {
    create: Option<Script>,
    apply: Option<Script>,
    create_sqlite: Option<Script>,
    apply_sqlite: Option<Script>,
    upcasters: Vec<UpcasterScripts>,
}

/// A step of an upcaster in both dialects.
#[derive(Debug, Clone)]
pub(crate) struct UpcasterScripts {
    pub(crate) event_type: String,
    pub(crate) schema_version: u32,
    pub(crate) expression: Script,
    /// Takes over on SQLite.
    pub(crate) expression_sqlite: Option<Script>,
}

impl Projection {
    /// A projection in SQL that the database applies, whoever appends. Files do the same without Rust:
    /// [`Projection::load_all`].
    ///
    /// `create` makes the tables, which are called `read_model.<table>`; `apply` changes them from the
    /// relation `batch`: events in their order, with the columns `position`, `stream_id`, `version`,
    /// `type`, `schema_version`, `data`, `metadata`, `id` and `recorded_at`.
    ///
    /// ```
    /// use everfold::Projection;
    ///
    /// let totals = Projection::sql("cart_totals", 1)
    ///     .create("CREATE TABLE read_model.cart_totals (cart_id TEXT PRIMARY KEY, items BIGINT NOT NULL)")
    ///     .apply(
    ///         "INSERT INTO read_model.cart_totals AS t (cart_id, items)
    ///          SELECT stream_id, SUM(CAST(data->>'quantity' AS BIGINT)) FROM batch WHERE true GROUP BY stream_id
    ///          ON CONFLICT (cart_id) DO UPDATE SET items = t.items + EXCLUDED.items",
    ///     )
    ///     .events(["ItemAdded"])
    ///     .inline()
    ///     .build()?;
    /// assert_eq!(totals.name(), "cart_totals");
    /// # Ok::<(), everfold::ProjectionError>(())
    /// ```
    pub fn sql(name: impl Into<String>, version: u32) -> ProjectionBuilder<SqlBody> {
        // The body is complete when the projection is built.
        ProjectionBuilder::new(name, version, Body::Handler, SqlBody::default())
    }
}

impl ProjectionBuilder<SqlBody> {
    /// The statements that make the tables. They run once for each generation.
    pub fn create(mut self, sql: impl Into<String>) -> Self {
        self.body.create = Some(Script::given("create", sql));
        self
    }

    /// The statements that apply a batch of events.
    pub fn apply(mut self, sql: impl Into<String>) -> Self {
        self.body.apply = Some(Script::given("apply", sql));
        self
    }

    /// What SQLite is given instead of [`create`](Self::create), where the dialects differ.
    pub fn create_on_sqlite(mut self, sql: impl Into<String>) -> Self {
        self.body.create_sqlite = Some(Script::given("create (SQLite)", sql));
        self
    }

    /// What SQLite is given instead of [`apply`](Self::apply), where the dialects differ.
    pub fn apply_on_sqlite(mut self, sql: impl Into<String>) -> Self {
        self.body.apply_sqlite = Some(Script::given("apply (SQLite)", sql));
        self
    }

    /// An SQL expression over `data` that brings events of a type from a schema version to the next,
    /// as [`Upcasters::add`](crate::Upcasters::add) does for Rust.
    pub fn upcaster(
        mut self,
        event_type: impl Into<String>,
        schema_version: u32,
        expression: impl Into<String>,
    ) -> Self {
        let event_type = event_type.into();
        let name = format!("upcaster {event_type}.{schema_version}");
        let expression = Script::given(&name, expression);
        self.body.upcasters.push(UpcasterScripts {
            event_type,
            schema_version,
            expression,
            expression_sqlite: None,
        });
        self
    }

    /// What SQLite is given instead of an [`upcaster`](Self::upcaster) that was added before.
    pub fn upcaster_on_sqlite(
        mut self,
        event_type: &str,
        schema_version: u32,
        expression: impl Into<String>,
    ) -> Self {
        let name = format!("upcaster {event_type}.{schema_version} (SQLite)");
        let same = |step: &&mut UpcasterScripts| {
            step.event_type == event_type && step.schema_version == schema_version
        };
        match self.body.upcasters.iter_mut().find(same) {
            Some(step) => step.expression_sqlite = Some(Script::given(&name, expression)),
            None => self.refuse(format!("{name} takes over from none; add upcaster(..) before it")),
        }
        self
    }

    /// The SQL as read from files.
    pub(super) fn scripts(
        mut self,
        postgres: [Script; 2],
        sqlite: [Option<Script>; 2],
        upcasters: Vec<UpcasterScripts>,
    ) -> Self {
        let ([create, apply], [create_sqlite, apply_sqlite]) = (postgres, sqlite);
        let (create, apply) = (Some(create), Some(apply));
        self.body = SqlBody { create, apply, create_sqlite, apply_sqlite, upcasters };
        self
    }

    /// The projection, ready to be registered.
    ///
    /// # Errors
    /// [`ProjectionError::Invalid`] if a rule is broken, [`ProjectionError::Sql`] if the SQL cannot be
    /// right; the message says where.
    pub fn build(mut self) -> Result<Projection, ProjectionError> {
        let name = self.definition.name.clone();
        let missing = |what: &str| ProjectionError::Invalid {
            projection: name.clone(),
            message: format!("it has no SQL for {what}; give it with {what}(..)"),
        };
        let body = std::mem::take(&mut self.body);
        let create = body.create.ok_or_else(|| missing("create"))?;
        let apply = body.apply.ok_or_else(|| missing("apply"))?;
        let wanted = wanted_upcasters(&self.definition, body.upcasters);
        let scripts = SqlScripts {
            sqlite: Scripts {
                create: body.create_sqlite.unwrap_or_else(|| create.clone()),
                apply: body.apply_sqlite.unwrap_or_else(|| apply.clone()),
                upcasters: wanted.iter().map(UpcasterScripts::for_sqlite).collect(),
            },
            postgres: Scripts {
                create,
                apply,
                upcasters: wanted.iter().map(UpcasterScripts::for_postgres).collect(),
            },
        };
        self.definition.body = Body::Sql(Box::new(scripts));
        let projection = self.finish(|_, _| Ok(Projector::Sql))?;
        if let Body::Sql(scripts) = &projection.definition.body {
            rules::check(&name, &scripts.postgres)?;
            if scripts.sqlite != scripts.postgres {
                rules::check(&name, &scripts.sqlite)?;
            }
        }
        Ok(projection)
    }
}

impl UpcasterScripts {
    fn for_postgres(&self) -> SqlUpcaster {
        self.with(&self.expression)
    }

    fn for_sqlite(&self) -> SqlUpcaster {
        self.with(self.expression_sqlite.as_ref().unwrap_or(&self.expression))
    }

    fn with(&self, expression: &Script) -> SqlUpcaster {
        SqlUpcaster {
            event_type: self.event_type.clone(),
            schema_version: self.schema_version,
            expression: expression.clone(),
        }
    }
}

/// Those of the types that the projection wants, sorted.
fn wanted_upcasters(definition: &Definition, all: Vec<UpcasterScripts>) -> Vec<UpcasterScripts> {
    let mut wanted = all;
    wanted.retain(|upcaster| wants(definition, &upcaster.event_type));
    wanted
        .sort_by(|a, b| (&a.event_type, a.schema_version).cmp(&(&b.event_type, b.schema_version)));
    wanted
}

fn wants(definition: &Definition, event_type: &str) -> bool {
    match &definition.event_types {
        None => true,
        Some(types) => types.iter().any(|wanted| wanted == event_type),
    }
}

/// Refuses a SQL projection that would see events in another shape than Rust code does: those that an
/// upcaster in Rust changes, without the same in SQL.
pub(crate) fn check_upcasters(
    definition: &Definition,
    upcasters: &Upcasters,
) -> Result<(), ProjectionError> {
    let Body::Sql(scripts) = &definition.body else { return Ok(()) };
    let invalid = |message: String| {
        Err(ProjectionError::Invalid { projection: definition.name.clone(), message })
    };
    for (event_type, schema_version) in upcasters.steps() {
        let in_sql = scripts.postgres.upcasters.iter().any(|upcaster| {
            upcaster.event_type == event_type && upcaster.schema_version == schema_version
        });
        if wants(definition, event_type) && !in_sql {
            return invalid(format!(
                "it wants {event_type}, whose schema version {schema_version} has an upcaster in Rust \
                 that SQL cannot run; add the same as SQL in \
                 upcasters/{event_type}.{schema_version}.sql, or leave the type out"
            ));
        }
    }
    for (old, new) in upcasters.renames() {
        let listed = definition.event_types.is_some();
        if listed && wants(definition, new) && !wants(definition, old) {
            return invalid(format!(
                "it wants {new}, which the log also has as {old}; SQL sees the stored names: add \
                 \"{old}\" to its events, and to its SQL"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{Lifecycle, StoreKind, Upcasters};

    const CREATE: &str = "CREATE TABLE read_model.t (id TEXT PRIMARY KEY)";
    const APPLY: &str = "INSERT INTO read_model.t SELECT stream_id FROM batch";

    fn builder() -> ProjectionBuilder<SqlBody> {
        Projection::sql("totals", 1).create(CREATE).apply(APPLY)
    }

    fn scripts(projection: &Projection) -> &SqlScripts {
        match &projection.definition.body {
            Body::Sql(scripts) => scripts,
            other => panic!("not SQL: {other:?}"),
        }
    }

    #[track_caller]
    fn refused(built: Result<Projection, ProjectionError>, part: &str) {
        let error = built.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn one_text_serves_both_stores_unless_another_is_given() {
        let plain = builder().build().unwrap();
        assert_eq!(scripts(&plain).postgres, scripts(&plain).sqlite);
        assert_eq!(plain.definition.lifecycle, Lifecycle::CatchUp);
        let apply = "DELETE FROM read_model.t WHERE id IN (SELECT stream_id FROM batch)";
        let other = builder().apply_on_sqlite(apply).build().unwrap();
        assert_eq!(scripts(&other).postgres.apply.text, APPLY);
        assert_eq!(scripts(&other).sqlite.apply.text, apply);
    }

    #[test]
    fn sql_for_the_other_store_is_no_change() {
        let plain = builder().upcaster("A", 1, "data").build().unwrap().definition;
        let changed = [
            builder().upcaster("A", 1, "data").apply_on_sqlite(format!("{APPLY} WHERE true")),
            builder().upcaster("A", 1, "data").create_on_sqlite(format!("{CREATE} STRICT")),
            builder().upcaster("A", 1, "data").upcaster_on_sqlite("A", 1, "json(data)"),
        ];
        for changed in changed {
            let changed = changed.build().unwrap().definition;
            assert_eq!(plain.hash(StoreKind::Postgres), changed.hash(StoreKind::Postgres));
            assert_ne!(plain.hash(StoreKind::Sqlite), changed.hash(StoreKind::Sqlite));
        }
        // A text that takes over and says the same changes nothing there either.
        let same = builder().upcaster("A", 1, "data").apply_on_sqlite(APPLY).build().unwrap();
        assert_eq!(plain.hash(StoreKind::Sqlite), same.definition.hash(StoreKind::Sqlite));
        assert_eq!(plain.hash(StoreKind::Sqlite), plain.hash(StoreKind::Postgres));
    }

    #[test]
    fn inline_sql_may_have_any_key() {
        let projection = builder().inline().key_fields(["data.tenant"]).build().unwrap();
        assert_eq!(projection.definition.key.to_stored(), Some(vec!["data.tenant".to_owned()]));
    }

    #[test]
    fn sql_that_is_missing_or_wrong_is_refused() {
        refused(Projection::sql("totals", 1).apply(APPLY).build(), "no SQL for create");
        refused(Projection::sql("totals", 1).create(CREATE).build(), "no SQL for apply");
        refused(Projection::sql("to\"tals", 1).create(CREATE).apply(APPLY).build(), "the name");
        refused(builder().apply("DELETE FROM batch;\n'").build(), "apply:2: the string");
        refused(builder().apply_on_sqlite("'").build(), "apply (SQLite):1: the string");
        refused(builder().create_on_sqlite("").build(), "create (SQLite):1: it makes no table");
    }

    #[test]
    fn upcasters_of_wanted_types_are_taken() {
        let with =
            builder().upcaster("B", 2, "data").upcaster("B", 1, "data").upcaster("A", 1, "data");
        let built = with.clone().events(["B"]).build().unwrap();
        let steps = |projection: &Projection| -> Vec<(String, u32)> {
            let upcasters = scripts(projection).postgres.upcasters.iter();
            upcasters.map(|step| (step.event_type.clone(), step.schema_version)).collect()
        };
        assert_eq!(steps(&built), [("B".into(), 1), ("B".into(), 2)]);
        assert_eq!(
            steps(&with.build().unwrap()),
            [("A".into(), 1), ("B".into(), 1), ("B".into(), 2)]
        );
    }

    #[test]
    fn upcaster_in_rust_alone_is_refused() {
        let upcasters = Upcasters::new().add("B", 1, Ok::<Value, String>);
        let check = |built: ProjectionBuilder<SqlBody>| {
            check_upcasters(&built.build().unwrap().definition, &upcasters)
        };
        for builder in [builder(), builder().events(["B"])] {
            let error = check(builder.clone()).unwrap_err().to_string();
            assert!(error.contains("upcasters/B.1.sql"), "{error}");
            check(builder.upcaster("B", 1, "data")).unwrap();
        }
        check(builder().events(["A"])).unwrap();
    }

    #[test]
    fn type_that_was_renamed_in_rust_is_named_by_its_stored_names() {
        let upcasters = Upcasters::new().rename("Old", "New");
        let check = |types: &[&str]| {
            let built = builder().events(types.iter().copied()).build().unwrap();
            check_upcasters(&built.definition, &upcasters)
        };
        let error = check(&["New"]).unwrap_err().to_string();
        assert!(error.contains("add \"Old\" to its events"), "{error}");
        check(&["New", "Old"]).unwrap();
        check(&["Other"]).unwrap();
        let alone = builder().upcaster_on_sqlite("A", 1, "data").build();
        refused(alone, "upcaster A.1 (SQLite) takes over from none");
        check_upcasters(&builder().build().unwrap().definition, &upcasters).unwrap();
    }
}
