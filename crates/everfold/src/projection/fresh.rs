//! Inline projections in Rust, as they are now: it is the handle that appends which applies them, and
//! another process may have changed their settings, made a new generation, or removed one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::definition::{Lifecycle, ProjectionKind};
use super::generation::{Generation, GenerationStatus};
use crate::error::StoreErrorKind;
use crate::store::{Backend, Carried, jitter};

/// How often they are read. A rebuild waits for longer than this before it switches to a generation that
/// handles have to know, and before it drops one that they have to forget.
const EVERY: Duration = Duration::from_millis(500);

/// What a handle was given to apply, by generation.
pub(crate) type Given = Arc<Mutex<HashMap<i32, Carried>>>;

/// Lets appends of a handle follow changes, as long as the store is open.
pub(crate) async fn keep_fresh(backend: Weak<dyn Backend>, given: Given) {
    loop {
        tokio::time::sleep(jitter(EVERY)).await;
        let Some(backend) = backend.upgrade() else { return };
        match backend.generations().await {
            Ok(generations) => {
                for change in changes(&given, generations) {
                    match change {
                        Change::Carry(carried) => backend.carry(carried),
                        Change::Drop(generation) => backend.stop_carrying(generation),
                    }
                }
            }
            Err(error) if error.kind() == StoreErrorKind::HandleClosed => return,
            Err(error) => tracing::debug!(%error, "settings of projections could not be read"),
        }
    }
}

/// What appends of this handle are to do from now on.
#[derive(Debug)]
enum Change {
    Carry(Carried),
    Drop(i32),
}

/// What is another than it was: of the generations that were given, and of others of the same
/// projections, which the same code applies.
fn changes(given: &Given, generations: Vec<Generation>) -> Vec<Change> {
    let mut given = given.lock().expect("nothing panics with this locked");
    let gone: Vec<i32> =
        given.keys().copied().filter(|id| generations.iter().all(|g| g.id != *id)).collect();
    let mut changes = Vec::new();
    for id in gone {
        given.remove(&id);
        changes.push(Change::Drop(id));
    }
    for generation in generations {
        let (known, projector) = match given.get(&generation.id) {
            Some(known) => (Some(&known.generation), known.projector.clone()),
            None => match given.values().find(|known| same(&known.generation, &generation)) {
                Some(known) => (None, known.projector.clone()),
                None => continue,
            },
        };
        if known.is_some_and(|known| {
            known.settings == generation.settings
                && known.status == generation.status
                && known.is_active == generation.is_active
        }) {
            continue;
        }
        let generation = Arc::new(generation);
        let carried = Carried { generation: Arc::clone(&generation), projector };
        given.insert(generation.id, carried.clone());
        if generation.lifecycle == Lifecycle::Inline && generation.kind != ProjectionKind::Sql {
            changes.push(match is_fed_by_appends(generation.status) {
                true => Change::Carry(carried),
                false => Change::Drop(generation.id),
            });
        }
    }
    changes
}

/// Whether one piece of code is right for both.
fn same(one: &Generation, other: &Generation) -> bool {
    let identity = |g: &Generation| (g.version, g.lifecycle, g.kind);
    one.name == other.name
        && one.namespace == other.namespace
        && one.definition_hash == other.definition_hash
        && identity(one) == identity(other)
}

/// Or may be so soon, as when it is built.
fn is_fed_by_appends(status: GenerationStatus) -> bool {
    use GenerationStatus::{Kept, Retired, Spare};
    !matches!(status, Kept | Retired | Spare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::definition::ProjectionSettings;
    use crate::projection::key::Key;
    use crate::projection::projector::Projector;

    fn generation(id: i32, hash: &str, status: GenerationStatus) -> Generation {
        Generation {
            id,
            namespace: String::new(),
            name: "carts".into(),
            version: 1,
            kind: ProjectionKind::Document,
            lifecycle: Lifecycle::Inline,
            event_types: None,
            key: Key::Stream,
            shards: 1,
            definition_hash: hash.into(),
            settings: ProjectionSettings::default(),
            home: format!("everfold_{id}_carts"),
            tables: Vec::new(),
            status,
            reason: None,
            is_active: status == GenerationStatus::Active,
        }
    }

    fn given(generation: Generation) -> Given {
        let id = generation.id;
        let carried = Carried { generation: Arc::new(generation), projector: Projector::Sql };
        Arc::new(Mutex::new(HashMap::from([(id, carried)])))
    }

    fn of(changes: Vec<Change>) -> Vec<(i32, bool)> {
        let of = |change| match change {
            Change::Carry(carried) => (carried.generation.id, true),
            Change::Drop(generation) => (generation, false),
        };
        changes.into_iter().map(of).collect()
    }

    #[test]
    fn new_generation_of_a_given_projection_is_carried_once() {
        use GenerationStatus::{Active, Building, Kept};
        let given = given(generation(1, "a", Active));
        let now = [generation(1, "a", Active), generation(2, "a", Building)];
        assert_eq!(of(changes(&given, now.to_vec())), [(2, true)]);
        assert_eq!(of(changes(&given, now.to_vec())), []);
        let flipped = vec![generation(1, "a", Kept), generation(2, "a", Active)];
        assert_eq!(of(changes(&given, flipped)), [(1, false), (2, true)]);
    }

    #[test]
    fn generations_of_other_code_are_left_alone_and_removed_ones_forgotten() {
        use GenerationStatus::{Active, Building};
        let given = given(generation(1, "a", Active));
        let other = vec![generation(1, "a", Active), generation(2, "b", Building)];
        assert_eq!(of(changes(&given, other)), []);
        assert_eq!(of(changes(&given, vec![generation(2, "b", Building)])), [(1, false)]);
        assert!(given.lock().unwrap().is_empty());
    }
}
