//! How long a caller waits for the thread that writes.
//!
//! The thread may be held up by code that is not ours, such as a handler that blocks. A request that
//! was not begun in time is taken back, so that it is certain that nothing comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};

const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const TAKEN_BACK: u8 = 2;

/// A request is either begun by the thread or taken back by its caller, whoever is first.
#[derive(Debug, Clone, Default)]
pub(super) struct Claim(Arc<AtomicU8>);

impl Claim {
    /// Whether the thread may begin with it.
    pub(super) fn begin(&self) -> bool {
        self.settle(BEGUN)
    }

    fn take_back(&self) -> bool {
        self.settle(TAKEN_BACK)
    }

    fn settle(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITS, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// How long a caller waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For the thread to begin.
    pub(super) to_begin: Duration,
    /// For the end of what was begun.
    pub(super) to_end: Option<Duration>,
}

/// Queues a request and waits for its answer. `None` if the thread has dropped it.
pub(super) async fn answered<T>(
    queueing: impl Future<Output = Result<(), StoreError>>,
    answer: oneshot::Receiver<T>,
    claim: &Claim,
    patience: Patience,
) -> Result<Option<T>, StoreError> {
    let deadline = Instant::now() + patience.to_begin;
    let mut answer = answer;
    match tokio::time::timeout_at(deadline, queueing).await {
        Ok(queued) => queued?,
        Err(_) => return Err(busy(patience.to_begin)),
    }
    if let Ok(answer) = tokio::time::timeout_at(deadline, &mut answer).await {
        return Ok(answer.ok());
    }
    if claim.take_back() {
        return Err(busy(patience.to_begin));
    }
    let Some(to_end) = patience.to_end else { return Ok(answer.await.ok()) };
    match tokio::time::timeout(to_end, answer).await {
        Ok(answer) => Ok(answer.ok()),
        Err(_) => Err(no_end(patience.to_begin + to_end)),
    }
}

fn busy(waited: Duration) -> StoreError {
    let message = format!(
        "the writer of this store did not get to the request within {waited:?}, and nothing was \
         stored: it is busy with something else, such as a handler that does not come back; try again \
         when that has ended"
    );
    StoreError::new(StoreErrorKind::Busy, message).after_waiting()
}

fn no_end(waited: Duration) -> StoreError {
    let message = format!(
        "the writer of this store began with the request and was not done within {waited:?}, perhaps \
         because of an inline handler that does not come back; whether it will be stored is unknown: \
         appending the same event ids again finds out"
    );
    StoreError::new(StoreErrorKind::Closed, message).after_waiting()
}
