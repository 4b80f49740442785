//! Verifying the read model that readers see, at one moment, in a transaction that is rolled back.
//!
//! Documents are folded in memory and nothing is written. SQL and handlers are run into a scratch home,
//! SQL over as much of the log at once as there are no events to leave out between.

mod documents;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::super::PostgresStore;
use super::super::connect::Param;
use super::super::projection::names::{quoted, table};
use super::super::projection::unit::{PostgresUnit, statement};
use super::super::read::event;
use super::looking::{at_one_moment, holding};
use super::rows::{self, Homes, Only};
use super::scratch::{self, refused};
use crate::projection::definition::ProjectionKind;
use crate::projection::generation::Generation;
use crate::projection::job::{Job, Task};
use crate::projection::key::Key;
use crate::projection::projector::ApplyError;
use crate::rebuild::folding::{Folding, Noted};
use crate::rebuild::holding::{Holding, Trial};
use crate::rebuild::verify::sample_positions;
use crate::rebuild::{Comparison, VerifyScope};
use crate::store::{SqlEvents, Unit, Verified, Verifying, Wanted};
use crate::{Position, RecordedEvent};

const READ_OF_STREAMS: &str = statement!("read_events_of_streams");
/// Events that are folded or applied at once.
const PAGE_EVENTS: usize = 5_000;

pub(super) async fn verify(
    store: &PostgresStore,
    verifying: &Verifying,
) -> Result<Verified, ApplyError> {
    at_one_moment(&store.engine, &store.options, async |unit| look(unit, verifying).await).await
}

async fn look(unit: &mut PostgresUnit<'_>, verifying: &Verifying) -> Result<Verified, ApplyError> {
    let Verifying { generation, projector, upcasters, .. } = verifying;
    let held = holding(unit, generation).await?;
    let (generation, projector) = (Arc::clone(generation), projector.clone());
    let job = Job::new(generation, projector, Arc::clone(upcasters), Task::Trial);
    let looking = Looking { verifying, job, held };
    let comparison = match &verifying.scope {
        VerifyScope::All => looking.all(unit).await?,
        VerifyScope::Keys(keys) => looking.keys(unit, keys.iter().cloned().collect()).await?,
        VerifyScope::Sample(count) => {
            let keys = looking.sample(unit, *count).await?;
            looking.keys(unit, keys).await?
        }
    };
    let owed = looking.held.owed.len() as u64;
    let position = looking.held.highest();
    Ok(Verified { comparison: Comparison { owed, ..comparison }, position })
}

struct Looking<'a> {
    verifying: &'a Verifying,
    /// Of the generation that readers see.
    job: Job,
    held: Holding,
}

impl Looking<'_> {
    fn generation(&self) -> &Generation {
        &self.verifying.generation
    }

    async fn all(&self, unit: &mut PostgresUnit<'_>) -> Result<Comparison, ApplyError> {
        if self.generation().kind == ProjectionKind::Document {
            return self.all_documents(unit).await;
        }
        let scratch = self.scratch(unit).await?;
        let job = Job { generation: Arc::clone(&scratch), ..self.job.clone() };
        let mut has = Position(0);
        if scratch.kind == ProjectionKind::Sql {
            has = self.apply_ranges(unit, &scratch).await?;
        }
        let trial = Trial { job: &job, has: &[has], wanted: &self.held, wanted_by: &self.job };
        trial.fill(unit).await?;
        self.compare(unit, &scratch, None).await
    }

    async fn scratch(&self, unit: &mut PostgresUnit<'_>) -> Result<Arc<Generation>, ApplyError> {
        scratch::make(unit, self.generation(), &self.verifying.projector).await
    }

    /// Lets the server apply all up to the lowest checkpoint, in as few statements as there are events to
    /// leave out; returns how far that went well.
    async fn apply_ranges(
        &self,
        unit: &mut PostgresUnit<'_>,
        scratch: &Generation,
    ) -> Result<Position, ApplyError> {
        let lowest = self.held.lowest();
        let left_out: BTreeSet<Position> =
            self.held.owed.union(&self.held.given_up).copied().collect();
        let mut ends: Vec<Position> =
            left_out.range(..=lowest).map(|p| Position(p.0 - 1)).collect();
        ends.push(lowest);
        let mut after = Position(0);
        for up_to in ends {
            if up_to > after {
                unit.savepoint().await?;
                let events = SqlEvents::Range { after, up_to, shard: 0 };
                match unit.apply_sql(scratch, events).await {
                    Ok(()) => unit.release_savepoint().await?,
                    // Some event fails that was given up long ago: the pages find it.
                    Err(ApplyError::Refused { .. }) => {
                        unit.rollback_to_savepoint().await?;
                        return Ok(after);
                    }
                    Err(error) => return Err(error),
                }
            }
            // Behind the event that is left out.
            after = if up_to == lowest { lowest } else { Position(up_to.0 + 1) };
        }
        Ok(lowest)
    }

    async fn compare(
        &self,
        unit: &mut PostgresUnit<'_>,
        scratch: &Generation,
        only: Option<&Only>,
    ) -> Result<Comparison, ApplyError> {
        let generation = self.generation();
        let homes = Homes {
            expected: &scratch.home,
            found: &generation.home,
            kind: generation.kind,
            only,
            examples: self.verifying.examples,
        };
        Ok(rows::compare(unit, &homes).await?)
    }

    fn noted(&self) -> Noted<'_> {
        let (table, examples) = (self.generation().name.as_str(), self.verifying.examples);
        Noted { table, examples, comparison: Comparison::default() }
    }

    /// Keys of events at random positions.
    async fn sample(
        &self,
        unit: &mut PostgresUnit<'_>,
        count: usize,
    ) -> Result<BTreeSet<String>, ApplyError> {
        let (generation, up_to) = (self.generation(), self.held.highest());
        let mut keys = BTreeSet::new();
        for after in sample_positions(up_to, count) {
            let wanted = Wanted { generation, after, up_to, events_max: 1 };
            let events = self.held.of(&self.job, unit.read_events(wanted).await?.events);
            keys.extend(self.job.keys_of(&events).into_values());
            if keys.len() >= count {
                break;
            }
        }
        Ok(keys)
    }

    async fn keys(
        &self,
        unit: &mut PostgresUnit<'_>,
        keys: BTreeSet<String>,
    ) -> Result<Comparison, ApplyError> {
        let events = self.events_of(unit, &keys).await?;
        let keys: Vec<String> = keys.into_iter().collect();
        let generation = self.generation();
        if generation.kind == ProjectionKind::Document {
            let mut noted = self.noted();
            let mut folding = Folding::new(&self.job, &self.held, usize::MAX);
            folding.add(events)?;
            let table = table(&generation.home, &generation.name);
            let sql = format!("SELECT key, document FROM {table} WHERE key = ANY ($1)");
            let params: [Param<'_>; 1] = [(&keys, Type::TEXT_ARRAY)];
            documents::compare(unit, &sql, &params, &mut folding, &mut noted).await?;
            folding.compare_missing(&mut noted);
            return Ok(noted.comparison);
        }
        let scratch = self.scratch(unit).await?;
        let job = Job { generation: Arc::clone(&scratch), ..self.job.clone() };
        let held = self.held.of(&self.job, events);
        for page in held.chunks(PAGE_EVENTS) {
            job.try_on(unit, page.to_vec()).await?;
        }
        let only = self.key_columns(unit, &scratch, keys).await?;
        self.compare(unit, &scratch, Some(&only)).await
    }

    /// The events of some keys, in their order.
    async fn events_of(
        &self,
        unit: &mut PostgresUnit<'_>,
        keys: &BTreeSet<String>,
    ) -> Result<Vec<RecordedEvent>, ApplyError> {
        let (generation, up_to) = (self.generation(), self.held.highest());
        if generation.key == Key::Stream {
            let (streams, stored): (Vec<&str>, _) =
                (keys.iter().map(String::as_str).collect(), up_to.to_stored());
            let params: [Param<'_>; 3] = [
                (&streams, Type::TEXT_ARRAY),
                (&generation.event_types, Type::TEXT_ARRAY),
                (&stored, Type::INT8),
            ];
            let rows = unit.query(READ_OF_STREAMS, &params).await?;
            return rows.iter().map(|row| event(row).map_err(ApplyError::Store)).collect();
        }
        let (mut found, mut after) = (Vec::new(), Position(0));
        while after < up_to {
            let wanted = Wanted { generation, after, up_to, events_max: PAGE_EVENTS };
            let page = unit.read_events(wanted).await?;
            after = page.read_to;
            let by_position = self.job.keys_of(&page.events);
            let of_them = |event: &RecordedEvent| {
                by_position.get(&event.position).is_some_and(|key| keys.contains(key))
            };
            found.extend(page.events.into_iter().filter(of_them));
        }
        Ok(found)
    }

    /// The column of each table that tells the key of a row: one of its primary key that has nothing but
    /// these keys where only their events were applied.
    async fn key_columns(
        &self,
        unit: &mut PostgresUnit<'_>,
        scratch: &Generation,
        keys: Vec<String>,
    ) -> Result<Only, ApplyError> {
        let homes = Homes {
            expected: &scratch.home,
            found: &self.generation().home,
            kind: scratch.kind,
            only: None,
            examples: 0,
        };
        let (tables, _) = rows::compared_tables(unit, &homes).await?;
        let mut columns = Vec::new();
        for compared in tables {
            let mut found = None;
            for column in &compared.key {
                let sql = format!(
                    "SELECT bool_and({}::text = ANY ($1)) IS NOT FALSE FROM {}",
                    quoted(column),
                    table(&scratch.home, &compared.name)
                );
                let rows = unit.query(&sql, &[(&keys, Type::TEXT_ARRAY)]).await?;
                if rows[0].get(0) {
                    found = Some(column.clone());
                    break;
                }
            }
            let Some(column) = found else {
                return Err(refused(format!(
                    "has rows in table {} that do not carry the key they belong to in its primary key; \
                     verify all of it",
                    compared.name
                )));
            };
            columns.push((compared.name, column));
        }
        Ok(Only { keys, columns })
    }
}
