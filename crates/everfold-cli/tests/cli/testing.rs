//! `everfold test`: given/then files that pass, that find what is wrong, and that are wrong themselves.

use std::fs;
use std::path::Path;

use everfold_testkit::eventually;
use serde_json::{Value, json};

use crate::shop::{Shop, on_both_stores};
use crate::support::{Folder, LIMIT, Ran, ended, interrupt, wait};

on_both_stores! {
    files_of_a_new_project_pass,
    files_of_the_bank_pass,
    differences_are_shown_row_by_row,
    projection_that_depends_on_batches_is_caught,
    values_are_compared_by_what_they_mean,
    refused_events_are_expected_or_a_failure,
    sql_for_one_store_is_tested_there,
    tables_and_columns_that_are_not_there_are_named,
    interrupted_test_leaves_nothing_behind,
}

const COUNTS: &str = "version = 1\nlifecycle = \"catch-up\"\n";

/// A case of `sums` with these events and what must come of them.
fn case(name: &str, given: &[(&str, Value)], then: &str) -> String {
    let event = |(stream, data): &(&str, Value)| {
        format!("    {{ stream = '{stream}', type = 'Counted', json = '{data}' }},\n")
    };
    let given: String = given.iter().map(event).collect();
    format!("[[case]]\nname = '{name}'\nprojection = 'sums'\ngiven = [\n{given}]\n{then}\n\n")
}

fn numbers<'a>(numbers: &[(&'a str, i64)]) -> Vec<(&'a str, Value)> {
    numbers.iter().map(|(stream, n)| (*stream, json!({ "n": n }))).collect()
}

/// Scratch stores that are still there: files in the folder for such, or databases of this role.
async fn leftovers(shop: &Shop, role: &str) -> usize {
    if shop.is_sqlite() {
        return fs::read_dir(shop.folder.file("scratch")).unwrap().count();
    }
    let sql = "SELECT count(*) FROM pg_database WHERE pg_get_userbyid(datdba) = $1";
    let row = shop.database().connect().await.query_one(sql, &[&role]).await.unwrap();
    usize::try_from(row.get::<_, i64>(0)).unwrap()
}

/// Runs the command with a folder of its own for scratch stores.
fn test(shop: &Shop, arguments: &[&str]) -> Ran {
    ended(command(shop, arguments).spawn().unwrap())
}

fn command(shop: &Shop, arguments: &[&str]) -> std::process::Command {
    command_on(shop, &shop.url(), arguments)
}

fn command_on(shop: &Shop, url: &str, arguments: &[&str]) -> std::process::Command {
    let scratch = shop.folder.file("scratch");
    fs::create_dir_all(&scratch).unwrap();
    let mut command = shop.folder.command(&shop.arguments(url, &[&["test"], arguments].concat()));
    command.env("TMPDIR", scratch);
    command
}

async fn files_of_a_new_project_pass(shop: Shop) {
    shop.run(&["init", "shop"]).exits(0);
    let events = shop.run(&["events", "--project", "shop"]).exits(0).stdout;
    let ran = test(&shop, &["--project", "shop"]).done();
    assert!(ran.stdout.contains("shop/tests/cart_totals.toml\n  ok      "), "{ran:#?}");
    assert!(ran.stdout.contains("shop/tests/events_per_day.toml\n  ok      "), "{ran:#?}");
    assert!(ran.stdout.ends_with("\n\n3 passed, 0 failed\n"), "{ran:#?}");
    assert_eq!(shop.run(&["events", "--project", "shop"]).exits(0).stdout, events);
    if shop.is_sqlite() {
        assert_eq!(leftovers(&shop, "").await, 0);
    }
    // And the project works on, with its tests in it.
    shop.run(&["run", "--once", "--project", "shop"]).exits(0);
    shop.run(&["import", "shop/events.sample.jsonl", "--project", "shop"]).exits(0);
    shop.run(&["run", "--once", "--project", "shop"]).exits(0);
    let json = shop.run(&["status", "--json", "--project", "shop"]).exits(0).json();
    for projection in json["projections"].as_array().unwrap() {
        assert_eq!(projection["status"], "active", "{json:#}");
    }
}

async fn files_of_the_bank_pass(shop: Shop) {
    let bank = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bank");
    for (projection, cases) in [("balance", 2), ("daily_totals", 3)] {
        let arguments = ["--project", bank.to_str().unwrap(), "--json", projection];
        let json = test(&shop, &arguments).done().json();
        let store = if shop.is_sqlite() { "sqlite" } else { "postgres" };
        assert_eq!((&json["store"], &json["passed"]), (&json!(store), &json!(cases)), "{json:#}");
        assert_eq!((&json["failed"], &json["not_run"]), (&json!(0), &json!(0)), "{json:#}");
        for case in json["cases"].as_array().unwrap() {
            assert!(case["variants"].as_u64().unwrap() >= 8, "{json:#}");
        }
    }
}

async fn differences_are_shown_row_by_row(shop: Shop) {
    shop.sums("sums", COUNTS);
    let given = numbers(&[("a", 1), ("b", 2), ("a", 3), ("d", 9)]);
    let right =
        "then.sums = [{ stream = 'a', n = 4 }, { stream = 'b', n = 2 }, { stream = 'd', n = 9 }]";
    let wrong =
        "then.sums = [{ stream = 'a', n = 5 }, { stream = 'b', n = '2' }, { stream = 'c', n = 1 }]";
    let file = case("they add up", &given, right) + &case("they do not", &given, wrong);
    shop.folder.write("tests/sums.toml", &file);
    let ran = test(&shop, &[]).exits(3);
    assert_eq!(ran.stderr, "");
    let lines: Vec<&str> = ran.stdout.lines().map(str::trim_end).collect();
    assert!(lines[1].starts_with("  ok      they add up  "), "{ran:#?}");
    assert_eq!(
        [&lines[..1], &lines[2..]].concat(),
        [
            "tests/sums.toml",
            "  FAILED  they do not",
            "          line 12, sums: as given",
            "          TABLE  ROW         EXPECTED         FOUND",
            "          sums   stream \"a\"  n 5              n 4",
            "          sums   stream \"b\"  n \"2\"            n 2",
            "          sums               stream \"c\", n 1  no such row",
            "          sums               no such row      stream \"d\", n 9",
            "",
            "1 passed, 1 failed",
        ]
    );
    assert!(!ran.stdout.contains('\u{1b}'));

    let json = test(&shop, &["--json", "they do not"]).exits(3).json();
    assert_eq!((&json["passed"], &json["failed"]), (&json!(0), &json!(1)), "{json:#}");
    let case = &json["cases"][0];
    assert_eq!((&case["outcome"], &case["line"]), (&json!("failed"), &json!(12)), "{json:#}");
    assert_eq!((&case["variant"], &case["file"]), (&json!("as given"), &json!("tests/sums.toml")));
    let row = json!({ "table": "sums", "columns": ["stream", "n"], "expected": ["a", 5], "found": ["a", 4] });
    assert_eq!(case["rows"][0], row, "{json:#}");
    assert_eq!(case["rows"].as_array().unwrap().len(), 4, "{json:#}");
}

/// Right only if all events of a stream come in one batch: it sets where it should add.
async fn projection_that_depends_on_batches_is_caught(shop: Shop) {
    let create = "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, n BIGINT NOT NULL)";
    let apply = "INSERT INTO read_model.sums (stream, n)\n\
        SELECT stream_id, SUM(CAST(data->>'n' AS BIGINT)) FROM batch GROUP BY stream_id\n\
        ON CONFLICT (stream) DO UPDATE SET n = EXCLUDED.n";
    shop.projection("sums", COUNTS, create, apply);
    let then = "then.sums = [{ stream = 'a', n = 7 }]";
    let given = numbers(&[("a", 1), ("a", 2), ("a", 4)]);
    shop.folder.write("tests/sums.toml", &case("they add up", &given, then));
    let ran = test(&shop, &[]).exits(3);
    for part in [
        "  FAILED  they add up\n          line 1, sums: in batches of 1\n",
        "stream \"a\"  n 7       n 4\n",
        "it is as expected with the events as given;\n",
        "the result must not depend on how events are cut into batches\n",
        "\n0 passed, 1 failed\n",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in {ran:#?}");
    }
    let then = format!("{then}\nwithout = ['batches', 'lifecycle']");
    shop.folder.write("tests/sums.toml", &case("they add up", &given, &then));
    test(&shop, &[]).done();
}

async fn values_are_compared_by_what_they_mean(shop: Shop) {
    let create = "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, flag BOOLEAN NOT NULL, \
        price NUMERIC(10, 2), note TEXT, at TIMESTAMP WITH TIME ZONE NOT NULL, tags JSONB NOT NULL)";
    let create_on_sqlite = "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, flag BOOLEAN NOT \
        NULL, price NUMERIC, note TEXT, at TEXT NOT NULL, tags TEXT NOT NULL)";
    let apply = "INSERT INTO read_model.sums (stream, flag, price, note, at, tags)\n\
        SELECT stream_id, CAST(data->>'n' AS BIGINT) = 1, CAST(data->>'price' AS NUMERIC), data->>'note', \
        recorded_at, data->'tags' FROM batch WHERE true ON CONFLICT (stream) DO NOTHING";
    shop.projection("sums", COUNTS, create, apply);
    shop.folder.write("projections/sums/create.sqlite.sql", create_on_sqlite);
    let file = "projection = 'sums'\n[[case]]\nname = 'all kinds'\n\
        [[case.given]]\nstream = 'a'\ntype = 'T'\nrecorded_at = 2026-11-15T11:00:00+01:00\n\
        data = { n = 1, price = '8.90', note = 'x', tags = ['a', { b = 1 }] }\n\
        [[case.given]]\nstream = 'b'\ntype = 'T'\nrecorded_at = 2026-11-15T10:00:00.25Z\n\
        json = '{\"n\": 2, \"price\": null, \"tags\": {}}'\n\
        [[case.then.sums]]\nstream = 'a'\nflag = true\nprice = 8.9\nnote = 'x'\n\
        at = 2026-11-15T10:00:00Z\ntags = ['a', { b = 1 }]\n\
        [[case.then.sums]]\nstream = 'b'\nflag = false\nat = 2026-11-15T10:00:00.250Z\ntags = {}\n";
    shop.folder.write("tests/sums.toml", file);
    test(&shop, &[]).done();
    for (right, wrong, shown) in [
        ("note = 'x'", "note = ''", "note \"\"   note \"x\""),
        ("flag = false", "flag = true", "flag true"),
        ("price = 8.9", "price = 8.91", "price 8.91"),
        ("at = 2026-11-15T10:00:00Z", "at = 2026-11-15T10:00:01Z", "at \"2026-11-15T10:00:01Z\""),
        // Left out, it is NULL, because the other row names it.
        ("stream = 'b'\n", "stream = 'b'\nnote = 'y'\n", "note \"y\"  note NULL"),
    ] {
        let wrong = file.replace(&format!("\n{right}"), &format!("\n{wrong}"));
        assert_ne!(wrong, file, "{right}");
        shop.folder.write("tests/sums.toml", &wrong.replacen("'b'\nnote = 'y'", "'b'", 1));
        test(&shop, &[]).exits(3).prints(shown);
    }
}

async fn refused_events_are_expected_or_a_failure(shop: Shop) {
    let bad = |numbers: &[(&'static str, i64)]| {
        [self::numbers(numbers), vec![("a", json!({ "no": "n" }))]].concat()
    };
    let given = bad(&[("a", 1), ("b", 2)]);
    let then = "then.sums = [{ stream = 'a', n = 1 }, { stream = 'b', n = 2 }]";
    let file = case("it fails", &given, &format!("fails = 'n'\n{then}"))
        + &case("it alone", &bad(&[]), "fails = ['n']")
        + &case("it says something else", &given, &format!("fails = 'to be or'\n{then}"))
        + &case("it does not fail", &given, then)
        + &case("nothing fails", &numbers(&[("a", 1)]), "fails = 'n'");
    shop.folder.write("tests/sums.toml", &file);
    for toml in [
        "version = 1\nlifecycle = \"inline\"\n",
        "version = 1\nlifecycle = \"catch-up\"\n",
        "version = 1\nlifecycle = \"inline\"\non_error = \"dead-letter\"\n",
        "version = 1\nlifecycle = \"catch-up\"\non_error = \"skip\"\n",
    ] {
        shop.sums("sums", toml);
        let json = test(&shop, &["--json"]).exits(3).json();
        let outcomes: Vec<&str> = json["cases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["outcome"].as_str().unwrap())
            .collect();
        assert_eq!(
            outcomes,
            ["passed", "passed", "failed", "failed", "failed"],
            "{toml}: {json:#}"
        );
        let said = |at: usize| json["cases"][at]["message"].as_str().unwrap();
        assert!(said(2).ends_with("expected one that says \"to be or\""), "{json:#}");
        assert!(said(3).contains("refused"), "{json:#}");
        assert!(said(4).starts_with("no event was refused"), "{json:#}");
    }
}

async fn sql_for_one_store_is_tested_there(shop: Shop) {
    let create = "CREATE TABLE read_model.sums (stream TEXT PRIMARY KEY, n BIGINT NOT NULL)";
    let apply = "INSERT INTO read_model.sums (stream, n)\n\
        SELECT DISTINCT ON (stream_id) stream_id, (data->>'n')::bigint FROM batch \
        ORDER BY stream_id, position DESC ON CONFLICT (stream) DO UPDATE SET n = EXCLUDED.n";
    shop.projection("sums", COUNTS, create, apply);
    let given = numbers(&[("a", 1), ("b", 2), ("a", 3)]);
    let then = "then.sums = [{ stream = 'a', n = 3 }, { stream = 'b', n = 2 }]";
    shop.folder.write("tests/sums.toml", &case("the last counts", &given, then));
    if !shop.is_sqlite() {
        test(&shop, &[]).done();
        // By the settings, which the option wins over.
        let settings = format!("[test]\nurl = \"{}\"\n", shop.url());
        shop.folder.write("everfold.toml", &settings);
        assert_eq!(shop.folder.run(&["test", "--json"]).done().json()["store"], "postgres");
        let here = shop.folder.run(&["test", "--json", "--url", "sqlite:here.db"]).exits(1);
        assert_eq!(here.json()["store"], "sqlite");
        return;
    }
    let ran = test(&shop, &[]).exits(1);
    for part in [
        "  ERROR   the last counts\n",
        "apply.sql",
        "needs a server: --url postgres://",
        "could not be run",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in {ran:#?}");
    }
    let apply = "INSERT INTO read_model.sums (stream, n)\n\
        SELECT stream_id, data->>'n' FROM batch WHERE true ORDER BY position\n\
        ON CONFLICT (stream) DO UPDATE SET n = EXCLUDED.n";
    shop.folder.write("projections/sums/apply.sqlite.sql", apply);
    test(&shop, &[]).done();
}

async fn tables_and_columns_that_are_not_there_are_named(shop: Shop) {
    shop.sums("sums", COUNTS);
    let given = numbers(&[("a", 1)]);
    let file = case("right", &given, "then.sums = [{ stream = 'a', n = 1 }]")
        + &case("table", &given, "then.sum = [{ stream = 'a' }]")
        + &case("column", &given, "then.sums = [{ stream = 'a', num = 1 }]");
    shop.folder.write("tests/sums.toml", &file);
    let ran = test(&shop, &[]).exits(1);
    assert!(ran.stdout.contains(
        "  ERROR   table\n          tests/sums.toml line 15: sums makes no table \"sum\"; did you mean \"sums\"?\n"
    ), "{ran:#?}");
    assert!(ran.stdout.contains(
        "  ERROR   column\n          tests/sums.toml line 23: sums has no column \"num\"; did you mean \"n\"?\n"
    ), "{ran:#?}");
    assert!(ran.stdout.ends_with("\n1 passed, 0 failed, 2 could not be run\n"), "{ran:#?}");
}

/// Stopped in the middle of many cases.
async fn interrupted_test_leaves_nothing_behind(shop: Shop) {
    shop.sums("sums", COUNTS);
    let given = numbers(&[("a", 1), ("b", 2), ("c", 3)]);
    let one = case("again", &given, "then.sums = [{ n = 1 }, { n = 2 }, { n = 3 }]");
    shop.folder.write("tests/sums.toml", &one.repeat(500));
    // Other tests have theirs on the same server.
    let role = format!("interrupted_{}", everfold::Uuid::now_v7().simple());
    let mut url = String::new();
    if !shop.is_sqlite() {
        let sql = format!("CREATE ROLE {role} LOGIN CREATEDB PASSWORD 'pw'");
        shop.database().connect().await.batch_execute(&sql).await.unwrap();
        url = shop.database().server().as_user(&role, "pw").url(shop.database().name());
    }
    let mut child = command_on(&shop, &url, &[]).spawn().unwrap();
    eventually("it has a store", LIMIT, async || leftovers(&shop, &role).await > 0).await;
    interrupt(&child);
    assert_eq!(wait(&mut child), Some(1));
    assert_eq!(ended(child).stderr, "error: stopped; not all cases were run\n");
    assert_eq!(leftovers(&shop, &role).await, 0);
    if !shop.is_sqlite() {
        shop.database().connect().await.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
    }
}

#[test]
fn file_that_is_wrong_is_named_with_its_line_before_anything_is_run() {
    let folder = Folder::new();
    folder.run(&["init"]).done();
    let case = "[[case]]\nname = 'n'\nprojection = 'cart_total'\n\
        given = [{ stream = 's', type = 'T' }]\nthen.cart_totals = []\n";
    for (text, message) in [
        ("", "tests/wrong.toml line 1: a file of cases has no case; begin one with [[case]]"),
        ("[[case]", "tests/wrong.toml line 1: "),
        (
            "[[case]]\nnmae = 'n'",
            "tests/wrong.toml line 2: nmae is not a key of a case; did you mean name?",
        ),
        (
            case,
            "tests/wrong.toml line 3: the project has no projection \"cart_total\"; did you mean \"cart_totals\"?",
        ),
    ] {
        folder.write("tests/wrong.toml", text);
        folder.run(&["test"]).fails(1, message);
    }
    fs::write(folder.file("tests/wrong.toml"), [0xff, 0xfe]).unwrap();
    folder.run(&["test"]).fails(1, "tests/wrong.toml is not UTF-8");
    fs::remove_file(folder.file("tests/wrong.toml")).unwrap();
    folder.write("projections/cart_totals/aply.sql", "");
    folder.run(&["test"]).fails(1, "did you mean apply.sql?");
}

#[test]
fn project_without_cases_is_told_how_to_write_one() {
    let folder = Folder::new();
    let ran = folder.run(&["test"]).fails(1, "no cases in ");
    assert!(ran.stderr.contains("\n  [[case]]\n  name = "), "{ran:#?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was created");
    // What it shows is right.
    folder.run(&["init"]).done();
    fs::remove_dir_all(folder.file("tests")).unwrap();
    let shown: Vec<&str> = ran.stderr.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    folder.write("tests/shown.toml", &shown.join("\n"));
    folder.run(&["test"]).done().prints("1 passed, 0 failed");
    folder.run(&["test", "--project", "nowhere"]).fails(1, "no project folder at nowhere");
}

#[test]
fn cases_are_chosen_by_projection_file_or_name() {
    let folder = Folder::new();
    folder.run(&["init", "shop"]).done();
    let names = |arguments: &[&str]| {
        let all = [&["test", "--json", "--project", "shop"], arguments].concat();
        let json = folder.run(&all).done().json();
        let cases = json["cases"].as_array().unwrap().iter();
        cases.map(|case| case["projection"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["events_per_day"]), ["events_per_day"]);
    assert_eq!(names(&["cart_totals.toml"]), ["cart_totals", "cart_totals"]);
    assert_eq!(names(&["shop/tests/events_per_day.toml"]), ["events_per_day"]);
    assert_eq!(names(&["./tests/events_per_day.toml"]), ["events_per_day"]);
    assert_eq!(names(&["taken off", "in UTC"]), ["cart_totals", "events_per_day"]);
    let run = |word: &str| folder.run(&["test", "--project", "shop", word]);
    run("cart_total").fails(1, "no case is meant by \"cart_total\"; did you mean cart_totals?");
    run("zebra").fails(1, "name a projection, a file or a part of a case's name");
}

#[test]
fn store_of_the_project_is_not_asked_for() {
    let folder = Folder::new();
    folder.run(&["init"]).done();
    folder.write("everfold.toml", "[store]\nurl = \"postgres://nobody@127.0.0.1:1/none\"\n");
    let mut command = folder.command(&["test", "--json"]);
    command.env("EVERFOLD_URL", "postgres://nobody@127.0.0.1:1/none");
    assert_eq!(ended(command.spawn().unwrap()).done().json()["store"], "sqlite");
    let ran = folder.run(&["test", "--url", "postgres://nobody@127.0.0.1:1/none"]).exits(1);
    assert!(ran.stdout.contains("the server cannot be reached: "), "{ran:#?}");
    assert!(ran.stdout.contains("0 passed, 0 failed, 3 could not be run"), "{ran:#?}");
    folder.write("everfold.toml", "[tests]\nurl = \"\"\n");
    folder.run(&["test"]).fails(1, "everfold.toml line 1: unknown field `tests`");
}
