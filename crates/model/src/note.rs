//! What a step was remarkable for. Some of it must never happen; the rest shows that the situations
//! in which a protocol could go wrong were reached, and is checked as `sometimes`.

use stateright::Property;

use crate::actions::Protocol;

/// The remarkable things of one step.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Notes(u32);

impl Notes {
    pub(crate) fn add(&mut self, note: Note) {
        self.0 |= 1 << note as u32;
    }

    pub(crate) fn has(self, note: Note) -> bool {
        self.0 & (1 << note as u32) != 0
    }
}

macro_rules! notes {
    ($($name:ident = $text:literal,)*) => {
        /// Something remarkable about a step.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Note {
            $(#[doc = $text] $name,)*
        }

        impl Note {
            /// That it happens.
            pub(crate) fn happens(self) -> Property<Protocol> {
                match self {
                    $(Note::$name => {
                        Property::<Protocol>::sometimes($text, |_, state| state.notes.has(Note::$name))
                    })*
                }
            }
        }
    };
}

notes! {
    CheckpointMovedByAnOldEpoch = "a checkpoint is moved by an old epoch",
    CheckpointMovedBack = "a checkpoint moves back",
    ReadersLostWhatTheySaw = "readers lose what they saw",
    ReadersWaitForWhatTheySawBefore = "readers wait for what they saw before the flip",
    CommittedBelowACommittedPosition = "an event is committed below a committed position",
    DrawnPositionRolledBack = "a drawn position is rolled back",
    RecordedBehindOpenSkips = "an append records behind open skips",
    HelpDrained = "an append drains the open skips of its key",
    SkipsSettledByABatch = "a batch settles skips",
    DrainedByAWorker = "a worker drains skips",
    DeadLetter = "an event fails and is put aside",
    HeldBehindADeadLetter = "an event is put behind one that failed",
    DeadLetterRetried = "a dead letter is applied, and what waits behind it",
    DeadLetterRetriedWithSkips = "a dead letter is applied, and what is owed behind it",
    ResumedWithOpenSkips = "a paused generation is resumed, with open skips",
    RolledBackToASavepoint = "an append is rolled back to a savepoint",
    ZombieRefused = "a zombie wakes up and is refused",
    FlippedUnderAnAppend = "a flip is committed while an append is in flight",
    FenceBeganUnderAnAppend = "a fence begins while an append is in flight",
    Flipped = "a flip behind the fence",
    FlippedWithoutTheFence = "a flip without the fence",
    KeptWithoutTheFence = "the old generation is kept after a flip without the fence",
    WaitedForHolders = "a rebuild waits for appends in flight",
    RegisteredOnAnEmptyStore = "a projection is active at once, on an empty store",
    PromotionRefused = "a promotion is refused because it lags",
}
