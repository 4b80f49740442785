//! Everything that can be set on a runner, with its default.

use std::time::Duration;

use crate::error::ProjectionError;
use crate::projection::job::HANDLER_TIMEOUT;
use crate::projection::operator::operator;

/// How a runner works. `RunnerOptions::default()` is meant to be right for most.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerOptions {
    /// What `everfold status` calls this worker. Default: user, machine and process.
    pub worker_name: String,
    /// How long a lease holds without a sign of life: 15 s. Another runner takes over after that.
    pub lease_ttl: Duration,
    /// How often this worker gives a sign of life: 5 s. At most a third of `lease_ttl`.
    pub heartbeat: Duration,
    /// How often it looks for shards that became free, while others run some: 1 s.
    pub standby_poll: Duration,
    /// Most transactions at once, and so connections: 4.
    pub connections: usize,
    /// How long a batch should take. Default: 250 ms on PostgreSQL, 50 ms on SQLite, where appends
    /// wait for it.
    pub batch_duration: Option<Duration>,
    /// How long the handler of a projection may take in one transaction. After that the transaction is
    /// rolled back and tried again with fewer events; an event that alone takes longer is treated as
    /// one that failed. Less than `lease_ttl`. Default: three quarters of it, but at most 8 s.
    pub handler_timeout: Option<Duration>,
    /// How long run log and system messages are kept: 14 days.
    pub log_retention: Duration,
    /// Settle what inline projections owe. Default: true.
    pub drain: bool,
    /// Most rebuilds that this runner works on at once: 1. 0: none.
    pub rebuilds: usize,
    /// How long [`RunnerHandle::stop`](crate::RunnerHandle::stop) waits for batches in hand: 30 s.
    pub stop_timeout: Duration,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            worker_name: format!("{}:{}", operator(), std::process::id()),
            lease_ttl: Duration::from_secs(15),
            heartbeat: Duration::from_secs(5),
            standby_poll: Duration::from_secs(1),
            connections: 4,
            batch_duration: None,
            handler_timeout: None,
            log_retention: Duration::from_secs(14 * 24 * 60 * 60),
            drain: true,
            rebuilds: 1,
            stop_timeout: Duration::from_secs(30),
        }
    }
}

impl RunnerOptions {
    pub(crate) fn handler_limit(&self) -> Duration {
        self.handler_timeout.unwrap_or_else(|| HANDLER_TIMEOUT.min(self.lease_ttl * 3 / 4))
    }

    /// Refuses values that could never work.
    pub(crate) fn check(&self) -> Result<(), ProjectionError> {
        let wrong = if self.heartbeat.is_zero() || self.standby_poll.is_zero() {
            "heartbeat and standby_poll must be more than nothing"
        } else if self.heartbeat * 3 > self.lease_ttl {
            "heartbeat must be at most a third of lease_ttl, or a lease could run out between two"
        } else if self.handler_limit().is_zero() || self.handler_limit() >= self.lease_ttl {
            "handler_timeout must be more than nothing and less than lease_ttl"
        } else if self.connections == 0 {
            "connections must be at least 1"
        } else {
            return Ok(());
        };
        Err(ProjectionError::Runner { message: wrong.to_owned() })
    }
}
