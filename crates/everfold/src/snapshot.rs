//! Stream snapshots: the folded state of a stream at a version, so that a long stream need not be
//! read from its start. Only ever a shortcut; the log decides.

use crate::Version;

/// When a decider's state is kept, and which shape it has: for [`CommandHandler::snapshots`].
///
/// A snapshot of another `state_version`, or one that no longer deserialises, is ignored and
/// written anew. Raise `state_version` whenever the state's shape or the meaning of `evolve`
/// changes.
///
/// ```
/// use everfold::SnapshotPolicy;
///
/// let policy = SnapshotPolicy::every(100, "account").state_version(2);
/// # let _ = policy;
/// ```
///
/// [`CommandHandler::snapshots`]: crate::CommandHandler::snapshots
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPolicy {
    pub(crate) name: String,
    pub(crate) every: u64,
    pub(crate) state_version: u32,
}

impl SnapshotPolicy {
    /// A snapshot about every `events` events of a stream, kept under `name` (one decider, one
    /// name).
    #[must_use]
    pub fn every(events: u64, name: impl Into<String>) -> Self {
        SnapshotPolicy { name: name.into(), every: events.max(1), state_version: 1 }
    }

    /// With the version of the state's shape (from 1, the default).
    #[must_use]
    pub fn state_version(mut self, state_version: u32) -> Self {
        self.state_version = state_version;
        self
    }
}

/// A snapshot as the backends keep it: the state is JSON text.
#[derive(Debug, Clone)]
pub(crate) struct StoredSnapshot {
    pub(crate) version: Version,
    pub(crate) state_version: u32,
    pub(crate) state: String,
}
