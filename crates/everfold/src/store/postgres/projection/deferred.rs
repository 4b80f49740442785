//! Indexes that are made after history was copied: rows are put into a table without them much faster.
//! What a table has at the end is the same, names included, as if they had been made with it.

use super::names::{path, table};
use crate::error::ProjectionError;
use crate::projection::definition::{Body, Definition};
use crate::projection::script::Statement;

/// The places of those statements of `create.sql` that can wait: indexes that are not unique. None if a
/// later statement may be about one of them.
pub(super) fn statements(create: &[Statement]) -> Vec<usize> {
    let is_index = |statement: &Statement| statement.creates_plain_index();
    let places: Vec<usize> = (0..create.len()).filter(|place| is_index(&create[*place])).collect();
    let from = places.first().copied().unwrap_or(create.len());
    let names_one = |statement: &Statement| matches!(&*statement.keyword(), "ALTER" | "COMMENT");
    match create[from..].iter().any(names_one) {
        true => Vec::new(),
        false => places,
    }
}

/// The statements that make the field indexes of a document table.
pub(super) fn document_indexes(home: &str, name: &str, fields: &[String]) -> Vec<String> {
    let table = table(home, name);
    // The same expression as in the queries.
    let index = |field: &String| format!("CREATE INDEX ON {table} ((document #> {}))", path(field));
    fields.iter().map(index).collect()
}

/// The statements that make what was deferred, in the order in which it would have been made.
pub(in crate::store::postgres) fn all(
    definition: &Definition,
    home: &str,
) -> Result<Vec<String>, ProjectionError> {
    match &definition.body {
        Body::Handler => Ok(Vec::new()),
        Body::Document { indexes } => Ok(document_indexes(home, &definition.name, indexes)),
        Body::Sql(scripts) => {
            let script = &scripts.postgres.create;
            let create = script.statements().map_err(|error| error.of(&definition.name, script))?;
            let places = statements(&create);
            let sql = |place: usize| create[place].map_tables(|name| table(home, name));
            Ok(places.into_iter().map(sql).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::script::Script;

    fn deferred(sql: &str) -> Vec<usize> {
        statements(&Script::given("create.sql", sql).statements().unwrap())
    }

    #[test]
    fn indexes_that_nothing_depends_on_can_wait() {
        let table = "CREATE TABLE read_model.t (a int PRIMARY KEY, b int)";
        let with = |more: &str| deferred(&format!("{table}; {more}"));
        assert_eq!(
            with("CREATE INDEX ON read_model.t (b); CREATE INDEX x ON read_model.t (b)"),
            [1, 2]
        );
        assert_eq!(with("CREATE UNIQUE INDEX x ON read_model.t (b)"), [0; 0]);
        assert_eq!(with("CREATE INDEX x ON read_model.t (b); COMMENT ON INDEX x IS 'b'"), [0; 0]);
        assert_eq!(
            with("ALTER TABLE read_model.t ADD c int; CREATE INDEX ON read_model.t (c)"),
            [2]
        );
        assert_eq!(
            with("CREATE VIEW read_model.v AS SELECT 1; INSERT INTO read_model.t VALUES (1)"),
            [0; 0]
        );
    }
}
