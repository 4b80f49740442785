//! `everfold doctor` as a runbook: every trouble is made for real, then the command has to name what it
//! is, who causes it and since when, and what to run next; and to be content once that was run.
//!
//! | file | trouble |
//! |---|---|
//! | `behind` | a read model lacks an event, is stale, or stands still; both stores |
//! | `drift` | rows that are wrong or can be doubled, tables that are gone; both stores |
//! | `restored` | a log that is shorter than it was; both stores |
//! | `clock` | events of the future; both stores |
//! | `sessions` | PostgreSQL: the mark, locks and gates held, long and prepared transactions |
//! | `exhausted` | PostgreSQL: connections and locks, settings, slots: a server of their own |
//! | `vacuum` | PostgreSQL: dead rows |
//! | `rights` | PostgreSQL: roles with few rights |
//! | `file` | SQLite: locks, the write-ahead log, damage |

mod behind;
mod clock;
mod drift;
mod exhausted;
mod file;
mod restored;
mod rights;
mod sessions;
mod vacuum;

use serde_json::Value;

use crate::shop::Shop;
use crate::support::{Folder, LIMIT, Ran, line};

const CATCH_UP: &str = "version = 1\nlifecycle = \"catch-up\"\n";
const INLINE: &str = "version = 1\nlifecycle = \"inline\"\n";

/// What `doctor` found, as text and as JSON, which have to agree.
struct Found {
    text: Ran,
    json: Value,
}

impl Found {
    /// Runs `doctor` with these arguments, and expects this exit code.
    #[track_caller]
    fn by(shop: &Shop, arguments: &[&str], code: i32) -> Found {
        let arguments = [&["doctor"], arguments].concat();
        let text = shop.run(&arguments).exits(code);
        let json = shop.run(&[&arguments[..], &["--json"]].concat()).exits(code).json();
        Found { text, json }
    }

    /// The finding of this severity whose message has this in it: its message and its hint. It must
    /// stand in the text too.
    #[track_caller]
    fn told(&self, severity: &str, check: &str, part: &str) -> (String, String) {
        let findings = self.json["findings"].as_array().unwrap();
        let wanted = |finding: &&Value| {
            finding["severity"] == severity
                && finding["check"] == check
                && finding["message"].as_str().unwrap().contains(part)
        };
        let found = findings.iter().find(wanted);
        let found = found
            .unwrap_or_else(|| panic!("no {severity} of {check} with \"{part}\": {findings:#?}"));
        let hint = found["hint"].as_str().unwrap_or_default().to_owned();
        let lines: Vec<&str> = self.text.stdout.lines().collect();
        let starts = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(severity) && line.contains(check)
        };
        assert!(lines.iter().any(starts), "no {severity} {check} in {:#?}", self.text);
        if !hint.is_empty() {
            // Seconds may have passed between text and JSON; those are in messages only.
            let shown = |line: &&str| line.trim_start().starts_with("-> ") && line.contains(&hint);
            assert!(lines.iter().any(shown), "no \"-> {hint}\" in {:#?}", self.text);
        }
        (found["message"].as_str().unwrap().to_owned(), hint)
    }

    /// Every finding of a check is `ok`, and there is one.
    #[track_caller]
    fn is_ok(&self, check: &str) {
        let of = self.of(check);
        assert!(!of.is_empty() && of.iter().all(|found| found["severity"] == "ok"), "{of:#?}");
    }

    fn of(&self, check: &str) -> Vec<&Value> {
        let findings = self.json["findings"].as_array().unwrap();
        findings.iter().filter(|finding| finding["check"] == check).collect()
    }
}

/// Runs `doctor` until it finds something, for what takes a moment to show.
#[track_caller]
fn eventually_found(
    shop: &Shop,
    arguments: &[&str],
    code: i32,
    severity: &str,
    check: &str,
    part: &str,
) -> (String, String) {
    let deadline = std::time::Instant::now() + LIMIT;
    let arguments_of_json = [&["doctor", "--json"], arguments].concat();
    loop {
        let json = shop.run(&arguments_of_json).json();
        let is_there = json["findings"].as_array().unwrap().iter().any(|finding| {
            finding["severity"] == severity
                && finding["check"] == check
                && finding["message"].as_str().unwrap().contains(part)
        });
        if is_there || std::time::Instant::now() > deadline {
            return Found::by(shop, arguments, code).told(severity, check, part);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn healthy_store_is_described() {
    let folder = Folder::with_events(&line("a", "T", "{}").repeat(3));
    let ran = folder.run(&["doctor"]).done();
    assert_eq!(ran.stderr, "");
    let ran = ran.prints("everfold.db (named by default)").prints("version          SQLite 3");
    let ran = ran.prints("high-water mark  3").prints("last position    3");
    let ran = ran.prints("\nok ").prints("nothing holds the high-water mark");
    let json = folder.run(&["doctor", "--json"]).done().json();
    assert_eq!((&json["high_water_mark"], &json["last_position"]), (&3.into(), &3.into()));
    assert!(json["version"].as_str().unwrap().starts_with("SQLite"));
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["severity"] == "ok"), "{findings:#?}");
    assert_eq!(json["holders"], serde_json::json!([]));
    assert_eq!(json["store"]["named_by"], "default");
    let summary = format!("\n0 problems, 0 warnings, {} ok\n", findings.len());
    assert!(ran.stdout.ends_with(&summary), "no {summary} at the end of {ran:#?}");
}

#[test]
fn problems_stand_before_warnings_and_those_before_the_rest() {
    let shop = Shop::sqlite();
    shop.sums("idle", CATCH_UP);
    shop.sums("broken", &format!("{CATCH_UP}retries = 0\n"));
    shop.run(&["run", "--once"]).done();
    shop.run(&["pause", "idle"]).done();
    shop.numbers("events", &[("a", None)]);
    shop.run(&["run", "--once", "--only", "broken"]).exits(1);
    let ran = shop.run(&["doctor"]).exits(3);
    let severities = ["problem", "warning", "ok"];
    let shown: Vec<usize> = ran
        .stdout
        .lines()
        .filter_map(|line| severities.iter().position(|word| line.starts_with(&format!("{word} "))))
        .collect();
    assert!(shown.is_sorted(), "{ran:#?}");
    assert!(shown.contains(&0) && shown.contains(&1) && shown.contains(&2), "{ran:#?}");
    let last = ran.stdout.lines().last().unwrap();
    assert!(last.starts_with("1 problem, 1 warning, ") && last.ends_with(" ok"), "{ran:#?}");
}

#[test]
fn store_that_is_not_there_is_told_and_not_created() {
    let folder = Folder::new();
    let ran = folder.run(&["doctor"]).exits(1).says("create one with `everfold init`");
    ran.prints("everfold.db");
    let ran = folder.run(&["doctor", "--json"]).exits(1).says("no store at");
    assert!(ran.json()["error"].as_str().unwrap().contains("no store at"));
    assert!(!folder.file("everfold.db").exists());
}

#[test]
fn store_without_its_guards_is_unhealthy() {
    let folder = Folder::with_events(&line("a", "T", "{}"));
    folder.connect().execute_batch("DROP TRIGGER everfold_events_refuse_delete").unwrap();
    let ran = folder.run(&["doctor"]).exits(3).says("the store is not safe to use");
    ran.prints("everfold.db");
}

#[test]
fn file_that_is_no_store_is_told() {
    let folder = Folder::new();
    folder.write("notes.db", &"these are my notes, not a database\n".repeat(100));
    let ran = folder.run(&["doctor", "--url", "sqlite:notes.db"]).exits(1);
    ran.says("not a SQLite database").prints("sqlite:notes.db (named by --url)");
}
