//! Random work on every store, compared step by step with a plain in-memory model. The seed is
//! printed; `EVERFOLD_SEED` replays it.

use std::collections::BTreeMap;

use everfold::{
    AppendError, Appended, ExpectedVersion, NewEvent, Position, RecordedEvent, Store, StreamAppend,
    Version,
};
use everfold_testkit::Seed;
use serde_json::json;

use crate::fixture::{Fixture, event, on_every_store};

on_every_store! { random_work_gives_what_the_model_gives }

const STEPS: usize = 250;
const STREAMS: u64 = 6;
const TYPES: [&str; 3] = ["A", "B", "C"];

/// The whole store as a list. Positions are only compared in their order: each store has gaps of
/// its own.
#[derive(Default)]
struct Model {
    log: Vec<(String, u64, NewEvent)>,
}

/// What the model says of an append.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// The stream's version afterwards, and the indexes of its events in the log.
    Stored {
        version: u64,
        log: std::ops::Range<usize>,
    },
    Repeat {
        version: u64,
        first: usize,
        last: usize,
    },
    Conflict {
        actual: u64,
    },
    IdConflict,
}

impl Model {
    fn version(&self, stream: &str) -> u64 {
        self.log.iter().filter(|(name, ..)| name == stream).count() as u64
    }

    fn append(&mut self, append: &Append) -> Verdict {
        let known: Vec<usize> = append
            .events
            .iter()
            .filter_map(|event| self.log.iter().position(|(.., stored)| stored.id() == event.id()))
            .collect();
        if !known.is_empty() {
            let same = append.events.iter().zip(&known).filter(|&(event, &index)| {
                let (stream, _, stored) = &self.log[index];
                *stream == append.stream
                    && stored.event_type() == event.event_type()
                    && stored.data() == event.data()
            });
            let all = known.len() == append.events.len() && same.count() == known.len();
            let (first, last) = (known[0], known[known.len() - 1]);
            return match all {
                true => Verdict::Repeat { version: self.log[last].1, first, last },
                false => Verdict::IdConflict,
            };
        }
        let actual = self.version(&append.stream);
        if !append.expected.accepts(Version(actual)) {
            return Verdict::Conflict { actual };
        }
        let start = self.log.len();
        for (n, event) in append.events.iter().enumerate() {
            self.log.push((append.stream.clone(), actual + n as u64 + 1, event.clone()));
        }
        Verdict::Stored { version: actual + append.events.len() as u64, log: start..self.log.len() }
    }
}

#[derive(Debug, Clone)]
struct Append {
    stream: String,
    expected: ExpectedVersion,
    events: Vec<NewEvent>,
}

impl Append {
    fn random(seed: &mut Seed, model: &Model) -> Append {
        let stream = format!("s-{}", seed.below(STREAMS));
        let actual = model.version(&stream);
        let expected = match seed.below(6) {
            0 => ExpectedVersion::NoStream,
            1 => ExpectedVersion::Exists,
            2 => ExpectedVersion::Exact(Version(actual + seed.below(3))),
            3 | 4 => ExpectedVersion::Exact(Version(actual)),
            _ => ExpectedVersion::Any,
        };
        let mut events: Vec<NewEvent> = (0..=seed.below(4))
            .map(|_| {
                let kind: &str = seed.pick::<&str>(&TYPES);
                event(kind, json!({ "n": seed.below(1000) }))
            })
            .collect();
        // Now and then a whole earlier append again, or one of its ids in something new.
        if !model.log.is_empty() && seed.chance(0.2) {
            let (stored_stream, _, stored) = seed.pick(&model.log).clone();
            if seed.chance(0.6) {
                return Append { stream: stored_stream, expected, events: vec![stored] };
            }
            events[0] = events[0].clone().with_id(stored.id());
        }
        Append { stream, expected, events }
    }

    fn request(&self) -> StreamAppend {
        StreamAppend::new(self.stream.as_str(), self.expected, self.events.clone())
    }
}

/// The positions that the store gave to the model's events, filled in as they become known.
#[derive(Default)]
struct Positions(BTreeMap<usize, Position>);

impl Positions {
    fn check(&mut self, verdict: &Verdict, outcome: &Result<Appended, AppendError>) {
        match (verdict, outcome) {
            (Verdict::Stored { version, log }, Ok(appended)) => {
                assert_eq!(appended.version.0, *version);
                assert!(self.0.values().all(|&known| known < appended.first_position));
                self.0.insert(log.start, appended.first_position);
                self.0.insert(log.end - 1, appended.last_position);
            }
            (Verdict::Repeat { version, first, last }, Ok(appended)) => {
                assert_eq!(appended.version.0, *version);
                for (index, found) in
                    [(first, appended.first_position), (last, appended.last_position)]
                {
                    let known = self.0.entry(*index).or_insert(found);
                    assert_eq!(*known, found);
                }
            }
            (Verdict::Conflict { actual: wanted }, Err(error)) => match error {
                AppendError::VersionConflict { actual, .. } => assert_eq!(actual.0, *wanted),
                other => panic!("wanted a conflict, got {other:?}"),
            },
            (Verdict::IdConflict, Err(AppendError::IdConflict { .. })) => {}
            (verdict, outcome) => panic!("the model says {verdict:?}, the store {outcome:?}"),
        }
    }
}

async fn random_work_gives_what_the_model_gives(fixture: Fixture) {
    let mut seed = Seed::from_env_or_random();
    let store = fixture.store_with(|options| options.page_events_max = 7).await;
    let mut model = Model::default();
    let mut positions = Positions::default();
    for _ in 0..STEPS {
        match seed.below(10) {
            0..=5 => {
                let append = Append::random(&mut seed, &model);
                let verdict = model.append(&append);
                let request = append.clone();
                let outcome = store.append(request.stream, request.expected, request.events).await;
                positions.check(&verdict, &outcome);
            }
            6 => append_many(&mut seed, &store, &mut model, &mut positions).await,
            7 => compare_stream(&mut seed, &store, &model).await,
            8 => compare_filtered(&mut seed, &store, &model).await,
            _ => compare_log(&store, &model).await,
        }
    }
    compare_log(&store, &model).await;
}

async fn append_many(seed: &mut Seed, store: &Store, model: &mut Model, positions: &mut Positions) {
    let mut appends: Vec<Append> = Vec::new();
    for _ in 0..=seed.below(4) {
        let append = Append::random(seed, model);
        // The same id in two members fails the whole call; that is another test's story.
        let ids: Vec<_> = append.events.iter().map(NewEvent::id).collect();
        if !appends.iter().flat_map(|one| &one.events).any(|event| ids.contains(&event.id())) {
            appends.push(append);
        }
    }
    let verdicts: Vec<Verdict> = appends.iter().map(|append| model.append(append)).collect();
    let outcomes = store.append_many(appends.iter().map(Append::request)).await.unwrap();
    for (verdict, outcome) in verdicts.iter().zip(&outcomes) {
        positions.check(verdict, outcome);
    }
}

/// (stream, version, type, data as JSON, id), which is all that must be the same.
type Plain = (String, u64, String, serde_json::Value, everfold::Uuid);

fn plain(event: &RecordedEvent) -> Plain {
    let data = event.data_as().unwrap();
    (event.stream_id.to_string(), event.version.0, event.event_type.clone(), data, event.id)
}

fn modelled((stream, version, event): &(String, u64, NewEvent)) -> Plain {
    let data = serde_json::from_str(event.data()).unwrap();
    (stream.clone(), *version, event.event_type().to_owned(), data, event.id())
}

async fn compare_log(store: &Store, model: &Model) {
    let found = store.read_all().collect().await.unwrap();
    assert!(found.is_sorted_by(|a, b| a.position < b.position));
    let found: Vec<Plain> = found.iter().map(plain).collect();
    assert_eq!(found, model.log.iter().map(modelled).collect::<Vec<_>>());
}

async fn compare_filtered(seed: &mut Seed, store: &Store, model: &Model) {
    let types: Vec<&str> = TYPES.into_iter().filter(|_| seed.chance(0.5)).collect();
    let limit = seed.below(20);
    let found = store.read_all().types(types.clone()).limit(limit).collect().await.unwrap();
    let wanted = model.log.iter().filter(|(.., event)| types.contains(&event.event_type()));
    let wanted: Vec<Plain> = wanted.take(limit as usize).map(modelled).collect();
    assert_eq!(found.iter().map(plain).collect::<Vec<_>>(), wanted);
}

async fn compare_stream(seed: &mut Seed, store: &Store, model: &Model) {
    let stream = format!("s-{}", seed.below(STREAMS));
    let (from, limit) = (seed.below(12), seed.below(9));
    let backward = seed.chance(0.5);
    let read = store.read_stream(&stream).from_version(Version(from)).limit(limit);
    let read = if backward { read.backward() } else { read };
    let found = read.collect().await.unwrap();
    let mut wanted: Vec<&(String, u64, NewEvent)> =
        model.log.iter().filter(|(name, ..)| *name == stream).collect();
    match backward {
        true => {
            wanted.reverse();
            wanted.retain(|(_, version, _)| *version <= from);
        }
        false => wanted.retain(|(_, version, _)| *version >= from),
    }
    let wanted: Vec<Plain> = wanted.into_iter().take(limit as usize).map(modelled).collect();
    assert_eq!(found.iter().map(plain).collect::<Vec<_>>(), wanted);
}
