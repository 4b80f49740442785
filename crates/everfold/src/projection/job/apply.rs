//! Applying events in an open transaction: all at once, or carefully where some may fail.

use std::collections::{BTreeMap, HashMap};

use super::Job;
use super::page::Page;
use crate::projection::definition::OnError;
use crate::projection::generation::{DeadLetterRow, SystemMessage};
use crate::projection::projector::{ApplyError, DocumentChange, FoldDocuments, Projector};
use crate::store::{SqlEvents, Unit};
use crate::{Position, RecordedEvent};

/// So many failing events are dealt with in one transaction; the next one goes on behind them.
const FAILURES_MAX: usize = 8;

impl Job {
    /// Applies the events at these places, all or none.
    pub(super) async fn apply<U: Unit>(
        &self,
        unit: &mut U,
        page: &Page,
        places: &[usize],
    ) -> Result<(), ApplyError> {
        if places.is_empty() {
            return Ok(());
        }
        for &place in places {
            if let Some(message) = &page.refused[place] {
                let position = Some(page.position(place));
                return Err(ApplyError::Refused { message: message.clone(), position });
            }
        }
        let generation = &*self.generation;
        match &self.projector {
            Projector::Sql => {
                let positions = places.iter().map(|&place| page.position(place)).collect();
                unit.apply_sql(generation, SqlEvents::Positions(positions)).await
            }
            Projector::Document(fold) => self.fold(unit, fold.as_ref(), page, places).await,
            #[allow(unreachable_patterns, reason = "with one backend there is one kind of handler")]
            handler => {
                let (events, limit) = (page.at(places), self.handler_timeout);
                let _inside = self.call.enter();
                unit.run_handler(generation, handler, &events, limit).await
            }
        }
    }

    /// Loads each document once, folds its events, and writes it once.
    async fn fold<U: Unit>(
        &self,
        unit: &mut U,
        fold: &dyn FoldDocuments,
        page: &Page,
        places: &[usize],
    ) -> Result<(), ApplyError> {
        let mut by_key: BTreeMap<&str, Vec<&RecordedEvent>> = BTreeMap::new();
        for &place in places {
            by_key.entry(&page.keys[place]).or_default().push(&page.events[place]);
        }
        let keys: Vec<String> = by_key.keys().map(|&key| key.to_owned()).collect();
        let loaded = unit.load_documents(&self.generation, &keys).await?;
        let loaded: HashMap<String, String> = loaded.into_iter().collect();
        let mut changes = Vec::with_capacity(keys.len());
        for (key, events) in by_key {
            let before = loaded.get(key).map(String::as_str);
            let document = fold.fold(before, &events)?;
            if document.is_none() && before.is_none() {
                continue;
            }
            let last = events.last().expect("a key has at least one event");
            let (position, stream_version) = (last.position, last.version);
            let key = key.to_owned();
            changes.push(DocumentChange { key, document, position, stream_version });
        }
        match changes.is_empty() {
            true => Ok(()),
            false => unit.write_documents(&self.generation, &changes).await,
        }
    }

    /// Applies events in the order of `places`, dividing what fails in halves until the failing
    /// event is alone; then the policy decides. Everything before the end it returns is settled:
    /// applied, or noted in `careful`.
    pub(super) async fn apply_carefully<U: Unit>(
        &self,
        unit: &mut U,
        page: &Page,
        places: &[usize],
        careful: &mut Careful,
    ) -> Result<End, ApplyError> {
        // What is left to do, the first part on top.
        let whole = 0..places.len();
        let mut parts = vec![whole];
        while let Some(part) = parts.pop() {
            let part_places = &places[part.clone()];
            let mut free = careful.free(page, part_places);
            free.sort_unstable();
            unit.savepoint().await?;
            match self.apply(unit, page, &free).await {
                Ok(()) => {
                    unit.release_savepoint().await?;
                    careful.applied += free.len() as u64;
                    careful.hold(page, part_places);
                }
                Err(ApplyError::Refused { message, .. }) => {
                    unit.rollback_to_savepoint().await?;
                    if let [only] = free[..] {
                        let index = part_places.iter().position(|&place| place == only);
                        let index = part.start + index.expect("it is one of them");
                        careful.hold(page, &places[part.start..index]);
                        if careful.on_error == OnError::Stop {
                            return Ok(End::Failed { index, message });
                        }
                        self.give_up(unit, page, only, &message, careful).await?;
                        careful.hold(page, &places[index + 1..part.end]);
                        if careful.failures >= FAILURES_MAX && part.end < places.len() {
                            return Ok(End::Full { index: part.end });
                        }
                    } else {
                        let middle = part.start + part.len() / 2;
                        parts.push(middle..part.end);
                        parts.push(part.start..middle);
                    }
                }
                Err(error @ ApplyError::Broken { .. }) => {
                    unit.rollback_to_savepoint().await?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(End::Done)
    }

    /// Puts a failing event aside, or leaves it out for good.
    async fn give_up<U: Unit>(
        &self,
        unit: &mut U,
        page: &Page,
        place: usize,
        message: &str,
        careful: &mut Careful,
    ) -> Result<(), ApplyError> {
        careful.failures += 1;
        let (position, key) = (page.position(place), page.keys[place].clone());
        let mut said = page.describe(place, message);
        let kind = match careful.on_error {
            OnError::Skip => {
                if let Err(error) = self.tell_skipped(unit, &page.events[place]).await? {
                    said.push_str("; its hook for skipped events failed too: ");
                    said.push_str(&error);
                }
                "skipped"
            }
            OnError::Stop | OnError::DeadLetter => {
                careful.held.insert(key.clone(), position);
                careful.failed_keys.push((key.clone(), position));
                careful.rows.push(DeadLetterRow {
                    position,
                    key: key.clone(),
                    behind: None,
                    error: Some(message.to_owned()),
                    attempts: careful.attempts,
                });
                "dead-letter"
            }
        };
        careful.messages.push(self.message(kind, Some(position), Some(key), said));
        Ok(())
    }

    /// The inner error is the hook's own: it changes nothing about the event being given up.
    pub(super) async fn tell_skipped<U: Unit>(
        &self,
        unit: &mut U,
        event: &RecordedEvent,
    ) -> Result<Result<(), String>, ApplyError> {
        unit.savepoint().await?;
        let (generation, limit) = (&self.generation, self.handler_timeout);
        let told = {
            let _inside = self.call.enter();
            unit.tell_skipped(generation, &self.projector, event, limit).await
        };
        match told {
            Ok(()) => {
                unit.release_savepoint().await?;
                Ok(Ok(()))
            }
            Err(ApplyError::Refused { message, .. }) => {
                unit.rollback_to_savepoint().await?;
                Ok(Err(message))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn message(
        &self,
        kind: &'static str,
        position: Option<Position>,
        key: Option<String>,
        message: String,
    ) -> SystemMessage {
        let (generation, actor) = (Some(self.generation.id), self.task.actor().to_owned());
        SystemMessage { generation, kind, position, key, actor, message }
    }
}

/// How far a careful application came, as an index into the places it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// All are settled.
    Done,
    /// Those before this one are; this one failed, and the policy is to stop.
    Failed { index: usize, message: String },
    /// Those before this one are; enough failed for one transaction.
    Full { index: usize },
}

/// What a careful application notes down.
#[derive(Debug)]
pub(super) struct Careful {
    pub(super) on_error: OnError,
    /// How often a failing event was tried.
    pub(super) attempts: u32,
    /// Keys that wait, and behind which event.
    pub(super) held: HashMap<String, Position>,
    /// Keys that came to wait just now.
    pub(super) failed_keys: Vec<(String, Position)>,
    pub(super) applied: u64,
    failures: usize,
    /// To be put with the dead letters.
    pub(super) rows: Vec<DeadLetterRow>,
    pub(super) messages: Vec<SystemMessage>,
}

impl Careful {
    pub(super) fn new(on_error: OnError, attempts: u32, held: HashMap<String, Position>) -> Self {
        Careful {
            on_error,
            attempts,
            held,
            failed_keys: Vec::new(),
            applied: 0,
            failures: 0,
            rows: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Events whose keys do not wait.
    pub(super) fn free(&self, page: &Page, places: &[usize]) -> Vec<usize> {
        let free = |place: &usize| !self.held.contains_key(&page.keys[*place]);
        places.iter().copied().filter(free).collect()
    }

    /// Notes that the events among these whose keys wait wait too.
    pub(super) fn hold(&mut self, page: &Page, places: &[usize]) {
        for &place in places {
            let (position, key) = (page.position(place), &page.keys[place]);
            if let Some(&behind) = self.held.get(key).filter(|&&behind| behind != position) {
                self.rows.push(held_row(position, key, behind));
            }
        }
    }
}

pub(crate) fn held_row(position: Position, key: &str, behind: Position) -> DeadLetterRow {
    let (key, behind) = (key.to_owned(), Some(behind));
    DeadLetterRow { position, key, behind, error: None, attempts: 0 }
}
