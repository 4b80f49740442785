//! Folding the documents that an append changes. The key of an inline document is its stream.

use std::collections::BTreeMap;

use super::due::{Due, DueEvent};
use crate::Position;
use crate::RecordedEvent;
use crate::projection::definition::OnError;
use crate::projection::generation::Generation;
use crate::projection::projector::{ApplyError, DocumentChange, FoldDocuments};

/// What became of a generation's events.
#[derive(Default)]
pub(super) struct Folded {
    /// In the order of keys.
    pub(super) changes: Vec<DocumentChange>,
    pub(super) given_up: Vec<GivenUp>,
}

/// An event that is not applied: it failed, or it waits behind one that did.
pub(super) struct GivenUp {
    pub(super) generation: i32,
    pub(super) position: Position,
    pub(super) key: String,
    pub(super) why: Why,
}

pub(super) enum Why {
    /// Put aside.
    Failed(String),
    /// Left out for good.
    LeftOut(String),
    Behind(Position),
}

pub(super) fn fold(
    generation: &Generation,
    fold: &dyn FoldDocuments,
    due: &Due,
    positions: &[Position],
) -> Result<Folded, ApplyError> {
    let mut by_key: BTreeMap<&str, Vec<&DueEvent>> = BTreeMap::new();
    for &position in positions {
        let event = due.at(position);
        by_key.entry(event.event.stream_id.as_str()).or_default().push(event);
    }
    let mut folded = Folded::default();
    for (key, events) in by_key {
        let before = due.document(generation.id, key);
        let (after, last) = match fold_all(fold, before, &events) {
            Ok(document) => (document, events.last().map(|due| &due.event)),
            Err(ApplyError::Refused { .. }) if generation.on_error() != OnError::Stop => {
                one_by_one(generation, fold, before, &events, &mut folded.given_up)?
            }
            Err(error) => return Err(error),
        };
        let Some(last) = last.filter(|_| before.is_some() || after.is_some()) else { continue };
        folded.changes.push(DocumentChange {
            key: key.to_owned(),
            document: after,
            position: last.position,
            stream_version: last.version,
        });
    }
    Ok(folded)
}

fn fold_all(
    fold: &dyn FoldDocuments,
    before: Option<&str>,
    events: &[&DueEvent],
) -> Result<Option<String>, ApplyError> {
    for due in events {
        if let Some(message) = &due.refused {
            let position = Some(due.event.position);
            return Err(ApplyError::Refused { message: message.clone(), position });
        }
    }
    let events: Vec<&RecordedEvent> = events.iter().map(|due| &due.event).collect();
    fold.fold(before, &events)
}

/// The document after those events that can be applied, and the last of them.
fn one_by_one<'a>(
    generation: &Generation,
    fold: &dyn FoldDocuments,
    before: Option<&str>,
    events: &[&'a DueEvent],
    given_up: &mut Vec<GivenUp>,
) -> Result<(Option<String>, Option<&'a RecordedEvent>), ApplyError> {
    let mut document = before.map(str::to_owned);
    let mut last = None;
    let mut behind = None;
    for &due in events {
        let why = match behind {
            Some(failed) => Why::Behind(failed),
            None => match fold_all(fold, document.as_deref(), &[due]) {
                Ok(after) => {
                    document = after;
                    last = Some(&due.event);
                    continue;
                }
                Err(ApplyError::Refused { message, .. }) => {
                    GivenUp::why(generation, message, due.event.position, &mut behind)
                }
                Err(error) => return Err(error),
            },
        };
        given_up.push(GivenUp::new(generation, &due.event, why));
    }
    Ok((document, last))
}

impl GivenUp {
    pub(super) fn new(generation: &Generation, event: &RecordedEvent, why: Why) -> Self {
        let key = event.stream_id.as_str().to_owned();
        GivenUp { generation: generation.id, position: event.position, key, why }
    }

    /// What the policy makes of an event that failed; with `behind` later ones wait for it.
    pub(super) fn why(
        generation: &Generation,
        message: String,
        position: Position,
        behind: &mut Option<Position>,
    ) -> Why {
        match generation.on_error() {
            OnError::Skip => Why::LeftOut(message),
            OnError::Stop | OnError::DeadLetter => {
                *behind = Some(position);
                Why::Failed(message)
            }
        }
    }
}
