//! The write side of an event-sourced application: load a stream, decide, append what follows.
//!
//! ```text
//!   handle: load (snapshot + events after it) ─> decide ─> append at the loaded version
//!             ^                                              │ version conflict
//!             └────────── read what came since ──────────────┘ (bounded)
//! ```

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::append::Appended;
use crate::codec::EncodeError;
use crate::error::{AppendError, ReadError};
use crate::metadata::Metadata;
use crate::snapshot::{SnapshotPolicy, StoredSnapshot};
use crate::store::Store;
use crate::{NewEvent, StreamId, Version};

/// Business rules as three pure functions.
///
/// ```
/// use everfold::{Decider, CommandHandler, Store};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum AccountEvent {
///     Deposited { amount: u64 },
///     Withdrawn { amount: u64 },
/// }
///
/// enum Command {
///     Deposit(u64),
///     Withdraw(u64),
/// }
///
/// struct Account;
///
/// impl Decider for Account {
///     type Command = Command;
///     type Event = AccountEvent;
///     type State = u64; // the balance
///     type Error = String;
///
///     fn initial(&self) -> u64 {
///         0
///     }
///
///     fn evolve(&self, balance: u64, event: &AccountEvent) -> u64 {
///         match event {
///             AccountEvent::Deposited { amount } => balance + amount,
///             AccountEvent::Withdrawn { amount } => balance - amount,
///         }
///     }
///
///     fn decide(&self, balance: &u64, command: &Command) -> Result<Vec<AccountEvent>, String> {
///         match command {
///             Command::Deposit(amount) => Ok(vec![AccountEvent::Deposited { amount: *amount }]),
///             Command::Withdraw(amount) if amount > balance => Err("not enough money".into()),
///             Command::Withdraw(amount) => Ok(vec![AccountEvent::Withdrawn { amount: *amount }]),
///         }
///     }
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("bank.db").display());
/// let store = Store::open(&url).await?;
/// let accounts = CommandHandler::new(store, Account);
/// let handled = accounts.handle("account-1", &Command::Deposit(50)).await?;
/// assert_eq!(handled.state, 50);
/// assert!(accounts.handle("account-1", &Command::Withdraw(80)).await.is_err());
/// # Ok(()) }
/// ```
pub trait Decider {
    /// What is asked for.
    type Command;
    /// What has happened: a serde enum.
    type Event: Serialize + DeserializeOwned;
    /// What decisions are based on.
    type State;
    /// Why a command is refused.
    type Error;

    /// The state of a stream without events.
    fn initial(&self) -> Self::State;

    /// The state after one more event. Pure: the same events always give the same state.
    fn evolve(&self, state: Self::State, event: &Self::Event) -> Self::State;

    /// What follows from a command, or why it is refused. May run several times for one command.
    ///
    /// # Errors
    /// The domain's own reasons.
    fn decide(
        &self,
        state: &Self::State,
        command: &Self::Command,
    ) -> Result<Vec<Self::Event>, Self::Error>;
}

/// The state of a stream and the version it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded<S> {
    /// The folded state.
    pub state: S,
    /// The version of the last event folded into it.
    pub version: Version,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handled<S> {
    /// The state after the new events.
    pub state: S,
    /// The stream's version after them.
    pub version: Version,
    /// What was appended; `None` if the decision was that nothing happens.
    pub appended: Option<Appended>,
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError<E> {
    /// The decider refused it.
    #[error("command refused: {0}")]
    Refused(E),
    /// Other writers were faster each time.
    #[error("stream \"{stream}\" changed under {tries} tries in a row; try again")]
    Contended {
        /// The stream.
        stream: StreamId,
        /// How often it was tried.
        tries: u32,
    },
    /// An event of the decider's could not be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The append failed for another reason than a version conflict.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The stream could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Runs commands through a decider against a store: loads the stream, decides, and appends at the
/// version that was loaded. There is an example at [`Decider`].
///
/// A command is decided again when another writer was faster, so `decide` must not have effects of its
/// own. Dropping the future of [`handle`](CommandHandler::handle) leaves open whether the command was carried
/// out; [`load`](CommandHandler::load) tells.
#[derive(Clone)]
pub struct CommandHandler<D: Decider> {
    store: Store,
    decider: D,
    tries_max: u32,
    snapshots: Option<Snapshots<D::State>>,
}

/// The policy, with the state's own ways to and from JSON.
struct Snapshots<S> {
    policy: SnapshotPolicy,
    encode: fn(&S) -> serde_json::Result<String>,
    decode: fn(&str) -> serde_json::Result<S>,
}

impl<S> Clone for Snapshots<S> {
    fn clone(&self) -> Self {
        Snapshots { policy: self.policy.clone(), encode: self.encode, decode: self.decode }
    }
}

impl<D: Decider> CommandHandler<D> {
    /// A handler without snapshots that tries a command at most 10 times.
    pub fn new(store: Store, decider: D) -> Self {
        CommandHandler { store, decider, tries_max: 10, snapshots: None }
    }

    /// Tries a command at most this often when other writers get in between.
    #[must_use]
    pub fn tries_max(mut self, tries: u32) -> Self {
        self.tries_max = tries.max(1);
        self
    }

    /// Keeps snapshots of the state by this policy, so that a long stream need not be read from its start.
    ///
    /// ```
    /// use everfold::{Decider, CommandHandler, SnapshotPolicy, Version};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// enum Counted {
    ///     Up { by: u64 },
    /// }
    ///
    /// struct Counter;
    ///
    /// impl Decider for Counter {
    ///     type Command = u64;
    ///     type Event = Counted;
    ///     type State = u64;
    ///     type Error = std::convert::Infallible;
    ///
    ///     fn initial(&self) -> u64 {
    ///         0
    ///     }
    ///
    ///     fn evolve(&self, sum: u64, Counted::Up { by }: &Counted) -> u64 {
    ///         sum + by
    ///     }
    ///
    ///     fn decide(&self, _: &u64, by: &u64) -> Result<Vec<Counted>, Self::Error> {
    ///         Ok(vec![Counted::Up { by: *by }])
    ///     }
    /// }
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_folder, store) = open().await;
    /// let counters = CommandHandler::new(store, Counter).snapshots(SnapshotPolicy::every(2, "counter"));
    /// for by in [1, 2, 3] {
    ///     counters.handle("counter-1", &by).await?;
    /// }
    /// let loaded = counters.load("counter-1").await?; // from a snapshot, and what came after it
    /// assert_eq!((loaded.state, loaded.version), (6, Version(3)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn snapshots(mut self, policy: SnapshotPolicy) -> Self
    where
        D::State: Serialize + DeserializeOwned,
    {
        self.snapshots = Some(Snapshots {
            policy,
            encode: |state| serde_json::to_string(state),
            decode: |json| serde_json::from_str(json),
        });
        self
    }

    /// The state of a stream and the version it stands for; the [initial](Decider::initial) one, at
    /// version 0, of a stream that does not exist.
    ///
    /// # Errors
    /// [`ReadError::Decode`] if an event does not fit the decider's type, [`ReadError::Upcast`] if an
    /// upcaster refuses one, [`ReadError::Store`] if the database refuses or cannot be reached. A snapshot
    /// that cannot be used is no error: the stream is read.
    pub async fn load(&self, stream: impl Into<StreamId>) -> Result<Loaded<D::State>, ReadError> {
        let stream = stream.into();
        let start = self.load_snapshot(&stream).await;
        self.catch_up(&stream, start).await
    }

    /// Loads, decides and appends; after a version conflict, reads what came since and decides
    /// again. A decision for no events appends nothing.
    ///
    /// # Errors
    /// - [`CommandError::Refused`] with the decider's reason.
    /// - [`CommandError::Contended`] when other writers were faster each time: try again, or give the command
    ///   [more tries](CommandHandler::tries_max).
    /// - [`CommandError::Append`], [`CommandError::Read`] and [`CommandError::Encode`] as of [`Store::append`],
    ///   [`CommandHandler::load`] and [`NewEvent::from_event`].
    pub async fn handle(
        &self,
        stream: impl Into<StreamId>,
        command: &D::Command,
    ) -> Result<Handled<D::State>, CommandError<D::Error>> {
        self.handle_with(stream, command, Metadata::new()).await
    }

    /// As [`CommandHandler::handle`], with metadata for every event that follows from the command: who asked
    /// for it, and in which request.
    ///
    /// # Errors
    /// As [`CommandHandler::handle`].
    pub async fn handle_with(
        &self,
        stream: impl Into<StreamId>,
        command: &D::Command,
        metadata: Metadata,
    ) -> Result<Handled<D::State>, CommandError<D::Error>> {
        let stream = stream.into();
        let mut loaded = self.load(&stream).await?;
        for _ in 0..self.tries_max {
            let decided =
                self.decider.decide(&loaded.state, command).map_err(CommandError::Refused)?;
            if decided.is_empty() {
                let Loaded { state, version } = loaded;
                return Ok(Handled { state, version, appended: None });
            }
            let events = decided
                .iter()
                .map(|event| Ok(NewEvent::from_event(event)?.with_metadata(metadata.clone())))
                .collect::<Result<Vec<_>, EncodeError>>()?;
            match self.store.append(&stream, loaded.version, events).await {
                Ok(appended) => return Ok(self.finish(&stream, loaded, &decided, appended).await),
                Err(AppendError::VersionConflict { actual, .. }) if actual < loaded.version => {
                    // The snapshot is ahead of the log, as after a restore: read it all.
                    loaded = self.catch_up(&stream, self.start()).await?;
                }
                Err(AppendError::VersionConflict { .. }) => {
                    loaded = self.catch_up(&stream, loaded).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommandError::Contended { stream, tries: self.tries_max })
    }

    fn start(&self) -> Loaded<D::State> {
        Loaded { state: self.decider.initial(), version: Version::NONE }
    }

    /// Folds the events after `from`. The version counts every event, also those of types that
    /// the decider does not know.
    async fn catch_up(
        &self,
        stream: &StreamId,
        from: Loaded<D::State>,
    ) -> Result<Loaded<D::State>, ReadError> {
        let mut events = self.store.read_stream(stream).from_version(from.version.next()).events();
        let Loaded { mut state, mut version } = from;
        while let Some(recorded) = events.next().await? {
            version = recorded.version;
            if let Some(event) = recorded.decode::<D::Event>()? {
                state = self.decider.evolve(state, &event);
            }
        }
        Ok(Loaded { state, version })
    }

    async fn finish(
        &self,
        stream: &StreamId,
        loaded: Loaded<D::State>,
        decided: &[D::Event],
        appended: Appended,
    ) -> Handled<D::State> {
        let before = loaded.version;
        let state =
            decided.iter().fold(loaded.state, |state, event| self.decider.evolve(state, event));
        let version = appended.version;
        self.save_snapshot(stream, before, version, &state).await;
        Handled { state, version, appended: Some(appended) }
    }

    /// The state of the snapshot, or the initial one: whatever is wrong with a snapshot, the log
    /// is there.
    async fn load_snapshot(&self, stream: &StreamId) -> Loaded<D::State> {
        let Some(snapshots) = &self.snapshots else { return self.start() };
        let policy = &snapshots.policy;
        let found = self.store.backend().load_snapshot(stream.clone(), policy.name.clone()).await;
        let usable = match found {
            Ok(found) => found.filter(|found| found.state_version == policy.state_version),
            Err(error) => {
                tracing::warn!(%error, %stream, "snapshot could not be read, reading the stream");
                None
            }
        };
        match usable.map(|found| ((snapshots.decode)(&found.state), found.version)) {
            Some((Ok(state), version)) => Loaded { state, version },
            Some((Err(error), _)) => {
                tracing::warn!(%error, %stream, "snapshot does not fit the state, reading the stream");
                self.start()
            }
            None => self.start(),
        }
    }

    /// Best effort, after the append: a snapshot that is not written costs time, nothing else.
    async fn save_snapshot(
        &self,
        stream: &StreamId,
        before: Version,
        version: Version,
        state: &D::State,
    ) {
        let Some(snapshots) = &self.snapshots else { return };
        let policy = &snapshots.policy;
        if before.0 / policy.every == version.0 / policy.every {
            return;
        }
        let saved = match (snapshots.encode)(state) {
            Ok(state) => {
                let snapshot =
                    StoredSnapshot { version, state_version: policy.state_version, state };
                let name = policy.name.clone();
                self.store
                    .backend()
                    .save_snapshot(stream.clone(), name, snapshot)
                    .await
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = saved {
            tracing::warn!(error, %stream, "snapshot could not be written");
        }
    }
}

impl<D: Decider + std::fmt::Debug> std::fmt::Debug for CommandHandler<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandHandler")
            .field("store", &self.store)
            .field("decider", &self.decider)
            .finish_non_exhaustive()
    }
}
