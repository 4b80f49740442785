//! A thread that folds the events of some keys, and writes their documents when it is told to. Documents
//! may be bound to their thread, so it does both.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};

use super::row;
use crate::error::StoreError;
use crate::projection::definition::OnError;
use crate::projection::generation::{DeadLetterRow, Generation};
use crate::projection::job::{describe, held_row, key_of_refused, no_key, said, upcast};
use crate::projection::key::{Key, hash_of};
use crate::projection::projector::{FoldDocuments, FoldedDocument, Folding, Unfolded};
use crate::upcast::Upcasters;
use crate::{Position, RecordedEvent};

/// Bytes of documents that are sent at once.
const PIECE: usize = 64 * 1024;

/// What a folder is told.
pub(super) enum Order {
    /// The next rows of the log.
    Rows(Vec<Bytes>),
    /// To keep only keys whose hash is below this from now on.
    KeepBelow(u64, oneshot::Sender<()>),
    /// To say what it came to.
    Report(oneshot::Sender<Report>),
    /// To give its documents away. It ends with it.
    Take(oneshot::Sender<Vec<(String, Option<String>)>>),
    /// To write its documents, as rows of a COPY, and to say which it could not write. It ends with it.
    Write(mpsc::Sender<Bytes>, oneshot::Sender<Vec<String>>),
}

/// What folding came to.
#[derive(Debug, Default)]
pub(in super::super) struct Report {
    /// What the policy does not let pass: the event, and the failure in words.
    pub(super) failure: Option<(Position, String)>,
    pub(super) aside: Vec<Aside>,
    /// Keys whose document was lost with an event that failed: they have to be folded carefully.
    pub(super) redo: Vec<String>,
    pub(super) events: u64,
    /// The log could not be read.
    pub(super) error: Option<StoreError>,
}

impl Report {
    /// Whether every event was applied.
    pub(in super::super) fn is_clean(&self) -> bool {
        self.failure.is_none() && self.aside.is_empty() && self.redo.is_empty()
    }
}

/// An event that was not applied.
#[derive(Debug)]
pub(super) struct Aside {
    pub(super) position: Position,
    pub(super) key: String,
    hash: u32,
    /// To be put with the dead letters.
    pub(super) row: Option<DeadLetterRow>,
    /// Kind and text, for the record.
    pub(super) message: Option<(&'static str, String)>,
}

/// How events are folded.
#[derive(Clone)]
pub(in super::super) struct Manner {
    pub(in super::super) generation: Arc<Generation>,
    pub(in super::super) fold: Arc<dyn FoldDocuments>,
    pub(in super::super) upcasters: Arc<Upcasters>,
    /// Keys whose hash is in here.
    pub(in super::super) hashes: Range<u64>,
    /// These keys alone, and carefully.
    pub(in super::super) only: Option<Arc<HashSet<String>>>,
    /// Events that are passed over.
    pub(in super::super) without: Arc<BTreeSet<Position>>,
    pub(in super::super) progress: Arc<Progress>,
}

/// Events that were folded, counted for whoever watches. Those of a part that is not copied in the end
/// do not count.
pub(in super::super) struct Progress {
    all: Arc<AtomicU64>,
    part: AtomicU64,
}

impl Progress {
    pub(in super::super) fn new(all: &Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Progress { all: Arc::clone(all), part: AtomicU64::new(0) })
    }

    fn add(&self, events: u64) {
        self.part.fetch_add(events, Ordering::Relaxed);
        self.all.fetch_add(events, Ordering::Relaxed);
    }

    fn take_back(&self, events: u64) {
        self.part.fetch_sub(events, Ordering::Relaxed);
        self.all.fetch_sub(events, Ordering::Relaxed);
    }

    /// The part is copied: they count.
    pub(super) fn keep(&self) {
        self.part.store(0, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.part.get_mut(), Ordering::Relaxed);
    }
}

/// Folds until it is told to write, or nobody tells it anything any more.
pub(super) fn run(manner: Manner, mut orders: mpsc::Receiver<Order>, bytes: &AtomicUsize) {
    let mut folder = Folder::new(manner);
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Rows(rows) => folder.fold_all(&rows),
            Order::KeepBelow(high, done) => {
                folder.keep_below(high);
                bytes.store(folder.bytes(), Ordering::Relaxed);
                let _ = done.send(());
            }
            Order::Report(to) => drop(to.send(folder.report())),
            Order::Take(to) => return drop(to.send(folder.take())),
            Order::Write(to, unwritten) => {
                let _ = unwritten.send(folder.write(&to));
                return;
            }
        }
        bytes.store(folder.bytes(), Ordering::Relaxed);
    }
}

struct Folder {
    manner: Manner,
    folding: Box<dyn Folding>,
    by_stream: bool,
    /// Used again for each row, with the hash of its stream.
    event: RecordedEvent,
    stream_hash: u32,
    /// Keys that wait, and behind which event.
    held: HashMap<String, Position>,
    aside: Vec<Aside>,
    aside_bytes: usize,
    redo: HashMap<String, u32>,
    failure: Option<(Position, String)>,
    error: Option<StoreError>,
    events: u64,
}

impl Folder {
    fn new(manner: Manner) -> Self {
        let folding = Arc::clone(&manner.fold).folding(manner.only.is_some());
        let by_stream = manner.generation.key == Key::Stream;
        Folder {
            manner,
            folding,
            by_stream,
            event: row::blank(),
            stream_hash: 0,
            held: HashMap::new(),
            aside: Vec::new(),
            aside_bytes: 0,
            redo: HashMap::new(),
            failure: None,
            error: None,
            events: 0,
        }
    }

    fn fold_all(&mut self, rows: &[Bytes]) {
        let before = self.events;
        for row in rows {
            if self.failure.is_some() || self.error.is_some() {
                return;
            }
            match row::read_into(&mut self.event, row) {
                Ok(hash) if self.by_stream && !self.is_mine(hash) => {}
                Ok(_) if self.is_left_out() => {}
                Ok(hash) => {
                    self.stream_hash = hash;
                    self.fold_one();
                }
                Err(error) => self.error = Some(error),
            }
        }
        if self.manner.only.is_none() {
            self.manner.progress.add(self.events - before);
        }
    }

    fn is_left_out(&self) -> bool {
        let without = &self.manner.without;
        !without.is_empty() && without.contains(&self.event.position)
    }

    fn is_mine(&self, hash: u32) -> bool {
        self.manner.hashes.contains(&u64::from(hash))
    }

    /// Folds the event at hand.
    fn fold_one(&mut self) {
        let stream = self.event.stream_id.clone();
        let shaped = upcast(&self.manner.upcasters, &mut self.event);
        let (key, refused) = match (shaped, self.by_stream) {
            (Ok(()), true) => (None, None),
            (Ok(()), false) => match self.folding.key_of(&self.event) {
                Ok(Some(key)) => (Some(key), None),
                Ok(None) => return,
                Err(error) => (self.key_of_refused(), Some(said(error))),
            },
            (Err(message), true) => (None, Some(message)),
            (Err(message), false) => (self.key_of_refused(), Some(message)),
        };
        let key = key.as_deref().unwrap_or(stream.as_str());
        let hash = match self.by_stream {
            true => self.stream_hash,
            false if self.folding.holds(key) => 0,
            false => {
                let hash = hash_of(key);
                if !self.is_mine(hash) {
                    return;
                }
                hash
            }
        };
        if self.manner.only.as_ref().is_some_and(|only| !only.contains(key)) {
            return;
        }
        self.events += 1;
        if !self.redo.is_empty() && self.redo.contains_key(key) {
            return;
        }
        if !self.held.is_empty()
            && let Some(&behind) = self.held.get(key)
        {
            let row = held_row(self.event.position, key, behind);
            return self.put_aside(key, Some(row), None);
        }
        if let Some(message) = refused {
            return self.give_up(key, message);
        }
        match self.folding.apply(key, hash, &self.event) {
            Ok(()) => {}
            Err(Unfolded::Refused(error)) => self.give_up(key, said(error)),
            Err(Unfolded::Lost(error)) => self.lose(key, said(error)),
        }
    }

    /// Its own key, if there is none that can be told.
    fn key_of_refused(&self) -> Option<String> {
        let key = key_of_refused(&self.manner.generation.key, &self.event);
        Some(key.unwrap_or_else(|| no_key(self.event.position)))
    }

    fn give_up(&mut self, key: &str, message: String) {
        let position = self.event.position;
        let said = describe(&self.event, &message);
        match self.manner.generation.on_error() {
            OnError::Stop => self.failure = Some((position, said)),
            OnError::Skip => self.put_aside(key, None, Some(("skipped", said))),
            OnError::DeadLetter => {
                self.held.insert(key.to_owned(), position);
                let row = DeadLetterRow {
                    position,
                    key: key.to_owned(),
                    behind: None,
                    error: Some(message),
                    attempts: 1,
                };
                self.put_aside(key, Some(row), Some(("dead-letter", said)));
            }
        }
    }

    fn lose(&mut self, key: &str, message: String) {
        if self.manner.generation.on_error() == OnError::Stop {
            return self.give_up(key, message);
        }
        self.folding.forget(key);
        self.aside.retain(|aside| aside.key != key);
        self.redo.insert(key.to_owned(), self.hash_of(key));
    }

    /// The hash of the key of the event at hand. That of a stream is the server's.
    fn hash_of(&self, key: &str) -> u32 {
        if self.by_stream { self.stream_hash } else { hash_of(key) }
    }

    fn put_aside(
        &mut self,
        key: &str,
        row: Option<DeadLetterRow>,
        message: Option<(&'static str, String)>,
    ) {
        let (position, hash) = (self.event.position, self.hash_of(key));
        let text = message.as_ref().map_or(0, |(_, text)| text.len());
        self.aside_bytes += size_of::<Aside>() + 2 * key.len() + 2 * text;
        self.aside.push(Aside { position, key: key.to_owned(), hash, row, message });
    }

    fn bytes(&self) -> usize {
        self.folding.bytes() + self.aside_bytes
    }

    fn keep_below(&mut self, high: u64) {
        if high >= self.manner.hashes.end {
            return;
        }
        self.manner.hashes.end = high;
        self.folding.keep_below(high);
        self.aside.retain(|aside| u64::from(aside.hash) < high);
        self.redo.retain(|_, hash| u64::from(*hash) < high);
        // Hashes are spread evenly.
        let gone = self.events / 2;
        self.events -= gone;
        self.manner.progress.take_back(gone);
    }

    fn report(&mut self) -> Report {
        Report {
            failure: self.failure.take(),
            aside: std::mem::take(&mut self.aside),
            redo: std::mem::take(&mut self.redo).into_keys().collect(),
            events: self.events,
            error: self.error.take(),
        }
    }

    fn take(&mut self) -> Vec<(String, Option<String>)> {
        std::iter::from_fn(|| self.folding.next())
            .map(|document| (document.key, document.json.ok()))
            .collect()
    }

    /// Sends all documents; those that cannot be written are returned by their keys. Ends early if
    /// nobody takes them.
    fn write(&mut self, to: &mpsc::Sender<Bytes>) -> Vec<String> {
        let (mut piece, mut unwritten) = (BytesMut::with_capacity(PIECE), Vec::new());
        while let Some(FoldedDocument { key, json, position, stream_version, .. }) =
            self.folding.next()
        {
            let Ok(json) = json else {
                unwritten.push(key);
                continue;
            };
            put_row(&mut piece, &key, &json, position.to_stored(), stream_version.to_stored());
            if piece.len() >= PIECE && to.blocking_send(piece.split().freeze()).is_err() {
                return unwritten;
            }
        }
        if !piece.is_empty() {
            let _ = to.blocking_send(piece.freeze());
        }
        unwritten
    }
}

/// A row of a document table, as binary COPY wants it.
fn put_row(to: &mut BytesMut, key: &str, json: &str, position: i64, stream_version: i64) {
    let length = |length: usize| i32::try_from(length).unwrap_or(i32::MAX);
    to.put_i16(4);
    to.put_i32(length(key.len()));
    to.put_slice(key.as_bytes());
    to.put_i32(length(json.len() + 1));
    // The number of the version that `jsonb` has on the wire.
    to.put_u8(1);
    to.put_slice(json.as_bytes());
    to.put_i32(8);
    to.put_i64(position);
    to.put_i32(8);
    to.put_i64(stream_version);
}
