//! The jobs on a store in memory: what they apply, in which order, and what they put aside.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;

use super::*;
use crate::projection::definition::{Lifecycle, OnError, ProjectionKind, ProjectionSettings};
use crate::projection::generation::{
    DeadLetterRow, GenerationStatus, RunLogRow, ShardId, SystemMessage,
};
use crate::projection::key::Key;
use crate::projection::projector::DocumentChange;
use crate::rebuild::row::RebuildLease;
use crate::store::{
    HeldKey, LogPage, NewDeadLetters, OwnedRebuild, RangeEnd, SqlEvents, SwitchUnit, Wanted,
};
use crate::{RecordedEvent, Version};

/// One shard of one SQL projection: applying an event puts its position into `applied`.
#[derive(Debug, Clone, Default)]
struct Memory {
    log: Vec<RecordedEvent>,
    poison: BTreeSet<u64>,
    /// Whether it is fed behind the appends.
    kept: bool,
    state: State,
    savepoints: Vec<State>,
    /// How many events each try of applying had.
    tries: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
struct State {
    position: Position,
    applied: Vec<u64>,
    letters: BTreeMap<u64, DeadLetterRow>,
    skips: BTreeMap<u64, String>,
    messages: Vec<&'static str>,
    failed: Option<String>,
}

impl Memory {
    /// Events at positions 1, 2, 3 … with these streams, which are their keys.
    fn new(streams: &str, poison: impl IntoIterator<Item = u64>) -> Self {
        let event = |(index, stream): (usize, char)| RecordedEvent {
            position: Position(index as u64 + 1),
            stream_id: stream.to_string().as_str().into(),
            version: Version(1),
            id: Uuid::nil(),
            event_type: "Added".into(),
            schema_version: 1,
            data: "{}".into(),
            metadata: "{}".into(),
            recorded_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let log = streams.chars().enumerate().map(event).collect();
        Memory { log, poison: poison.into_iter().collect(), ..Memory::default() }
    }

    fn run(&mut self, on_error: OnError, lifecycle: Lifecycle, task: Task) -> JobOutcome {
        let outcome = self.try_run(on_error, lifecycle, task).unwrap();
        assert!(self.savepoints.is_empty(), "a savepoint was left open");
        outcome
    }

    fn try_run(
        &mut self,
        on_error: OnError,
        lifecycle: Lifecycle,
        task: Task,
    ) -> Result<JobOutcome, ApplyError> {
        let settings = ProjectionSettings { on_error, ..ProjectionSettings::default() };
        let generation = Generation {
            id: 1,
            namespace: String::new(),
            name: "p".into(),
            version: 1,
            kind: ProjectionKind::Sql,
            lifecycle,
            event_types: None,
            key: Key::Stream,
            shards: 1,
            definition_hash: String::new(),
            settings,
            home: "p".into(),
            tables: Vec::new(),
            status: GenerationStatus::Active,
            reason: None,
            is_active: true,
        };
        let (generation, projector) = (Arc::new(generation), Projector::Sql);
        let job = Job::new(generation, projector, Arc::default(), task);
        job.run(self).now_or_never().expect("nothing waits in memory")
    }

    fn careful(&mut self, on_error: OnError) -> JobOutcome {
        let (mark, worker, actor) = (Position(self.log.len() as u64), Uuid::nil(), "w".to_owned());
        let task = Task::CarefulBatch {
            lease: lease(),
            mark,
            events_max: CAREFUL_EVENTS,
            worker,
            actor,
            attempts: 2,
        };
        self.run(on_error, Lifecycle::CatchUp, task)
    }

    fn retry(&mut self, lifecycle: Lifecycle, position: u64) -> JobOutcome {
        let (position, actor) = (Position(position), "w".into());
        let task = Task::Retry { position, events_max: RETRY_EVENTS, actor };
        self.run(OnError::DeadLetter, lifecycle, task)
    }

    fn owed_up_to(&self) -> u64 {
        if self.kept { self.state.position.0 } else { u64::MAX }
    }

    fn letters(&self) -> Vec<(u64, Option<u64>)> {
        let row = |row: &DeadLetterRow| (row.position.0, row.behind.map(|behind| behind.0));
        self.state.letters.values().map(row).collect()
    }

    fn find(&self, position: Position) -> RecordedEvent {
        self.log[position.0 as usize - 1].clone()
    }
}

fn lease() -> Lease {
    Lease { shard: ShardId { generation: 1, shard: 0 }, epoch: 1, position: Position::START }
}

impl SwitchUnit for Memory {
    async fn own_rebuild(&mut self, _: &RebuildLease) -> Result<OwnedRebuild, ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn lock_shards(&mut self, _: i32) -> Result<Vec<(u32, Position)>, ApplyError> {
        Ok(vec![(0, self.state.position)])
    }
    async fn lock_gates(&mut self, _: bool, _: &[i32], _: Duration) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn status(&mut self, _: i32) -> Result<GenerationStatus, ApplyError> {
        Ok(if self.kept { GenerationStatus::Kept } else { GenerationStatus::Active })
    }
    async fn highest_position(&mut self) -> Result<Position, ApplyError> {
        Ok(Position(self.log.len() as u64))
    }
    async fn high_water_mark(&mut self) -> Result<Position, ApplyError> {
        self.highest_position().await
    }
    async fn owes(&mut self, _: i32) -> Result<bool, ApplyError> {
        let letters = self.state.letters.values();
        let held: BTreeSet<&str> = letters.map(|row| row.key.as_str()).collect();
        let owed = self.state.skips.range(..=self.state.position.0);
        Ok(owed.into_iter().any(|(_, key)| !held.contains(key.as_str())))
    }
    async fn new_dead_letters(
        &mut self,
        _: i32,
        _: Option<i32>,
    ) -> Result<Option<NewDeadLetters>, ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn settle_skips(
        &mut self,
        _: i32,
        after: Position,
        up_to: Position,
        _: &str,
    ) -> Result<(), ApplyError> {
        self.state.skips.retain(|at, _| *at <= after.0 || *at > up_to.0);
        Ok(())
    }
    async fn hold_skips(&mut self, _: i32, _: Position) -> Result<(), ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn write_status(
        &mut self,
        _: i32,
        _: GenerationStatus,
        _: Option<&str>,
    ) -> Result<(), ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn release_shards(&mut self, _: i32, _: Option<Position>) -> Result<(), ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn show_generation(&mut self, _: i32) -> Result<(), ApplyError> {
        unreachable!("nothing is switched")
    }
    async fn note_flip(&mut self, _: &RebuildLease) -> Result<(), ApplyError> {
        unreachable!("nothing is switched")
    }
}

impl Unit for Memory {
    async fn lock_checkpoint(&mut self, _: &Lease) -> Result<Position, ApplyError> {
        Ok(self.state.position)
    }
    async fn lock_shard(&mut self, _: i32, _: u32) -> Result<Position, ApplyError> {
        Ok(self.state.position)
    }
    async fn advance(&mut self, _: &Lease, from: Position, to: Position) -> Result<(), ApplyError> {
        assert_eq!(from, self.state.position);
        assert!(to >= from);
        self.state.position = to;
        Ok(())
    }
    async fn lock_gate(&mut self, _: i32) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn note_failure(&mut self, _: &Lease, _: &str) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn range_end(&mut self, wanted: Wanted<'_>) -> Result<RangeEnd, ApplyError> {
        let to = wanted.up_to.0.min(wanted.after.0 + wanted.events_max as u64);
        Ok(RangeEnd { to: Position(to), events: to - wanted.after.0 })
    }
    async fn read_events(&mut self, wanted: Wanted<'_>) -> Result<LogPage, ApplyError> {
        let RangeEnd { to, .. } = self.range_end(wanted).await?;
        let events = self.log[wanted.after.0 as usize..to.0 as usize].to_vec();
        Ok(LogPage { events, read_to: to, dense: true })
    }
    async fn read_events_at(
        &mut self,
        positions: &[Position],
    ) -> Result<Vec<RecordedEvent>, ApplyError> {
        assert!(positions.is_sorted());
        let there = |position: &&Position| position.0 as usize <= self.log.len();
        Ok(positions.iter().filter(there).map(|position| self.find(*position)).collect())
    }
    async fn apply_sql(&mut self, _: &Generation, events: SqlEvents) -> Result<(), ApplyError> {
        let positions: Vec<u64> = match events {
            SqlEvents::Range { after, up_to, .. } => (after.0 + 1..=up_to.0).collect(),
            SqlEvents::Positions(positions) => positions.iter().map(|at| at.0).collect(),
        };
        assert!(positions.is_sorted());
        self.tries.push(positions.len());
        for position in positions {
            if self.poison.contains(&position) {
                return Err(ApplyError::Refused { message: "poison".into(), position: None });
            }
            self.state.applied.push(position);
        }
        Ok(())
    }
    async fn run_handler(
        &mut self,
        _: &Generation,
        _: &Projector,
        _: &[RecordedEvent],
        _: Duration,
    ) -> Result<(), ApplyError> {
        unreachable!("it is a SQL projection")
    }
    async fn tell_skipped(
        &mut self,
        _: &Generation,
        _: &Projector,
        _: &RecordedEvent,
        _: Duration,
    ) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn load_documents(
        &mut self,
        _: &Generation,
        _: &[String],
    ) -> Result<Vec<(String, String)>, ApplyError> {
        unreachable!("it is a SQL projection")
    }
    async fn write_documents(
        &mut self,
        _: &Generation,
        _: &[DocumentChange],
    ) -> Result<(), ApplyError> {
        unreachable!("it is a SQL projection")
    }
    async fn savepoint(&mut self) -> Result<(), ApplyError> {
        self.savepoints.push(self.state.clone());
        Ok(())
    }
    async fn rollback_to_savepoint(&mut self) -> Result<(), ApplyError> {
        self.state = self.savepoints.pop().expect("there is a savepoint");
        Ok(())
    }
    async fn release_savepoint(&mut self) -> Result<(), ApplyError> {
        self.savepoints.pop().expect("there is a savepoint");
        Ok(())
    }
    async fn holds_keys(&mut self, _: i32) -> Result<bool, ApplyError> {
        Ok(self.state.letters.values().any(|row| row.behind.is_none()))
    }
    async fn held_keys(&mut self, _: i32, keys: &[&str]) -> Result<Vec<HeldKey>, ApplyError> {
        assert!(keys.is_sorted_by(|one, next| one < next), "each key once: {keys:?}");
        let failed = self.state.letters.values().filter(|row| row.behind.is_none());
        let failed = failed.filter(|row| keys.contains(&row.key.as_str()));
        Ok(failed.map(|row| HeldKey { key: row.key.clone(), behind: row.position }).collect())
    }
    async fn dead_letters(
        &mut self,
        _: i32,
        key: Option<&str>,
    ) -> Result<Vec<DeadLetterRow>, ApplyError> {
        let of_key = |row: &&DeadLetterRow| key.is_none_or(|key| row.key == key);
        Ok(self.state.letters.values().filter(of_key).cloned().collect())
    }
    async fn put_dead_letters(&mut self, _: i32, rows: &[DeadLetterRow]) -> Result<(), ApplyError> {
        for row in rows {
            assert_eq!(row.behind.is_none(), row.error.is_some());
            self.state.letters.insert(row.position.0, row.clone());
        }
        Ok(())
    }
    async fn delete_dead_letters(
        &mut self,
        _: i32,
        positions: &[Position],
    ) -> Result<(), ApplyError> {
        self.state.letters.retain(|position, _| !positions.contains(&Position(*position)));
        Ok(())
    }
    /// Key by key.
    async fn take_skips(
        &mut self,
        _: i32,
        max: usize,
    ) -> Result<Vec<(Position, String)>, ApplyError> {
        let letters = self.state.letters.values();
        let held: BTreeSet<String> = letters.map(|row| row.key.clone()).collect();
        let open =
            self.state.skips.range(..=self.owed_up_to()).filter(|(_, key)| !held.contains(*key));
        let mut open: Vec<(Position, String)> =
            open.map(|(position, key)| (Position(*position), key.clone())).collect();
        open.sort_by(|one, other| one.1.cmp(&other.1).then(one.0.cmp(&other.0)));
        open.truncate(max);
        self.state.skips.retain(|at, _| open.iter().all(|(position, _)| position.0 != *at));
        Ok(open)
    }
    async fn take_skips_of(&mut self, _: i32, key: &str) -> Result<Vec<Position>, ApplyError> {
        let up_to = self.owed_up_to();
        let of_key = self.state.skips.range(..=up_to).filter(|(_, found)| *found == key);
        let taken: Vec<Position> = of_key.map(|(position, _)| Position(*position)).collect();
        self.state.skips.retain(|at, found| *at > up_to || found != key);
        Ok(taken)
    }
    async fn set_status(
        &mut self,
        _: i32,
        status: GenerationStatus,
        reason: Option<&str>,
    ) -> Result<(), ApplyError> {
        assert_eq!(status, GenerationStatus::Failed);
        self.state.failed = reason.map(str::to_owned);
        Ok(())
    }
    async fn record(&mut self, messages: &[SystemMessage]) -> Result<(), ApplyError> {
        self.state.messages.extend(messages.iter().map(|message| message.kind));
        Ok(())
    }
    async fn log_run(&mut self, _: &RunLogRow) -> Result<(), ApplyError> {
        Ok(())
    }
}

#[test]
fn one_poisonous_event_is_found_by_halving() {
    let mut memory = Memory::new(&"abcd".repeat(64), [100]);
    let outcome = memory.careful(OnError::DeadLetter);
    assert_eq!(outcome.applied, 255 - (256 - 100) / 4);
    assert!(memory.tries.len() <= 2 * 8 + 1, "{:?}", memory.tries);
    assert_eq!(memory.state.position, Position(256));
    let letters = memory.letters();
    assert_eq!(letters[0], (100, None));
    let held: Vec<_> = (101..=256).filter(|at| at % 4 == 0).map(|at| (at, Some(100))).collect();
    assert_eq!(letters[1..], held);
    assert_eq!(memory.state.letters[&100].attempts, 2);
    assert!(memory.state.applied.is_sorted());
}

#[test]
fn stop_applies_all_before_the_event_and_nothing_behind_it() {
    let mut memory = Memory::new("abababab", [5, 7]);
    let outcome = memory.careful(OnError::Stop);
    assert_eq!(memory.state.applied, [1, 2, 3, 4]);
    assert_eq!((outcome.position, outcome.applied), (Position(4), 4));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.position, Position(5));
    assert_eq!(failure.message, "event at position 5 (\"Added\", stream \"a\"): poison");
    assert!(memory.state.failed.as_ref().unwrap().starts_with(&failure.message));
    assert_eq!(memory.letters(), []);
}

#[test]
fn skip_leaves_out_the_event_alone() {
    let mut memory = Memory::new("aaaa", [1, 3]);
    memory.careful(OnError::Skip);
    assert_eq!(memory.state.applied, [2, 4]);
    assert_eq!(memory.state.messages, ["skipped", "skipped"]);
    assert_eq!(memory.state.position, Position(4));
}

#[test]
fn many_failures_take_several_transactions_and_miss_nothing() {
    let streams: String = ('a'..='z').collect();
    let mut memory = Memory::new(&streams, (1..=26).filter(|at| at % 2 == 0));
    let mut jobs = 0;
    while memory.careful(OnError::DeadLetter).more {
        jobs += 1;
        assert!(jobs < 10, "it does not come to an end");
    }
    assert!(jobs >= 1);
    assert_eq!(memory.state.applied, (1..=26).filter(|at| at % 2 == 1).collect::<Vec<u64>>());
    assert_eq!(memory.letters().len(), 13);
}

#[test]
fn batch_lets_events_of_held_keys_wait_and_applies_the_others() {
    let mut memory = Memory::new("aabab", [1]);
    memory.careful(OnError::DeadLetter);
    memory.log.extend(Memory::new("aabababa", []).log.into_iter().skip(5));
    let (lease, mark, worker) = (lease(), Position(8), Uuid::nil());
    let task = Task::Batch { lease, mark, events_max: 100, worker };
    memory.run(OnError::DeadLetter, Lifecycle::CatchUp, task);
    assert_eq!(memory.state.applied, [3, 5, 7]);
    let behind = |at| (at, Some(1));
    assert_eq!(memory.letters(), [(1, None), behind(2), behind(4), behind(6), behind(8)]);
}

#[test]
fn retry_goes_on_in_order_until_the_next_failure() {
    let mut memory = Memory::new("aaaaa", [2, 4]);
    memory.careful(OnError::DeadLetter);
    assert_eq!(memory.retry(Lifecycle::CatchUp, 2).failure.unwrap().position, Position(2));
    assert_eq!(memory.state.letters[&2].attempts, 3);
    memory.poison.remove(&2);
    let outcome = memory.retry(Lifecycle::CatchUp, 2);
    assert_eq!((outcome.applied, outcome.failure.unwrap().position), (2, Position(4)));
    assert_eq!(memory.letters(), [(4, None), (5, Some(4))]);
    assert!(memory.retry(Lifecycle::CatchUp, 2).missing);
    assert!(memory.retry(Lifecycle::CatchUp, 5).missing, "it only waits");
    memory.poison.clear();
    assert_eq!(memory.retry(Lifecycle::CatchUp, 4).failure, None);
    assert_eq!(memory.letters(), []);
    assert_eq!(memory.state.applied, [1, 2, 3, 4, 5]);
}

#[test]
fn retry_of_many_that_wait_takes_several_transactions() {
    let mut memory = Memory::new(&"a".repeat(1_200), [1]);
    while memory.careful(OnError::DeadLetter).more {}
    memory.poison.clear();
    let mut next = 1;
    let mut jobs = 0;
    loop {
        let outcome = memory.retry(Lifecycle::CatchUp, next);
        jobs += 1;
        match outcome.failure {
            Some(failure) => {
                assert!(outcome.more, "the rest was not tried");
                next = failure.position.0;
                assert_eq!(memory.letters()[0], (next, None));
            }
            None => break,
        }
    }
    assert_eq!(jobs, 3);
    assert_eq!(memory.letters(), []);
    assert_eq!(memory.state.applied, (1..=1_200).collect::<Vec<u64>>());
}

#[test]
fn retry_of_an_inline_one_takes_what_is_owed_in_its_place() {
    let mut memory = Memory::new("aaaa", []);
    let row = |position: u64, behind: Option<u64>| DeadLetterRow {
        position: Position(position),
        key: "a".into(),
        behind: behind.map(Position),
        error: behind.is_none().then(|| "poison".into()),
        attempts: 1,
    };
    memory.state.letters = BTreeMap::from([(1, row(1, None)), (3, row(3, Some(1)))]);
    memory.state.skips = BTreeMap::from([(2, "a".into()), (4, "a".into())]);
    assert_eq!(memory.retry(Lifecycle::Inline, 1).applied, 4);
    assert_eq!(memory.state.applied, [1, 2, 3, 4]);
    assert_eq!((memory.letters(), memory.state.skips.len()), (vec![], 0));
}

fn careful_drain(memory: &mut Memory, on_error: OnError) -> JobOutcome {
    let task =
        Task::CarefulDrain { lease: lease(), events_max: 64, actor: "w".into(), attempts: 1 };
    memory.run(on_error, Lifecycle::Inline, task)
}

#[test]
fn drain_that_fails_holds_all_that_the_key_owes() {
    let streams = "ab".repeat(50);
    let mut memory = Memory::new(&streams, [3]);
    memory.state.skips =
        (1..=100).map(|at| (at, memory.find(Position(at)).stream_id.as_str().to_owned())).collect();
    careful_drain(&mut memory, OnError::DeadLetter);
    assert!(memory.state.skips.values().all(|key| key == "b"), "{:?}", memory.state.skips);
    assert_eq!(memory.letters().len(), 49);
    assert_eq!(memory.letters()[..2], [(3, None), (5, Some(3))]);
    while careful_drain(&mut memory, OnError::DeadLetter).more {}
    assert!(memory.state.skips.is_empty());
    assert_eq!(memory.state.applied.len(), 51);
}

#[test]
fn drain_that_stops_settles_what_went_well_and_leaves_the_rest_owed() {
    let mut memory = Memory::new("abab", [3]);
    memory.state.skips = BTreeMap::from(
        [1, 2, 3, 4].map(|at| (at, if at % 2 == 1 { "a".to_owned() } else { "b".to_owned() })),
    );
    let outcome = careful_drain(&mut memory, OnError::Stop);
    assert_eq!(outcome.failure.unwrap().position, Position(3));
    assert_eq!(memory.state.applied, [1]);
    assert_eq!(memory.state.skips.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(memory.state.messages, ["skip-settled"]);
}

fn batch_of_an_inline_one(memory: &mut Memory, careful: bool) -> JobOutcome {
    let (lease, mark, worker) = (lease(), Position(memory.log.len() as u64), Uuid::nil());
    let task = match careful {
        false => Task::Batch { lease, mark, events_max: 100, worker },
        true => {
            let (actor, attempts) = ("w".to_owned(), 1);
            Task::CarefulBatch { lease, mark, events_max: 100, worker, actor, attempts }
        }
    };
    memory.run(OnError::DeadLetter, Lifecycle::Inline, task)
}

/// At position 3 of 6, with 2 and 3 owed, and 5 recorded by an append before it was kept.
fn kept() -> Memory {
    let mut memory = Memory::new("aabbab", []);
    memory.kept = true;
    memory.state.position = Position(3);
    memory.state.applied = vec![1];
    memory.state.skips = BTreeMap::from([(2, "a".into()), (3, "b".into()), (5, "a".into())]);
    memory
}

#[test]
fn batch_of_a_kept_one_applies_what_it_owes_first_and_passes_the_other_skips() {
    let mut memory = kept();
    let outcome = batch_of_an_inline_one(&mut memory, false);
    assert!(outcome.more, "the events behind its checkpoint are left");
    assert_eq!((outcome.position, outcome.applied), (Position(3), 2));
    assert_eq!(memory.state.skips.keys().copied().collect::<Vec<_>>(), [5]);
    let outcome = batch_of_an_inline_one(&mut memory, false);
    assert_eq!((outcome.position, outcome.applied), (Position(6), 3));
    assert_eq!(memory.state.applied, [1, 2, 3, 4, 5, 6]);
    assert!(memory.state.skips.is_empty());
}

#[test]
fn careful_batch_of_a_kept_one_puts_an_owed_event_aside_before_it_goes_on() {
    let mut memory = kept();
    memory.poison.insert(2);
    batch_of_an_inline_one(&mut memory, true);
    assert_eq!((memory.letters(), memory.state.position), (vec![(2, None)], Position(3)));
    batch_of_an_inline_one(&mut memory, true);
    assert_eq!(memory.letters(), [(2, None), (5, Some(2))]);
    assert_eq!(memory.state.applied, [1, 3, 4, 6]);
    assert!(memory.state.skips.is_empty());
}

#[test]
fn batch_of_one_that_appends_feed_by_now_is_refused() {
    let mut memory = kept();
    memory.kept = false;
    let before = format!("{:?}", memory.state);
    let (lease, mark, worker) = (lease(), Position(6), Uuid::nil());
    let task = Task::Batch { lease, mark, events_max: 100, worker };
    let outcome = memory.try_run(OnError::Stop, Lifecycle::Inline, task);
    assert!(matches!(outcome, Err(ApplyError::LeaseLost)), "{outcome:?}");
    assert_eq!(format!("{:?}", memory.state), before);
}
