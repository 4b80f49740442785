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
fn printed_schema_is_sql_for_the_kind_of_store() {
    let folder = Folder::new();
    let sqlite = folder.run(&["schema", "print"]).done();
    assert_eq!(sqlite.stderr, "");
    assert!(sqlite.stdout.contains("CREATE TABLE everfold_events"));
    let postgres = folder.run(&["schema", "print", "--url", "postgres://"]).done();
    assert!(postgres.stdout.contains("everfold.events"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
