//! Which store a command works on.

use crate::support::{Folder, ended};

const APPEND: [&str; 5] = ["append", "--stream", "a", "--type", "T"];

#[test]
fn store_is_the_default_file_of_the_current_folder() {
    let folder = Folder::new();
    folder.run(&APPEND).done();
    assert!(folder.file("everfold.db").exists());
    assert_eq!(folder.run(&["events", "--json"]).done().json_lines().len(), 1);
}

#[test]
fn url_wins_over_the_variable_and_that_over_the_settings() {
    let folder = Folder::new();
    folder.write("everfold.toml", "[store]\nurl = \"sqlite:by-file.db\"\n");
    folder.run(&APPEND).done();
    assert!(folder.file("by-file.db").exists());

    let with_variable = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        ended(command.env("EVERFOLD_URL", "sqlite:by-variable.db").spawn().unwrap())
    };
    with_variable(&APPEND).done();
    assert!(folder.file("by-variable.db").exists());

    let mut arguments = APPEND.to_vec();
    arguments.extend(["--url", "sqlite:by-option.db"]);
    with_variable(&arguments).done();
    assert!(folder.file("by-option.db").exists());
    assert!(!folder.file("everfold.db").exists());
}

#[test]
fn relative_file_in_the_settings_is_meant_from_their_folder() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("shop")).unwrap();
    folder.write("shop/everfold.toml", "[store]\nurl = \"sqlite:shop.db\"\n");
    let mut arguments = vec!["--project", "shop"];
    arguments.extend(APPEND);
    folder.run(&arguments).done();
    assert!(folder.file("shop/shop.db").exists());
    assert!(!folder.file("shop.db").exists());
}

#[test]
fn unknown_settings_are_refused_by_name_and_line() {
    let folder = Folder::new();
    folder.write("everfold.toml", "# shop\n[store]\nulr = \"sqlite:shop.db\"\n");
    let ran = folder.run(&APPEND).fails(1, "everfold.toml line 3: unknown field `ulr`");
    assert!(ran.stderr.contains("expected `url`"), "{ran:#?}");
    folder.write("everfold.toml", "[stroe]\n");
    folder.run(&["events"]).fails(1, "everfold.toml line 1: unknown field `stroe`");
    folder.write("everfold.toml", "[store\n");
    folder.run(&["events"]).fails(1, "everfold.toml line 1");
    assert!(!folder.file("everfold.db").exists());
}

#[test]
fn reading_creates_no_store() {
    let folder = Folder::new();
    for arguments in [&["events"][..], &["export"], &["export", "--output", "out.jsonl"]] {
        folder
            .run(arguments)
            .fails(1, "no store at sqlite:")
            .says("create one with `everfold init`");
    }
    folder.run(&["events", "--project", "nowhere"]).fails(1, "no project folder at nowhere");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn url_that_is_not_understood_is_refused_with_what_to_use() {
    let folder = Folder::new();
    folder.run(&["events", "--url", "shop.db"]).fails(1, "use postgres://");
    folder
        .run(&["events", "--url", "mysql://me:secret@db/shop"])
        .fails(1, "unknown scheme \"mysql\"");
    let ran = folder.run(&["events", "--url", "mysql://me:secret@db/shop"]);
    assert!(!ran.stderr.contains("secret"), "{ran:#?}");
}

#[test]
fn file_that_is_no_store_is_refused() {
    let folder = Folder::new();
    folder.write("notes.db", &"these are my notes, not a database\n".repeat(100));
    for arguments in [&["events"][..], &APPEND, &["schema", "apply"]] {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--url", "sqlite:notes.db"]);
        folder.run(&arguments).fails(1, "not a SQLite database");
    }
    assert!(folder.read("notes.db").starts_with("these are my notes"));
}
