//! What the server left for this client to apply.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::{Error, Row};
use uuid::Uuid;

use super::super::types::{JsonString, Time};
use crate::upcast::Upcasters;
use crate::{Position, RecordedEvent, StreamId, Version};

/// Events that are due, for each generation, and the documents they concern.
#[derive(Default)]
pub(super) struct Due {
    /// In rising order.
    events: Vec<DueEvent>,
    /// By generation, in rising order.
    pub(super) positions: BTreeMap<i32, Vec<Position>>,
    documents: Documents,
}

/// Documents by generation and key.
pub(super) type Documents = HashMap<(i32, String), String>;

/// An event in today's shape, or why it has none.
pub(super) struct DueEvent {
    pub(super) event: RecordedEvent,
    pub(super) refused: Option<String>,
}

impl DueEvent {
    fn new(mut event: RecordedEvent, upcasters: &Upcasters) -> Self {
        let refused = upcasters.apply(&mut event).err().map(|error| error.to_string());
        DueEvent { event, refused }
    }
}

/// The columns of `append_group` behind the members' outcomes.
const CARRIED: usize = 5;

impl Due {
    pub(super) fn read(
        row: &Row,
        documents: Documents,
        upcasters: &Upcasters,
    ) -> Result<Due, Error> {
        let Some(carried) = row.try_get::<_, Option<Vec<i64>>>(CARRIED)? else {
            return Ok(Due::default());
        };
        let mut positions: BTreeMap<i32, Vec<Position>> = BTreeMap::new();
        for pair in carried.chunks_exact(2) {
            let generation = i32::try_from(pair[0]).expect("ids of generations are integers");
            positions.entry(generation).or_default().push(Position::from_stored(pair[1]));
        }
        let events = events(row, upcasters)?;
        Ok(Due { events, positions, documents })
    }

    /// One event, which is due in all these generations.
    pub(super) fn of_one(
        event: RecordedEvent,
        positions: BTreeMap<i32, Vec<Position>>,
        documents: Documents,
        upcasters: &Upcasters,
    ) -> Due {
        Due { events: vec![DueEvent::new(event, upcasters)], positions, documents }
    }

    pub(super) fn at(&self, position: Position) -> &DueEvent {
        let place = self.events.binary_search_by_key(&position, |due| due.event.position);
        &self.events[place.expect("every event that is due was sent")]
    }

    pub(super) fn document(&self, generation: i32, key: &str) -> Option<&str> {
        self.documents.get(&(generation, key.to_owned())).map(String::as_str)
    }
}

fn events(row: &Row, upcasters: &Upcasters) -> Result<Vec<DueEvent>, Error> {
    let positions: Vec<i64> = row.try_get(CARRIED + 1)?;
    let streams: Vec<&str> = row.try_get(CARRIED + 2)?;
    let versions: Vec<i64> = row.try_get(CARRIED + 3)?;
    let types: Vec<String> = row.try_get(CARRIED + 4)?;
    let schema_versions: Vec<i32> = row.try_get(CARRIED + 5)?;
    let data: Vec<JsonString> = row.try_get(CARRIED + 6)?;
    let metadata: Vec<JsonString> = row.try_get(CARRIED + 7)?;
    let ids: Vec<Uuid> = row.try_get(CARRIED + 8)?;
    let times: Vec<Time> = row.try_get(CARRIED + 9)?;
    let json = data.into_iter().zip(metadata).zip(types).zip(times);
    let event =
        |(n, (((data, metadata), event_type), time)): (usize, (((JsonString, _), _), Time))| {
            let metadata: JsonString = metadata;
            let event = RecordedEvent {
                position: Position::from_stored(positions[n]),
                stream_id: StreamId::from(streams[n]),
                version: Version::from_stored(versions[n]),
                id: ids[n],
                event_type,
                schema_version: schema_versions[n].unsigned_abs(),
                data: data.0,
                metadata: metadata.0,
                recorded_at: time.0,
            };
            DueEvent::new(event, upcasters)
        };
    Ok(json.enumerate().map(event).collect())
}
