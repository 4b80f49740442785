use serde_json::json;

use crate::support::Folder;

const ID: &str = "0199a0c0-0000-7000-8000-000000000001";

#[test]
fn appended_event_has_all_that_was_given() {
    let folder = Folder::new();
    let mut arguments = vec!["append", "--stream", "cart-1", "--type", "ItemAdded"];
    arguments.extend(["--data", r#"{"sku":"A1","price":12345678901234567890.125}"#]);
    arguments.extend(["--metadata", r#"{"correlation_id":"r-7"}"#]);
    arguments.extend(["--id", ID, "--schema-version", "3", "--expected", "none"]);
    let ran = folder.run(&arguments).done();
    assert_eq!(ran.stdout, "appended 1 event to cart-1: position 1, version 1\n");
    assert_eq!(ran.stderr, "made a new store at sqlite:everfold.db\n");

    let exported = folder.run(&["export"]).done();
    assert!(exported.stdout.contains(r#""price":12345678901234567890.125"#), "{exported:#?}");
    let event = &exported.json_lines()[0];
    assert_eq!(event["stream_id"], "cart-1");
    assert_eq!(event["type"], "ItemAdded");
    assert_eq!(event["schema_version"], 3);
    assert_eq!(event["metadata"], json!({"correlation_id": "r-7"}));
    assert_eq!(event["id"], ID);
}

#[test]
fn result_is_json_when_asked_for() {
    let folder = Folder::new();
    let arguments = ["append", "--stream", "a", "--type", "T", "--json"];
    folder.run(&arguments).done();
    let second = folder.run(&arguments).done().json();
    let expected = json!({
        "stream_id": "a", "events": 1, "first_position": 2, "last_position": 2, "version": 2
    });
    assert_eq!(second, expected);
}

#[test]
fn repeated_event_is_stored_once() {
    let folder = Folder::new();
    let arguments = ["append", "--stream", "a", "--type", "T", "--id", ID, "--expected", "none"];
    let first = folder.run(&arguments).done();
    let again = folder.run(&arguments).done();
    assert_eq!(first.stdout, again.stdout);
    assert_eq!(folder.run(&["events", "--json"]).json_lines().len(), 1);
    let mut other = arguments.to_vec();
    other.extend(["--data", "7"]);
    folder.run(&other).fails(1, ID).says("use a new id");
}

#[test]
fn version_conflict_is_refused_with_both_versions() {
    let folder = Folder::new();
    let append = |expected: &str| {
        folder.run(&["append", "--stream", "cart-1", "--type", "T", "--expected", expected])
    };
    append("exists").fails(1, "expected an existing stream, actual no stream");
    append("none").done();
    append("exists").done();
    append("2").done();
    append("1").fails(1, "version conflict on stream \"cart-1\": expected 1, actual 3");
    append("none").fails(1, "expected no stream, actual 3").says("and decide again");
    append("any").done();
}

#[test]
fn data_comes_from_the_argument_stdin_or_a_file() {
    let folder = Folder::new();
    folder.write("data.json", "{\n  \"from\": \"file\"\n}\n");
    let arguments = ["append", "--stream", "a", "--type", "T", "--data"];
    let with = |data| [arguments.as_slice(), &[data]].concat();
    folder.run(&with("{\"from\":\"argument\"}")).done();
    folder.run(&with("@data.json")).done();
    folder.run_with_stdin(&with("-"), "{\"from\":\"stdin\"}").done();
    folder.run(&arguments[..5]).done();
    let events = folder.run(&["events", "--json"]).done().json_lines();
    let data: Vec<_> = events.iter().map(|event| event["data"].to_string()).collect();
    assert_eq!(data, [r#"{"from":"argument"}"#, r#"{"from":"file"}"#, r#"{"from":"stdin"}"#, "{}"]);
    folder.run(&with("@missing.json")).fails(1, "cannot read missing.json");
    folder.run(&with("{sku}")).fails(2, "--data is not JSON");
    folder
        .run(&["append", "--stream", "a", "--type", "T", "--metadata", "[]"])
        .fails(2, "--metadata is not a JSON object");
}

#[test]
fn many_events_are_appended_together() {
    let folder = Folder::new();
    let arguments = ["append", "--stream", "a", "--events", "-", "--expected", "none"];
    let events = format!(
        r#"[{{"type":"A","data":{{"n":1.10}}}},
            {{"type":"B","data":null,"metadata":{{"k":1}},"id":"{ID}","schema_version":2}}]"#
    );
    folder.run_with_stdin(&arguments, &events).done().prints("positions 1 to 2, version 2");
    let exported = folder.run(&["export"]).done();
    assert!(exported.stdout.contains(r#"{"n":1.10}"#), "{exported:#?}");
    assert_eq!(exported.json_lines()[1]["id"], ID);

    folder.write("more.json", r#"[{"type":"C","data":3}]"#);
    folder.run(&["append", "--stream", "a", "--events", "more.json"]).done();
}

#[test]
fn events_in_another_form_are_refused_by_number() {
    let folder = Folder::new();
    for (events, message) in [
        ("{}", "stdin is not a JSON array of events"),
        (
            "[{\"type\":\"A\",\"data\":1},{\"typ\":\"B\",\"data\":1}]",
            "event 2 of stdin: unknown field `typ`",
        ),
        ("[{\"data\":1}]", "event 1 of stdin: missing field `type`"),
        ("[{\"type\":\"A\"}]", "event 1 of stdin: missing field `data`"),
        ("[{\"type\":\"A\",\"data\":1,\"id\":\"x\"}]", "event 1 of stdin"),
        ("[]", "has no events"),
        ("[{\"type\":\"\",\"data\":1}]", "event type of event 1 has 0 bytes"),
    ] {
        let arguments = ["append", "--stream", "a", "--events", "-"];
        folder.run_with_stdin(&arguments, events).fails(1, message);
    }
    assert!(folder.run(&["events"]).stdout.is_empty());
}
