//! Inline projections: applied in the transaction of the append, or noted down as owed.
//!
//! For each event and each inline generation that wants it, one of these is true when the append
//! commits: it was applied; it is owed, because nobody here can apply it or the generation is
//! stopped; or it waits behind a dead letter of its key. The transaction holds the write lock, so
//! the registry that it reads is the one that holds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::executor::block_on;
use rusqlite::{Connection, OptionalExtension};

use super::apply::apply_sql;
use super::functions::key_is_missing;
use super::registry::{self, word};
use super::unit::{SqliteUnit, record, take_skips_of};
use super::{Projections, unit};
use crate::Position;
use crate::error::{AppendError, StoreError, StoreErrorKind};
use crate::projection::definition::{OnError, ProjectionKind};
use crate::projection::document::panic_message;
use crate::projection::generation::{Generation, GenerationStatus, SystemMessage};
use crate::projection::job::no_key;
use crate::projection::job::{Job, Task};
use crate::projection::key::Key;
use crate::projection::projector::{ApplyError, Projector};
use crate::store::sqlite::error::store_error;
use crate::store::sqlite::read;
use crate::store::{Carried, SqlEvents};

const LIST: &str = include_str!("../../../../sql/sqlite/statements/list_inline.sql");
const OWES: &str = "SELECT EXISTS (SELECT 1 FROM everfold_skips WHERE generation = ?1) \
    OR EXISTS (SELECT 1 FROM everfold_dead_letters WHERE generation = ?1)";
const COUNT_SKIPS: &str = "SELECT count(*) FROM \
    (SELECT 1 FROM everfold_skips WHERE generation = ?1 AND key = ?2 LIMIT ?3)";
const HELD_BEHIND: &str = "SELECT position FROM everfold_dead_letters \
    WHERE generation = ?1 AND key = ?2 AND behind IS NULL ORDER BY position LIMIT 1";
const INSERT_SKIP: &str = "INSERT INTO everfold_skips (generation, position, key, reason) \
    VALUES (?1, ?2, ?3, ?4)";
const INSERT_HELD: &str = "INSERT INTO everfold_dead_letters (generation, position, key, behind) \
    VALUES (?1, ?2, ?3, ?4)";

/// More open skips of a key than this are left to the runner.
const HELP_MAX: i64 = 100;

/// An event that was stored just now.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::sqlite) struct Arrived<'a> {
    pub(in crate::store::sqlite) position: Position,
    pub(in crate::store::sqlite) stream_id: &'a str,
    pub(in crate::store::sqlite) event_type: &'a str,
}

/// Why the events of an append cannot be stored with what belongs to them.
#[derive(Debug)]
pub(in crate::store::sqlite) enum InlineError {
    Refused { projection: String, message: String },
    Store(StoreError),
}

impl From<InlineError> for AppendError {
    fn from(error: InlineError) -> Self {
        match error {
            InlineError::Refused { projection, message } => {
                AppendError::Projection { projection, message }
            }
            InlineError::Store(error) => error.into(),
        }
    }
}

impl From<rusqlite::Error> for InlineError {
    fn from(error: rusqlite::Error) -> Self {
        InlineError::Store(store_error(error))
    }
}

/// The inline generations that appends of this transaction have to look at.
pub(in crate::store::sqlite) struct Inline<'a> {
    connection: &'a Connection,
    projections: &'a Projections,
    generations: Vec<Due>,
}

struct Due {
    generation: Arc<Generation>,
    status: GenerationStatus,
    /// What applies events here, if anything does.
    projector: Option<Projector>,
}

/// An event with its key for one generation.
struct Keyed {
    position: Position,
    key: String,
}

impl Projections {
    /// What inline projections there are now. The transaction holds the write lock. One small query
    /// where there are none.
    pub(in crate::store::sqlite) fn inline<'a>(
        &'a self,
        connection: &'a Connection,
    ) -> Result<Inline<'a>, rusqlite::Error> {
        let mut generations = Vec::new();
        let mut statement = connection.prepare_cached(LIST)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, hash) = (row.get(0)?, row.get_ref(3)?.as_str()?);
            let status = word(row, 1, GenerationStatus::from_stored)?;
            let on_error = word(row, 2, OnError::from_stored)?;
            let generation = self.generation(connection, id, hash, status, on_error)?;
            let projector = self.projector(&generation);
            generations.push(Due { generation, status, projector });
        }
        Ok(Inline { connection, projections: self, generations })
    }

    /// A generation of the registry. All of it that appends look at is fixed, apart from what is
    /// compared here: whether readers see it changes with its status.
    fn generation(
        &self,
        connection: &Connection,
        id: i32,
        hash: &str,
        status: GenerationStatus,
        on_error: OnError,
    ) -> Result<Arc<Generation>, rusqlite::Error> {
        let mut known = self.inline.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let same = |generation: &&Arc<Generation>| {
            generation.definition_hash == hash
                && generation.status == status
                && generation.on_error() == on_error
        };
        if let Some(generation) = known.get(&id).filter(same) {
            return Ok(Arc::clone(generation));
        }
        let found = registry::find(connection, id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let generation = Arc::new(found);
        known.insert(id, Arc::clone(&generation));
        Ok(generation)
    }

    fn projector(&self, generation: &Generation) -> Option<Projector> {
        if generation.kind == ProjectionKind::Sql {
            return Some(Projector::Sql);
        }
        let carried = self.carried.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let same = |carried: &&Carried| is_same_code(&carried.generation, generation);
        carried.iter().find(same).map(|carried| carried.projector.clone())
    }
}

/// Whether what applies one generation applies the other: they are of the same version of a projection.
/// A rebuild makes one more, which appends apply from the switch on.
pub(super) fn is_same_code(one: &Generation, other: &Generation) -> bool {
    one.namespace == other.namespace
        && one.name == other.name
        && one.version == other.version
        && one.definition_hash == other.definition_hash
}

impl Inline<'_> {
    /// Whether any generation wants an event of one of these types.
    pub(in crate::store::sqlite) fn wants<'t>(
        &self,
        mut types: impl Iterator<Item = &'t str>,
    ) -> bool {
        !self.generations.is_empty()
            && types.any(|name| self.generations.iter().any(|due| due.wants(name)))
    }

    /// Applies events that were stored just now, in rising order, or notes down what is owed. An
    /// error leaves the savepoint of the append to be undone.
    pub(in crate::store::sqlite) fn apply(
        &self,
        arrived: &[Arrived<'_>],
    ) -> Result<(), InlineError> {
        for due in &self.generations {
            let wanted: Vec<Arrived<'_>> =
                arrived.iter().filter(|event| due.wants(event.event_type)).copied().collect();
            if !wanted.is_empty() {
                self.apply_to(due, &wanted)?;
            }
        }
        Ok(())
    }

    fn apply_to(&self, due: &Due, wanted: &[Arrived<'_>]) -> Result<(), InlineError> {
        let generation = &due.generation;
        let id = generation.id;
        let Some(projector) = due.projector.as_ref().filter(|_| due.is_active()) else {
            let reason = match due.status {
                GenerationStatus::Active => "not applied by this client",
                other => other.as_str(),
            };
            return self
                .keyed(due, wanted)?
                .iter()
                .try_for_each(|event| self.owe(id, event, reason));
        };
        let owes: bool = self.connection.prepare_cached(OWES)?.query_row([id], |row| row.get(0))?;
        // The short way: nothing waits, and the key is no question.
        if !owes && generation.key == Key::Stream {
            let positions = wanted.iter().map(|event| event.position).collect();
            return self.run(due, projector, positions);
        }
        let mut keyed = self.keyed(due, wanted)?;
        if owes {
            keyed = self.help(id, keyed)?;
        }
        let positions: BTreeSet<Position> = keyed.iter().map(|event| event.position).collect();
        match positions.is_empty() {
            true => Ok(()),
            false => self.run(due, projector, positions.into_iter().collect()),
        }
    }

    /// The keys of events. One that has none is refused where the policy is to stop.
    fn keyed(&self, due: &Due, wanted: &[Arrived<'_>]) -> Result<Vec<Keyed>, InlineError> {
        if due.generation.key == Key::Stream {
            let keyed = |event: &Arrived<'_>| Keyed {
                position: event.position,
                key: event.stream_id.to_owned(),
            };
            return Ok(wanted.iter().map(keyed).collect());
        }
        let positions: Vec<Position> = wanted.iter().map(|event| event.position).collect();
        let events = read::read_at(self.connection, &positions)?;
        let strict = due.is_active() && due.generation.on_error() == OnError::Stop;
        let keyed = events.iter().map(|event| match due.generation.key.of(event) {
            Some(key) => Ok(Keyed { position: event.position, key }),
            None if strict => Err(due.refused(key_is_missing(&due.generation.key))),
            None => Ok(Keyed { position: event.position, key: no_key(event.position) }),
        });
        keyed.collect()
    }

    /// Sees to what the keys of these events wait for. Events behind a dead letter are held, those
    /// behind many open skips are owed too. The rest comes back, with the few open skips of their
    /// keys, which are to be applied before them.
    fn help(&self, generation: i32, keyed: Vec<Keyed>) -> Result<Vec<Keyed>, InlineError> {
        let keys: HashSet<&str> = keyed.iter().map(|event| event.key.as_str()).collect();
        let mut waiting: HashMap<String, Waiting> = HashMap::new();
        for key in keys {
            if let Some(why) = self.waiting(generation, key)? {
                waiting.insert(key.to_owned(), why);
            }
        }
        let (mut due, mut helped) = (Vec::new(), HashSet::new());
        for event in keyed {
            match waiting.get(&event.key) {
                Some(Waiting::BehindSkips) => self.owe(generation, &event, "behind open skips")?,
                Some(Waiting::Behind(failed)) => self.hold(generation, &event, *failed)?,
                None => {
                    if helped.insert(event.key.clone()) {
                        due.extend(self.settle(generation, &event.key)?);
                    }
                    due.push(event);
                }
            }
        }
        Ok(due)
    }

    fn waiting(&self, generation: i32, key: &str) -> Result<Option<Waiting>, rusqlite::Error> {
        let skips: i64 = self
            .connection
            .prepare_cached(COUNT_SKIPS)?
            .query_row((generation, key, HELP_MAX + 1), |row| row.get(0))?;
        let behind: Option<i64> = self
            .connection
            .prepare_cached(HELD_BEHIND)?
            .query_row((generation, key), |row| row.get(0))
            .optional()?;
        Ok(match behind.map(Position::from_stored) {
            _ if skips > HELP_MAX => Some(Waiting::BehindSkips),
            // They are in front of this event, and not yet among those that the dead letter holds.
            Some(_) if skips > 0 => Some(Waiting::BehindSkips),
            Some(failed) => Some(Waiting::Behind(failed)),
            None => None,
        })
    }

    /// Takes the open skips of a key, to be applied now.
    fn settle(&self, generation: i32, key: &str) -> Result<Vec<Keyed>, InlineError> {
        let taken = take_skips_of(self.connection, generation, key)?;
        for &position in &taken {
            let message = SystemMessage {
                generation: Some(generation),
                kind: "skip-settled",
                position: Some(position),
                key: Some(key.to_owned()),
                actor: "append".to_owned(),
                message: format!("the event at position {position} is not owed any more"),
            };
            record(self.connection, &message)?;
        }
        Ok(taken.into_iter().map(|position| Keyed { position, key: key.to_owned() }).collect())
    }

    fn owe(&self, generation: i32, event: &Keyed, reason: &str) -> Result<(), InlineError> {
        let params = (generation, event.position.to_stored(), &event.key, reason);
        self.connection.prepare_cached(INSERT_SKIP)?.execute(params)?;
        Ok(())
    }

    fn hold(&self, generation: i32, event: &Keyed, failed: Position) -> Result<(), InlineError> {
        let params = (generation, event.position.to_stored(), &event.key, failed.to_stored());
        self.connection.prepare_cached(INSERT_HELD)?.execute(params)?;
        Ok(())
    }

    /// Applies the events at these positions; what is refused goes the way of the policy.
    fn run(
        &self,
        due: &Due,
        projector: &Projector,
        positions: Vec<Position>,
    ) -> Result<(), InlineError> {
        let generation = &due.generation;
        let outcome = match (projector, generation.on_error()) {
            (Projector::Sql, OnError::Stop) => {
                let plans = &self.projections.plans;
                let plan = plans.of(self.connection, generation.id, &generation.definition_hash);
                plan.and_then(|plan| {
                    apply_sql(self.connection, &plan, &SqlEvents::Positions(positions))
                })
            }
            _ => self.run_job(due, projector, positions),
        };
        outcome.map_err(|error| match error {
            ApplyError::Refused { message, .. } | ApplyError::Broken { message } => {
                due.refused(message)
            }
            // SQLite gives up the whole transaction when it stops a statement that writes.
            ApplyError::OutOfTime(error) if self.connection.is_autocommit() => {
                due.rolled_back(StoreErrorKind::Other, &error.message)
            }
            // Or when a rule of the table says so (ON CONFLICT ROLLBACK), or the disk is full.
            ApplyError::Store(error) if self.connection.is_autocommit() => {
                due.rolled_back(error.kind(), &error.to_string())
            }
            ApplyError::OutOfTime(error) => due.refused(error.message),
            ApplyError::Store(error) => InlineError::Store(error),
            ApplyError::LeaseLost => unreachable!("an append holds no lease"),
        })
    }

    fn run_job(
        &self,
        due: &Due,
        projector: &Projector,
        positions: Vec<Position>,
    ) -> Result<(), ApplyError> {
        let (generation, projector) = (Arc::clone(&due.generation), projector.clone());
        let upcasters = Arc::clone(&self.projections.upcasters);
        let job = Job::new(generation, projector, upcasters, Task::Inline { positions });
        let Projections { plans, bytes_max, .. } = self.projections;
        let mut unit = SqliteUnit::new(self.connection, plans, *bytes_max);
        let outcome = catch_unwind(AssertUnwindSafe(|| block_on(job.run(&mut unit))));
        match outcome {
            Ok(outcome) => outcome.map(|_| ()),
            Err(panic) => Err(unit::panicked(panic_message(panic.as_ref()))),
        }
    }
}

/// What an event of a key has to wait for.
enum Waiting {
    /// More open skips than an append settles, or some with a dead letter.
    BehindSkips,
    /// A dead letter.
    Behind(Position),
}

impl Due {
    fn wants(&self, event_type: &str) -> bool {
        match &self.generation.event_types {
            Some(types) => types.iter().any(|name| name == event_type),
            None => true,
        }
    }

    fn is_active(&self) -> bool {
        self.status == GenerationStatus::Active
    }

    fn refused(&self, message: String) -> InlineError {
        InlineError::Refused { projection: self.generation.name.clone(), message }
    }
    /// More than the append in hand is undone, so that it is no refusal of that alone.
    fn rolled_back(&self, kind: StoreErrorKind, message: &str) -> InlineError {
        let name = &self.generation.name;
        let message = format!(
            "SQLite rolled the whole transaction back while inline projection \"{name}\" was applied, \
             nothing was stored: {message}"
        );
        InlineError::Store(StoreError::new(kind, message))
    }
}
