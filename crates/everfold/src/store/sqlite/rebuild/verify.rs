//! Verifying the read model that readers see, at one moment, on a connection for reading.
//!
//! Documents are folded in memory. SQL and handlers are run into a database of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::Connection;

use super::super::projection::names::identifier;
use super::super::read;
use super::looking::{PAGE_EVENTS, failed, holding, read_pages};
use super::scratch::{Scratch, refused};
use super::tables::{Only, Side, Sides};
use crate::projection::definition::ProjectionKind;
use crate::projection::generation::Generation;
use crate::projection::job::{Job, Task};
use crate::projection::key::Key;
use crate::projection::projector::ApplyError;
use crate::rebuild::folding::{Folding, Noted};
use crate::rebuild::holding::Holding;
use crate::rebuild::verify::sample_positions;
use crate::rebuild::{Comparison, VerifyScope};
use crate::store::{AllPage, StreamPage, Verified, Verifying};
use crate::{Position, RecordedEvent, Version};

pub(super) fn verify(
    connection: &Connection,
    verifying: &Verifying,
    bytes_max: usize,
) -> Result<Verified, ApplyError> {
    let Verifying { generation, projector, upcasters, .. } = verifying;
    let held = holding(connection, generation).map_err(failed)?;
    let (generation, projector) = (Arc::clone(generation), projector.clone());
    let job = Job::new(generation, projector, Arc::clone(upcasters), Task::Trial);
    let looking = Looking { connection, verifying, job, held, bytes_max };
    let comparison = match &verifying.scope {
        VerifyScope::All => looking.all()?,
        VerifyScope::Keys(keys) => looking.keys(keys.iter().cloned().collect())?,
        VerifyScope::Sample(count) => looking.keys(looking.sample(*count)?)?,
    };
    let owed = looking.held.owed.len() as u64;
    let position = looking.held.highest();
    Ok(Verified { comparison: Comparison { owed, ..comparison }, position })
}

struct Looking<'a> {
    connection: &'a Connection,
    verifying: &'a Verifying,
    /// Of the generation that readers see.
    job: Job,
    held: Holding,
    bytes_max: usize,
}

impl Looking<'_> {
    fn generation(&self) -> &Generation {
        &self.verifying.generation
    }

    fn pages(
        &self,
        use_page: impl FnMut(Vec<RecordedEvent>) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let range = (Position(0), self.held.highest());
        read_pages(self.connection, self.generation(), range, self.bytes_max, use_page)
    }

    fn all(&self) -> Result<Comparison, ApplyError> {
        if self.generation().kind == ProjectionKind::Document {
            return self.all_documents();
        }
        let scratch = self.scratch()?;
        let job = Job { generation: Arc::clone(&scratch.generation), ..self.job.clone() };
        self.pages(|events| scratch.apply(&job, self.held.of(&self.job, events)))?;
        self.sides(&scratch).compare(None).map_err(failed)
    }

    fn scratch(&self) -> Result<Scratch, ApplyError> {
        let Verifying { generation, projector, .. } = self.verifying;
        Scratch::make(self.connection, generation, projector, self.bytes_max)
    }

    fn sides<'s>(&'s self, scratch: &'s Scratch) -> Sides<'s> {
        let Generation { home, kind, .. } = self.generation();
        Sides {
            expected: Side { connection: &scratch.connection, home: &scratch.generation.home },
            found: Side { connection: self.connection, home },
            kind: *kind,
            examples: self.verifying.examples,
        }
    }

    fn noted(&self) -> Noted<'_> {
        let (table, examples) = (self.generation().name.as_str(), self.verifying.examples);
        Noted { table, examples, comparison: Comparison::default() }
    }

    /// Folds the log, a part of the keys at a time, and compares each part with the table.
    fn all_documents(&self) -> Result<Comparison, ApplyError> {
        let mut noted = self.noted();
        let mut folding = Folding::new(&self.job, &self.held, self.verifying.memory_max);
        loop {
            self.pages(|events| folding.add(events))?;
            self.compare_documents("", "", &mut folding, &mut noted).map_err(failed)?;
            folding.compare_missing(&mut noted);
            if !folding.next_part() {
                return Ok(noted.comparison);
            }
        }
    }

    fn compare_documents(
        &self,
        condition: &str,
        keys: &str,
        folding: &mut Folding<'_>,
        noted: &mut Noted<'_>,
    ) -> Result<(), rusqlite::Error> {
        let Generation { home, name, .. } = self.generation();
        let table = identifier(&format!("{home}{name}"));
        let sql = format!("SELECT key, document FROM {table}{condition}");
        let mut statement = self.connection.prepare(&sql)?;
        if statement.parameter_count() > 0 {
            statement.raw_bind_parameter(1, keys)?;
        }
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            folding.compare(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?, noted);
        }
        Ok(())
    }

    /// Keys of events at random positions.
    fn sample(&self, count: usize) -> Result<BTreeSet<String>, ApplyError> {
        let up_to = self.held.highest();
        let mut keys = BTreeSet::new();
        for after in sample_positions(up_to, count) {
            let types = self.generation().event_types.clone();
            let page = AllPage { after, up_to, types, max: 1, dense: false };
            let page = read::read_all(self.connection, &page, self.bytes_max).map_err(failed)?;
            let events = self.held.of(&self.job, page.events);
            keys.extend(self.job.keys_of(&events).into_values());
            if keys.len() >= count {
                break;
            }
        }
        Ok(keys)
    }

    fn keys(&self, keys: BTreeSet<String>) -> Result<Comparison, ApplyError> {
        let events = self.events_of(&keys)?;
        let keys: Vec<String> = keys.into_iter().collect();
        if self.generation().kind == ProjectionKind::Document {
            let mut noted = self.noted();
            let mut folding = Folding::new(&self.job, &self.held, usize::MAX);
            folding.add(events)?;
            let condition = " WHERE key IN (SELECT value FROM json_each(?1))";
            let keys = serde_json::to_string(&keys).expect("a list of texts is JSON");
            self.compare_documents(condition, &keys, &mut folding, &mut noted).map_err(failed)?;
            folding.compare_missing(&mut noted);
            return Ok(noted.comparison);
        }
        let scratch = self.scratch()?;
        let job = Job { generation: Arc::clone(&scratch.generation), ..self.job.clone() };
        let held = self.held.of(&self.job, events);
        for page in held.chunks(PAGE_EVENTS) {
            scratch.apply(&job, page.to_vec())?;
        }
        let sides = self.sides(&scratch);
        let only = key_columns(&sides, keys)?;
        sides.compare(Some(&only)).map_err(failed)
    }

    /// The events of some keys, in their order.
    fn events_of(&self, keys: &BTreeSet<String>) -> Result<Vec<RecordedEvent>, ApplyError> {
        let (generation, mut found) = (self.generation(), Vec::new());
        if generation.key == Key::Stream {
            let wants = |event: &RecordedEvent| {
                let types = generation.event_types.as_ref();
                types.is_none_or(|types| types.contains(&event.event_type))
            };
            for stream in keys {
                let events = self.stream(stream).map_err(failed)?;
                found.extend(events.into_iter().filter(wants));
            }
            found.sort_unstable_by_key(|event| event.position);
            return Ok(found);
        }
        self.pages(|events| {
            let by_position = self.job.keys_of(&events);
            let of_them = |event: &RecordedEvent| {
                by_position.get(&event.position).is_some_and(|key| keys.contains(key))
            };
            found.extend(events.into_iter().filter(of_them));
            Ok(())
        })?;
        Ok(found)
    }

    fn stream(&self, stream: &str) -> Result<Vec<RecordedEvent>, rusqlite::Error> {
        let (mut events, mut from): (Vec<RecordedEvent>, _) = (Vec::new(), Version(1));
        loop {
            let (stream, from_version) = (stream.into(), Some(from));
            let page = StreamPage { stream, from: from_version, backward: false, max: PAGE_EVENTS };
            let page = read::read_stream(self.connection, &page, self.bytes_max)?;
            events.extend(page.events);
            match events.last() {
                Some(last) if page.more => from = Version(last.version.0 + 1),
                _ => return Ok(events),
            }
        }
    }
}

/// The column of each table that tells the key of a row: one of its primary key that has nothing but
/// these keys where only their events were applied.
fn key_columns(sides: &Sides<'_>, keys: Vec<String>) -> Result<Only, ApplyError> {
    let list = serde_json::to_string(&keys).expect("a list of texts is JSON");
    let (tables, _) = sides.tables().map_err(failed)?;
    let mut columns = Vec::new();
    for compared in tables {
        let is_key = |column: &&String| -> Result<bool, rusqlite::Error> {
            let sql = format!(
                "SELECT NOT EXISTS (SELECT 1 FROM {} WHERE CAST({} AS TEXT) NOT IN \
                 (SELECT value FROM json_each(?1)))",
                sides.expected.table(&compared.name),
                identifier(column)
            );
            sides.expected.connection.query_row(&sql, [&list], |row| row.get(0))
        };
        let mut found = None;
        for column in compared.key() {
            if found.is_none() && is_key(&column).map_err(failed)? {
                found = Some(column.clone());
            }
        }
        let Some(column) = found else {
            return Err(refused(format!(
                "has rows in table {} that do not carry the key they belong to in its primary key; \
                 verify all of it",
                compared.name
            )));
        };
        columns.push((compared.name, column));
    }
    Ok(Only { keys, columns })
}
