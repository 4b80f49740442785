//! Reading the log ahead: one connection keeps one core of the server busy and no more, so several read
//! ranges of positions in turn, and folders get the rows in the order of the log.
//!
//! ```text
//!   reader 0: range 0, range 2, … ──┐
//!   reader 1: range 1, range 3, … ──┴─ rows of range 0, 1, 2, … ──> folders
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::reader::{Folders, Reading, TakeRows, Window, ended};
use super::{TIMEOUTS, in_transaction, rest};
use crate::projection::projector::ApplyError;
use crate::store::Copying;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::projection::unit::PostgresUnit;

/// Positions that a reader reads by one statement.
const WINDOW: u64 = 50_000;
/// Rows, and bytes of them, that are handed on at once; so many of these wait for their turn: a range of
/// events of common size.
const ROWS: usize = 512;
const ROWS_BYTES: usize = 256 * 1024;
const WAITING: usize = 100;
/// Large events wait up to so many KiB, for each reader.
const WAITING_KIB: u32 = 32 * 1024;

/// A reader may have read all of its range long before it is folded. It holds nothing that anybody needs.
const WAITS_FOR_ITS_TURN: &str = "SET LOCAL idle_in_transaction_session_timeout = '10min'";

/// What a reader hands on.
enum Piece {
    /// With the room they take while they wait.
    Rows(Vec<Bytes>, OwnedSemaphorePermit),
    /// The range is read to its end.
    End,
}

pub(super) async fn read_all(
    store: &PostgresStore,
    copying: &Copying,
    reading: &Reading<'_>,
    folders: &mut Folders,
) -> Result<(), ApplyError> {
    let windows: Vec<Window> = reading.windows_of(WINDOW).collect();
    let readers = copying.at_once.clamp(1, windows.len().max(1));
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..readers).map(|_| mpsc::channel(WAITING)).unzip();
    let reads = senders.into_iter().enumerate().map(|(number, to)| {
        let mine = windows.iter().skip(number).step_by(readers);
        async move {
            for window in mine {
                let begun = Instant::now();
                let read =
                    async |unit: &mut PostgresUnit<'_>| hand_on(reading, unit, *window, &to).await;
                let set_up = format!("{TIMEOUTS}; {WAITS_FOR_ITS_TURN}");
                let waited = in_transaction(store, copying, set_up, read).await?;
                let worked = begun.elapsed().saturating_sub(waited);
                // All of them together read for a third of the time: folding takes time too.
                let times = 3 * u32::try_from(readers).unwrap_or(1) - 1;
                rest(copying, copying.pace.rest_after(worked, times)).await;
            }
            Ok(())
        }
    });
    let folds = async {
        for number in 0..windows.len() {
            fold(&mut receivers[number % readers], folders).await?;
        }
        folders.flush().await
    };
    try_join(try_join_all(reads), folds).await?;
    Ok(())
}

/// Reads a range of positions. Returns how long it has waited for its turn meanwhile.
async fn hand_on(
    reading: &Reading<'_>,
    unit: &mut PostgresUnit<'_>,
    window: Window,
    to: &mpsc::Sender<Piece>,
) -> Result<Duration, ApplyError> {
    let rows = Vec::with_capacity(ROWS);
    let room = Arc::new(Semaphore::new(WAITING_KIB as usize));
    let mut handing = Handing { to, room, rows, bytes: 0, waited: Duration::ZERO };
    reading.rows(unit, window, &mut handing).await?;
    handing.send().await?;
    to.send(Piece::End).await.map_err(|_| ended())?;
    Ok(handing.waited)
}

/// Rows on their way.
struct Handing<'a> {
    to: &'a mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
    rows: Vec<Bytes>,
    bytes: usize,
    waited: Duration,
}

impl Handing<'_> {
    async fn send(&mut self) -> Result<(), ApplyError> {
        let kib = u32::try_from(self.bytes / 1024).unwrap_or(u32::MAX).clamp(1, WAITING_KIB);
        self.bytes = 0;
        let rows = std::mem::replace(&mut self.rows, Vec::with_capacity(ROWS));
        let begun = Instant::now();
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| ended())?;
        self.to.send(Piece::Rows(rows, room)).await.map_err(|_| ended())?;
        self.waited += begun.elapsed();
        Ok(())
    }
}

impl TakeRows for Handing<'_> {
    async fn take(&mut self, row: Bytes) -> Result<(), ApplyError> {
        self.bytes += row.len();
        self.rows.push(row);
        if self.rows.len() < ROWS && self.bytes < ROWS_BYTES {
            return Ok(());
        }
        self.send().await
    }
}

/// Lets a range be folded.
async fn fold(from: &mut mpsc::Receiver<Piece>, folders: &mut Folders) -> Result<(), ApplyError> {
    loop {
        match from.recv().await {
            Some(Piece::Rows(rows, _room)) => {
                for row in rows {
                    folders.take(row).await?;
                }
            }
            Some(Piece::End) => return Ok(()),
            // Whoever reads says what is wrong.
            None => std::future::pending().await,
        }
    }
}
