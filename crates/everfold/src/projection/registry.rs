//! Registering projections, and stopping and resuming them: the operators' side of the registry.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::Projection;
use super::definition::{Definition, Lifecycle, ProjectionKind};
use super::fresh::{Given, keep_fresh};
use super::generation::{Generation, GenerationStatus};
use super::operator::operator;
use super::projector::Projector;
use crate::Position;
use crate::error::{ProjectionError, StoreErrorKind};
use crate::nearest::nearest;
use crate::rebuild::fill::unfilled;
use crate::rebuild::replay::is_as_of;
use crate::store::{Carried, Registration, StatusChange, Store, StoreKind};

/// What [`Store::register`] found or did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Registered {
    /// The projection's name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Whether it was made just now; otherwise it was there.
    pub created: bool,
    /// Where it stands.
    pub status: GenerationStatus,
    /// Why, if that needs saying: for example how to fill it.
    pub reason: Option<String>,
}

/// What a store handle knows of projections: which it was given, and when one has moved.
pub(crate) struct Hub {
    given: Given,
    /// Projections that were registered through this handle, as they were registered.
    definitions: Mutex<Vec<Projection>>,
    /// Whether somebody looks for changes of what was given.
    fresh: AtomicBool,
    /// Changes whenever a runner of this handle has moved a checkpoint or settled something.
    moved: watch::Sender<u64>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Hub {
            given: Given::default(),
            definitions: Mutex::default(),
            fresh: AtomicBool::new(false),
            moved: watch::Sender::new(0),
        }
    }

    pub(crate) fn give(&self, carried: Carried) {
        let mut given = self.given.lock().expect("nothing panics with this locked");
        given.insert(carried.generation.id, carried);
    }

    fn define(&self, projection: Projection) {
        let mut definitions = self.definitions.lock().expect("nothing panics with this locked");
        let Definition { namespace, name, version, .. } = &projection.definition;
        let same = |known: &Projection| {
            let Definition { namespace: n, name: m, version: v, .. } = &known.definition;
            (n, m, v) == (namespace, name, version)
        };
        definitions.retain(|known| !same(known));
        definitions.push(projection);
    }

    /// The projection as it was registered here, if it was: namespace, name, version.
    pub(crate) fn definition(
        &self,
        namespace: &str,
        name: &str,
        version: u32,
    ) -> Option<Projection> {
        let definitions = self.definitions.lock().expect("nothing panics with this locked");
        let same = |known: &&Projection| {
            let Definition { namespace: n, name: m, version: v, .. } = &known.definition;
            n == namespace && m == name && *v == version
        };
        definitions.iter().find(same).cloned()
    }

    fn definitions(&self) -> Vec<Projection> {
        self.definitions.lock().expect("nothing panics with this locked").clone()
    }

    /// What applies events to a generation here: code that was registered, or the database itself.
    pub(crate) fn projector(&self, generation: &Generation) -> Option<Projector> {
        if generation.kind == ProjectionKind::Sql {
            return Some(Projector::Sql);
        }
        let given = self.given.lock().expect("nothing panics with this locked");
        given.get(&generation.id).map(|carried| carried.projector.clone())
    }

    /// The same for a generation that was made since: by what it is, not by its number.
    pub(crate) fn projector_of(&self, generation: &Generation) -> Option<Projector> {
        self.projector(generation).or_else(|| {
            let given = self.given.lock().expect("nothing panics with this locked");
            let same = |carried: &&Carried| {
                let known = &carried.generation;
                known.namespace == generation.namespace
                    && known.name == generation.name
                    && known.version == generation.version
                    && known.definition_hash == generation.definition_hash
            };
            given.values().find(same).map(|carried| carried.projector.clone())
        })
    }

    /// Whether this handle has registered such a projection, and found that readers see it.
    pub(crate) fn gave_active(&self, name: &str, kind: ProjectionKind) -> bool {
        let given = self.given.lock().expect("nothing panics with this locked");
        given.values().any(|carried| {
            let Generation { name: given, kind: its_kind, is_active, .. } = &*carried.generation;
            given == name && *its_kind == kind && *is_active
        })
    }

    pub(crate) fn has_moved(&self) {
        self.moved.send_modify(|times| *times = times.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }
}

impl Store {
    /// Makes a projection known to the store, or finds it there. From then on appends through this
    /// handle apply it, if it is inline; a [`Runner`](crate::Runner) feeds it otherwise.
    ///
    /// Safe to call from many processes at once, and at every start. One that needs more events than it can
    /// be given at once is `building` until a runner or [`Store::rebuild`] has filled it; a new version of
    /// one that readers see is built beside it.
    ///
    /// ```
    /// use everfold::{ExpectedVersion, GenerationStatus, NewEvent, Projection};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let carts = Projection::document("carts", 1, Carts).inline().build()?;
    /// let registered = store.register(carts).await?;
    /// assert!(registered.created);
    /// assert_eq!(registered.status, GenerationStatus::Active);
    ///
    /// let added = NewEvent::from_json("ItemAdded", r#"{"quantity": 2}"#)?;
    /// store.append("cart-1", ExpectedVersion::Any, [added]).await?;
    /// assert_eq!(store.documents::<Cart>("carts").get("cart-1").await?, Some(Cart { items: 2 }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`ProjectionError::Changed`]: another definition is registered under the same version. Raise the
    ///   version, or undo the change.
    /// - [`ProjectionError::Older`]: a newer version is registered.
    /// - [`ProjectionError::TableTaken`]: a table belongs to another projection.
    /// - [`ProjectionError::Invalid`], [`ProjectionError::Sql`]: it does not fit this store, or its SQL
    ///   fails there.
    /// - [`ProjectionError::Store`]: the database refuses or cannot be reached.
    pub async fn register(&self, projection: Projection) -> Result<Registered, ProjectionError> {
        let generation = self.register_generation(projection).await?;
        let Registration { generation, created } = generation;
        Ok(Registered {
            name: generation.name,
            version: generation.version,
            created,
            status: generation.status,
            reason: generation.reason,
        })
    }

    /// A projection as this handle registers it: in its namespace, with the names that events are
    /// stored under.
    pub(crate) fn as_registered(
        &self,
        mut projection: Projection,
    ) -> Result<Projection, ProjectionError> {
        if projection.definition.namespace.is_empty() {
            projection.definition.namespace.clone_from(&self.options().namespace);
        }
        if projection.definition.kind() == ProjectionKind::Sql {
            super::sql::check_upcasters(&projection.definition, self.upcasters())?;
        } else {
            // Code sees events under today's names; the log has them under the old ones too.
            let types = projection.definition.event_types.take();
            projection.definition.event_types =
                types.map(|types| self.upcasters().stored_names(&types));
        }
        Ok(projection)
    }

    pub(crate) async fn register_generation(
        &self,
        projection: Projection,
    ) -> Result<Registration, ProjectionError> {
        let projection = self.as_registered(projection)?;
        let projector = projection.projector.clone();
        let registration = self.backend().register(projection.clone()).await?;
        self.hub().define(projection.clone());
        let generation = Arc::new(registration.generation.clone());
        let inline_in_rust =
            generation.lifecycle == Lifecycle::Inline && generation.kind != ProjectionKind::Sql;
        let carried = Carried { generation, projector };
        self.hub().give(carried.clone());
        if inline_in_rust {
            self.backend().carry(carried);
            self.keep_carried_fresh();
        }
        if registration.generation.is_active {
            self.prepare_spare(projection).await;
        }
        Ok(registration)
    }

    /// Makes ahead of time what the next rebuild of a projection needs, so that it waits for no reader.
    /// Nothing depends on it: whatever is in the way is told, and it is tried again later.
    pub(crate) async fn prepare_spare(&self, projection: Projection) {
        use StoreErrorKind::{Busy, HandleClosed, Privilege, ReadOnly};
        let name = projection.definition.name.clone();
        match self.backend().prepare_spare(projection).await {
            Ok(()) => {}
            Err(ProjectionError::Store(error))
                if matches!(error.kind(), Busy | HandleClosed | Privilege | ReadOnly) =>
            {
                tracing::debug!(projection = name, %error, "no spare generation now");
            }
            Err(error) => {
                tracing::warn!(projection = name, %error, "a spare generation could not be made");
            }
        }
    }

    /// The same for all projections that were registered through this handle.
    pub(crate) async fn prepare_spares(&self) {
        for projection in self.hub().definitions() {
            self.prepare_spare(projection).await;
        }
    }

    /// On SQLite an append reads the settings by itself.
    fn keep_carried_fresh(&self) {
        let hub = self.hub();
        if self.kind() == StoreKind::Postgres && !hub.fresh.swap(true, Ordering::Relaxed) {
            tokio::spawn(keep_fresh(self.backend_weak(), Arc::clone(&hub.given)));
        }
    }

    /// Stops feeding a projection until [`Store::resume`]. Appends go on; an inline one owes what
    /// comes in meanwhile. Readers see it as it is.
    ///
    /// ```
    /// use everfold::GenerationStatus;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// store.pause("carts").await?;
    /// assert_eq!(store.projection("carts").await?.status, GenerationStatus::Paused);
    /// store.resume("carts").await?;
    /// assert_eq!(store.projection("carts").await?.status, GenerationStatus::Active);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if it is
    /// stopped already.
    pub async fn pause(&self, name: &str) -> Result<(), ProjectionError> {
        let mut changed = false;
        let from = vec![GenerationStatus::Active, GenerationStatus::Building];
        let open = self.backend().rebuilds(true, usize::MAX).await?;
        let generations = self.generations_of(name).await?;
        let unfilled = unfilled(generations.iter());
        for generation in generations {
            // What is being built is paused with its rebuild.
            let is_built = open.iter().any(|row| row.target == Some(generation.id));
            let waits = unfilled.contains(&generation.id) || waits_for_rebuild(&generation);
            if !from.contains(&generation.status) || waits || is_built {
                continue;
            }
            let reason = Some(format!("paused by {}", operator()));
            let to = GenerationStatus::Paused;
            changed |= self.change_status(&generation, from.clone(), to, reason).await?;
        }
        self.changed_or_say(changed, name, "is not running, so it cannot be paused")
    }

    /// Goes on with a projection that was paused, or that a failure stopped: mend the cause first, or it
    /// fails again.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] if there is no such projection, [`ProjectionError::Refused`] if it is
    /// not stopped.
    pub async fn resume(&self, name: &str) -> Result<(), ProjectionError> {
        let mut changed = false;
        let from = vec![GenerationStatus::Paused, GenerationStatus::Failed];
        let generations = self.generations_of(name).await?;
        let read = generations.iter().find(|generation| generation.is_active).cloned();
        for generation in generations {
            if !from.contains(&generation.status) || is_as_of(generation.reason.as_deref()) {
                continue;
            }
            let to = match &read {
                _ if generation.is_active => GenerationStatus::Active,
                Some(read) if generation.version < read.version => GenerationStatus::Kept,
                _ => GenerationStatus::Building,
            };
            let reason = match (&read, to) {
                (Some(read), GenerationStatus::Building) => {
                    Some(built_beside(name, generation.version, read.version))
                }
                _ => None,
            };
            changed |= self.change_status(&generation, from.clone(), to, reason).await?;
        }
        self.hub().has_moved();
        self.changed_or_say(changed, name, "is neither paused nor failed")
    }

    async fn change_status(
        &self,
        generation: &Generation,
        from: Vec<GenerationStatus>,
        to: GenerationStatus,
        reason: Option<String>,
    ) -> Result<bool, ProjectionError> {
        let (generation, actor) = (generation.id, operator());
        let change = StatusChange { generation, from, to, reason, actor, rebuild: None };
        Ok(self.backend().change_status(change).await?)
    }

    fn changed_or_say(
        &self,
        changed: bool,
        name: &str,
        message: &str,
    ) -> Result<(), ProjectionError> {
        if changed {
            return Ok(());
        }
        Err(ProjectionError::Refused { projection: name.to_owned(), message: message.to_owned() })
    }

    /// All generations of a name in this handle's namespace, the newest last.
    pub(crate) async fn generations_of(
        &self,
        name: &str,
    ) -> Result<Vec<Generation>, ProjectionError> {
        let all = self.backend().generations().await?;
        let here = all.into_iter().filter(|g| g.namespace == self.options().namespace);
        let (found, others): (Vec<_>, Vec<_>) = here.partition(|g| g.name == name);
        if found.is_empty() {
            let others = others.iter().map(|generation| generation.name.as_str());
            return Err(unknown(name, others));
        }
        Ok(found)
    }

    /// The generation that is meant by a name: the one readers see, else the newest.
    pub(crate) async fn generation_of(&self, name: &str) -> Result<Generation, ProjectionError> {
        let mut generations = self.generations_of(name).await?;
        let index = generations.iter().position(|generation| generation.is_active);
        Ok(generations.swap_remove(index.unwrap_or(generations.len() - 1)))
    }
}

/// An inline generation that nobody feeds before a rebuild does, so that there is nothing to pause.
fn waits_for_rebuild(generation: &Generation) -> bool {
    generation.status == GenerationStatus::Building && generation.lifecycle == Lifecycle::Inline
}

/// Why a new generation on a store with events is not active.
pub(crate) fn needs_backfill(name: &str) -> String {
    format!(
        "the store has events already; a runner that carries it (`everfold run`), or `everfold rebuild \
         {name}`, fills it with them while appends go on, and then it is active"
    )
}

/// Why a projection is out of step, if a checkpoint of it is one that the log has not reached.
pub(crate) fn past_the_end(
    generation: &Generation,
    checkpoint: Position,
    highest: Position,
) -> Option<String> {
    if generation.lifecycle == Lifecycle::Inline || checkpoint <= highest {
        return None;
    }
    let name = &generation.name;
    Some(format!(
        "checkpoint {checkpoint} is past the end of the log, {highest}: the database was restored, or \
         failed over to a server that lost the last events, and the read model holds some that the log \
         does not have; `everfold rebuild {name}` builds it again from the log"
    ))
}

/// Why a new version is not active.
pub(crate) fn built_beside(name: &str, version: u32, newest: u32) -> String {
    format!(
        "version {version} is built beside version {newest}, which readers go on to see; `everfold rebuild \
         {name}` completes it and switches them over"
    )
}

/// The error for a name nobody knows, with the name that is most like it.
pub(crate) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> ProjectionError {
    let known: Vec<&str> = known.collect();
    let suggestion = match nearest(name, known.iter().copied()) {
        Some(known) => format!("; did you mean \"{known}\"?"),
        None if known.is_empty() => "; none is registered in this store".to_owned(),
        None => "; `everfold status` lists those there are".to_owned(),
    };
    ProjectionError::Unknown { name: name.to_owned(), suggestion }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_suggests_one_like_it() {
        let message = |name: &str, known: &[&str]| unknown(name, known.iter().copied()).to_string();
        let found = message("acount_balance", &["orders", "account_balance"]);
        assert!(found.contains("did you mean \"account_balance\"?"), "{found}");
        assert!(message("totals", &["orders"]).contains("everfold status"));
        assert!(message("totals", &[]).contains("none is registered"));
    }
}
