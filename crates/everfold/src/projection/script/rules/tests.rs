use super::super::Script;
use super::*;

fn script(name: &str, text: &str) -> Script {
    Script::given(name, text)
}

#[track_caller]
fn refused(create: &str, apply: &str, upcasters: &[(u32, &str)], expected: &str) {
    let step = |(version, text): &(u32, &str)| SqlUpcaster {
        event_type: "T".to_owned(),
        schema_version: *version,
        expression: script("upcaster", text),
    };
    let scripts = Scripts {
        create: script("create", create),
        apply: script("apply", apply),
        upcasters: upcasters.iter().map(step).collect(),
    };
    match (check("p", &scripts), expected) {
        (Ok(()), "") => {}
        (Ok(()), _) => panic!("not refused: {create} / {apply} / {upcasters:?}"),
        (Err(error), _) => {
            let error = error.to_string();
            assert!(!expected.is_empty() && error.contains(expected), "{error}");
        }
    }
}

const CREATE: &str = "CREATE TABLE read_model.a (x TEXT);\nCREATE INDEX i ON read_model.a (x);";
const APPLY: &str = "INSERT INTO read_model.a SELECT type FROM batch";

#[test]
fn good_scripts_pass() {
    refused(CREATE, APPLY, &[(1, "data"), (2, "(data -> 'a') -- old\n")], "");
    let staged = "INSERT INTO read_model.b SELECT 1 FROM batch; DELETE FROM read_model.a;";
    refused(&format!("{CREATE} CREATE TABLE read_model.b (y TEXT)"), staged, &[], "");
}

#[test]
fn create_makes_tables_in_the_read_model() {
    for (create, expected) in [
        ("", "create:1: it makes no table"),
        ("-- nothing", "it makes no table"),
        ("\nCREATE TABLE a (x TEXT)", "create:2: the table a is outside the read model; call it"),
        ("CREATE TEMP TABLE a (x TEXT)", "leave TEMP out"),
        ("CREATE TABLE public.a (x TEXT)", "the table a is outside the read model"),
        ("CREATE TABLE read_model.\"A\" (x TEXT)", "the table name \"A\" is not allowed"),
        ("CREATE TABLE read_model.\"a\"\"; DROP\" (x TEXT)", "is not allowed"),
        (
            "CREATE TABLE read_model.a (x TEXT);\nCREATE INDEX read_model.i ON a (x)",
            "create:2: an index",
        ),
        ("BEGIN; CREATE TABLE read_model.a (x TEXT)", "BEGIN is not allowed"),
        ("CREATE TABLE read_model.a (x TEXT); commit", "COMMIT is not allowed"),
        ("CREATE VIEW v AS SELECT 1", "the view v is outside the read model"),
        ("CREATE VIEW read_model.\"V\" AS SELECT 1", "the view name \"V\" is not allowed"),
        ("CREATE TYPE mood AS ENUM ('a')", "the type mood is outside the read model"),
        ("CREATE DOMAIN d AS TEXT", "the domain d is outside the read model"),
    ] {
        refused(create, APPLY, &[], expected);
    }
}

#[test]
fn create_does_what_belongs_to_tables_and_nothing_else() {
    for (added, expected) in [
        ("CREATE UNIQUE INDEX u ON read_model.a (x)", ""),
        ("CREATE INDEX ON read_model.a (x)", ""),
        ("CREATE VIEW read_model.v AS SELECT x FROM read_model.a", ""),
        ("CREATE TABLE read_model.b AS SELECT 1 AS y", ""),
        ("CREATE TYPE read_model.mood AS ENUM ('a')", ""),
        ("CREATE DOMAIN read_model.d AS TEXT", ""),
        ("CREATE SEQUENCE read_model.s", ""),
        ("CREATE STATISTICS read_model.st ON x, type FROM read_model.a", ""),
        ("INSERT INTO read_model.a VALUES ('first')", ""),
        ("WITH w AS (SELECT 'x' AS x) INSERT INTO read_model.a SELECT x FROM w", ""),
        ("ALTER TABLE ONLY read_model.a ADD CHECK (x <> '')", ""),
        ("COMMENT ON COLUMN read_model.a.x IS 'it; is'", ""),
        (
            "CREATE FUNCTION read_model.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE FUNCTION",
        ),
        ("CREATE OR REPLACE FUNCTION read_model.f() RETURNS int AS 'a'", "stands in apply.sql"),
        ("CREATE TRIGGER t AFTER INSERT ON read_model.a BEGIN SELECT 1; END", "CREATE TRIGGER"),
        ("CREATE VIRTUAL TABLE read_model.f USING fts5(x)", "CREATE VIRTUAL may not stand here"),
        ("CREATE MATERIALIZED VIEW read_model.m AS SELECT 1", "CREATE MATERIALIZED may not"),
        ("CREATE EXTENSION hstore", "CREATE EXTENSION may not stand here: create.sql may"),
        ("CREATE SCHEMA x", "CREATE SCHEMA may not stand here"),
        ("CREATE TEMPORARY TABLE read_model.b (x TEXT)", "leave TEMP out"),
        ("INSERT INTO read_model.a SELECT type FROM batch", "there are no events yet"),
        ("INSERT INTO read_model.c VALUES (1)", "c is not a table that was made above"),
        ("INSERT INTO public.a VALUES (1)", "a is not a table that was made above"),
        (
            "WITH w AS (DELETE FROM public.b RETURNING x) INSERT INTO read_model.a SELECT x FROM w",
            "b is",
        ),
        ("ALTER TABLE public.a ADD CHECK (x <> '')", "only tables that were made above"),
        ("ALTER TABLE b ADD FOREIGN KEY (x) REFERENCES read_model.a", "only tables that were made"),
        ("ALTER TABLE read_model.a SET SCHEMA public", "SCHEMA may not be altered"),
        ("ALTER TABLE read_model.a RENAME TO b", "RENAME may not be altered"),
        ("ALTER ROLE me SUPERUSER", "only tables that were made above"),
        ("UPDATE read_model.a SET x = 'y'", "UPDATE may not stand here"),
        ("DELETE FROM read_model.a", "DELETE may not stand here"),
        ("DROP TABLE read_model.a", "DROP may not stand here: create.sql may CREATE TABLE"),
        ("TRUNCATE read_model.a", "TRUNCATE may not stand here"),
        ("GRANT SELECT ON read_model.a TO me", "GRANT may not stand here"),
        ("SELECT 1", "SELECT may not stand here"),
        ("VALUES (1)", "VALUES may not stand here"),
        ("REFRESH MATERIALIZED VIEW read_model.m", "REFRESH may not stand here"),
        ("LOCK TABLE read_model.a", "LOCK may not stand here"),
        ("(SELECT 1)", "this may not stand here"),
        ("DO $$ BEGIN END $$", "DO is not allowed"),
        ("COPY read_model.a FROM '/etc/passwd'", "COPY is not allowed"),
        ("SET ROLE me", "SET is not allowed"),
        ("PRAGMA user_version = 1", "PRAGMA is not allowed"),
        ("ATTACH 'x.db' AS x", "ATTACH is not allowed"),
        ("INSERT INTO read_model.a VALUES ($1)", "$1 is a parameter"),
    ] {
        let line = if expected.is_empty() { "" } else { "create:3: " };
        refused(&format!("{CREATE}\n{added}"), APPLY, &[], line);
        refused(&format!("{CREATE}\n{added}"), APPLY, &[], expected);
    }
}

#[test]
fn apply_changes_own_tables_from_the_batch() {
    for (apply, expected) in [
        ("", "apply:1: it does not look at any event"),
        ("DELETE FROM read_model.a -- batch", "it does not look at any event"),
        ("SELECT * FROM batch", "SELECT is not for applying events"),
        ("WITH b AS (SELECT * FROM batch) SELECT 1", "SELECT is not for applying events"),
        ("TRUNCATE read_model.a", "TRUNCATE is not for applying events"),
        ("DROP TABLE read_model.a", "DROP is not for applying events"),
        ("(SELECT 1)", "this is not for applying events"),
        (
            "INSERT INTO read_model.a SELECT x FROM\nbatch;\nDELETE FROM read_model.c",
            "apply:3: read_model.c is not made",
        ),
        ("INSERT INTO read_model.a SELECT $1 FROM batch", "$1 is a parameter"),
        ("SET search_path = public", "SET is not allowed"),
        ("INSERT INTO read_model.a SELECT type FROM batch RETURNING x", "leave it out"),
        ("\nDELETE FROM read_model.a USING batch RETURNING (x)", "apply:2: nobody reads what"),
        (
            "WITH w AS (DELETE FROM read_model.a USING batch RETURNING x) INSERT INTO read_model.a \
             SELECT x FROM w",
            "",
        ),
        ("VALUES (1)", "VALUES is not for applying events"),
        ("TABLE read_model.a", "TABLE is not for applying events"),
        ("ALTER TABLE read_model.a ADD y TEXT", "ALTER is not for applying events"),
        ("CREATE TABLE read_model.b AS SELECT * FROM batch", "CREATE is not for applying events"),
        ("EXPLAIN DELETE FROM read_model.a", "EXPLAIN is not for applying events"),
        ("LOCK TABLE read_model.a", "LOCK is not for applying events"),
        ("REINDEX TABLE read_model.a", "REINDEX is not for applying events"),
        ("COPY read_model.a FROM STDIN", "COPY is not allowed"),
        ("DO $$ BEGIN END $$", "DO is not allowed"),
        ("CALL f()", "CALL is not allowed"),
        ("BEGIN; DELETE FROM read_model.a", "BEGIN is not allowed"),
        ("NOTIFY x", "NOTIFY is not allowed"),
        ("ATTACH 'x.db' AS x", "ATTACH is not allowed"),
        ("DETACH x", "DETACH is not allowed"),
        ("PRAGMA foreign_keys = OFF", "PRAGMA is not allowed"),
        ("VACUUM", "VACUUM is not allowed"),
        ("SAVEPOINT x", "SAVEPOINT is not allowed"),
        ("INSERT INTO a SELECT type FROM batch", "a is written to, and is outside"),
        ("INSERT INTO everfold.skips SELECT position FROM batch", "skips is written to"),
        (
            "INSERT OR REPLACE INTO everfold_events SELECT * FROM batch",
            "everfold_events is written",
        ),
        ("INSERT OR IGNORE INTO read_model.a SELECT type FROM batch", ""),
        ("UPDATE public.b AS t SET x = 1 FROM batch", "b is written to"),
        ("UPDATE ONLY read_model.a AS t SET x = type FROM batch", ""),
        ("DELETE FROM b USING batch", "b is written to"),
        ("MERGE INTO public.b USING batch ON true WHEN MATCHED THEN DELETE", "b is written to"),
        ("MERGE INTO read_model.a t USING batch ON true WHEN MATCHED THEN UPDATE SET x = type", ""),
        (
            "INSERT INTO read_model.a SELECT type FROM batch ON CONFLICT (x) DO UPDATE SET x = 'y'",
            "",
        ),
        ("INSERT INTO read_model.a SELECT x FROM read_model.a, batch FOR UPDATE OF a", ""),
        (
            "WITH w AS (INSERT INTO public.b SELECT 1 RETURNING x) INSERT INTO read_model.a SELECT x \
             FROM w, batch",
            "b is written to",
        ),
        ("DELETE FROM read_model.a WHERE x = 'a", "apply:1: the string"),
    ] {
        refused(CREATE, apply, &[], expected);
    }
}

#[test]
fn upcaster_is_one_expression() {
    for (upcasters, expected) in [
        (&[(1, "")][..], "upcaster:1: an upcaster is one SQL expression"),
        (&[(1, "data; DROP TABLE x")], "an upcaster is one SQL expression"),
        (&[(1, "data) FROM x WHERE (true")], "do not match"),
        (&[(1, "(data")], "do not match"),
        (&[(1, "data -- )\n || ')'")], ""),
        (&[(1, "data"), (3, "data")], "add the one from 2"),
        (&[(1, "data"), (1, "data")], "two upcasters from schema version 1"),
    ] {
        refused(CREATE, APPLY, upcasters, expected);
    }
}

#[test]
fn sqlite_has_rules_of_its_own() {
    for (create, apply, expected) in [
        (CREATE, APPLY, ""),
        (
            "CREATE TYPE read_model.t AS ENUM ('a')",
            APPLY,
            "create:1: CREATE TYPE is for PostgreSQL",
        ),
        ("ALTER TABLE read_model.a ADD y TEXT", APPLY, "ALTER is for PostgreSQL alone"),
        ("CREATE INDEX ON read_model.a (x)", APPLY, "create:1: an index needs a name here"),
        ("CREATE INDEX i ON a (x)", APPLY, "an index is made on read_model.<table>"),
        (CREATE, "MERGE INTO read_model.a USING batch ON 1 WHEN MATCHED THEN DELETE", "no MERGE"),
        (CREATE, "DELETE FROM read_model.a WHERE x = ?", "apply:1: ? is a parameter"),
        (CREATE, "\nDELETE FROM read_model.a WHERE x = ?1", "apply:2: ?1 is a parameter"),
        (CREATE, "DELETE FROM read_model.a WHERE x = :name", ":name is a parameter"),
        (CREATE, "DELETE FROM read_model.a WHERE x = @name", "@name is a parameter"),
        (CREATE, "DELETE FROM read_model.a WHERE x = $name", "$name is a parameter"),
        (CREATE, "DELETE FROM read_model.a WHERE x = $a$b$a$", "is a parameter"),
        (CREATE, "DELETE FROM read_model.a WHERE x = '?1 :a @b $c'", ""),
        // SQLite itself tells what is wrong with a cast of PostgreSQL.
        (CREATE, "DELETE FROM read_model.a WHERE x = y::text", ""),
    ] {
        let scripts = Scripts {
            create: script("create", create),
            apply: script("apply", apply),
            upcasters: Vec::new(),
        };
        match check_for_sqlite("p", &scripts) {
            Ok(()) => assert_eq!(expected, "", "not refused: {create} / {apply}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{error}");
            }
        }
    }
}
