use crate::support::Folder;

#[test]
fn schema_is_applied_once_and_is_then_as_expected() {
    let folder = Folder::new();
    folder.run(&["schema", "apply", "--dry-run"]).done().prints("would create the schema");
    assert!(!folder.file("everfold.db").exists());
    folder.run(&["schema", "apply"]).done().prints("applied migration 0001_");
    folder.run(&["schema", "apply"]).done().prints("nothing was done");
    folder.run(&["schema", "apply", "--dry-run"]).done().prints("nothing to do");
    folder.run(&["schema", "assert"]).done().prints("is as expected");

    let applied = folder.run(&["schema", "apply", "--json"]).done().json();
    assert_eq!(applied["migrations"], serde_json::json!([]));
    let asserted = folder.run(&["schema", "assert", "--json"]).done().json();
    assert_eq!(asserted["equal"], true);
}

#[test]
fn missing_schema_is_a_difference() {
    let folder = Folder::new();
    folder.run(&["schema", "assert"]).fails(3, "no store at sqlite:");
    folder.write("empty.db", "");
    let arguments = ["schema", "assert", "--url", "sqlite:empty.db"];
    folder.run(&arguments).fails(3, "no everfold schema");
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let ran = folder.run(&arguments).exits(3);
    assert_eq!(ran.json()["equal"], false);
    assert!(ran.json()["error"].as_str().unwrap().contains("no everfold schema"));
}

#[test]
fn schema_changed_by_hand_is_told_line_by_line() {
    let folder = Folder::new();
    folder.run(&["schema", "apply"]).done();
    folder.connect().execute_batch("CREATE INDEX mine ON everfold_events (recorded_at)").unwrap();
    let ran = folder.run(&["schema", "assert"]).exits(3).says("differs in 1 line;");
    assert_eq!(ran.stdout, "+ mine: CREATE INDEX mine ON everfold_events (recorded_at)\n");
    let json = folder.run(&["schema", "assert", "--json"]).exits(3).json();
    assert_eq!(json["differences"].as_array().unwrap().len(), 1);
    folder.run(&["schema", "apply", "--dry-run"]).done().prints("+ mine: CREATE INDEX");
    let applied = folder.run(&["schema", "apply"]).exits(0);
    assert!(applied.stderr.starts_with("warning: still different"), "{applied:#?}");
}

#[test]
fn schema_of_a_newer_everfold_is_left_alone() {
    let folder = Folder::new();
    folder.run(&["schema", "apply"]).done();
    let newer = "INSERT INTO everfold_migrations (revision, name) VALUES (99, 'from the future')";
    folder.connect().execute_batch(newer).unwrap();
    folder.run(&["schema", "assert"]).fails(3, "upgrade everfold");
    for arguments in [&["schema", "apply"][..], &["schema", "apply", "--dry-run"], &["events"]] {
        folder.run(arguments).fails(1, "the schema is at revision 99").says("upgrade everfold");
    }
    folder.run(&["doctor"]).exits(1).says("upgrade everfold").prints("everfold         ");
}

#[test]
fn printed_schema_is_sql_for_the_kind_of_store() {
    let folder = Folder::new();
    let sqlite = folder.run(&["schema", "print"]).done();
    assert_eq!(sqlite.stderr, "");
    assert!(sqlite.stdout.contains("CREATE TABLE everfold_events"));
    let postgres = folder.run(&["schema", "print", "--url", "postgres://"]).done();
    assert!(postgres.stdout.contains("everfold.events"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
