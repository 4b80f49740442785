use crate::support::{Folder, field, json_lines, line};

fn shop() -> Folder {
    let lines = [
        line("cart-1", "ItemAdded", r#"{"n":1}"#),
        line("cart-2", "ItemAdded", r#"{"n":2}"#),
        line("cart-1", "CheckedOut", r#"{"n":3}"#),
        line("cart-1", "ItemAdded", r#"{"n":4}"#),
    ];
    Folder::with_events(&lines.concat())
}

fn exported(folder: &Folder, arguments: &[&str]) -> Vec<u64> {
    let ran = folder.run(&[&["export"], arguments].concat()).done();
    ran.json_lines().iter().map(|event| event["data"]["n"].as_u64().unwrap()).collect()
}

#[test]
fn every_column_is_exported() {
    let ran = shop().run(&["export"]).done();
    let events = ran.json_lines();
    assert_eq!(field(&events, "position"), [1, 2, 3, 4]);
    assert_eq!(field(&events, "stream_id"), ["cart-1", "cart-2", "cart-1", "cart-1"]);
    assert_eq!(field(&events, "version"), [1, 1, 2, 3]);
    let names: Vec<_> = events[0].as_object().unwrap().keys().cloned().collect();
    let mut all = vec!["position", "stream_id", "version", "type", "schema_version"];
    all.extend(["data", "metadata", "id", "recorded_at"]);
    all.sort_unstable();
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(sorted, all);
    assert_eq!(ran.stderr, "exported 4 events, the last at position 4\n");
}

#[test]
fn selected_events_are_exported() {
    let folder = shop();
    assert_eq!(exported(&folder, &["--from", "3"]), [3, 4]);
    assert_eq!(exported(&folder, &["--stream", "cart-1"]), [1, 3, 4]);
    assert_eq!(exported(&folder, &["--type", "ItemAdded"]), [1, 2, 4]);
    assert_eq!(exported(&folder, &["--type", "ItemAdded", "--type", "CheckedOut"]), [1, 2, 3, 4]);
    assert_eq!(exported(&folder, &["--stream", "cart-1", "--type", "ItemAdded"]), [1, 4]);
    assert_eq!(exported(&folder, &["--stream", "cart-1", "--from", "2"]), [3, 4]);
    assert_eq!(exported(&folder, &["--stream", "cart-9"]), [0u64; 0]);
    assert_eq!(exported(&folder, &["--from", "99"]), [0u64; 0]);
}

#[test]
fn file_is_written_once_and_never_over() {
    let folder = shop();
    let ran = folder.run(&["export", "--output", "out.jsonl"]).done();
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.stderr, "exported 4 events to out.jsonl, the last at position 4\n");
    assert_eq!(json_lines(&folder.read("out.jsonl")).len(), 4);
    folder.run(&["export", "--output", "out.jsonl"]).fails(1, "out.jsonl exists already");
    assert_eq!(json_lines(&folder.read("out.jsonl")).len(), 4);
    folder.run(&["export", "--output", "no/folder.jsonl"]).fails(1, "cannot write no/folder.jsonl");
}

#[test]
fn stopped_export_goes_on_behind_its_last_complete_line() {
    let folder = shop();
    let whole = folder.run(&["export"]).done().stdout;
    let cut = whole.find("CheckedOut").unwrap();
    folder.write("out.jsonl", &whole[..cut]);
    let ran = folder.run(&["export", "--output", "out.jsonl", "--resume", "--json"]).done();
    assert_eq!(folder.read("out.jsonl"), whole);
    let told = ran.json();
    assert_eq!((&told["events"], &told["resumed_after"]), (&2.into(), &2.into()));
    assert_eq!(told["last_position"], 4);

    folder.run(&["append", "--stream", "cart-2", "--type", "T"]).done();
    folder.run(&["export", "--output", "out.jsonl", "--resume"]).done();
    let all = folder.run(&["export"]).done().stdout;
    assert_eq!(folder.read("out.jsonl"), all);
    folder.run(&["export", "--output", "new.jsonl", "--resume"]).done();
    assert_eq!(folder.read("new.jsonl"), all);
}

#[test]
fn file_that_is_no_export_is_not_gone_on_with() {
    let folder = shop();
    folder.write("notes.txt", "buy tea\nand cups");
    folder
        .run(&["export", "--output", "notes.txt", "--resume"])
        .fails(1, "the last line of notes.txt is not an exported event");
    assert_eq!(folder.read("notes.txt"), "buy tea\nand cups");
}

#[test]
fn data_with_line_breaks_is_one_line() {
    let folder = Folder::new();
    let data = "{\n  \"a\": 1,\r\n  \"b\": \"x\\ny\"\n}";
    folder.run(&["append", "--stream", "a", "--type", "T", "--data", data]).done();
    let ran = folder.run(&["export"]).done();
    assert_eq!(ran.stdout.lines().count(), 1);
    assert_eq!(ran.json()["data"], serde_json::json!({"a": 1, "b": "x\ny"}));
}
