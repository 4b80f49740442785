//! Applying events to a read model that is thrown away: a scratch one, or a real one in a transaction
//! that is rolled back. Nothing is recorded and no checkpoint moves.

use std::collections::HashMap;

use super::Job;
use super::apply::{Careful, End};
use super::page::{SHARD_KEY_OF_NONE, no_key};
use crate::projection::definition::OnError;
use crate::projection::projector::ApplyError;
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
