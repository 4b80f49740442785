//! Documents of many keys, folded in memory with their own types: how history is copied, where reading
//! and writing each document for each batch would take most of the time.

use std::collections::HashMap;
use std::mem::size_of;

use super::document::{DocumentProjection, TypedFold, caught, decode};
use super::key::Key;
use super::projector::{ApplyError, FoldedDocument, Folding, Unfolded};
use crate::{Position, RecordedEvent, Version};

/// How much larger than its JSON a document is thought to be in memory, beside its own fields.
const JSON_TO_MEMORY: usize = 2;
/// What an allocation costs beside its bytes.
const ALLOCATION: usize = 16;
/// Documents are measured when they have had this many events, and whenever the number has doubled;
/// of those with fewer, one in [`SAMPLED`] is.
const MEASURED_FROM: u32 = 16;
const SAMPLED: u32 = 16;

/// The documents of some keys. The projection's code is asked through its own [`TypedFold`].
pub(super) struct TypedFolding<D: DocumentProjection> {
    fold: std::sync::Arc<TypedFold<D>>,
    slots: HashMap<Box<str>, Slot<D::Document>>,
    /// What the key function read, for the fold that follows.
    decoded: Option<D::Event>,
    /// Whether every document can be had back as it was before an event that fails.
    careful: bool,
    key_bytes: usize,
    /// What documents are thought to take beside their own fields: those measured one by one, and
    /// those sampled.
    measured_bytes: usize,
    sampled_bytes: usize,
    /// Set as soon as documents are taken out.
    draining: Option<std::collections::hash_map::IntoIter<Box<str>, Slot<D::Document>>>,
}

struct Slot<T> {
    document: Option<T>,
    hash: u32,
    events: u32,
    bytes: u32,
    position: Position,
    stream_version: Version,
}

impl<D: DocumentProjection> TypedFolding<D> {
    pub(super) fn new(fold: std::sync::Arc<TypedFold<D>>, careful: bool) -> Self {
        TypedFolding {
            fold,
            slots: HashMap::new(),
            decoded: None,
            careful,
            key_bytes: 0,
            measured_bytes: 0,
            sampled_bytes: 0,
            draining: None,
        }
    }

    /// Measures a document now and then.
    fn measure(&mut self, key: &str) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let alone = slot.events >= MEASURED_FROM;
        let sampled = slot.hash.is_multiple_of(SAMPLED);
        if !slot.events.is_power_of_two() || !(alone || sampled) {
            return;
        }
        let mut bytes = Counted(0);
        if let Some(document) = &slot.document {
            // One that cannot be written is found out later, and a panic is as well.
            let writing = || serde_json::to_writer(&mut bytes, document);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(writing));
        }
        let before = std::mem::replace(&mut slot.bytes, u32::try_from(bytes.0).unwrap_or(u32::MAX));
        let (before, now) = (before as usize, slot.bytes as usize);
        let sampled_before = sampled && slot.events <= MEASURED_FROM;
        let of = if sampled_before { &mut self.sampled_bytes } else { &mut self.measured_bytes };
        *of = of.saturating_sub(before);
        let of = if alone { &mut self.measured_bytes } else { &mut self.sampled_bytes };
        *of += now;
    }

    /// What was measured of a document that is not kept.
    fn unmeasure(&mut self, key_bytes: usize, slot: &Slot<D::Document>) {
        self.key_bytes -= key_bytes;
        let alone = slot.events >= MEASURED_FROM;
        let of = if alone { &mut self.measured_bytes } else { &mut self.sampled_bytes };
        *of = of.saturating_sub(slot.bytes as usize);
    }

    /// Applies one event so that the document before it is still there if it fails.
    fn evolve_carefully(
        &self,
        document: Option<D::Document>,
        event: &D::Event,
        recorded: &RecordedEvent,
    ) -> Result<Option<D::Document>, Undone<D::Document>> {
        let before = match &document {
            None => None,
            Some(document) => match self.fold.write(document, recorded) {
                Ok(json) => Some(json),
                Err(error) => return Err((None, error)),
            },
        };
        let back = |error| {
            let document = before.as_deref().map(|json| self.fold.read(json, recorded));
            match document.transpose() {
                Ok(document) => (document, error),
                Err(unreadable) => (None, unreadable),
            }
        };
        let evolve = || self.fold.projection.evolve(document, event, recorded);
        let after = caught(recorded, "evolve", evolve).map_err(back)?;
        match &after {
            Some(document) => match self.fold.write(document, recorded) {
                Ok(_) => Ok(after),
                Err(error) => Err(back(error)),
            },
            None => Ok(None),
        }
    }
}

/// The document as it was before an event that failed, as far as it could be had back, and the failure.
type Undone<T> = (Option<T>, ApplyError);

impl<D: DocumentProjection> Folding for TypedFolding<D> {
    fn key_of(&mut self, event: &RecordedEvent) -> Result<Option<String>, ApplyError> {
        let (key, decoded) = self.fold.key_and_event(event)?;
        self.decoded = decoded;
        Ok(key)
    }

    fn apply(&mut self, key: &str, hash: u32, recorded: &RecordedEvent) -> Result<(), Unfolded> {
        let decoded = match (self.decoded.take(), &self.fold.key) {
            (Some(event), Key::Code) => Some(event),
            _ => decode::<D::Event>(recorded).map_err(Unfolded::Refused)?,
        };
        let Some(event) = decoded else {
            // It counts for where the document stands, as in any batch.
            if let Some(slot) = self.slots.get_mut(key) {
                (slot.position, slot.stream_version) = (recorded.position, recorded.version);
            }
            return Ok(());
        };
        let before = self.slots.get_mut(key).and_then(|slot| slot.document.take());
        let evolved = match self.careful {
            false => {
                caught(recorded, "evolve", || self.fold.projection.evolve(before, &event, recorded))
                    .map_err(Unfolded::Lost)?
            }
            true => match self.evolve_carefully(before, &event, recorded) {
                Ok(document) => document,
                Err((before, error)) => {
                    if let Some(slot) = self.slots.get_mut(key) {
                        slot.document = before;
                    }
                    return Err(Unfolded::Refused(error));
                }
            },
        };
        if !self.slots.contains_key(key) {
            self.key_bytes += key.len() + ALLOCATION;
            let slot = Slot {
                document: None,
                hash,
                events: 0,
                bytes: 0,
                position: recorded.position,
                stream_version: recorded.version,
            };
            self.slots.insert(key.into(), slot);
        }
        let slot = self.slots.get_mut(key).expect("it was put there");
        slot.document = evolved;
        slot.events = slot.events.saturating_add(1);
        (slot.position, slot.stream_version) = (recorded.position, recorded.version);
        if slot.events.is_power_of_two() {
            self.measure(key);
        }
        Ok(())
    }

    fn holds(&self, key: &str) -> bool {
        self.slots.contains_key(key)
    }

    fn bytes(&self) -> usize {
        let slot = size_of::<(Box<str>, Slot<D::Document>)>() + 1;
        let documents = self.measured_bytes + self.sampled_bytes * SAMPLED as usize;
        // A map is never fuller than seven eighths.
        self.slots.capacity() * slot * 8 / 7 + self.key_bytes + documents * JSON_TO_MEMORY
    }

    fn keep_below(&mut self, high: u64) {
        let slots = std::mem::take(&mut self.slots);
        let (kept, gone): (HashMap<_, _>, Vec<_>) = {
            let mut kept = HashMap::with_capacity(slots.len() / 2 + 1);
            let mut gone = Vec::new();
            for (key, slot) in slots {
                match u64::from(slot.hash) < high {
                    true => drop(kept.insert(key, slot)),
                    false => gone.push((key.len() + ALLOCATION, slot)),
                }
            }
            (kept, gone)
        };
        self.slots = kept;
        for (key_bytes, slot) in gone {
            self.unmeasure(key_bytes, &slot);
        }
    }

    fn forget(&mut self, key: &str) {
        if let Some(slot) = self.slots.remove(key) {
            self.unmeasure(key.len() + ALLOCATION, &slot);
        }
    }

    fn next(&mut self) -> Option<FoldedDocument> {
        if self.draining.is_none() {
            self.draining = Some(std::mem::take(&mut self.slots).into_iter());
        }
        loop {
            let (key, slot) = self.draining.as_mut()?.next()?;
            let Some(document) = slot.document else { continue };
            let Slot { hash, position, stream_version, .. } = slot;
            let json = self.fold.write_at(&document, position).map_err(|_| ());
            let key = key.into_string();
            return Some(FoldedDocument { key, hash, json, position, stream_version });
        }
    }
}

/// Counts bytes and keeps none.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
