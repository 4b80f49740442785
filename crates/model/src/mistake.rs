//! Known mistakes, to be switched on one at a time. The checker has to find each of them.

use crate::properties::{
    COMPLETE, CURRENT_EPOCH, DECIDED, IN_ORDER, NO_HOLES, NOT_STRANDED, ONCE, READERS_KEEP,
};

/// A mistake in a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// An append reads the status in the statement that waits for the gate: its snapshot is older.
    StatusWithTheGate,
    /// An append tries for the gate, and says nothing where it does not get it.
    TryLock,
    /// The flip does not wait for those who hold the gates.
    FlipWithoutWaiting,
    /// An append applies although its key has open skips.
    DrainWithoutKeyRule,
    /// A rebuild that stops, for whatever reason, leaves its generation active.
    ActivationOnClose,
    /// A checkpoint is moved without a look at the epoch.
    UnfencedCheckpoint,
    /// Appends take no gates.
    NoGate,
    /// Appends do not take the registry gate.
    NoRegistryGate,
    /// Two streams with one key, and no lock of the key.
    NoKeyLock,
    /// A rollback flips a kept generation, whose gate appends do not enter, without having it listed
    /// again under the registry gate.
    KeptNotListed,
    /// A rebuild in place puts an empty generation in without the registry gate.
    SwapWithoutRegistryGate,
    /// A status is changed, which raises the epoch, while a batch has the checkpoint's row locked.
    StatusWithoutCheckpoint,
    /// Without the fence: no wait for those who hold the gate and do not record skips.
    FlipWithoutHolders,
    /// Without the fence: flips at whatever mark, though an event above it has no skip record.
    FlipAtAnyMark,
    /// Without the fence: keys across streams are not locked for a generation that is being built.
    BuildingKeysUnlocked,
    /// Without the fence: the old generation is kept, and fed from the highest position there is.
    KeptWithoutTheFence,
    /// A generation that is kept is fed, though it owes earlier events of the key.
    FeedPastOpenSkips,
    /// A catch-up generation is promoted while the old one's checkpoint may move.
    PromoteWithoutOldCheckpoint,
    /// A dead letter is tried again without the checkpoint's row.
    RetryWithoutCheckpoint,
    /// An append announces after it has drawn its position.
    LateAnnouncement,
    /// An announcement is remembered for the transaction, also when a rollback to a savepoint undid it.
    AnnouncementRemembered,
    /// The announcements are looked at before the sequence.
    LocksBeforeSequence,
    /// A worker reads up to the highest position that it sees.
    NoMark,
}

/// What is known about a mistake.
struct Known {
    mistake: Mistake,
    name: &'static str,
    /// The configuration in which it shows.
    configuration: &'static str,
    /// The property that it violates.
    violates: &'static str,
}

macro_rules! known {
    ($($mistake:ident, $name:literal, $configuration:literal, $violates:expr;)*) => {
        [$(Known {
            mistake: Mistake::$mistake,
            name: $name,
            configuration: $configuration,
            violates: $violates,
        },)*]
    };
}

const KNOWN: [Known; 23] = known! {
    StatusWithTheGate, "status-with-the-gate", "append-and-flip", COMPLETE;
    TryLock, "try-lock", "append-and-flip", COMPLETE;
    FlipWithoutWaiting, "flip-without-waiting", "append-and-flip", COMPLETE;
    DrainWithoutKeyRule, "drain-without-key-rule", "in-place-without-fence", NO_HOLES;
    ActivationOnClose, "activation-on-close", "append-and-flip", COMPLETE;
    UnfencedCheckpoint, "unfenced-checkpoint", "worker-takeover", CURRENT_EPOCH;
    NoGate, "no-gate", "append-and-flip", COMPLETE;
    NoRegistryGate, "no-registry-gate", "append-and-registration", COMPLETE;
    NoKeyLock, "no-key-lock", "keys-across-streams", IN_ORDER;
    KeptNotListed, "kept-not-listed", "promote-and-roll-back", COMPLETE;
    SwapWithoutRegistryGate, "swap-without-registry-gate", "in-place", COMPLETE;
    StatusWithoutCheckpoint, "status-without-checkpoint", "promote-and-roll-back", CURRENT_EPOCH;
    FlipWithoutHolders, "flip-without-holders", "beside-without-fence", COMPLETE;
    FlipAtAnyMark, "flip-at-any-mark", "other-types", COMPLETE;
    BuildingKeysUnlocked, "building-keys-unlocked", "keys-across-streams-without-fence", NO_HOLES;
    KeptWithoutTheFence, "kept-without-the-fence", "kept-without-fence", ONCE;
    FeedPastOpenSkips, "feed-past-open-skips", "kept-with-skips", NO_HOLES;
    PromoteWithoutOldCheckpoint, "promote-without-old-checkpoint", "catch-up-promotion", READERS_KEEP;
    RetryWithoutCheckpoint, "retry-without-checkpoint", "dead-letters", NOT_STRANDED;
    LateAnnouncement, "late-announcement", "worker-takeover", DECIDED;
    AnnouncementRemembered, "announcement-remembered", "savepoints-and-mark", DECIDED;
    LocksBeforeSequence, "locks-before-sequence", "worker-takeover", DECIDED;
    NoMark, "no-mark", "worker-takeover", COMPLETE;
};

impl Mistake {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Mistake> {
        KNOWN.iter().map(|known| known.mistake)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Mistake> {
        KNOWN.iter().find(|known| known.name == name).map(|known| known.mistake)
    }

    fn known(self) -> &'static Known {
        KNOWN.iter().find(|known| known.mistake == self).unwrap_or(&KNOWN[0])
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.known().name
    }

    /// The configuration in which it shows.
    pub fn configuration(self) -> &'static str {
        self.known().configuration
    }

    /// The property that it violates.
    pub fn violates(self) -> &'static str {
        self.known().violates
    }
}
