//! Events that cannot be applied, of every kind, under every policy, inline and catch-up. Each kind
//! has its projection, and each poison harms only the one of its kind.

use std::collections::BTreeMap;
use std::time::Duration;

use everfold::{
    AppendError, DocumentProjection, ExpectedVersion, GenerationStatus, NewEvent, OnError,
    Position, Projection, ProjectionBuilder, ProjectionSettings, RecordedEvent, Retried, SqlBody,
    Store,
};
use serde::Deserialize;
use serde_json::json;

use crate::fixture::{Fixture, append, caught_up, event, failed, on_every_store, read_all};

on_every_store! {
    inline_stop_refuses_the_append_and_nothing_else,
    inline_dead_letter_holds_what_comes_behind_it,
    inline_skip_leaves_out_the_event_alone,
    catch_up_stop_stands_before_the_event,
    catch_up_dead_letter_holds_what_comes_behind_it,
    catch_up_skip_leaves_out_the_event_alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// SQL that the database refuses.
    Sql,
    /// A key that is not in the event.
    Key,
    /// Code that panics.
    Panic,
    /// Data that does not fit the type of the event.
    Decode,
}

const KINDS: [Kind; 4] = [Kind::Sql, Kind::Key, Kind::Panic, Kind::Decode];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sql => "by_sql",
            Kind::Key => "by_key",
            Kind::Panic => "by_panic",
            Kind::Decode => "by_decode",
        }
    }

    /// The number that only this kind cannot apply.
    fn poison(self) -> u64 {
        match self {
            Kind::Sql => 13,
            Kind::Key => 14,
            Kind::Panic => 15,
            Kind::Decode => 300,
        }
    }

    /// What every message about it has, in small letters.
    fn error(self) -> &'static str {
        match self {
            Kind::Sql => "null",
            Kind::Key => "missing or null",
            Kind::Panic => "fifteen is too much",
            Kind::Decode => "300",
        }
    }

    fn is_told_in(self, message: &str) -> bool {
        message.to_lowercase().contains(self.error())
    }

    fn stream(self) -> String {
        format!("{}-a", self.name())
    }

    fn projection(self, on_error: OnError, inline: bool) -> Projection {
        let name = self.name();
        let built = match self {
            Kind::Sql => set(sql(name), on_error, inline).build(),
            Kind::Key => set(sql(name).key_fields(["data.account"]), on_error, inline).build(),
            Kind::Panic => set(Projection::document(name, 1, Panics), on_error, inline).build(),
            Kind::Decode => set(Projection::document(name, 1, Bytes), on_error, inline).build(),
        };
        built.unwrap()
    }
}

fn set<B>(builder: ProjectionBuilder<B>, on_error: OnError, inline: bool) -> ProjectionBuilder<B> {
    if inline {
        return builder.inline().on_error(on_error);
    }
    let mut settings = ProjectionSettings::default();
    (settings.retries, settings.on_error) = (1, on_error);
    settings.retry_delay = Duration::from_millis(5);
    builder.settings(settings)
}

/// One row for each event; 13 has none that fits.
fn sql(name: &str) -> ProjectionBuilder<SqlBody> {
    let refused = if name == Kind::Sql.name() { Kind::Sql.poison() } else { 0 };
    Projection::sql(name, 1)
        .create(format!(
            "CREATE TABLE read_model.{name}
             (position BIGINT PRIMARY KEY, stream_id TEXT NOT NULL, n BIGINT NOT NULL)"
        ))
        .apply(format!(
            "INSERT INTO read_model.{name} (position, stream_id, n)
             SELECT position, stream_id, NULLIF(CAST(data->>'n' AS BIGINT), {refused}) FROM batch"
        ))
}

#[derive(Deserialize)]
enum Number {
    Counted { n: u64 },
}

struct Panics;

impl DocumentProjection for Panics {
    type Event = Number;
    type Document = Vec<u64>;

    fn evolve(
        &self,
        before: Option<Vec<u64>>,
        Number::Counted { n }: &Number,
        _: &RecordedEvent,
    ) -> Option<Vec<u64>> {
        assert_ne!(*n, Kind::Panic.poison(), "fifteen is too much");
        Some([before.unwrap_or_default(), vec![*n]].concat())
    }
}

#[derive(Deserialize)]
enum Byte {
    Counted { n: u8 },
}

struct Bytes;

impl DocumentProjection for Bytes {
    type Event = Byte;
    type Document = Vec<u64>;

    fn evolve(
        &self,
        before: Option<Vec<u64>>,
        Byte::Counted { n }: &Byte,
        _: &RecordedEvent,
    ) -> Option<Vec<u64>> {
        Some([before.unwrap_or_default(), vec![u64::from(*n)]].concat())
    }
}

fn number(stream: &str, n: u64) -> NewEvent {
    match n == Kind::Key.poison() {
        true => event("Counted", json!({ "n": n })),
        false => event("Counted", json!({ "n": n, "account": stream })),
    }
}

/// For each kind a stream with 1, the poison of that kind and 5, and one with 7.
async fn append_all(store: &Store) {
    for kind in KINDS {
        let (a, b) = (kind.stream(), format!("{}-b", kind.name()));
        for (stream, n) in [(&a, 1), (&a, kind.poison()), (&b, 7), (&a, 5)] {
            append(store, stream, [number(stream, n)]).await;
        }
    }
}

type Numbers = BTreeMap<String, Vec<u64>>;

/// What a projection has applied: numbers by stream, in their order.
async fn applied(fixture: &Fixture, store: &Store, kind: Kind) -> Numbers {
    let name = kind.name();
    if matches!(kind, Kind::Panic | Kind::Decode) {
        let found = store.documents::<Vec<u64>>(name).collect().await.unwrap();
        return found.into_iter().map(|found| (found.key, found.document)).collect();
    }
    let sql = format!("SELECT stream_id, n FROM read_model.{name} ORDER BY position");
    let mut numbers = Numbers::new();
    for row in fixture.rows(&sql).await {
        let stream = row[0].as_str().unwrap().to_owned();
        numbers.entry(stream).or_default().push(row[1].as_u64().unwrap());
    }
    numbers
}

/// What the log says must be applied.
async fn wanted(store: &Store, is_applied: impl Fn(&RecordedEvent, u64) -> bool) -> Numbers {
    let mut numbers = Numbers::new();
    for event in read_all(store).await {
        let data: serde_json::Value = event.data_as().unwrap();
        let n = data["n"].as_u64().unwrap();
        if is_applied(&event, n) {
            numbers.entry(event.stream_id.as_str().to_owned()).or_default().push(n);
        }
    }
    numbers
}

async fn position_of_poison(store: &Store, kind: Kind) -> Position {
    let events = store.read_stream(kind.stream()).collect().await.unwrap();
    events[1].position
}

async fn registered_inline(store: &Store, on_error: OnError) {
    for kind in KINDS {
        store.register(kind.projection(on_error, true)).await.unwrap();
    }
}

async fn inline_stop_refuses_the_append_and_nothing_else(fixture: Fixture) {
    let store = fixture.store().await;
    registered_inline(&store, OnError::Stop).await;
    for kind in KINDS {
        let stream = kind.stream();
        append(&store, &stream, [number(&stream, 1)]).await;
        let poison = [number(&stream, 2), number(&stream, kind.poison())];
        match store.append(stream.as_str(), ExpectedVersion::Any, poison).await {
            Err(AppendError::Projection { projection, message }) => {
                assert_eq!(projection, kind.name());
                assert!(kind.is_told_in(&message), "{kind:?}: {message}");
            }
            other => panic!("{kind:?}: wanted a refused append, got {other:?}"),
        }
        append(&store, &stream, [number(&stream, 5)]).await;
    }
    let all = wanted(&store, |_, _| true).await;
    assert!(all.values().all(|numbers| *numbers == [1, 5]), "{all:?}");
    for kind in KINDS {
        assert_eq!(applied(&fixture, &store, kind).await, all, "{kind:?}");
        let status = store.projection(kind.name()).await.unwrap();
        assert_eq!((status.status, status.open_skips), (GenerationStatus::Active, 0), "{kind:?}");
    }
}

/// The event is put aside and what comes behind it in its key waits; discarded, only it is missing.
async fn assert_put_aside(fixture: &Fixture, store: &Store) {
    for kind in KINDS {
        let (name, poison) = (kind.name(), position_of_poison(store, kind).await);
        // An event without a key has nothing behind it.
        let holds = kind != Kind::Key;
        let held = |event: &RecordedEvent| {
            holds && event.stream_id.as_str() == kind.stream() && event.position > poison
        };
        let expected = wanted(store, |event, n| n != kind.poison() && !held(event)).await;
        assert_eq!(applied(fixture, store, kind).await, expected, "{kind:?}");
        let letters = store.dead_letters(name).await.unwrap();
        assert_eq!((letters[0].position, letters[0].behind), (poison, None), "{kind:?}");
        assert!(kind.is_told_in(letters[0].error.as_deref().unwrap()), "{letters:?}");
        assert_eq!(letters.len(), 1 + usize::from(holds), "{kind:?}: {letters:?}");

        let discarded = store.discard_dead_letter(name, poison, "a test").await.unwrap();
        assert_eq!(discarded, Retried::Applied { events: u64::from(holds) }, "{kind:?}");
        let expected = wanted(store, |_, n| n != kind.poison()).await;
        assert_eq!(applied(fixture, store, kind).await, expected, "{kind:?}");
    }
}

async fn assert_left_out(fixture: &Fixture, store: &Store) {
    for kind in KINDS {
        let (name, poison) = (kind.name(), position_of_poison(store, kind).await);
        let expected = wanted(store, |_, n| n != kind.poison()).await;
        assert_eq!(applied(fixture, store, kind).await, expected, "{kind:?}");
        assert_eq!(store.dead_letters(name).await.unwrap().len(), 0, "{kind:?}");
        let messages = store.messages(&everfold::MessageQuery::of(name)).await.unwrap();
        let skipped: Vec<_> = messages.iter().filter(|m| m.kind == "skipped").collect();
        assert_eq!(skipped.len(), 1, "{kind:?}: {messages:?}");
        assert_eq!(skipped[0].position, Some(poison), "{kind:?}");
        assert!(kind.is_told_in(&skipped[0].message), "{kind:?}: {skipped:?}");
    }
}

async fn inline_dead_letter_holds_what_comes_behind_it(fixture: Fixture) {
    let store = fixture.store().await;
    registered_inline(&store, OnError::DeadLetter).await;
    append_all(&store).await;
    assert_put_aside(&fixture, &store).await;
}

async fn inline_skip_leaves_out_the_event_alone(fixture: Fixture) {
    let store = fixture.store().await;
    registered_inline(&store, OnError::Skip).await;
    append_all(&store).await;
    assert_left_out(&fixture, &store).await;
}

async fn catch_up_stop_stands_before_the_event(fixture: Fixture) {
    let store = fixture.store().await;
    append_all(&store).await;
    for kind in KINDS {
        let reason = failed(&store, &kind.projection(OnError::Stop, false)).await;
        let poison = position_of_poison(&store, kind).await;
        assert!(reason.contains(&format!("event at position {poison}")), "{kind:?}: {reason}");
        assert!(kind.is_told_in(&reason), "{kind:?}: {reason}");
        let expected = wanted(&store, |event, _| event.position < poison).await;
        assert_eq!(applied(&fixture, &store, kind).await, expected, "{kind:?}");
        let status = store.projection(kind.name()).await.unwrap();
        assert_eq!(status.status, GenerationStatus::Failed);
        assert_eq!(status.position, Position(poison.0 - 1), "{kind:?}");
    }
}

async fn catch_up_dead_letter_holds_what_comes_behind_it(fixture: Fixture) {
    let store = fixture.store().await;
    append_all(&store).await;
    for kind in KINDS {
        caught_up(&store, &kind.projection(OnError::DeadLetter, false)).await;
    }
    assert_put_aside(&fixture, &store).await;
}

async fn catch_up_skip_leaves_out_the_event_alone(fixture: Fixture) {
    let store = fixture.store().await;
    append_all(&store).await;
    for kind in KINDS {
        caught_up(&store, &kind.projection(OnError::Skip, false)).await;
    }
    assert_left_out(&fixture, &store).await;
}
