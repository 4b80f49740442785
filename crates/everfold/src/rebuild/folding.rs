//! Documents folded from the log in memory, a part of the keys at a time, to be compared with those that
//! are stored.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde_json::{Value, json};

use super::compare::{Comparison, Difference};
use super::holding::Holding;
use super::same::same;
use crate::RecordedEvent;
use crate::projection::job::Job;
use crate::projection::projector::ApplyError;

/// What a document costs in memory beside its text and its key.
const OVERHEAD: i64 = 96;

/// Documents of the keys whose hash is in a range. The range gets smaller when they take too much
/// memory; then the log is read again for the rest.
pub(crate) struct Folding<'a> {
    job: &'a Job,
    holding: &'a Holding,
    memory_max: i64,
    hasher: RandomState,
    low: u64,
    /// Inclusive.
    high: u64,
    documents: HashMap<String, String>,
    bytes: i64,
}

impl<'a> Folding<'a> {
    pub(crate) fn new(job: &'a Job, holding: &'a Holding, memory_max: usize) -> Self {
        let (hasher, documents) = (RandomState::new(), HashMap::new());
        let memory_max = i64::try_from(memory_max).unwrap_or(i64::MAX);
        Folding { job, holding, memory_max, hasher, low: 0, high: u64::MAX, documents, bytes: 0 }
    }

    /// Folds events that come next in the log.
    pub(crate) fn add(&mut self, events: Vec<RecordedEvent>) -> Result<(), ApplyError> {
        let events = self.holding.of(self.job, events);
        let (hasher, range) = (&self.hasher, self.low..=self.high);
        let wanted = |key: &str| range.contains(&hasher.hash_one(key));
        let (more, bytes) = self.job.fold_in_memory(events, &mut self.documents, wanted)?;
        self.bytes += bytes + more * OVERHEAD;
        while self.bytes > self.memory_max && self.documents.len() > 1 {
            self.high = self.low + (self.high - self.low) / 2;
            let (hasher, high) = (&self.hasher, self.high);
            self.documents.retain(|key, _| hasher.hash_one(key) <= high);
            let bytes =
                |(key, text): (&String, &String)| (key.len() + text.len()) as i64 + OVERHEAD;
            self.bytes = self.documents.iter().map(bytes).sum();
        }
        Ok(())
    }

    /// Whether a key is among those that are looked at now.
    pub(crate) fn has(&self, key: &str) -> bool {
        (self.low..=self.high).contains(&self.hasher.hash_one(key))
    }

    /// Goes on with the rest of the keys; `false` if there are none.
    pub(crate) fn next_part(&mut self) -> bool {
        if self.high == u64::MAX {
            return false;
        }
        (self.low, self.high) = (self.high + 1, u64::MAX);
        self.documents.clear();
        self.bytes = 0;
        true
    }

    /// Compares a document that is stored.
    pub(crate) fn compare(&mut self, key: &str, stored: &str, noted: &mut Noted<'_>) {
        if !self.has(key) {
            return;
        }
        compare_one(key, self.documents.remove(key).as_deref(), stored, noted);
    }

    /// What was folded and is not stored.
    pub(crate) fn compare_missing(&mut self, noted: &mut Noted<'_>) {
        compare_missing(self.documents.drain().collect(), noted);
    }
}

/// Compares a document that is stored with the one that is expected.
pub(crate) fn compare_one(key: &str, expected: Option<&str>, stored: &str, noted: &mut Noted<'_>) {
    noted.comparison.compared += 1;
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let (expected, found) = (expected.map(parse), parse(stored));
    if !expected.as_ref().is_some_and(|expected| same(expected, &found)) {
        noted.differs(key, expected, Some(found));
    }
}

/// Notes documents that are expected and not stored.
pub(crate) fn compare_missing(mut missing: Vec<(String, String)>, noted: &mut Noted<'_>) {
    missing.sort_unstable();
    for (key, document) in missing {
        noted.comparison.compared += 1;
        noted.differs(&key, serde_json::from_str(&document).ok(), None);
    }
}

/// Differences of one table of documents.
pub(crate) struct Noted<'a> {
    pub(crate) table: &'a str,
    pub(crate) examples: usize,
    pub(crate) comparison: Comparison,
}

impl Noted<'_> {
    fn differs(&mut self, key: &str, expected: Option<Value>, found: Option<Value>) {
        self.comparison.differences += 1;
        if self.comparison.examples.len() < self.examples {
            let (table, key) = (self.table.to_owned(), json!({ "key": key }));
            self.comparison.examples.push(Difference { table, key, expected, found });
        }
    }
}
