//! Applying events to a read model that is thrown away: a scratch one, or a real one in a transaction
//! that is rolled back. Nothing is recorded and no checkpoint moves.

use std::collections::HashMap;

use super::Job;
use super::apply::{Careful, End};
use super::page::{Page, SHARD_KEY_OF_NONE, no_key};
use crate::projection::definition::OnError;
use crate::projection::projector::{ApplyError, FoldDocuments, Projector};
use crate::store::Unit;
use crate::{Position, RecordedEvent};

impl Job {
    /// Applies events, in their order. Those that fail are left out if the policy would not stop there:
    /// what is put aside and still owed must not be among them, so they were given up for good.
    pub(crate) async fn try_on<U: Unit>(
        &self,
        unit: &mut U,
        events: Vec<RecordedEvent>,
    ) -> Result<(), ApplyError> {
        let page = self.page(events, None);
        let places = page.all();
        unit.savepoint().await?;
        match self.apply(unit, &page, &places).await {
            Ok(()) => return unit.release_savepoint().await,
            Err(ApplyError::Refused { .. }) => unit.rollback_to_savepoint().await?,
            Err(error) => return Err(error),
        }
        let on_error = match self.generation.on_error() {
            OnError::Stop => OnError::Stop,
            OnError::DeadLetter | OnError::Skip => OnError::Skip,
        };
        let mut left = &places[..];
        while !left.is_empty() {
            let mut careful = Careful::new(on_error, 0, HashMap::new());
            match self.apply_carefully(unit, &page, left, &mut careful).await? {
                End::Done => break,
                End::Full { index } => left = &left[index..],
                End::Failed { index, message } => {
                    let message = page.describe(left[index], &message);
                    let position = Some(page.position(left[index]));
                    return Err(ApplyError::Refused { message, position });
                }
            }
        }
        Ok(())
    }

    /// Folds events into documents in memory; those of keys that are not `wanted` are passed over. Returns
    /// by how many documents and bytes they have grown.
    pub(crate) fn fold_in_memory(
        &self,
        events: Vec<RecordedEvent>,
        documents: &mut HashMap<String, String>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(i64, i64), ApplyError> {
        let mut grown = (0, 0);
        let Projector::Document(fold) = &self.projector else { return Ok(grown) };
        let page = self.page(events, None);
        let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, key) in page.keys.iter().enumerate().filter(|(_, key)| wanted(key)) {
            by_key.entry(key).or_default().push(place);
        }
        for (key, places) in by_key {
            let before = documents.get(key).map(String::as_str);
            let after = self.fold_key(fold.as_ref(), &page, before, &places)?;
            let bytes = |text: Option<&str>| text.map_or(0, |text| (text.len() + key.len()) as i64);
            grown.0 += i64::from(after.is_some()) - i64::from(before.is_some());
            grown.1 += bytes(after.as_deref()) - bytes(before);
            match after {
                Some(document) => documents.insert(key.to_owned(), document),
                None => documents.remove(key),
            };
        }
        Ok(grown)
    }

    /// Folds events of one key; what fails is left out as in [`Job::try_on`].
    fn fold_key(
        &self,
        fold: &dyn FoldDocuments,
        page: &Page,
        before: Option<&str>,
        places: &[usize],
    ) -> Result<Option<String>, ApplyError> {
        let refused = places.iter().any(|&place| page.refused[place].is_some());
        let events: Vec<&RecordedEvent> = places.iter().map(|&place| &page.events[place]).collect();
        match fold.fold(before, &events) {
            Ok(document) if !refused => return Ok(document),
            Ok(_) | Err(ApplyError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut document = before.map(str::to_owned);
        for &place in places {
            let folded = match &page.refused[place] {
                None => fold.fold(document.as_deref(), &[&page.events[place]]),
                Some(message) => {
                    let position = Some(page.position(place));
                    Err(ApplyError::Refused { message: message.clone(), position })
                }
            };
            match folded {
                Ok(folded) => document = folded,
                Err(ApplyError::Refused { .. }) if self.generation.on_error() != OnError::Stop => {}
                Err(ApplyError::Refused { message, .. }) => {
                    let message = page.describe(place, &message);
                    let position = Some(page.position(place));
                    return Err(ApplyError::Refused { message, position });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(document)
    }

    /// The keys of events, by their positions; events that belong to no key are left out.
    pub(crate) fn keys_of(&self, events: &[RecordedEvent]) -> HashMap<Position, String> {
        let page = self.page(events.to_vec(), None);
        page.events.iter().map(|event| event.position).zip(page.keys).collect()
    }

    /// The shards of events, by their positions; events that belong to no key are left out.
    pub(crate) fn shards_of(&self, events: &[RecordedEvent]) -> HashMap<Position, u32> {
        let page = self.page(events.to_vec(), None);
        let shard = |(event, key): (&RecordedEvent, &String)| {
            // What has no key is of the shard that the batches have it in.
            let of = if *key == no_key(event.position) { SHARD_KEY_OF_NONE } else { key.as_str() };
            (event.position, self.shard_of(of))
        };
        page.events.iter().zip(&page.keys).map(shard).collect()
    }
}
