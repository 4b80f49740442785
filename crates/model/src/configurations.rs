//! The small systems that are checked.

use crate::configuration::{Configuration, Key, Kind, Lifecycle, Plan, Role};
use crate::note::Note;
use crate::state::Status;

const A: usize = 0;
const B: usize = 1;

const fn appender(transactions: &'static [&'static [usize]]) -> Role {
    Role::Appender { transactions, carries: true }
}

const fn beside(from: usize, to: usize, fence: bool) -> Plan {
    Plan { from: Some(from), to, kind: Kind::Beside, fence, keeps: false }
}

const BESIDE: Plan = beside(0, 1, true);
/// Without the fence, and the old generation is kept.
const WITHOUT_FENCE: Plan = Plan { keeps: true, ..beside(0, 1, false) };
const BACK_WITHOUT_FENCE: Plan = Plan { keeps: true, ..beside(1, 0, false) };
const BACK: Plan = beside(1, 0, true);
const IN_PLACE: Plan =
    Plan { from: Some(0), to: 1, kind: Kind::InPlace, fence: true, keeps: false };
const BACKFILL: Plan = Plan { from: None, to: 0, kind: Kind::Beside, fence: true, keeps: false };
const PROMOTION: Plan =
    Plan { from: Some(0), to: 1, kind: Kind::CatchUp, fence: true, keeps: false };

/// The first of them; the others say how they differ.
const APPEND_AND_FLIP: Configuration = Configuration {
    name: "append-and-flip",
    about: "an append, and a transaction with two, while a generation is built beside and promoted",
    lifecycle: Lifecycle::Inline,
    key: Key::Stream,
    unwanted: None,
    fails: None,
    generations: [Status::Active, Status::Building],
    history: &[A],
    actors: &[appender(&[&[A]]), appender(&[&[B, A]]), Role::Rebuilder { plans: &[BESIDE] }],
    positions: 5,
    help: 1,
    witnesses: &[
        Note::Flipped,
        Note::FenceBeganUnderAnAppend,
        Note::FlippedUnderAnAppend,
        Note::CommittedBelowACommittedPosition,
        Note::DrawnPositionRolledBack,
    ],
    mistake: None,
};

/// All of them.
pub(crate) const CONFIGURATIONS: &[Configuration] = &[
    APPEND_AND_FLIP,
    Configuration {
        name: "two-rebuilders",
        about: "two rebuilders of one generation, each taken for dead by the other",
        actors: &[
            appender(&[&[A]]),
            Role::Rebuilder { plans: &[BESIDE] },
            Role::Rebuilder { plans: &[BESIDE] },
        ],
        positions: 3,
        witnesses: &[Note::Flipped, Note::FenceBeganUnderAnAppend, Note::ZombieRefused],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "two-rebuilders-without-fence",
        about: "the same without the fence, the old generation being kept",
        actors: &[
            appender(&[&[A], &[A]]),
            Role::Rebuilder { plans: &[WITHOUT_FENCE] },
            Role::Rebuilder { plans: &[WITHOUT_FENCE] },
        ],
        history: &[],
        positions: 2,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::KeptWithoutTheFence,
            Note::ZombieRefused,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "promote-and-roll-back",
        about: "a promotion and the way back, the old generation kept and fed meanwhile",
        actors: &[
            appender(&[&[A]]),
            appender(&[&[A], &[B]]),
            Role::Rebuilder { plans: &[BESIDE, BACK] },
            Role::Worker { generation: 0 },
        ],
        history: &[],
        positions: 3,
        witnesses: &[Note::Flipped, Note::FenceBeganUnderAnAppend, Note::ZombieRefused],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "kept-with-skips",
        about: "a generation that owes events is kept and fed",
        actors: &[
            Role::Appender { transactions: &[&[A]], carries: false },
            appender(&[&[A]]),
            Role::Rebuilder { plans: &[BESIDE] },
            Role::Worker { generation: 0 },
        ],
        positions: 4,
        witnesses: &[
            Note::Flipped,
            Note::SkipsSettledByABatch,
            Note::DrainedByAWorker,
            Note::HelpDrained,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "beside-without-fence",
        about: "a generation is built beside and promoted without the fence, then drained",
        actors: &[
            appender(&[&[A], &[A]]),
            appender(&[&[B]]),
            Role::Rebuilder { plans: &[beside(0, 1, false)] },
            Role::Worker { generation: 1 },
        ],
        history: &[],
        positions: 3,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::WaitedForHolders,
            Note::SkipsSettledByABatch,
            Note::HelpDrained,
            Note::DrainedByAWorker,
            Note::ReadersWaitForWhatTheySawBefore,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "other-types",
        about: "the same, with a transaction that holds the mark back and none of the gates",
        unwanted: Some(B),
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B, A]]),
            Role::Rebuilder { plans: &[beside(0, 1, false)] },
        ],
        history: &[],
        positions: 4,
        witnesses: &[Note::FlippedWithoutTheFence, Note::FlippedUnderAnAppend],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "kept-without-fence",
        about: "the old generation is kept and fed after a promotion without the fence",
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B]]),
            Role::Rebuilder { plans: &[WITHOUT_FENCE] },
            Role::Worker { generation: 0 },
        ],
        history: &[],
        positions: 2,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::KeptWithoutTheFence,
            Note::SkipsSettledByABatch,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "roll-back-without-fence",
        about: "the same, and the way back without the fence",
        actors: &[
            appender(&[&[A], &[A]]),
            Role::Rebuilder { plans: &[WITHOUT_FENCE, BACK_WITHOUT_FENCE] },
            Role::Worker { generation: 0 },
            Role::Worker { generation: 1 },
        ],
        history: &[],
        positions: 2,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::KeptWithoutTheFence,
            Note::SkipsSettledByABatch,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "in-place",
        about: "a rebuild in place, finished with the fence",
        actors: &[
            appender(&[&[A], &[A]]),
            appender(&[&[B]]),
            Role::Rebuilder { plans: &[IN_PLACE] },
        ],
        generations: [Status::Active, Status::Absent],
        positions: 5,
        witnesses: &[Note::Flipped, Note::FenceBeganUnderAnAppend, Note::SkipsSettledByABatch],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "in-place-without-fence",
        about: "a rebuild in place, finished without the fence and drained",
        actors: &[
            appender(&[&[A], &[A]]),
            appender(&[&[A]]),
            Role::Rebuilder { plans: &[Plan { fence: false, ..IN_PLACE }] },
            Role::Worker { generation: 1 },
        ],
        generations: [Status::Active, Status::Absent],
        history: &[],
        positions: 4,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::SkipsSettledByABatch,
            Note::HelpDrained,
            Note::DrainedByAWorker,
            Note::RecordedBehindOpenSkips,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "append-and-registration",
        about: "a new inline projection is registered and backfilled while appends are in flight",
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B], &[B]]),
            Role::Registrar,
            Role::Rebuilder { plans: &[BACKFILL] },
        ],
        generations: [Status::Absent, Status::Absent],
        history: &[],
        positions: 4,
        witnesses: &[Note::Flipped, Note::FenceBeganUnderAnAppend, Note::RegisteredOnAnEmptyStore],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "old-code",
        about: "clients with and without the projection on one stream, and a worker that drains",
        actors: &[
            Role::Appender { transactions: &[&[A], &[A]], carries: false },
            appender(&[&[A], &[A]]),
            Role::Worker { generation: 0 },
            Role::Worker { generation: 0 },
        ],
        generations: [Status::Active, Status::Absent],
        history: &[],
        positions: 5,
        witnesses: &[
            Note::HelpDrained,
            Note::RecordedBehindOpenSkips,
            Note::DrainedByAWorker,
            Note::ZombieRefused,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "pause-and-resume",
        about: "an inline generation is paused and resumed under appends, then drained",
        generations: [Status::Active, Status::Absent],
        actors: &[
            appender(&[&[A], &[A]]),
            appender(&[&[B, A]]),
            Role::Worker { generation: 0 },
            Role::Pauser,
        ],
        history: &[],
        positions: 4,
        witnesses: &[
            Note::ResumedWithOpenSkips,
            Note::HelpDrained,
            Note::DrainedByAWorker,
            Note::ZombieRefused,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "keys-across-streams",
        about: "two streams with one key, one of them written by old code, and a flip",
        key: Key::AcrossStreams,
        actors: &[
            appender(&[&[A]]),
            Role::Appender { transactions: &[&[B]], carries: false },
            appender(&[&[B]]),
            Role::Rebuilder { plans: &[BESIDE] },
            Role::Worker { generation: 0 },
        ],
        history: &[],
        positions: 3,
        witnesses: &[Note::Flipped, Note::HelpDrained, Note::DrainedByAWorker],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "keys-across-streams-without-fence",
        about: "the same, promoted without the fence, which is more than the design asks for",
        key: Key::AcrossStreams,
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B], &[B]]),
            Role::Rebuilder { plans: &[beside(0, 1, false)] },
            Role::Worker { generation: 1 },
        ],
        history: &[],
        positions: 3,
        witnesses: &[
            Note::FlippedWithoutTheFence,
            Note::FlippedUnderAnAppend,
            Note::HelpDrained,
            Note::DrainedByAWorker,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "held-keys",
        about: "inline: an event fails, and others of its key come from clients old and new",
        fails: Some(A),
        generations: [Status::Active, Status::Absent],
        actors: &[
            appender(&[&[A], &[A]]),
            appender(&[&[A]]),
            Role::Appender { transactions: &[&[A], &[A]], carries: false },
            Role::Worker { generation: 0 },
            Role::Operator,
        ],
        history: &[],
        positions: 5,
        witnesses: &[
            Note::DeadLetter,
            Note::HeldBehindADeadLetter,
            Note::DeadLetterRetried,
            Note::DeadLetterRetriedWithSkips,
            Note::DrainedByAWorker,
            Note::HelpDrained,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "dead-letters",
        about: "catch-up: an event fails, and is tried again beside the workers",
        lifecycle: Lifecycle::CatchUp,
        fails: Some(A),
        generations: [Status::Active, Status::Absent],
        actors: &[
            appender(&[&[A], &[A], &[A]]),
            Role::Worker { generation: 0 },
            Role::Worker { generation: 0 },
            Role::Operator,
        ],
        history: &[],
        positions: 4,
        witnesses: &[
            Note::DeadLetter,
            Note::HeldBehindADeadLetter,
            Note::DeadLetterRetried,
            Note::ZombieRefused,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "worker-takeover",
        about: "two workers of a catch-up projection, each taken for dead by the other",
        lifecycle: Lifecycle::CatchUp,
        generations: [Status::Active, Status::Absent],
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B, A]]),
            Role::Worker { generation: 0 },
            Role::Worker { generation: 0 },
        ],
        history: &[],
        positions: 5,
        witnesses: &[
            Note::ZombieRefused,
            Note::CommittedBelowACommittedPosition,
            Note::DrawnPositionRolledBack,
        ],
        ..APPEND_AND_FLIP
    },
    Configuration {
        name: "catch-up-promotion",
        about: "a catch-up generation is promoted while the old one moves on",
        lifecycle: Lifecycle::CatchUp,
        actors: &[
            appender(&[&[A]]),
            appender(&[&[B]]),
            Role::Worker { generation: 0 },
            Role::Rebuilder { plans: &[PROMOTION] },
        ],
        history: &[A],
        positions: 4,
        witnesses: &[Note::Flipped, Note::PromotionRefused, Note::CommittedBelowACommittedPosition],
        ..APPEND_AND_FLIP
    },
];
