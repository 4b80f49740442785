//! An order-sensitive projection: a hash chain for each account. A lost, doubled or reordered event
//! shows in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use everfold::{
    DocumentProjection, NewEvent, OnError, Projection, ProjectionBuilder, ProjectionSettings,
    RecordedEvent, Runner, RunnerHandle, RunnerOptions, Store,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fixture::{event, read_all};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Events of an account. A poisonous one cannot be applied until the projection is mended.
#[derive(Debug, Deserialize)]
pub(crate) enum AccountEvent {
    Moved { account: String, n: u64 },
    Poisoned { account: String, n: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) count: u64,
    pub(crate) hash: u64,
}

impl Link {
    pub(crate) fn then(before: Option<Link>, n: u64) -> Link {
        let Link { count, hash } = before.unwrap_or(Link { count: 0, hash: 17 });
        // FNV on the number, in the order of the events.
        let hash = (hash ^ n).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(7) >> 12;
        Link { count: count + 1, hash }
    }
}

/// What can be changed while a projection runs.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    pub(crate) mended: AtomicBool,
    /// So many more tries of poisonous events fail; only if set.
    pub(crate) fail_times: AtomicU32,
    pub(crate) tries: AtomicU32,
    /// Batches wait while this is set.
    pub(crate) wait: AtomicBool,
    pub(crate) waiting: AtomicBool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(pub(crate) Arc<Switches>);

impl DocumentProjection for Chain {
    type Event = AccountEvent;
    type Document = Link;

    fn evolve(
        &self,
        before: Option<Link>,
        event: &AccountEvent,
        _: &RecordedEvent,
    ) -> Option<Link> {
        let switches = &self.0;
        while switches.wait.load(Ordering::SeqCst) {
            switches.waiting.store(true, Ordering::SeqCst);
            // Tasks behind this one must not wait for it.
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(2)));
        }
        match event {
            AccountEvent::Moved { n, .. } => Some(Link::then(before, *n)),
            AccountEvent::Poisoned { n, .. } => {
                switches.tries.fetch_add(1, Ordering::SeqCst);
                let times = switches.fail_times.load(Ordering::SeqCst);
                if times > 0 {
                    switches.fail_times.fetch_sub(1, Ordering::SeqCst);
                    assert!(times == 1, "not yet");
                    return Some(Link::then(before, *n));
                }
                assert!(switches.mended.load(Ordering::SeqCst), "number {n} is poisonous");
                Some(Link::then(before, *n))
            }
        }
    }
}

impl Chain {
    pub(crate) fn builder(&self, name: &str) -> ProjectionBuilder<everfold::DocumentBody<Chain>> {
        let mut settings = ProjectionSettings::default();
        settings.retries = 1;
        settings.retry_delay = Duration::from_millis(5);
        Projection::document(name, 1, self.clone()).settings(settings).key(|event, _| {
            let (AccountEvent::Moved { account, .. } | AccountEvent::Poisoned { account, .. }) =
                event;
            Some(account.clone())
        })
    }

    pub(crate) fn projection(&self, name: &str, on_error: OnError) -> Projection {
        self.builder(name).on_error(on_error).build().unwrap()
    }
}

pub(crate) fn moved(account: &str, n: u64) -> NewEvent {
    event("Moved", json!({ "account": account, "n": n }))
}

pub(crate) fn poisoned(account: &str, n: u64) -> NewEvent {
    event("Poisoned", json!({ "account": account, "n": n }))
}

/// Signs of life and leases at the pace of tests.
pub(crate) fn quick(name: &str) -> RunnerOptions {
    let mut options = RunnerOptions::default();
    options.worker_name = name.to_owned();
    options.heartbeat = Duration::from_millis(200);
    options.standby_poll = Duration::from_millis(100);
    options.lease_ttl = Duration::from_secs(3);
    options
}

pub(crate) async fn run(store: &Store, projection: Projection) -> RunnerHandle {
    let options = quick("test");
    Runner::new(store).projection(projection).options(options).start().await.unwrap()
}

/// The chains that a fold of the whole log gives, leaving out what `wanted` does not want.
pub(crate) async fn folded(
    store: &Store,
    wanted: impl Fn(&RecordedEvent) -> bool,
) -> BTreeMap<String, Link> {
    let mut chains = BTreeMap::new();
    for recorded in read_all(store).await.iter().filter(|event| wanted(event)) {
        if let Some(AccountEvent::Moved { account, n } | AccountEvent::Poisoned { account, n }) =
            recorded.decode::<AccountEvent>().unwrap()
        {
            let before = chains.remove(&account);
            chains.insert(account, Link::then(before, n));
        }
    }
    chains
}

pub(crate) async fn chains(store: &Store, name: &str) -> BTreeMap<String, Link> {
    let found = store.documents::<Link>(name).collect().await.unwrap();
    found.into_iter().map(|found| (found.key, found.document)).collect()
}

/// Waits until the projection shows all there is, then compares it with a fold of the log.
pub(crate) async fn assert_chains(store: &Store, name: &str) {
    let mark = store.high_water_mark().await.unwrap();
    store.wait_for(name, mark, LIMIT).await.unwrap();
    assert_eq!(chains(store, name).await, folded(store, |_| true).await);
}
