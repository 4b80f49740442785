//! What can be set on a rebuild, with its defaults.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a read model is rebuilt. `RebuildOptions::default()` is meant to be right for most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RebuildOptions {
    /// Empty the read model and fill it again, instead of building a second one beside it: where
    /// there is no room for two. Readers see it grow. Default: false.
    pub in_place: bool,
    /// Switch readers over when it is built. Default: true. Otherwise [`Store::promote`] does.
    ///
    /// [`Store::promote`]: crate::Store::promote
    pub promote: bool,
    /// Start again from the log also where a generation of this version is partly built. Default: false.
    pub from_scratch: bool,
    /// Most events applied in a second. Default: no limit.
    pub events_per_second: Option<u32>,
    /// Slow down while a small commit, such as that of an append, takes longer than this. Default: no
    /// limit.
    pub commit_latency_max: Option<Duration>,
    /// Do not give way to appends while history is copied. Default: false: while hundreds of events a
    /// second come in, copying works for a part of the time only.
    pub full_speed: bool,
    /// Most transactions at once while history is copied: 2.
    pub parallel: usize,
    /// Most memory for documents that are folded, in bytes: 256 MiB.
    pub memory_max: usize,
    /// Catch-up projections: switch although this many events behind what readers see now. Default: 0.
    pub within: u64,
    /// Switch although events were put aside that the old generation has applied. Default: false.
    pub allow_dead_letters: bool,
    /// Compare a new version with the old one, and do not switch if more rows than this differ.
    /// Default: compare, and switch whatever differs.
    pub max_differences: Option<u64>,
    /// Compare a new version with the old one at all. Default: true.
    pub compare: bool,
    /// How long one try to switch may hold appends up: 100 ms.
    pub fence_timeout: Duration,
    /// Most events that are applied while appends wait: 1,000.
    pub fence_events: usize,
    /// How often it is tried to hold appends up before the switch is made without: 10.
    pub fence_tries: u32,
    /// Keep the old generation, fed, so that one can go back. Default: true.
    pub keep_old: bool,
    /// How long nobody else takes it over from a worker that gives no sign of life: 15 s.
    pub lease_ttl: Duration,
    /// Wait while so many other rebuilds of the store, asked for earlier, are under way. Default: never.
    pub at_most: Option<u32>,
}

impl Default for RebuildOptions {
    fn default() -> Self {
        RebuildOptions {
            in_place: false,
            promote: true,
            from_scratch: false,
            events_per_second: None,
            commit_latency_max: None,
            full_speed: false,
            parallel: 2,
            memory_max: 256 << 20,
            within: 0,
            allow_dead_letters: false,
            max_differences: None,
            compare: true,
            fence_timeout: Duration::from_millis(100),
            fence_events: 1_000,
            fence_tries: 10,
            keep_old: true,
            lease_ttl: Duration::from_secs(15),
            at_most: None,
        }
    }
}

impl RebuildOptions {
    /// The defaults, in place.
    #[must_use]
    pub fn in_place() -> Self {
        RebuildOptions { in_place: true, ..RebuildOptions::default() }
    }
}
