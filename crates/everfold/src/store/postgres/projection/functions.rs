//! The functions of a SQL generation: the statements of `apply.sql`, each with the relation `batch` in
//! front. They are made once and never replaced; which one is called is data (docs/design.md).
//!
//! The lines of their bodies are the lines of the file.

use super::names::{dollar_quoted, literal, literals, quoted, table};
use crate::projection::definition::Definition;
use crate::projection::key::{Key, KeyField};
use crate::projection::script::{Script, ScriptError, Scripts, SqlUpcaster, Statement};

const COLUMNS: &str =
    "position, stream_id, version, type, schema_version, data, metadata, id, recorded_at";

/// One more than the highest hash of a key.
pub(in crate::store::postgres) const HASHES: i64 = 1 << 32;

/// Which events a batch has, and the parameters that say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::postgres) enum Events {
    /// `$1` after bigint, `$2` up_to bigint, `$3` shard integer.
    Range,
    /// `$1` positions bigint[].
    Positions,
    /// `$1` everfold.events: one event, as an append has it at hand.
    One,
    /// A part of history: `$1` up_to bigint, and keys whose hash is in `$2` low bigint to `$3` high
    /// bigint, this one not among them.
    Part,
}

impl Events {
    pub(in crate::store::postgres) fn parameters(self) -> &'static str {
        match self {
            Events::Range => "bigint, bigint, integer",
            Events::Positions => "bigint[]",
            Events::One => "everfold.events",
            Events::Part => "bigint, bigint, bigint",
        }
    }

    fn function(self) -> &'static str {
        match self {
            Events::Range => "apply_range",
            Events::Positions => "apply",
            Events::One => "apply_event",
            Events::Part => "apply_part",
        }
    }
}

/// A function by its name and parameters.
pub(in crate::store::postgres) fn signature(home: &str, events: Events) -> String {
    format!("{}.{}({})", quoted(home), events.function(), events.parameters())
}

/// The statement that makes a function.
pub(in crate::store::postgres) fn create(
    home: &str,
    events: Events,
    file: &str,
    statements: &[(u32, String)],
) -> String {
    // The rare types of a long range need another plan than the same types in a short one.
    let plans = match events {
        // In the plan of a part that is all of history, nothing is left of the hash.
        Events::Range | Events::Part => " SET plan_cache_mode = force_custom_plan",
        // For some values the server would make a plan in every call, which costs an append more
        // than all the rest of an inline projection.
        Events::Positions | Events::One => " SET plan_cache_mode = force_generic_plan",
    };
    format!(
        "CREATE FUNCTION {} RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER \
         SET search_path = pg_catalog, pg_temp{plans} AS {}",
        signature(home, events),
        dollar_quoted(&body(file, statements))
    )
}

const FILE_MARK: &str = "/* everfold file: ";

/// The file that a statement of such a function is from, in what the server tells of an error.
pub(in crate::store::postgres) fn file_in(told: &str) -> Option<&str> {
    let (_, file) = told.split_once(FILE_MARK)?;
    Some(file.split_once(" */")?.0)
}

/// The body, in which every statement begins on its own line of the file, and has the name of the
/// file at its end: the server shows a statement that fails.
fn body(file: &str, statements: &[(u32, String)]) -> String {
    let file = file.replace("*/", "");
    let mut body = "#variable_conflict use_column BEGIN ".to_owned();
    let mut line = 1;
    for (begins, sql) in statements {
        while line < *begins {
            body.push('\n');
            line += 1;
        }
        body.push_str(&format!("{sql} {FILE_MARK}{file} */; "));
        line += u32::try_from(sql.matches('\n').count()).unwrap_or(0);
    }
    body.push_str("END");
    body
}

/// A statement of `apply.sql` as it is run: its tables in the generation's home, `batch` in front.
pub(in crate::store::postgres) fn statement(
    definition: &Definition,
    scripts: &Scripts,
    home: &str,
    statement: &Statement,
    events: Events,
) -> Result<String, ScriptError> {
    let text = statement.map_tables(|name| table(home, name));
    let script = Script { file: scripts.apply.file.clone(), text };
    let batch = batch(definition, &scripts.upcasters, events);
    let mapped = script.statements()?;
    Ok(mapped.iter().map(|statement| statement.with_batch(&batch)).collect())
}

/// The relation `batch`.
fn batch(definition: &Definition, upcasters: &[SqlUpcaster], events: Events) -> String {
    let (from, mut conditions) = match events {
        Events::Range => {
            ("everfold.events e", vec!["e.position > $1 AND e.position <= $2".to_owned()])
        }
        Events::Part => ("everfold.events e", vec!["e.position <= $1".to_owned()]),
        // Each is looked up by its position: the only plan there is. A session keeps its plan, and
        // one that it makes while the table is empty, or that looks for the types too, would read
        // every event. They come in the order of the list, which rises.
        Events::Positions => (
            "unnest($1) AS p(at) CROSS JOIN LATERAL \
             (SELECT * FROM everfold.events WHERE position = p.at LIMIT 1) e",
            Vec::new(),
        ),
        Events::One => (
            "(SELECT ($1).position, ($1).stream_id, ($1).version, ($1).type, ($1).schema_version, \
             ($1).data, ($1).metadata, ($1).id, ($1).recorded_at) e",
            Vec::new(),
        ),
    };
    if let Some(types) = &definition.event_types {
        conditions.push(format!("e.type = ANY ({})", literals(types.iter().map(String::as_str))));
    }
    conditions.extend(key_condition(definition, events));
    if conditions.is_empty() {
        conditions.push("true".to_owned());
    }
    let order = match events {
        Events::Range | Events::Part => " ORDER BY position",
        Events::Positions | Events::One => "",
    };
    let events = format!("SELECT {COLUMNS} FROM {from} WHERE {}", conditions.join(" AND "));
    format!("{}{order}", upcast(events, upcasters))
}

/// Which events are of the shard, or of the part. One without a key is refused, whoever meets it; the
/// job that then looks at each event leaves it to the first shard.
fn key_condition(definition: &Definition, events: Events) -> Option<String> {
    let (key, has_key) = match &definition.key {
        Key::Fields(fields) => {
            let key = key(fields);
            let names: Vec<String> = fields.iter().map(ToString::to_string).collect();
            let names = literal(&names.join(", "));
            let key = format!("coalesce({key}, everfold.refuse_key({names}, e.position))");
            (key.clone(), Some(format!("{key} IS NOT NULL")))
        }
        Key::Stream | Key::Code => ("e.stream_id".to_owned(), None),
    };
    match events {
        Events::Range if definition.shards > 1 => {
            Some(format!("everfold.shard_of({key}, {}) = $3", definition.shards))
        }
        Events::Part => Some(format!(
            "CASE WHEN $2 = 0 AND $3 = {HASHES} THEN {} \
             ELSE (hashtext({key})::bigint & {}) BETWEEN $2 AND $3 - 1 END",
            has_key.as_deref().unwrap_or("true"),
            HASHES - 1,
        )),
        _ => has_key,
    }
}

/// The key of an event of `e`, as `Key::of` has it.
fn key(fields: &[KeyField]) -> String {
    let texts: Vec<String> = fields.iter().map(field).collect();
    match texts.as_slice() {
        [text] => text.clone(),
        texts => {
            let missing: Vec<String> = texts.iter().map(|text| format!("{text} IS NULL")).collect();
            format!(
                "(CASE WHEN {} THEN NULL ELSE array_to_json(ARRAY[{}]::text[])::text END)",
                missing.join(" OR "),
                texts.join(", ")
            )
        }
    }
}

fn field(field: &KeyField) -> String {
    let path = |path: &[String]| literals(path.iter().map(String::as_str));
    match field {
        KeyField::StreamId => "e.stream_id".to_owned(),
        KeyField::Type => "e.type".to_owned(),
        KeyField::Data(names) => format!("(e.data #>> {})", path(names)),
        KeyField::Metadata(names) => format!("(e.metadata #>> {})", path(names)),
    }
}

/// Events brought to the newest schema version, one step after the other.
fn upcast(events: String, upcasters: &[SqlUpcaster]) -> String {
    let mut versions: Vec<u32> = upcasters.iter().map(|upcaster| upcaster.schema_version).collect();
    versions.sort_unstable();
    versions.dedup();
    let mut sql = events;
    for version in versions {
        let steps = upcasters.iter().filter(|upcaster| upcaster.schema_version == version);
        let mut data = String::new();
        let mut types = Vec::new();
        for SqlUpcaster { event_type, expression, .. } in steps {
            data.push_str(&format!(
                " WHEN u.type = {} AND u.schema_version = {version} THEN ({}\n)::jsonb",
                literal(event_type),
                expression.text
            ));
            types.push(event_type.as_str());
        }
        sql = format!(
            "SELECT position, stream_id, version, type, CASE WHEN u.type = ANY ({}) AND \
             u.schema_version = {version} THEN {} ELSE u.schema_version END AS schema_version, \
             CASE{data} ELSE data END AS data, metadata, id, recorded_at FROM ({sql}) u",
            literals(types),
            version + 1
        );
    }
    sql
}

/// A statement that checks an upcaster, with its expression on the lines of its script.
pub(in crate::store::postgres) fn check_upcaster(expression: &str) -> String {
    format!(
        "PREPARE everfold_check AS SELECT ({expression}\n)::jsonb FROM (SELECT NULL::jsonb AS data) u; \
         DEALLOCATE everfold_check"
    )
}

/// A statement that checks one of `apply.sql`, on its lines.
pub(in crate::store::postgres) fn check(sql: &str) -> String {
    let parameters = Events::Range.parameters();
    format!("PREPARE everfold_check ({parameters}) AS {sql}; DEALLOCATE everfold_check")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_stand_on_their_lines() {
        let statements = [(1, "INSERT a\nb".to_owned()), (5, "DELETE".to_owned())];
        let body = body("projections/a/apply.sql", &statements);
        let lines: Vec<&str> = body.lines().collect();
        assert!(lines[0].ends_with("BEGIN INSERT a"), "{body}");
        assert!(lines[1].starts_with("b ") && lines[1].ends_with("; "), "{body}");
        assert!(lines[4].starts_with("DELETE ") && lines[4].ends_with("; END"), "{body}");
        assert_eq!(file_in(&body), Some("projections/a/apply.sql"));
    }

    #[test]
    fn key_of_several_fields_is_null_if_one_is() {
        let fields = ["data.a.b", "metadata.c"].map(|text| KeyField::parse(text).unwrap());
        let sql = key(&fields);
        assert!(
            sql.contains("(e.data #>> ARRAY['a', 'b']::pg_catalog.text[]) IS NULL OR"),
            "{sql}"
        );
        assert!(sql.contains("array_to_json(ARRAY[(e.data #>> "), "{sql}");
    }
}
