use crate::support::{Folder, ended};

#[test]
fn project_is_made_and_its_next_commands_work() {
    let folder = Folder::new();
    let ran = folder.run(&["init", "shop"]).done();
    assert_eq!(ran.stderr, "");
    let next: Vec<_> = ran.stdout.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(
        next,
        [
            "cd shop",
            "everfold test",
            "everfold import events.sample.jsonl",
            "everfold run --once",
            "everfold status",
            "everfold show cart_totals"
        ]
    );
    let files = ["everfold.toml", "events.sample.jsonl", "README.md", "everfold.db"];
    for file in
        files.into_iter().chain(["projections/cart_totals/apply.sql", "tests/cart_totals.toml"])
    {
        assert!(folder.file("shop").join(file).exists(), "{file}");
    }
    for command in &next[1..] {
        let arguments: Vec<_> = command.split(' ').skip(1).collect();
        let mut command = folder.command(&arguments);
        ended(command.current_dir(folder.file("shop")).spawn().unwrap()).done();
    }
    let ran = folder.run(&["--project", "shop", "events", "--json"]).done();
    assert_eq!(ran.json_lines().len(), 10);
}

#[test]
fn commands_in_the_readme_work() {
    let folder = Folder::new();
    folder.run(&["init"]).done();
    let readme = folder.read("README.md");
    let commands = readme.lines().filter_map(|line| line.strip_prefix("    everfold "));
    for command in commands.filter(|c| !c.contains("COMMAND") && !c.contains("--follow")) {
        // Two spaces or more begin the explanation.
        let command = command.split("  ").next().unwrap();
        let arguments: Vec<_> = command.split(' ').map(|part| part.trim_matches('\'')).collect();
        let ran = folder.run(&arguments);
        if command.contains("--expected 1") {
            ran.fails(1, "version conflict");
        } else {
            ran.done();
        }
    }
}

#[test]
fn existing_files_are_named_and_left_alone() {
    let folder = Folder::new();
    folder.write("README.md", "mine");
    folder.write("events.sample.jsonl", "mine too");
    folder.run(&["init"]).fails(1, "events.sample.jsonl, README.md");
    assert_eq!(folder.read("README.md"), "mine");
    assert!(!folder.file("everfold.toml").exists());
    assert!(!folder.file("everfold.db").exists());
    folder.run(&["init", "other"]).done();
    folder.run(&["init", "other"]).fails(1, "everfold.toml, events.sample.jsonl, README.md");
}

#[test]
fn url_is_kept_in_the_settings() {
    let folder = Folder::new();
    let ran = folder.run(&["init", "shop", "--url", "sqlite:shop/mine.db", "--json"]).done();
    assert_eq!(ran.json()["store"], "sqlite:shop/mine.db");
    assert_eq!(ran.json()["files"].as_array().unwrap().len(), 12);
    assert!(folder.read("shop/everfold.toml").contains("\nurl = \"sqlite:mine.db\"\n"));
    folder.run(&["--project", "shop", "append", "--stream", "a", "--type", "T"]).done();
    assert!(folder.file("shop/mine.db").exists());
    assert!(!folder.file("shop/everfold.db").exists());
}

#[test]
fn store_that_cannot_be_made_leaves_no_settings() {
    let folder = Folder::new();
    folder.run(&["init", "--url", "sqlite:no/such/folder/a.db"]).fails(1, "no/such/folder/a.db");
    assert!(!folder.file("everfold.toml").exists());
    folder.run(&["init", "a", "--project", "b"]).fails(2, "name the folder once");
}
