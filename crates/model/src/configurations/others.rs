//! Registration, clients old and new, keys across streams, failures, workers.

use super::{A, APPEND_AND_FLIP, B, BACKFILL, BESIDE, PROMOTION, appender, beside};
use crate::configuration::{Configuration, Key, Lifecycle, Role};
use crate::note::Note;
use crate::state::Status;

pub(super) const OTHERS: &[Configuration] = &[
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
        name: "savepoints-and-mark",
        about: "a worker beside a transaction that rolls back to savepoints",
        lifecycle: Lifecycle::CatchUp,
        savepoints: true,
        generations: [Status::Active, Status::Absent],
        actors: &[appender(&[&[A, A]]), appender(&[&[B]]), Role::Worker { generation: 0 }],
        history: &[],
        positions: 4,
        witnesses: &[Note::RolledBackToASavepoint, Note::CommittedBelowACommittedPosition],
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
