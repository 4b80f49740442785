use crate::support::{Folder, line};

#[test]
fn healthy_store_is_described() {
    let folder = Folder::with_events(&line("a", "T", "{}").repeat(3));
    let ran = folder.run(&["doctor"]).done();
    assert_eq!(ran.stderr, "");
    let ran = ran.prints("everfold.db (named by default)").prints("version          SQLite 3");
    let ran = ran.prints("high-water mark  3").prints("last position    3");
    ran.prints("\nok ").prints("nothing holds the high-water mark");

    let json = folder.run(&["doctor", "--json"]).done().json();
    assert_eq!((&json["high_water_mark"], &json["last_position"]), (&3.into(), &3.into()));
    assert!(json["version"].as_str().unwrap().starts_with("SQLite"));
    assert!(json["findings"].as_array().unwrap().iter().all(|finding| finding["severity"] == "ok"));
    assert_eq!(json["holders"], serde_json::json!([]));
    assert_eq!(json["store"]["named_by"], "default");
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
fn problem_is_unhealthy() {
    let folder = Folder::with_events(&line("a", "T", "{}"));
    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ran = folder.run(&["doctor"]).exits(3).prints("\nproblem  writing");
    ran.prints("-> find the program");
    let json = folder.run(&["doctor", "--json"]).exits(3).json();
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["severity"] == "problem"), "{json}");
    other.execute_batch("ROLLBACK").unwrap();
    folder.run(&["doctor"]).done();
}

#[test]
fn file_that_is_no_store_is_told() {
    let folder = Folder::new();
    folder.write("notes.db", &"these are my notes, not a database\n".repeat(100));
    let ran = folder.run(&["doctor", "--url", "sqlite:notes.db"]).exits(1);
    ran.says("not a SQLite database").prints("sqlite:notes.db (named by --url)");
}
