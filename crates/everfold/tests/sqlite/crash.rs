//! A process is killed in the middle of writing. At risk: appends it was told are stored, and the
//! file itself. Guaranteed: every acknowledged append is there, nothing else but what was in
//! flight, streams without holes, and the file opens as if nothing had happened.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};

use everfold::{ExpectedVersion, Severity, Store};

use crate::fixture::{Place, child, child_file, event, url};

const WRITERS: usize = 8;
const ACKNOWLEDGED_MIN: usize = 200;
const ROUNDS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn killed_process_leaves_exactly_the_acknowledged_appends() {
    let place = Place::new();
    let mut acknowledged: HashMap<String, u64> = HashMap::new();
    for _ in 0..ROUNDS {
        let seen = write_until_killed(&place, &mut acknowledged);
        assert!(seen >= ACKNOWLEDGED_MIN, "only {seen} appends were acknowledged");
        let store = place.open().await;
        for (stream, versions) in &mut acknowledged {
            let events = store.read_stream(stream.as_str()).collect().await.unwrap();
            let found: Vec<u64> = events.iter().map(|event| event.version.0).collect();
            let stored = found.len() as u64;
            assert_eq!(found, (1..=stored).collect::<Vec<_>>(), "{stream} has no holes");
            // Two events an append, and at most one append in flight for each stream.
            assert!(
                stored == *versions || stored == *versions + 2,
                "{stream}: {stored} events, {versions} acknowledged"
            );
            *versions = stored;
        }
        let diagnosis = store.diagnose().await.unwrap();
        assert_eq!(diagnosis.severity(), Severity::Ok, "{:#?}", diagnosis.findings);
    }
}

/// Lets a child write, kills it, and adds what it said to `acknowledged`.
fn write_until_killed(place: &Place, acknowledged: &mut HashMap<String, u64>) -> usize {
    let mut writer = child("crash::child_writes_until_killed", &place.file()).spawn().unwrap();
    let mut seen = 0;
    for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some((stream, version)) =
            line.strip_prefix("stored ").and_then(|line| line.split_once(' '))
        else {
            continue;
        };
        acknowledged.insert(stream.to_owned(), version.parse().unwrap());
        seen += 1;
        if seen == ACKNOWLEDGED_MIN {
            // SIGKILL; lines that are on their way are still read.
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is killed by another test"]
async fn child_writes_until_killed() {
    let Some(file) = child_file() else { return };
    let store = Store::open(&url(&file)).await.unwrap();
    let writers: Vec<_> =
        (0..WRITERS).map(|number| tokio::spawn(write(store.clone(), number))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn write(store: Store, number: usize) {
    let stream = format!("s-{number}");
    let mut version = store.stream_version(&stream).await.unwrap();
    loop {
        let events = [event(), event()];
        version =
            store.append(&stream, ExpectedVersion::Exact(version), events).await.unwrap().version;
        let mut out = std::io::stdout().lock();
        writeln!(out, "stored {stream} {version}").and_then(|()| out.flush()).unwrap();
    }
}
