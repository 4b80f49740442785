//! Import of JSON lines: everything or up to a named line, and on from there.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use everfold::{ImportError, ImportOptions, Imported, Store};
use serde_json::{Value, json};

use crate::fixture::{
    Fixture, append, counted, event, numbers, on_every_store, read_all, read_stream,
};

on_every_store! {
    lines_are_appended_in_their_order,
    exported_events_come_back_the_same,
    broken_line_is_named_and_the_import_goes_on_when_it_is_mended,
    import_run_again_stores_nothing_twice,
    import_goes_on_with_lines_added_to_the_file,
    known_ids_are_repeats_and_other_content_is_refused,
    id_that_stands_twice_is_refused_with_its_line,
    line_that_names_another_version_is_refused_unless_renumbered,
    changed_file_under_the_same_name_is_refused,
    empty_lines_are_read_over,
    progress_is_told_and_only_rises,
    two_imports_at_once_of_one_name_store_every_line_once,
    import_beside_appends_to_the_same_streams_keeps_versions_whole,
}

fn line(stream: &str, n: u64) -> String {
    json!({ "stream_id": stream, "type": "Counted", "data": { "n": n } }).to_string()
}

fn lines(numbers: impl IntoIterator<Item = u64>) -> String {
    numbers.into_iter().map(|n| line(&format!("s-{}", n % 7), n) + "\n").collect()
}

fn small_chunks() -> ImportOptions {
    let mut options = ImportOptions::default();
    options.chunk_events_max = 10;
    options
}

async fn import(store: &Store, name: &str, text: &str) -> Result<Imported, ImportError> {
    import_with(store, name, text, small_chunks()).await
}

async fn import_with(
    store: &Store,
    name: &str,
    text: &str,
    options: ImportOptions,
) -> Result<Imported, ImportError> {
    store.import(name, Cursor::new(text.to_owned()), options, |_| {}).await
}

async fn lines_are_appended_in_their_order(fixture: Fixture) {
    let store = fixture.store().await;
    let imported = import(&store, "file", &lines(0..57)).await.unwrap();
    assert_eq!((imported.stored, imported.repeated, imported.resumed_after), (57, 0, 0));
    assert_eq!(imported.progress.lines, 57);
    let events = read_all(&store).await;
    assert_eq!(numbers(&events), (0..57).collect::<Vec<_>>());
    let first = read_stream(&store, "s-3").await;
    let versions: Vec<u64> = first.iter().map(|event| event.version.0).collect();
    assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>());
}

async fn exported_events_come_back_the_same(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(0..3)).await;
    let rich = event("Rich", json!({ "text": "ü\n\"" })).with_schema_version(4);
    append(&store, "b", [rich.with_correlation_id("c-1")]).await;
    append(&store, "a", counted([3])).await;
    let export: String = read_all(&store)
        .await
        .iter()
        .map(|event| {
            let line = json!({
                "position": event.position, "stream_id": event.stream_id, "version": event.version,
                "type": event.event_type, "schema_version": event.schema_version,
                "data": event.data_as::<Value>().unwrap(),
                "metadata": serde_json::from_str::<Value>(&event.metadata).unwrap(),
                "id": event.id, "recorded_at": event.recorded_at,
            });
            line.to_string() + "\n"
        })
        .collect();
    let other = if fixture.is_sqlite() { Fixture::sqlite() } else { Fixture::postgres().await };
    let copy = other.store().await;
    import(&copy, "export", &export).await.unwrap();
    assert_eq!(read_all(&copy).await, read_all(&store).await);
}

async fn broken_line_is_named_and_the_import_goes_on_when_it_is_mended(fixture: Fixture) {
    let store = fixture.store().await;
    let good = lines(0..5000);
    let broken: String = good
        .lines()
        .enumerate()
        .map(|(index, line)| match index + 1 {
            4711 => "{\"stream_id\": \"s-1\", \"type\": \"Counted\", \n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut options = ImportOptions::default();
    options.chunk_events_max = 1_000;
    match import_with(&store, "file", &broken, options.clone()).await {
        Err(ImportError::Line { line, message }) => {
            assert_eq!(line, 4711);
            assert!(message.contains("EOF"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(numbers(&read_all(&store).await), (0..4710).collect::<Vec<_>>());
    let imported = import_with(&store, "file", &good, options).await.unwrap();
    assert_eq!((imported.resumed_after, imported.stored, imported.repeated), (4710, 290, 0));
    assert_eq!(numbers(&read_all(&store).await), (0..5000).collect::<Vec<_>>());
}

async fn import_run_again_stores_nothing_twice(fixture: Fixture) {
    let store = fixture.store().await;
    import(&store, "file", &lines(0..25)).await.unwrap();
    let again = import(&store, "file", &lines(0..25)).await.unwrap();
    assert_eq!((again.stored, again.repeated, again.resumed_after), (0, 0, 25));
    assert_eq!(read_all(&store).await.len(), 25);
}

async fn import_goes_on_with_lines_added_to_the_file(fixture: Fixture) {
    let store = fixture.store().await;
    let without_break = lines(0..25).trim_end().to_owned();
    import(&store, "file", &without_break).await.unwrap();
    let error = import(&store, "file", "other\n").await.unwrap_err();
    assert!(matches!(error, ImportError::OtherSource { line: 25, .. }), "{error:?}");
    let more = import(&store, "file", &lines(0..40)).await.unwrap();
    assert_eq!((more.stored, more.resumed_after), (15, 25));
    assert_eq!(numbers(&read_all(&store).await), (0..40).collect::<Vec<_>>());
}

fn with_id(n: u64, data: Value) -> String {
    let id = format!("0199a0c0-0000-7000-8000-{n:012}");
    json!({ "stream_id": "a", "type": "Counted", "data": data, "id": id }).to_string() + "\n"
}

async fn known_ids_are_repeats_and_other_content_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let text: String = (0..15).map(|n| with_id(n, json!({ "n": n }))).collect();
    import(&store, "first", &text).await.unwrap();
    let longer: String = (0..30).map(|n| with_id(n, json!({ "n": n }))).collect();
    let second = import(&store, "second", &longer).await.unwrap();
    assert_eq!((second.stored, second.repeated), (15, 15));
    assert_eq!(numbers(&read_all(&store).await), (0..30).collect::<Vec<_>>());

    let other = with_id(40, json!({ "n": 40 })) + &with_id(7, json!({ "n": "other" }));
    match import(&store, "third", &other).await {
        Err(ImportError::Line { line: 2, message }) => {
            assert!(message.contains("already stored"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

async fn id_that_stands_twice_is_refused_with_its_line(fixture: Fixture) {
    let store = fixture.store().await;
    let text = [with_id(1, json!({ "n": 1 })), line("b", 2) + "\n", with_id(1, json!({ "n": 3 }))];
    match import(&store, "file", &text.concat()).await {
        Err(ImportError::Line { line: 3, message }) => {
            assert!(message.contains("0199a0c0"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

async fn line_that_names_another_version_is_refused_unless_renumbered(fixture: Fixture) {
    let store = fixture.store().await;
    let text = json!({ "stream_id": "a", "type": "Counted", "data": { "n": 1 }, "version": 5 });
    let text = line("b", 0) + "\n" + &text.to_string() + "\n";
    match import(&store, "file", &text).await {
        Err(ImportError::Line { line: 2, message }) => {
            assert!(message.contains("version"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let mut options = small_chunks();
    options.renumber = true;
    import_with(&store, "file", &text, options).await.unwrap();
    assert_eq!(read_stream(&store, "a").await[0].version.0, 1);
}

async fn changed_file_under_the_same_name_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    import(&store, "file", &lines(0..10)).await.unwrap();
    for other in [lines(10..30), lines(0..5), String::new()] {
        let error = import(&store, "file", &other).await.unwrap_err();
        assert!(matches!(error, ImportError::OtherSource { line: 10, .. }), "{error:?}");
    }
    import(&store, "another name", &lines(10..30)).await.unwrap();
    assert_eq!(read_all(&store).await.len(), 30);
}

async fn empty_lines_are_read_over(fixture: Fixture) {
    let store = fixture.store().await;
    let text = format!("\n{}\n\n  \n{}\n\n", line("a", 1), line("a", 2));
    let imported = import(&store, "file", &text).await.unwrap();
    assert_eq!((imported.stored, imported.progress.lines), (2, 6));
    let none = import(&store, "empty", "").await.unwrap();
    assert_eq!((none.stored, none.progress.lines), (0, 0));
}

async fn progress_is_told_and_only_rises(fixture: Fixture) {
    let store = fixture.store().await;
    let text = lines(0..45);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    store
        .import("file", Cursor::new(text.clone()), small_chunks(), move |progress| {
            sink.lock().unwrap().push((progress.lines, progress.bytes));
        })
        .await
        .unwrap();
    let told = told.lock().unwrap();
    assert!(told.is_sorted(), "{told:?}");
    assert_eq!(*told.first().unwrap(), (0, 0));
    assert_eq!(*told.last().unwrap(), (45, text.len() as u64));
    assert!(told.len() > 4, "once a transaction: {told:?}");
}

async fn two_imports_at_once_of_one_name_store_every_line_once(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let imports = stores
        .clone()
        .map(|store| tokio::spawn(async move { import(&store, "file", &lines(0..200)).await }));
    let mut finished = 0;
    for outcome in futures::future::join_all(imports).await {
        match outcome.unwrap() {
            Ok(_) => finished += 1,
            Err(ImportError::UnderWay { name }) => assert_eq!(name, "file"),
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(finished >= 1);
    assert_eq!(numbers(&read_all(&stores[0]).await), (0..200).collect::<Vec<_>>());
}

async fn import_beside_appends_to_the_same_streams_keeps_versions_whole(fixture: Fixture) {
    let store = fixture.store().await;
    let appending = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..60u64 {
                append(&store, &format!("s-{}", n % 7), counted([1000 + n])).await;
            }
        })
    };
    let imported = import(&store, "file", &lines(0..300)).await.unwrap();
    appending.await.unwrap();
    assert_eq!(imported.stored, 300);
    for stream in 0..7 {
        let events = read_stream(&store, &format!("s-{stream}")).await;
        let versions: Vec<u64> = events.iter().map(|event| event.version.0).collect();
        assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>());
        assert!(events.is_sorted_by(|a, b| a.position < b.position));
    }
    assert_eq!(read_all(&store).await.len(), 360);
}
