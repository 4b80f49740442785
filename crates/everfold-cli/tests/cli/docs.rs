//! The documentation, followed as a reader would: what a page says to run is run, in its order, in a
//! folder of its own, and what it shows must be what comes out.
//!
//! | block in a page | |
//! |---|---|
//! | `sh run` | is run; `exits=3` after it names the exit code, 0 otherwise |
//! | `sql run` | is run by psql, on SQLite in the folder's store; `fails=EF001` names an error |
//! | `… run on=postgres` | is run on that store alone, and what it prints is looked at there alone |
//! | `text output` | what the block before it prints: `…` stands for anything, alone for any lines |
//! | `toml file=NAME`, `sql file=NAME` | is written to the file |
//! | `toml`, `json` | is parsed |
//! | `sql functions` | signatures, compared with those that the database has |
//! | `sh shown`, `sql shown` | is only shown: it does not end, or needs what a test has not, such as another machine, an installation, a role or an hour |
//! | `rust from=NAME`, `text printed` | is run by the library's tests (`tests/it/pages`) |
//! | `text` | is a picture, a form or a message |
//!
//! There are no others. What the reader need not see stands in a comment (`<!-- … -->`). On SQLite
//! `read_model_` stands for `read_model.` in SQL. The page of an example is followed in a copy of its folder.

mod commands;
mod functions;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use everfold::sqlite::rusqlite::types::ValueRef;
use everfold::sqlite::rusqlite::{Connection, Row};

use crate::shop::{Shop, on_both_stores};
use crate::support::{Ran, ended};

/// Follows pages: those of the first list on both stores, those of the second on PostgreSQL, those of
/// the third on PostgreSQL behind PgBouncer.
macro_rules! followed {
    (
        [$($page:ident: $path:literal),* $(,)?],
        [$($only:ident: $only_path:literal),* $(,)?],
        [$($pooled:ident: $pooled_path:literal),* $(,)?] $(,)?
    ) => {
        const FOLLOWED: &[&str] = &[$($path,)* $($only_path,)* $($pooled_path,)*];
        $(async fn $page(shop: Shop) { follow($path, &shop); })*
        on_both_stores!($($page),*);
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $only() { follow($only_path, &Shop::postgres().await); }
        )*
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $pooled() { follow($pooled_path, &Shop::pgbouncer().await); }
        )*
    };
}

followed!(
    [
        start_with_the_command: "start/command.md",
        add_a_projection: "how-to/add-a-projection.md",
        remove_a_projection: "how-to/remove-a-projection.md",
        test_a_projection: "how-to/test-a-projection.md",
        change_a_projection: "how-to/change-a-projection.md",
        roll_back: "how-to/roll-back.md",
        backfill: "how-to/backfill.md",
        replay: "how-to/replay.md",
        verify: "how-to/verify.md",
        poison_events: "how-to/poison-events.md",
        read_your_writes: "how-to/read-your-writes.md",
        back_up_and_restore: "how-to/back-up-and-restore.md",
        guide_to_the_command: "guide/command.md",
        guide_to_projections: "guide/projections.md",
        guide_to_rebuilds: "guide/rebuilds.md",
        many_workers: "how-to/many-workers.md",
        upgrade: "how-to/upgrade.md",
        reference_of_files: "reference/toml.md",
        example_of_a_bank: "../examples/bank/README.md",
    ],
    [
        readme: "../README.md",
        start_with_sql: "start/sql.md",
        guide_to_sql: "guide/sql.md",
        migrate_from_an_outbox: "how-to/migrate-from-an-outbox.md",
        reference_of_tables: "reference/tables.md",
        replicas: "how-to/replicas.md",
        locks: "locks.md",
        example_of_orders: "../examples/orders/README.md",
    ],
    [pgbouncer: "how-to/pgbouncer.md"],
);

#[test]
fn every_page_with_something_to_run_is_followed() {
    for page in pages() {
        let steps = steps(&fs::read_to_string(&page).unwrap(), &page);
        let name = page.strip_prefix(docs()).unwrap().to_str().unwrap();
        let runs =
            steps.iter().any(|step| matches!(step.what, What::Shell { .. } | What::Sql { .. }));
        assert_eq!(FOLLOWED.contains(&name), runs, "{name}");
    }
}

#[test]
fn index_marks_the_pages_that_are_run() {
    let index = fs::read_to_string(docs().join("README.md")).unwrap();
    for rest in index.split("](").skip(1) {
        let (page, after) = rest.split_once(')').unwrap();
        let Ok(text) = fs::read_to_string(docs().join(page)) else { continue };
        let is_run = FOLLOWED.contains(&page) || text.contains("\n```rust from=");
        assert_eq!(after.starts_with(" ▸"), is_run, "{page}");
    }
}

#[test]
fn data_on_pages_can_be_parsed() {
    for page in pages() {
        for step in steps(&fs::read_to_string(&page).unwrap(), &page) {
            let place = format!("{}:{}", page.display(), step.line);
            if matches!(step.what, What::Toml) || step.is_file(".toml") {
                step.text.parse::<toml::Table>().unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            if matches!(step.what, What::Json) || step.is_file(".jsonl") {
                for line in step.text.lines() {
                    let parsed = serde_json::from_str::<serde_json::Value>(line);
                    parsed.unwrap_or_else(|error| panic!("{place}: {error}"));
                }
            }
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(file);
            assert!(target.exists(), "{}: {link}", page.display());
            if let Some((_, anchor)) = link.split_once('#') {
                let text = fs::read_to_string(&target).unwrap();
                assert!(anchors(&text).any(|a| a == anchor), "{}: {link}", page.display());
            }
        }
    }
}

/// What the reference has to name, read from where it is defined.
#[test]
fn reference_names_every_column_code_setting_and_key() {
    let library = docs().join("../crates/everfold");
    let source = |file: &str| fs::read_to_string(library.join(file)).unwrap();
    let page = |name: &str| fs::read_to_string(docs().join("reference").join(name)).unwrap();

    let tables = page("tables.md");
    for line in source("sql/postgres/schema.txt").lines() {
        let Some(column) = line.strip_prefix("column everfold.") else { continue };
        let (table, column) = column.split(' ').next().unwrap().split_once('.').unwrap();
        let section = tables.split(&format!("\n### {table}\n")).nth(1).unwrap_or_default();
        let section = section.split("\n### ").next().unwrap();
        assert!(section.contains(&format!("`{column}`")), "tables.md: {table}.{column}");
    }

    let settings = page("settings.md");
    for file in ["src/options.rs", "src/runner/options.rs", "src/rebuild/options.rs"] {
        for line in source(file).lines().filter_map(|line| line.strip_prefix("    pub ")) {
            let Some((field, _)) = line.split_once(": ") else { continue };
            assert!(settings.contains(&format!("`{field}`")), "settings.md: {field}");
        }
    }

    // What the command can be told about a rebuild, the library can too.
    let command = page("command.md");
    let rebuild = command.split("\n## everfold rebuild\n").nth(1).unwrap();
    let rebuild = rebuild.split("\n## ").next().unwrap();
    for option in rebuild.lines().filter_map(|line| line.strip_prefix("| `--")) {
        let option = option.split([' ', '`']).next().unwrap();
        let is_known = settings.contains(&format!("`--{option}`"));
        assert!(
            is_known || ["detach", "dry-run", "json"].contains(&option),
            "settings.md: --{option}"
        );
    }

    let toml = page("toml.md");
    let keys = source("src/projection/folder/settings.rs");
    let keys = keys.split("const KEYS").nth(1).unwrap().split("];").next().unwrap();
    for key in keys.split('"').skip(1).step_by(2) {
        assert!(toml.contains(&format!("\n| `{key}` |")), "toml.md: {key}");
    }

    let file = include_str!("../../src/commands/test/file.rs");
    for list in ["FILE_KEYS", "CASE_KEYS", "EVENT_KEYS"] {
        let keys = file.split(&format!("const {list}")).nth(1).unwrap().split("];").next().unwrap();
        for key in keys.split('"').skip(1).step_by(2) {
            let named = [format!("`{key}`"), format!("`{key}."), format!("`[[{key}]]`")];
            let (_, tests) = toml.split_once("\n## tests\n").unwrap();
            let rows = tests.lines().filter(|line| line.starts_with("| `"));
            let is_named = |row: &str| named.iter().any(|name| row.contains(name));
            assert!(rows.into_iter().any(is_named), "toml.md: {key}");
        }
    }

    let errors = page("errors.md");
    for line in source("src/error.rs").lines() {
        let line = line.strip_prefix("    ").unwrap_or_default();
        let Some(variant) = line.strip_suffix(" {").or(line.strip_suffix(',')) else { continue };
        let variant = variant.split('(').next().unwrap();
        if variant.starts_with(char::is_uppercase) && variant.chars().all(char::is_alphanumeric) {
            assert!(errors.contains(&format!("`{variant}`")), "errors.md: {variant}");
        }
    }
    for entry in fs::read_dir(library.join("sql/postgres/functions")).unwrap() {
        let functions = fs::read_to_string(entry.unwrap().path()).unwrap();
        for code in functions.split("ERRCODE = '").skip(1).map(|rest| &rest[..5]) {
            assert!(errors.contains(&format!("\n| `{code}` |")), "errors.md: {code}");
        }
    }
}

/// The anchors of a page's headings, as they are made of their text.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    })
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The README, the pages of the documentation, and those of the examples.
fn pages() -> Vec<PathBuf> {
    let folders = [docs(), docs().join("../examples")];
    let files = folders.iter().flat_map(|folder| files(folder));
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain([docs().join("../README.md")]).collect()
}

/// The files in a folder and those below it, without what installing modules has put there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| !path.ends_with("node_modules"));
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A block, and the line where it begins.
struct Step {
    line: usize,
    what: What,
    /// The only kind of store that it is for.
    on: Option<String>,
    text: String,
}

impl Step {
    fn is_file(&self, ending: &str) -> bool {
        matches!(&self.what, What::File { name } if name.ends_with(ending))
    }
}

enum What {
    Shell {
        exits: i32,
    },
    Sql {
        fails: Option<String>,
    },
    Output,
    File {
        name: String,
    },
    Toml,
    Json,
    Functions,
    /// Only shown, or looked at elsewhere.
    Shown,
}

impl What {
    /// What the words behind the three ticks say.
    fn of(words: &str, place: &str) -> What {
        let mut rest = words.split(' ');
        let language = rest.next().unwrap_or_default();
        if let Some(name) = value(words, "file=") {
            return What::File { name };
        }
        match (language, rest.next()) {
            ("sh", Some("run")) => {
                let exits = value(words, "exits=").map_or(0, |code| code.parse().unwrap());
                What::Shell { exits }
            }
            ("sql", Some("run")) => What::Sql { fails: value(words, "fails=") },
            ("sql", Some("functions")) => What::Functions,
            ("text", Some("output")) => What::Output,
            ("toml", None) => What::Toml,
            ("json", None) => What::Json,
            ("sh" | "sql", Some("shown")) | ("text", None | Some("printed")) => What::Shown,
            ("rust", Some(from)) if from.starts_with("from=") => What::Shown,
            _ => {
                panic!("{place}: a block is marked \"{words}\"; see the table in tests/cli/docs.rs")
            }
        }
    }
}

/// What stands behind a key among the words of a block.
fn value(words: &str, key: &str) -> Option<String> {
    words.split(' ').find_map(|word| word.strip_prefix(key)).map(str::to_owned)
}

fn steps(text: &str, page: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(words) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: Vec<&str> = inside.collect();
        let what = What::of(words, &format!("{}:{}", page.display(), number + 1));
        let (on, text) = (value(words, "on="), text.join("\n") + "\n");
        steps.push(Step { line: number + 1, what, on, text });
    }
    steps
}

/// Where the reader is, and what he saw last.
struct Reader<'a> {
    shop: &'a Shop,
    folder: PathBuf,
    seen: String,
}

/// Gives the reader the folder of an example, without a store that somebody has made there.
fn copy(example: &Path, shop: &Shop) {
    for file in files(example).iter().filter(|file| !file.ends_with("everfold.db")) {
        let copy = shop.folder.path().join(file.strip_prefix(example).unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
}

fn follow(page: &str, shop: &Shop) {
    let page_file = docs().join(page);
    if page.starts_with("../examples/") {
        copy(page_file.parent().unwrap(), shop);
    }
    let text = fs::read_to_string(page_file).unwrap();
    let mut reader = Reader { shop, folder: shop.folder.path().to_owned(), seen: String::new() };
    let here = if shop.is_sqlite() { "sqlite" } else { "postgres" };
    let mut passed_over = false;
    for step in steps(&text, Path::new(page)) {
        let place = format!("{page}:{}", step.line);
        let follows = matches!(step.what, What::Output);
        if !follows {
            passed_over = step.on.as_ref().is_some_and(|on| on != here);
        }
        if passed_over {
            continue;
        }
        match &step.what {
            What::Shell { exits } => reader.shell(&step.text, *exits, &place),
            What::Sql { fails: None } => reader.sql(&step.text, &place),
            What::Sql { fails: Some(code) } => reader.failing_sql(&step.text, code, &place),
            What::Output => assert_shows(&step.text, &reader.seen, &place),
            What::File { name } => {
                let path = reader.folder.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, &step.text).unwrap();
            }
            What::Toml | What::Json | What::Functions | What::Shown => {}
        }
    }
}

impl Reader<'_> {
    /// Runs lines of a shell where the last ones ended.
    fn shell(&mut self, lines: &str, exits: i32, place: &str) {
        let note = self.shop.folder.file(".folder");
        // What a step leaves running in the background ends with it, however it ends.
        let leave = format!("pwd > {}; kill $(jobs -p) 2> /dev/null || true", note.display());
        let script = format!("exec 2>&1\ntrap '{leave}' EXIT\nset -euo pipefail\n{lines}");
        let binaries = Path::new(env!("CARGO_BIN_EXE_everfold")).parent().unwrap();
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(&self.folder).env("PATH", path);
        command.env_remove("EVERFOLD_URL").env_remove("CLICOLOR_FORCE");
        if !self.shop.is_sqlite() {
            command.env("EVERFOLD_URL", self.shop.url());
        }
        let ran = run(command);
        assert_eq!(ran.code, Some(exits), "{place}: {ran:#?}");
        self.seen = ran.stdout;
        self.folder = PathBuf::from(fs::read_to_string(note).unwrap().trim_end());
    }

    fn sql(&mut self, sql: &str, place: &str) {
        if self.shop.is_sqlite() {
            self.seen = query(&self.folder.join("everfold.db"), sql);
            return;
        }
        let ran = self.psql(sql);
        assert_eq!(ran.code, Some(0), "{place}: {ran:#?}");
        self.seen = ran.stdout;
    }

    fn failing_sql(&mut self, sql: &str, code: &str, place: &str) {
        assert!(!self.shop.is_sqlite(), "{place}: errors with a code are PostgreSQL's");
        let ran = self.psql(sql);
        assert_eq!(ran.code, Some(3), "{place}: {ran:#?}");
        assert!(ran.stderr.contains(&format!("ERROR:  {code}: ")), "{place}: {ran:#?}");
        self.seen = ran.stdout;
    }

    fn psql(&self, sql: &str) -> Ran {
        let file = self.shop.folder.file(".statements.sql");
        fs::write(&file, sql).unwrap();
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
        command.arg("-d").arg(self.shop.url()).arg("-f").arg(file);
        run(command)
    }
}

fn run(mut command: Command) -> Ran {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command.spawn().unwrap())
}

/// The rows of one statement on a SQLite file, as psql would print them.
fn query(file: &Path, sql: &str) -> String {
    let sql = sql.replace("read_model.", "read_model_");
    let connection = Connection::open(file).unwrap();
    let mut statement = connection.prepare(&sql).unwrap();
    let columns = statement.column_count();
    let print = |row: &Row<'_>| {
        let cells = (0..columns).map(|column| match row.get_ref(column).unwrap() {
            ValueRef::Null => String::new(),
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Real(number) => number.to_string(),
            ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
        });
        Ok(cells.collect::<Vec<_>>().join("|") + "\n")
    };
    statement.query_map([], print).unwrap().map(Result::unwrap).collect()
}

/// Lines of a page against what was printed, whatever the widths of columns are.
#[track_caller]
fn assert_shows(page: &str, printed: &str, place: &str) {
    let plain = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.filter(|line| !line.is_empty()).collect()
    };
    let (page, mut printed) = (plain(page), plain(printed).into_iter().peekable());
    let mut skips = false;
    for line in &page {
        if line == "…" {
            skips = true;
            continue;
        }
        while skips && printed.peek().is_some_and(|found| !matches(line, found)) {
            printed.next();
        }
        let found = printed.next().unwrap_or_default();
        assert!(
            matches(line, &found),
            "{place}: the page has\n  {line}\nand it printed\n  {found}"
        );
        skips = false;
    }
    let rest: Vec<String> = printed.collect();
    assert!(skips || rest.is_empty(), "{place}: it also printed {rest:#?}");
}

/// Whether a line is as the page has it, with anything for each `…`.
fn matches(page: &str, printed: &str) -> bool {
    let mut parts = page.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn lines_match_with_anything_for_dots() {
    assert!(matches("readers see version … of … now", "readers see version 2 of cart_totals now"));
    assert!(matches("…", ""));
    assert!(!matches("a…b", "ac"));
    assert!(!matches("a", "ab"));
}
