//! Reading the log in order, for folders: by COPY, a range of positions at a time, so that no snapshot is
//! held for long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::TryStreamExt;
use tokio::sync::{mpsc, oneshot};

use super::folder::{self, Manner, Order, Report};
use super::row;
use crate::Position;
use crate::error::{StoreError, StoreErrorKind};
use crate::projection::generation::Generation;
use crate::projection::key::Key;
use crate::projection::projector::ApplyError;
use crate::rebuild::pace::Pace;
use crate::store::postgres::projection::functions::HASHES;
use crate::store::postgres::projection::names::literals;
use crate::store::postgres::projection::unit::{PostgresUnit, failed};

/// Positions that are read by one statement.
const WINDOW: u64 = 1_000_000;
/// Rows, and bytes of them, that a folder gets at once; so many of these wait for it.
const ROWS: usize = 512;
const ROWS_BYTES: usize = 256 * 1024;
const WAITING: usize = 8;
/// Events after which the pace is looked at.
const STEP: u64 = 4_096;
/// More keys than this are not named to the server.
const NAMED_KEYS_MAX: usize = 5_000;

/// A range of positions, without the first and with the last.
pub(in super::super) type Window = (Position, Position);

/// Whoever gets the rows that are read.
pub(super) trait TakeRows: Send {
    fn take(&mut self, row: Bytes) -> impl Future<Output = Result<(), ApplyError>> + Send;
}

/// What is read.
pub(in super::super) struct Reading<'a> {
    pub(in super::super) generation: &'a Generation,
    /// Up to here.
    pub(in super::super) cutoff: Position,
    pub(in super::super) pace: &'a Pace,
    /// Streams whose hash is in here, where the key is the stream.
    pub(in super::super) low: u64,
    pub(in super::super) high: u64,
    /// Streams that are read alone.
    pub(in super::super) only: Option<&'a [String]>,
}

impl Reading<'_> {
    /// The ranges of positions that are read one after the other, without the first and with the last.
    pub(in super::super) fn windows(&self) -> impl Iterator<Item = Window> {
        self.windows_of(WINDOW)
    }

    /// The same, of so many positions each.
    pub(super) fn windows_of(&self, size: u64) -> impl Iterator<Item = Window> {
        let cutoff = self.cutoff.0;
        (0..cutoff.div_ceil(size)).map(move |number| {
            let up_to = cutoff.min((number + 1) * size);
            (Position(number * size), Position(up_to))
        })
    }

    fn sql(&self, after: Position, up_to: Position) -> String {
        let generation = self.generation;
        let by_stream = generation.key == Key::Stream;
        let hash = if by_stream { "hashtext(stream_id)" } else { "0" };
        let mut wanted = format!("position > {after} AND position <= {up_to}");
        if let Some(types) = &generation.event_types {
            let types = literals(types.iter().map(String::as_str));
            wanted.push_str(&format!(" AND type = ANY ({types})"));
        }
        let (low, high, last) = (self.low, self.high, HASHES - 1);
        if by_stream && (low > 0 || high < HASHES.unsigned_abs()) {
            let number = format!("(hashtext(stream_id)::bigint & {last})");
            wanted.push_str(&format!(" AND {number} >= {low} AND {number} < {high}"));
        }
        if let Some(streams) = self.only.filter(|keys| by_stream && keys.len() <= NAMED_KEYS_MAX) {
            let streams = literals(streams.iter().map(String::as_str));
            wanted.push_str(&format!(" AND stream_id = ANY ({streams})"));
        }
        let columns = row::COLUMNS.replace("{hash}", hash);
        format!(
            "COPY (SELECT {columns} FROM everfold.events WHERE {wanted} ORDER BY position) \
             TO STDOUT (FORMAT binary)"
        )
    }

    /// Reads a range of positions to its end, and lets it be folded.
    pub(in super::super) async fn read(
        &self,
        unit: &mut PostgresUnit<'_>,
        window: Window,
        folders: &mut Folders,
    ) -> Result<(), ApplyError> {
        self.rows(unit, window, folders).await?;
        folders.flush().await
    }

    /// Gives away each row of a range of positions.
    pub(super) async fn rows(
        &self,
        unit: &mut PostgresUnit<'_>,
        (after, up_to): Window,
        to: &mut impl TakeRows,
    ) -> Result<(), ApplyError> {
        unit.settle_set_up().await?;
        let rows = unit.transaction().copy_out(&self.sql(after, up_to)).await;
        let rows = rows.map_err(|error| lost(unit, error))?;
        futures::pin_mut!(rows);
        let (mut first, mut step) = (true, 0);
        while let Some(piece) = rows.try_next().await.map_err(|error| lost(unit, error))? {
            let piece = if first { row::after_header(piece)? } else { piece };
            first = false;
            if !row::is_row(&piece) {
                continue;
            }
            to.take(piece).await?;
            step += 1;
            if step == STEP {
                self.pace.went(STEP).await;
                step = 0;
            }
        }
        self.pace.went(step).await;
        Ok(())
    }
}

fn lost(unit: &mut PostgresUnit<'_>, error: tokio_postgres::Error) -> ApplyError {
    unit.note_abort();
    failed(error)
}

/// The threads that fold, each the keys of some hashes.
pub(in super::super) struct Folders {
    orders: Vec<mpsc::Sender<Order>>,
    bytes: Vec<Arc<AtomicUsize>>,
    waiting: Vec<(Vec<Bytes>, usize)>,
    memory_max: usize,
    low: u64,
    high: u64,
}

impl Folders {
    /// Keys that are not streams cannot be told apart before an event is read, so they have one folder.
    pub(in super::super) fn start(manner: &Manner, memory_max: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match manner.generation.key {
            Key::Stream if manner.only.is_none() => cores.saturating_sub(1).clamp(1, 8),
            _ => 1,
        };
        let (mut orders, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..threads {
            let (to, from) = mpsc::channel(WAITING);
            let (manner, used) = (manner.clone(), Arc::new(AtomicUsize::new(0)));
            bytes.push(Arc::clone(&used));
            orders.push(to);
            tokio::task::spawn_blocking(move || folder::run(manner, from, &used));
        }
        let waiting = orders.iter().map(|_| (Vec::new(), 0)).collect();
        let (low, high) = (manner.hashes.start, manner.hashes.end);
        Folders { orders, bytes, waiting, memory_max, low, high }
    }

    /// Hashes below this are kept.
    pub(in super::super) fn high(&self) -> u64 {
        self.high
    }

    pub(super) async fn flush(&mut self) -> Result<(), ApplyError> {
        for to in 0..self.orders.len() {
            self.send(to).await?;
        }
        // They may not have got to it yet.
        self.keep_below(self.high).await?;
        self.keep_within().await
    }
    async fn send(&mut self, to: usize) -> Result<(), ApplyError> {
        let (rows, _) = std::mem::replace(&mut self.waiting[to], (Vec::with_capacity(ROWS), 0));
        match rows.is_empty() {
            true => Ok(()),
            false => self.orders[to].send(Order::Rows(rows)).await.map_err(|_| ended()),
        }
    }

    /// Gives up the upper half of the keys, for another time, if memory is short.
    async fn keep_within(&mut self) -> Result<(), ApplyError> {
        let bytes: usize = self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        if bytes <= self.memory_max || self.high - self.low < 2 {
            return Ok(());
        }
        self.keep_below(self.low + (self.high - self.low) / 2).await
    }

    /// Returns when all have done so.
    async fn keep_below(&mut self, high: u64) -> Result<(), ApplyError> {
        self.high = high;
        let mut kept = Vec::new();
        for orders in &self.orders {
            let (done, is_done) = oneshot::channel();
            orders.send(Order::KeepBelow(high, done)).await.map_err(|_| ended())?;
            kept.push(is_done);
        }
        for kept in kept {
            kept.await.map_err(|_| ended())?;
        }
        Ok(())
    }

    /// What folding came to, of all together.
    pub(in super::super) async fn report(&mut self) -> Result<Report, ApplyError> {
        let mut all = Report::default();
        for orders in &self.orders {
            let (to, report) = oneshot::channel();
            orders.send(Order::Report(to)).await.map_err(|_| ended())?;
            let report = report.await.map_err(|_| ended())?;
            if let Some(error) = report.error {
                return Err(ApplyError::Store(error));
            }
            // The first in the log, as in batches.
            let failures = all.failure.into_iter().chain(report.failure);
            all.failure = failures.min_by_key(|(position, _)| *position);
            all.aside.extend(report.aside);
            all.redo.extend(report.redo);
            all.events += report.events;
        }
        Ok(all)
    }

    /// Takes the documents of all of them, by their keys; `None` for one that cannot be written.
    pub(in super::super) async fn take(
        self,
    ) -> Result<HashMap<String, Option<String>>, ApplyError> {
        let mut all = HashMap::new();
        for orders in self.orders {
            let (to, documents) = oneshot::channel();
            orders.send(Order::Take(to)).await.map_err(|_| ended())?;
            all.extend(documents.await.map_err(|_| ended())?);
        }
        Ok(all)
    }

    /// Lets all of them write at once. Rows come out of the first, keys of documents that could not be
    /// written out of the others.
    pub(super) async fn write(
        self,
    ) -> Result<(mpsc::Receiver<Bytes>, Vec<oneshot::Receiver<Vec<String>>>), ApplyError> {
        let (to, rows) = mpsc::channel(WAITING);
        let mut unwritten = Vec::new();
        for orders in self.orders {
            let (keys, from) = oneshot::channel();
            orders.send(Order::Write(to.clone(), keys)).await.map_err(|_| ended())?;
            unwritten.push(from);
        }
        Ok((rows, unwritten))
    }
}

impl TakeRows for Folders {
    async fn take(&mut self, row: Bytes) -> Result<(), ApplyError> {
        let to = match self.orders.len() {
            1 => 0,
            threads => row::hash(&row) as usize % threads,
        };
        let (rows, bytes) = &mut self.waiting[to];
        *bytes += row.len();
        rows.push(row);
        if rows.len() < ROWS && *bytes < ROWS_BYTES {
            return Ok(());
        }
        self.send(to).await?;
        self.keep_within().await
    }
}

pub(super) fn ended() -> ApplyError {
    let message = "a thread that folds documents has ended; the log of the process says why";
    ApplyError::Store(StoreError::new(StoreErrorKind::Other, message))
}
