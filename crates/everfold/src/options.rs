//! Everything that can be set on a store, with its default. Every loop, batch, retry and wait of the
//! store has its bound here; as many appends wait as there are callers.

use std::sync::Arc;
use std::time::Duration;

use crate::error::OpenError;
use crate::upcast::Upcasters;

/// Bounds on what one append may hold. The databases keep the same bounds at their defaults'
/// upper end, so that they hold for every door; a store may set lower ones.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest stream id in bytes: 512.
    pub stream_id_bytes_max: usize,
    /// Longest event type in bytes: 256.
    pub event_type_bytes_max: usize,
    /// Largest data of one event in bytes of JSON text: 1 MiB, at most 16 MiB.
    pub data_bytes_max: usize,
    /// Largest metadata of one event in bytes of JSON text: 64 KiB, at most 1 MiB.
    pub metadata_bytes_max: usize,
    /// Most events in one append: 1,000, at most 10,000.
    pub append_events_max: usize,
    /// Most bytes of data in one append: 64 MiB, at most 256 MiB.
    pub append_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            stream_id_bytes_max: 512,
            event_type_bytes_max: 256,
            data_bytes_max: 1024 * 1024,
            metadata_bytes_max: 64 * 1024,
            append_events_max: 1_000,
            append_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// How the store reaches PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooler {
    /// Find out when the store opens, with two short-lived connections.
    #[default]
    Detect,
    /// Connections go straight to the server (or a pooler in session mode).
    Direct,
    /// A pooler in transaction mode is between: no named prepared statements, no LISTEN.
    Transaction,
}

/// How safe a committed append is on SQLite when the machine loses power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Every commit reaches the disk: `synchronous = FULL`.
    #[default]
    Full,
    /// The last commits may be lost with the power, nothing is corrupted: `synchronous = NORMAL`.
    Normal,
}

/// How a store is opened. `StoreOptions::default()` is meant to be right for most.
///
/// ```
/// # use everfold::StoreOptions;
/// let mut options = StoreOptions::default();
/// options.pool_size = 4;
/// options.migrate = Some(true);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Create or update the schema when opening. Default: only for SQLite files.
    pub migrate: Option<bool>,
    /// Create the SQLite file if it is not there. Default: true.
    pub create: bool,
    /// Bounds on what one append may hold.
    pub limits: Limits,
    /// Changes old events to today's shape when they are read.
    pub upcasters: Arc<Upcasters>,
    /// Collect concurrent appends into one transaction. Default: true. On SQLite always on.
    pub group_append: bool,
    /// Most appends in one group: 256.
    pub group_appends_max: usize,
    /// Most events in one group: 5,000.
    pub group_events_max: usize,
    /// Most bytes of data in one group: 4 MiB (a larger append goes alone).
    pub group_bytes_max: usize,
    /// Most groups under way at once, on PostgreSQL: 2.
    pub groups_max: usize,
    /// How often an append is tried again, with the same event ids, after a transient failure: 8,
    /// which with the pauses between is about four seconds. (Each try may itself wait for a
    /// connection or an answer as long as the timeouts below allow.)
    pub append_retries_max: u32,
    /// First pause before such a retry; it doubles each time up to 64-fold, with jitter: 20 ms.
    pub retry_delay: Duration,
    /// Most connections (PostgreSQL) or reading connections (SQLite): 8, at least 2.
    pub pool_size: usize,
    /// Most connections for runners and registrations, apart from those above: 5, one more than a
    /// runner has transactions at once, so that its signs of life get through. PostgreSQL only.
    pub runner_pool_size: usize,
    /// Longest wait for a connection: 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for the answer to one request, and on SQLite for another process's lock: 60 s.
    pub request_timeout: Duration,
    /// Most events fetched at once when reading: 2,000. A read begins with fewer.
    pub page_events_max: usize,
    /// Most bytes of data fetched at once when reading: 2 MiB (a larger event comes alone).
    pub page_bytes_max: usize,
    /// Shortest pause between two looks at the high-water mark while events come in: 10 ms.
    pub poll_min: Duration,
    /// Longest pause, when nothing has happened for a while: 500 ms.
    pub poll_max: Duration,
    /// Tell followers in other processes about new events (a coalesced NOTIFY, or nothing on
    /// SQLite). Only a hint. Default: true.
    pub notify: bool,
    /// Publish the high-water mark for standbys this often while this store is open. Default:
    /// never.
    pub publish_mark_every: Option<Duration>,
    /// A new catch-up projection that wants more events than this of those that are there is filled
    /// as a rebuild fills one, and readers see it from the switch on: 10,000, which a runner applies
    /// in about a second. With fewer, readers see it grow from the start. Handlers always begin like
    /// that: whether they take old events for replayed ones must not depend on how many there are.
    pub backfill_events: u64,
    /// The namespace of projections: lower-case letters, digits and `_`, at most 16. Several
    /// applications in one database keep apart with it. Default: none.
    pub namespace: String,
    /// How PostgreSQL is reached.
    pub pooler: Pooler,
    /// How safe a commit on SQLite is.
    pub durability: Durability,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            migrate: None,
            create: true,
            limits: Limits::default(),
            upcasters: Arc::default(),
            group_append: true,
            group_appends_max: 256,
            group_events_max: 5_000,
            group_bytes_max: 4 * 1024 * 1024,
            groups_max: 2,
            append_retries_max: 8,
            retry_delay: Duration::from_millis(20),
            pool_size: 8,
            runner_pool_size: 5,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            page_events_max: 2_000,
            page_bytes_max: 2 * 1024 * 1024,
            poll_min: Duration::from_millis(10),
            poll_max: Duration::from_millis(500),
            notify: true,
            publish_mark_every: None,
            backfill_events: 10_000,
            namespace: String::new(),
            pooler: Pooler::Detect,
            durability: Durability::Full,
        }
    }
}

impl StoreOptions {
    /// Refuses values that could never work.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let at_least_one = [
            ("group_appends_max", self.group_appends_max),
            ("group_events_max", self.group_events_max),
            ("group_bytes_max", self.group_bytes_max),
            ("groups_max", self.groups_max),
            ("page_events_max", self.page_events_max),
            ("page_bytes_max", self.page_bytes_max),
        ];
        for (option, found) in at_least_one {
            in_range(option, found, 1, 1 << 30)?;
        }
        if self.publish_mark_every.is_some_and(|every| every.is_zero()) {
            return Err(OpenError::Option {
                option: "publish_mark_every",
                found: "0".to_owned(),
                reason: "it must be more than nothing".to_owned(),
            });
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let begins_well =
            self.namespace.is_empty() || self.namespace.as_bytes()[0].is_ascii_lowercase();
        if !begins_well || self.namespace.len() > 16 || !self.namespace.bytes().all(plain) {
            return Err(OpenError::Option {
                option: "namespace",
                found: format!("\"{}\"", self.namespace),
                reason: "lower-case letters, digits and _, a letter first, at most 16".to_owned(),
            });
        }
        in_range("pool_size", self.pool_size, 2, 1 << 20)?;
        in_range("runner_pool_size", self.runner_pool_size, 1, 1 << 20)?;
        let durations = [
            ("poll_min", self.poll_min),
            ("poll_max", self.poll_max),
            ("connect_timeout", self.connect_timeout),
            ("request_timeout", self.request_timeout),
        ];
        for (option, found) in durations {
            let milliseconds = usize::try_from(found.as_millis()).unwrap_or(usize::MAX);
            in_range(option, milliseconds, 1, 24 * 60 * 60 * 1000)?;
        }
        let limits = &self.limits;
        in_range("limits.stream_id_bytes_max", limits.stream_id_bytes_max, 1, 512)?;
        in_range("limits.event_type_bytes_max", limits.event_type_bytes_max, 1, 256)?;
        in_range("limits.data_bytes_max", limits.data_bytes_max, 1, 16 * 1024 * 1024)?;
        in_range("limits.metadata_bytes_max", limits.metadata_bytes_max, 2, 1024 * 1024)?;
        in_range("limits.append_events_max", limits.append_events_max, 1, 10_000)?;
        in_range("limits.append_bytes_max", limits.append_bytes_max, 1, 256 * 1024 * 1024)
    }
}

fn in_range(option: &'static str, found: usize, min: usize, max: usize) -> Result<(), OpenError> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(OpenError::Option {
        option,
        found: found.to_string(),
        reason: format!("allowed are {min} to {max}"),
    })
}
