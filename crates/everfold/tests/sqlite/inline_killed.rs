//! A process that appends is killed while its inline projections in Rust, a document and a handler,
//! are applied. At risk: an event without its document, or a document that an event changed which
//! is not stored. Guaranteed: they are written together or not at all, whoever appends next.

use std::collections::BTreeMap;
use std::io::Write;

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    DocumentProjection, ExpectedVersion, HandlerBatch, HandlerError, Projection, RecordedEvent,
    Store,
};
use serde::Deserialize;

use crate::chains::{STREAMS, events, stream};
use crate::fixture::{Place, Tamed, child_file, url};

const ROUNDS: usize = 5;
const ACKNOWLEDGED: usize = 120;

#[derive(Deserialize)]
enum Event {
    Moved {},
    Other {},
}

/// For each stream, the positions of its events in the order of application.
struct Seen;

impl DocumentProjection for Seen {
    type Event = Event;
    type Document = Vec<u64>;

    fn evolve(
        &self,
        seen: Option<Vec<u64>>,
        event: &Event,
        recorded: &RecordedEvent,
    ) -> Option<Vec<u64>> {
        let (Event::Moved {} | Event::Other {}) = event;
        let mut seen = seen.unwrap_or_default();
        seen.push(recorded.position.0);
        Some(seen)
    }
}

/// The same, row by row.
struct Noted;

impl SqliteHandler for Noted {
    fn set_up(&self, home: &str, connection: &rusqlite::Connection) -> Result<(), HandlerError> {
        let create = format!("CREATE TABLE {home}noted (n INTEGER PRIMARY KEY, stream, position)");
        Ok(connection.execute_batch(&create)?)
    }

    fn apply(
        &self,
        batch: HandlerBatch<'_>,
        connection: &rusqlite::Connection,
    ) -> Result<(), HandlerError> {
        let insert = format!("INSERT INTO {}noted (stream, position) VALUES (?1, ?2)", batch.home);
        for event in batch.events {
            let position = event.position.0.cast_signed();
            connection.execute(&insert, (event.stream_id.as_str(), position))?;
        }
        Ok(())
    }
}

async fn open(url: &str) -> Store {
    let store = Store::open(url).await.unwrap();
    let seen = Projection::document("seen", 1, Seen).inline().build().unwrap();
    store.register(seen).await.unwrap();
    let noted = Projection::sqlite_handler("noted", 1, Noted).inline().build().unwrap();
    store.register(noted).await.unwrap();
    store
}

type Positions = BTreeMap<String, Vec<u64>>;

async fn stored(store: &Store) -> Positions {
    let mut found = Positions::new();
    for event in store.read_all().collect().await.unwrap() {
        found.entry(event.stream_id.to_string()).or_default().push(event.position.0);
    }
    found
}

async fn documents(store: &Store) -> Positions {
    let found = store.documents::<Vec<u64>>("seen").collect().await.unwrap();
    found.into_iter().map(|found| (found.key, found.document)).collect()
}

fn noted(place: &Place) -> Positions {
    let connection = place.connect();
    let home = "SELECT home FROM everfold_generations WHERE kind = 'handler'";
    let home: String = connection.query_row(home, [], |row| row.get(0)).unwrap();
    let sql = format!("SELECT stream, position FROM {home}noted ORDER BY n");
    let mut statement = connection.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?))).unwrap();
    let mut found = Positions::new();
    for (stream, position) in rows.map(Result::unwrap) {
        found.entry(stream).or_default().push(position.cast_unsigned());
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_appends_apply_documents_and_handlers() {
    let place = Place::new();
    let store = open(&place.url()).await;
    for round in 0..ROUNDS {
        let mut writer = Tamed::start("inline_killed::child_appends", &place.file());
        writer.until_it_says("stored", ACKNOWLEDGED + 7 * round);
        writer.kill();
        let wanted = stored(&store).await;
        assert_eq!(wanted.len() as u64, STREAMS);
        assert_eq!(documents(&store).await, wanted, "round {round}: documents");
        assert_eq!(noted(&place), wanted, "round {round}: what the handler wrote");
    }
    let owed = "SELECT count(*) FROM everfold_skips";
    let owed: i64 = place.connect().query_row(owed, [], |row| row.get(0)).unwrap();
    assert_eq!(owed, 0, "all was applied by who appended it");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that is killed by another test"]
async fn child_appends() {
    let Some(file) = child_file() else { return };
    let store = open(&url(&file)).await;
    let writers = (0..STREAMS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (writer..).step_by(STREAMS as usize) {
                store.append(stream(number), ExpectedVersion::Any, events(number)).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "stored").and_then(|()| out.flush()).unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}
