//! Verifying all documents: the log is folded in memory, a part of the keys at a time, and each part
//! compared with the table.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::TryStreamExt;
use tokio_postgres::types::Type;

use super::super::super::connect::{Param, QueryError};
use super::super::super::projection::functions::HASHES;
use super::super::super::projection::names::table;
use super::super::super::projection::unit::{PostgresUnit, statement};
use super::super::super::read::event;
use super::super::super::types::JsonString;
use super::super::copy::{Folders, Manner, Progress, Reading};
use super::{Looking, PAGE_EVENTS};
use crate::Position;
use crate::error::StoreError;
use crate::projection::key::{Key, hash_of};
use crate::projection::projector::{ApplyError, Projector};
use crate::rebuild::folding::{Folding, Noted, compare_missing, compare_one};
use crate::rebuild::pace::Pace;
use crate::rebuild::{Comparison, RebuildOptions};

const READ_WANTED: &str = statement!("read_wanted");

impl Looking<'_> {
    pub(super) async fn all_documents(
        &self,
        unit: &mut PostgresUnit<'_>,
    ) -> Result<Comparison, ApplyError> {
        match self.all_at_once(unit).await? {
            Some(comparison) => Ok(comparison),
            None => self.page_by_page(unit).await,
        }
    }

    /// Folds with the projection's own types, as a rebuild does. Nothing, where only a look at each
    /// event tells what the read model holds: one of them fails, or its shards are not at one position.
    async fn all_at_once(
        &self,
        unit: &mut PostgresUnit<'_>,
    ) -> Result<Option<Comparison>, ApplyError> {
        let Projector::Document(fold) = &self.verifying.projector else { return Ok(None) };
        let cutoff = self.held.highest();
        if self.held.lowest() != cutoff {
            return Ok(None);
        }
        let without: BTreeSet<Position> =
            self.held.owed.union(&self.held.given_up).copied().collect();
        let (mut noted, pace) = (self.noted(), Pace::new(&RebuildOptions::default()));
        let mut manner = Manner {
            generation: Arc::clone(&self.verifying.generation),
            fold: Arc::clone(fold),
            upcasters: Arc::clone(&self.verifying.upcasters),
            hashes: 0..HASHES.unsigned_abs(),
            only: None,
            without: Arc::new(without),
            progress: Progress::new(&Arc::default()),
        };
        while !manner.hashes.is_empty() {
            let mut folders = Folders::start(&manner, self.verifying.memory_max);
            let (low, high) = (manner.hashes.start, manner.hashes.end);
            let generation = self.generation();
            let reading = Reading { generation, cutoff, pace: &pace, low, high, only: None };
            for window in reading.windows() {
                reading.read(unit, window, &mut folders).await?;
            }
            if !folders.report().await?.is_clean() {
                return Ok(None);
            }
            let high = folders.high();
            let mut expected = HashMap::new();
            for (key, json) in folders.take().await? {
                let Some(json) = json else { return Ok(None) };
                expected.insert(key, json);
            }
            self.compare_part(unit, (low, high), &mut expected, &mut noted).await?;
            manner.hashes.start = high;
        }
        Ok(Some(noted.comparison))
    }

    /// Compares the documents of keys whose hash is from `low` on and below `high`.
    async fn compare_part(
        &self,
        unit: &mut PostgresUnit<'_>,
        (low, high): (u64, u64),
        expected: &mut HashMap<String, String>,
        noted: &mut Noted<'_>,
    ) -> Result<(), ApplyError> {
        let generation = self.generation();
        let by_stream = generation.key == Key::Stream;
        let mut sql =
            format!("SELECT key, document FROM {}", table(&generation.home, &generation.name));
        let is_part = low > 0 || high < HASHES.unsigned_abs();
        if is_part && by_stream {
            let last = HASHES - 1;
            sql.push_str(&format!(
                " WHERE (hashtext(key)::bigint & {last}) >= {low} \
                 AND (hashtext(key)::bigint & {last}) < {high}"
            ));
        }
        let is_in =
            |key: &str| by_stream || !is_part || (low..high).contains(&u64::from(hash_of(key)));
        stored(unit, &sql, &[], |key, document| {
            if is_in(key) {
                compare_one(key, expected.remove(key).as_deref(), document, noted);
            }
        })
        .await?;
        compare_missing(expected.drain().collect(), noted);
        Ok(())
    }

    async fn page_by_page(&self, unit: &mut PostgresUnit<'_>) -> Result<Comparison, ApplyError> {
        let generation = self.generation();
        let mut noted = self.noted();
        let mut folding = Folding::new(&self.job, &self.held, self.verifying.memory_max);
        loop {
            let up_to = self.held.highest().to_stored();
            let params: [Param<'_>; 2] =
                [(&up_to, Type::INT8), (&generation.event_types, Type::TEXT_ARRAY)];
            fold_all(unit, READ_WANTED, &params, &mut folding).await?;
            let table = table(&generation.home, &generation.name);
            let sql = format!("SELECT key, document FROM {table}");
            compare(unit, &sql, &[], &mut folding, &mut noted).await?;
            folding.compare_missing(&mut noted);
            if !folding.next_part() {
                return Ok(noted.comparison);
            }
        }
    }
}

/// Folds all that a statement returns.
async fn fold_all(
    unit: &mut PostgresUnit<'_>,
    sql: &str,
    params: &[Param<'_>],
    folding: &mut Folding<'_>,
) -> Result<(), ApplyError> {
    unit.settle_set_up().await?;
    let reading = async {
        let rows = unit.transaction().query_typed_raw(sql, params.iter().cloned()).await;
        let rows = rows.map_err(driver)?;
        futures::pin_mut!(rows);
        let mut page = Vec::with_capacity(PAGE_EVENTS);
        while let Some(row) = rows.try_next().await.map_err(driver)? {
            page.push(event(&row)?);
            if page.len() == PAGE_EVENTS {
                folding.add(std::mem::replace(&mut page, Vec::with_capacity(PAGE_EVENTS)))?;
            }
        }
        folding.add(page)
    };
    reading.await
}

/// Compares all documents that a statement returns.
pub(super) async fn compare(
    unit: &mut PostgresUnit<'_>,
    sql: &str,
    params: &[Param<'_>],
    folding: &mut Folding<'_>,
    noted: &mut Noted<'_>,
) -> Result<(), ApplyError> {
    stored(unit, sql, params, |key, document| folding.compare(key, document, noted)).await
}

/// Looks at each document that a statement returns.
async fn stored(
    unit: &mut PostgresUnit<'_>,
    sql: &str,
    params: &[Param<'_>],
    mut each: impl FnMut(&str, &str),
) -> Result<(), ApplyError> {
    unit.settle_set_up().await?;
    let rows = unit.transaction().query_typed_raw(sql, params.iter().cloned()).await;
    let rows = rows.map_err(driver)?;
    futures::pin_mut!(rows);
    while let Some(row) = rows.try_next().await.map_err(driver)? {
        each(row.get(0), &row.get::<_, JsonString>(1).0);
    }
    Ok(())
}

fn driver(error: tokio_postgres::Error) -> StoreError {
    QueryError::Driver(error).into_store_error()
}
