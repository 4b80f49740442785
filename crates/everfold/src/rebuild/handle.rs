//! A rebuild that somebody watches.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::progress::RebuildProgress;
use super::row::{RebuildPhase, RebuildRow};
use crate::Position;
use crate::error::{ProjectionError, StoreError};
use crate::store::Store;

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Rates are taken over about this time.
const RATE_OVER: Duration = Duration::from_secs(3);

/// A rebuild that was asked for. It is a stream of its progress, which ends when the rebuild does.
///
/// Where this process has the projection's code, the work is done here, in the background; otherwise a
/// [`Runner`](crate::Runner) that has it takes the rebuild up. Dropping this stops the work here;
/// whoever takes it next goes on where it stood: a runner, or the same call again, from anywhere.
///
/// ```
/// use everfold::RebuildOptions;
/// use futures::StreamExt;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
/// # use shop::*;
/// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
/// # let (_folder, store) = with_carts().await;
/// let mut rebuild = store.rebuild("carts", RebuildOptions::default()).await?;
/// while let Some(progress) = rebuild.next().await {
///     println!("{}: {} of {}", progress.phase, progress.events_done, progress.events_total);
/// }
/// rebuild.finish().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping it stops the work on the rebuild in this process"]
pub struct Rebuild {
    store: Store,
    row: RebuildRow,
    joined: bool,
    works_here: bool,
    stop: DropGuard,
    work: Option<JoinHandle<()>>,
    rates: Rates,
    looking: Option<BoxFuture<'static, Result<Looked, StoreError>>>,
    ended: bool,
}

/// One look at a rebuild.
struct Looked {
    row: Option<RebuildRow>,
    mark: Position,
}

impl Rebuild {
    pub(super) fn new(
        store: Store,
        row: RebuildRow,
        joined: bool,
        stop: CancellationToken,
        work: Option<JoinHandle<()>>,
    ) -> Self {
        Rebuild {
            store,
            row,
            joined,
            works_here: work.is_some(),
            stop: stop.drop_guard(),
            work,
            rates: Rates::default(),
            looking: None,
            ended: false,
        }
    }

    /// Whether it was under way already.
    #[must_use]
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// Whether this process has the code for it; otherwise a runner has to take it up.
    #[must_use]
    pub fn works_here(&self) -> bool {
        self.works_here
    }

    /// How it stood at the last look.
    #[must_use]
    pub fn progress(&self) -> RebuildProgress {
        self.rates.of(RebuildProgress::of(self.row.clone()))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`ProjectionError::Refused`] if it failed, was cancelled, or is built and was not promoted for a
    /// reason; the message says which.
    pub async fn finish(mut self) -> Result<RebuildProgress, ProjectionError> {
        let mut moved = self.store.hub().watch();
        loop {
            if self.row.phase.is_end() && self.row.finished_at.is_some() {
                return self.outcome();
            }
            // Whoever works on it here says when something has moved.
            moved.borrow_and_update();
            let _ = tokio::time::timeout(LOOK, moved.changed()).await;
            tokio::time::sleep(LOOK / 10).await;
            match look(self.store.clone(), self.row.id).await {
                Ok(looked) => self.looked(looked),
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stops the work here in an orderly way, so that somebody else can go on at once.
    pub async fn leave(self) {
        drop(self.stop);
        if let Some(work) = self.work {
            let _ = work.await;
        }
    }

    fn outcome(&self) -> Result<RebuildProgress, ProjectionError> {
        let message = self.row.message.clone();
        let refused = |message: String| {
            let projection = self.row.name.clone();
            Err(ProjectionError::Refused { projection, message })
        };
        match self.row.phase {
            RebuildPhase::Failed => {
                refused(format!("could not be rebuilt: {}", message.unwrap_or_default()))
            }
            RebuildPhase::Cancelled => refused("was not rebuilt: it was cancelled".to_owned()),
            RebuildPhase::Built if self.row.options.options.promote && message.is_some() => {
                refused(format!("is built, but {}", message.unwrap_or_default()))
            }
            _ => Ok(self.progress()),
        }
    }

    fn looked(&mut self, Looked { row, mark }: Looked) {
        let Some(row) = row else { return };
        self.rates.note(row.events_done, mark);
        self.row = row;
    }
}

impl std::fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuild").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

impl Stream for Rebuild {
    type Item = RebuildProgress;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            if self.looking.is_none() {
                let (store, id) = (self.store.clone(), self.row.id);
                self.looking = Some(Box::pin(async move {
                    tokio::time::sleep(LOOK).await;
                    look(store, id).await
                }));
            }
            let Some(looking) = self.looking.as_mut() else { continue };
            let Poll::Ready(looked) = looking.as_mut().poll(cx) else { return Poll::Pending };
            self.looking = None;
            match looked {
                Ok(looked) => {
                    self.looked(looked);
                    self.ended = self.row.finished_at.is_some();
                    return Poll::Ready(Some(self.progress()));
                }
                // What the database cannot tell now it tells later; the work goes on all the same.
                Err(error) if error.is_transient() => {}
                Err(_) => {
                    self.ended = true;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

async fn look(store: Store, id: i32) -> Result<Looked, StoreError> {
    let row = store.rebuild_row(id).await?;
    let mark = store.high_water_mark().await?;
    Ok(Looked { row, mark })
}

/// Events and positions over the last seconds.
#[derive(Default)]
struct Rates {
    looks: Vec<(Instant, u64, Position)>,
}

impl Rates {
    fn note(&mut self, events: u64, mark: Position) {
        let now = Instant::now();
        self.looks.push((now, events, mark));
        let old = |at: Instant| now.duration_since(at) > RATE_OVER;
        while self.looks.len() > 2 && old(self.looks[1].0) {
            self.looks.remove(0);
        }
    }

    fn of(&self, progress: RebuildProgress) -> RebuildProgress {
        let (Some(first), Some(last)) = (self.looks.first(), self.looks.last()) else {
            return progress;
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        if seconds < 0.1 {
            return progress;
        }
        let rate = |from: u64, to: u64| Some(to.saturating_sub(from) as f64 / seconds);
        RebuildProgress {
            events_per_second: rate(first.1, last.1),
            appended_per_second: rate(first.2.0, last.2.0),
            ..progress
        }
    }
}
