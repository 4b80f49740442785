use super::*;

fn script(text: &str) -> Script {
    Script { file: "apply.sql".into(), text: text.to_owned() }
}

fn statements(text: &str) -> Vec<Statement> {
    script(text).statements().unwrap()
}

fn texts(text: &str) -> Vec<String> {
    statements(text).into_iter().map(|statement| statement.text).collect()
}

fn one(text: &str) -> Statement {
    let mut found = statements(text);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn mapped(text: &str) -> String {
    one(text).map_tables(|table| format!("home_1.\"{table}\""))
}

#[test]
fn script_is_cut_at_semicolons_of_its_code_only() {
    for (text, expected) in [
        ("", &[][..]),
        (" ;;\n; -- nothing; at all\n /* ; */ ", &[]),
        ("a; b ;c", &["a", "b", "c"]),
        ("select ';' ; b", &["select ';'", "b"]),
        ("select 'it''s; fine'; b", &["select 'it''s; fine'", "b"]),
        ("select '\\'; b", &["select '\\'", "b"]),
        (r"select E'it\'s; fine'; b", &[r"select E'it\'s; fine'", "b"]),
        (r"select e'\\'; b", &[r"select e'\\'", "b"]),
        ("select E'a''b\\';c'; d", &["select E'a''b\\';c'", "d"]),
        ("select E'a'\n  'b\\';c'; d", &["select E'a'\n  'b\\';c'", "d"]),
        ("select one'a\\'; b", &["select one'a\\'", "b"]),
        ("select \"a;\"\"b\"; c", &["select \"a;\"\"b\"", "c"]),
        ("select `a;``b`; c", &["select `a;``b`", "c"]),
        ("select [a;b] from [c;d]; e", &["select [a;b] from [c;d]", "e"]),
        ("select $$;$$; b", &["select $$;$$", "b"]),
        ("select $x$;$$;$x$; b", &["select $x$;$$;$x$", "b"]),
        ("select $1; select a$x$; b", &["select $1", "select a$x$", "b"]),
        ("a -- it's ; \"\nb; c", &["a -- it's ; \"\nb", "c"]),
        ("a /* it's /* ; */ \" ; */ b; c", &["a /* it's /* ; */ \" ; */ b", "c"]),
        ("a - - b; c", &["a - - b", "c"]),
        ("a\r\n;\r\nb\r\n", &["a", "b"]),
        ("\u{feff}a; b", &["a", "b"]),
        ("select 'Größe;' as größe; ü", &["select 'Größe;' as größe", "ü"]),
        ("select 1.5e3;2", &["select 1.5e3", "2"]),
    ] {
        assert_eq!(texts(text), expected, "{text}");
    }
}

#[test]
fn brackets_of_arrays_are_no_names() {
    for text in [
        "select array[';]', 'b']",
        "select array ['a;', b]",
        "select array[[a, ';'], [c, ']']]",
        "select x['a;']",
        "select (f(x))[coalesce(y, ';]')]",
        "select \"x\"[coalesce(y, ';]')]",
        "select '{a}'::text [] = ';'",
        "select x [1], ';'",
    ] {
        assert_eq!(texts(&format!("{text}; end")), [text, "end"], "{text}");
    }
}

#[test]
fn bodies_of_triggers_stay_whole() {
    let trigger = "CREATE TRIGGER t AFTER INSERT ON x BEGIN\n  UPDATE y SET a = CASE WHEN b THEN 1 \
                   END;\n  DELETE FROM z;\nEND";
    assert_eq!(texts(&format!("{trigger};\na")), [trigger, "a"]);
    assert_eq!(texts("BEGIN; a; END"), ["BEGIN", "a", "END"]);
    let error = script("a;\nCREATE TRIGGER t BEGIN a;").statements().unwrap_err();
    assert_eq!(error.line, 2);
    assert!(error.message.contains("has no END"), "{error}");
}

#[test]
fn line_is_that_of_the_first_token() {
    let found = statements("\u{feff}-- one\r\n\r\n/* two\r\n */ a\r\nb;\r\nc\r\n;'\n\n';\n\n d");
    let lines: Vec<_> = found.iter().map(|statement| statement.line).collect();
    assert_eq!(lines, [4, 6, 7, 11]);
}

#[test]
fn what_does_not_end_is_told_with_its_line() {
    for (text, line, end) in [
        ("a;\n'b\nc", 2, "'"),
        ("a;\n\nE'b\\'", 3, "'"),
        ("E'b\\", 1, "'"),
        ("\"b\"\"", 1, "\""),
        ("\n`b", 2, "`"),
        ("select\n[b", 2, "]"),
        ("\n/* /* */", 2, "*/"),
        ("a\n$x$ b $$", 2, "$x$"),
        ("$größe$", 1, "$größe$"),
    ] {
        let error = script(text).statements().unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.message.ends_with(&format!("close it with {end}")), "{text}: {error}");
    }
}

#[test]
fn keyword_is_found() {
    for (text, first, main) in [
        ("insert into a", "INSERT", "INSERT"),
        ("/* update */ Delete from a", "DELETE", "DELETE"),
        ("with a as (select 1) insert into b", "WITH", "INSERT"),
        (
            "WITH RECURSIVE a(x) AS (SELECT 1), b AS MATERIALIZED (DELETE FROM c) UPDATE d",
            "WITH",
            "UPDATE",
        ),
        ("with recursive a as (select 1) search depth first by x set y select 1", "WITH", "SELECT"),
        ("with a as (select 1), update as (select 2) delete from b", "WITH", "DELETE"),
        ("with recursive insert as (select 2) delete from b", "WITH", "DELETE"),
        ("with a as (select 1) (select 2)", "WITH", "WITH"),
        ("(select 1)", "", ""),
        ("\"insert\"", "", ""),
    ] {
        let statement = one(text);
        assert_eq!(statement.keyword(), first, "{text}");
        assert_eq!(statement.main_keyword(), main, "{text}");
    }
}

#[test]
fn tables_are_mapped_in_code_only() {
    for (text, expected) in [
        ("from read_model.a", "from home_1.\"a\""),
        ("from READ_Model.Cart_Totals t", "from home_1.\"cart_totals\" t"),
        ("from \"read_model\".\"Cart\"\"s\"", "from home_1.\"Cart\"s\""),
        ("from `read_model`.[a b]", "from home_1.\"a b\""),
        ("from read_model . a, read_model.b", "from home_1.\"a\", home_1.\"b\""),
        ("select read_model.a.x from read_model.a", "select home_1.\"a\".x from home_1.\"a\""),
        ("from read_model\n.\n a t", "from home_1.\"a\"\n\n t"),
        ("from read_model./* x\n */a", "from home_1.\"a\"\n"),
        ("select 'größe', ü.x from read_model.größe", "select 'größe', ü.x from home_1.\"größe\""),
        ("select 'read_model.a'", "select 'read_model.a'"),
        ("select E'\\'read_model.a'", "select E'\\'read_model.a'"),
        ("select $$ read_model.a $$", "select $$ read_model.a $$"),
        ("select 1 -- read_model.a\n+ 2", "select 1 -- read_model.a\n+ 2"),
        ("select /* read_model.a */ 1", "select /* read_model.a */ 1"),
        ("select \"read_model.a\"", "select \"read_model.a\""),
        ("select \"READ_MODEL\".a", "select \"READ_MODEL\".a"),
        ("select my_read_model.a, read_models.a", "select my_read_model.a, read_models.a"),
        ("select x.read_model.a", "select x.read_model.a"),
        ("select read_model", "select read_model"),
        ("select read_model.*", "select read_model.*"),
        ("select read_model.", "select read_model."),
    ] {
        assert_eq!(mapped(text), expected, "{text}");
    }
}

#[test]
fn tables_are_listed_once() {
    let statement =
        one("insert into read_model.b select * from read_model.a, READ_MODEL.B, 'read_model.c'");
    assert_eq!(statement.tables(), ["b", "a"]);
}

#[test]
fn renamed_tables_keep_their_columns() {
    let renamed = |text: &str| one(text).rename_tables(|name| format!("g1_{name}"));
    for (text, expected) in [
        (
            "insert into read_model.t (a) select 1 on conflict (a) do update set n = t.n + T.m",
            "insert into g1_t (a) select 1 on conflict (a) do update set n = g1_t.n + g1_t.m",
        ),
        ("insert into read_model.t as t select t.n", "insert into g1_t as t select t.n"),
        ("select t.n from read_model.t t", "select t.n from g1_t t"),
        ("select t.n, x.t.n from read_model.t x", "select g1_t.n, x.t.n from g1_t x"),
        (
            "with t as (select 1 as n) select t.n from t, read_model.t as u",
            "with t as (select 1 as n) select t.n from t, g1_t as u",
        ),
        ("select 't.n', u.n from read_model.t", "select 't.n', u.n from g1_t"),
        ("create index i on read_model.t (a)", "create index g1_i on g1_t (a)"),
        (
            "create unique index if not exists \"i\" on read_model.t (a)",
            "create unique index if not exists g1_i on g1_t (a)",
        ),
        ("create table read_model.t (a)", "create table g1_t (a)"),
        (
            "create table read_model.t (a references read_model.u (b))",
            "create table g1_t (a references g1_u (b))",
        ),
    ] {
        assert_eq!(renamed(text), expected, "{text}");
    }
}

#[test]
fn created_things_are_named() {
    for (text, what, name, in_read_model) in [
        ("create table read_model.T (a)", "TABLE", "t", true),
        ("CREATE TABLE IF NOT EXISTS \"read_model\".\"T\" (a)", "TABLE", "T", true),
        ("create unlogged table t (a)", "TABLE", "t", false),
        ("create temp table table1 as select 1", "TABLE", "table1", false),
        ("create index concurrently if not exists i on read_model.t (a)", "INDEX", "i", false),
        ("create or replace view read_model.v as select 1", "VIEW", "v", true),
        ("create or replace view v as select 1", "VIEW", "v", false),
    ] {
        let statement = one(text);
        let created = statement.created().unwrap();
        assert_eq!((created.what.as_str(), created.name.as_str()), (what, name), "{text}");
        assert_eq!(created.in_read_model, in_read_model, "{text}");
        let found = statement.text[created.range].to_lowercase().replace('"', "");
        assert_eq!(found.trim_start_matches("read_model."), name.to_lowercase(), "{text}");
    }
    assert_eq!(one("create index on read_model.t (a)").created(), None);
    assert_eq!(one("insert into read_model.t values (1)").created(), None);
}

#[test]
fn batch_comes_in_front_on_the_first_line() {
    for (text, expected) in [
        (
            "insert into a\nselect * from batch",
            "WITH batch AS (Q) insert into a\nselect * from batch",
        ),
        (
            "with x as (select * from batch) delete from a",
            "with batch AS (Q), x as (select * from batch) delete from a",
        ),
        (
            "WITH\nRECURSIVE\n x AS (SELECT * FROM batch) SELECT 1",
            "WITH\nRECURSIVE batch AS (Q),\n x AS (SELECT * FROM batch) SELECT 1",
        ),
        ("(select * from batch)", "WITH batch AS (Q) (select * from batch)"),
        ("delete from a where x = 'batch'", "delete from a where x = 'batch'"),
        ("truncate batch", "truncate batch"),
    ] {
        assert_eq!(one(text).with_batch("Q"), expected, "{text}");
    }
    let long =
        one("select 1 from batch").with_batch("select 'a  b' -- it's\n  from /* c */ \r\n x ");
    assert_eq!(long, "WITH batch AS (select 'a  b' from x) select 1 from batch");
}

#[test]
fn lines_lead_back_to_the_file() {
    let found = statements("a;\n\nselect 'ü'\n , x from read_model\n.t\n, batch");
    let sent = found[1].map_tables(|table| format!("home.{table}"));
    let sent = statements(&sent)[0].with_batch("select\n1");
    for (what, line) in [("ü", 3), (", x", 4), ("home.t", 4), (", batch", 6)] {
        let byte = sent.find(what).unwrap();
        assert_eq!(found[1].line_at_byte(&sent, byte), line, "{what} in {sent}");
    }
    assert_eq!(found[1].line_at_byte(&sent, 10_000), 6);
}
