//! The small systems that are checked.

use crate::configuration::{Configuration, Key, Kind, Lifecycle, Plan, Role};
use crate::note::Note;
use crate::state::Status;

mod others;
mod rebuilds;

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
    savepoints: false,
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
pub(crate) fn all() -> impl Iterator<Item = &'static Configuration> {
    rebuilds::REBUILDS.iter().chain(others::OTHERS)
}
