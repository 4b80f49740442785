//! Since when a job has been inside the projection's own code, for whoever watches over it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Shared by the jobs of a shard, of which there is one at a time, and by its worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call(Arc<Mutex<Option<Instant>>>);

impl Call {
    /// Counts as being inside until the guard is dropped.
    pub(super) fn enter(&self) -> InCall<'_> {
        *self.begun() = Some(Instant::now());
        InCall(self)
    }

    /// `None` outside of calls.
    pub(crate) fn since(&self) -> Option<Instant> {
        *self.begun()
    }

    fn begun(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("nothing panics with this locked")
    }
}

pub(super) struct InCall<'a>(&'a Call);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        *self.0.begun() = None;
    }
}
