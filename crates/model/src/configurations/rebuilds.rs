//! Rebuilds beside and in place, with the fence and without it.

use super::{
    A, APPEND_AND_FLIP, B, BACK, BACK_WITHOUT_FENCE, BESIDE, IN_PLACE, WITHOUT_FENCE, appender,
    beside,
};
use crate::configuration::{Configuration, Plan, Role};
use crate::note::Note;
use crate::state::Status;

pub(super) const REBUILDS: &[Configuration] = &[
    APPEND_AND_FLIP,
    Configuration {
        name: "savepoints",
        about: "the same, every append being rolled back to a savepoint before it",
        savepoints: true,
        actors: &[appender(&[&[A]]), appender(&[&[B, A]]), Role::Rebuilder { plans: &[BESIDE] }],
        unwanted: Some(B),
        positions: 4,
        witnesses: &[Note::Flipped, Note::FlippedUnderAnAppend, Note::RolledBackToASavepoint],
        ..APPEND_AND_FLIP
    },
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
];
