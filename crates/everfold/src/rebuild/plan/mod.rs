//! What would happen to the projections of a project, and what it would take: asked for before
//! anything is done.
//!
//! `decide` compares definitions with the registry, `estimate` puts figures to it. Nothing here changes
//! the database.

mod decide;
mod estimate;

use serde::Serialize;

use self::decide::{Decided, decide};
use self::estimate::Rates;
use super::progress::RebuildProgress;
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::definition::{Lifecycle, ProjectionKind};
use crate::projection::generation::{Generation, GenerationStatus};
use crate::store::{GenerationFacts, Store};

/// How many of the last rebuilds tell how fast one goes.
const REBUILDS_MAX: usize = 20;

/// What would happen to projections. Made by [`Store::plan`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// One for each projection: those of the project in their order, then those that are registered
    /// and not in it.
    pub changes: Vec<PlannedChange>,
}

/// What would happen to one projection, and what it would take.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlannedChange {
    /// The projection.
    pub name: String,
    /// What would happen.
    pub action: PlannedAction,
    /// The version that readers see, if they see one.
    pub from: Option<u32>,
    /// The version in the project, if it is there.
    pub to: Option<u32>,
    /// How it is written.
    pub kind: ProjectionKind,
    /// When its events are applied.
    pub lifecycle: Lifecycle,
    /// In words: what, and why.
    pub message: String,
    /// The command that does it, if one has to be given.
    pub command: Option<String>,
    /// Events to apply.
    pub events: Option<u64>,
    /// Whether they were counted; otherwise that is about how many there are.
    pub events_exact: bool,
    /// In about how many seconds.
    pub seconds: Option<f64>,
    /// The rate that this comes from, in events a second.
    pub events_per_second: Option<f64>,
    /// Whether an earlier rebuild in this store has shown that rate; otherwise it is assumed.
    pub rate_measured: bool,
    /// Rows of the read model that readers see, where that can be told cheaply.
    pub rows: Option<u64>,
    /// What it takes on disk, where that can be told. One beside it takes about as much again.
    pub bytes: Option<u64>,
    /// What `everfold retire` would drop.
    pub retire: Vec<Retirable>,
    /// What one could not go back to, and why.
    pub no_way_back: Vec<String>,
    /// The rebuild that is under way.
    pub rebuild: Option<RebuildProgress>,
}

/// What would happen to a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PlannedAction {
    /// It is as it should be.
    Nothing,
    /// It is made, and filled with the events there are.
    Create,
    /// Settings are taken over; the read model stays as it is.
    Settings,
    /// A new version is built beside the one that readers see, then they are switched over.
    RebuildBeside,
    /// It is refused: the definition was changed without raising the version.
    Changed,
    /// It is refused: a newer version is registered.
    Older,
    /// It is registered, and not in the project.
    NotInProject,
}

impl PlannedAction {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PlannedAction::Nothing => "nothing to do",
            PlannedAction::Create => "create",
            PlannedAction::Settings => "change settings",
            PlannedAction::RebuildBeside => "rebuild beside",
            PlannedAction::Changed => "refused: changed",
            PlannedAction::Older => "refused: older",
            PlannedAction::NotInProject => "not in the project",
        }
    }

    /// Whether registering it would be refused.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, PlannedAction::Changed | PlannedAction::Older)
    }
}

impl std::fmt::Display for PlannedAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// A generation that readers do not see, and that could be dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Retirable {
    /// Its number.
    pub generation: i32,
    /// Its version.
    pub version: u32,
    /// Where it stands.
    pub status: GenerationStatus,
    /// Its rows, where that can be told cheaply.
    pub rows: Option<u64>,
    /// What it takes on disk, where that can be told.
    pub bytes: Option<u64>,
}

impl Store {
    /// What would happen if these projections, those of a project, were registered and rebuilt, and
    /// what it would take. Changes nothing.
    ///
    /// ```
    /// use everfold::{PlannedAction, Projection};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = with_carts().await;
    /// let plan = store.plan([Projection::document("carts", 2, Carts).build()?]).await?;
    /// let change = &plan.changes[0];
    /// assert_eq!(change.action, PlannedAction::RebuildBeside);
    /// assert_eq!((change.from, change.to, change.events), (Some(1), Some(2), Some(3)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ProjectionError::Invalid`] if one does not fit this store, such as SQL without an upcaster that the
    /// store has; [`ProjectionError::Store`] if the database refuses or cannot be reached. That one would be
    /// refused is no error, but part of the plan.
    pub async fn plan(
        &self,
        projections: impl IntoIterator<Item = Projection>,
    ) -> Result<Plan, ProjectionError> {
        let mut seen = Seen::look(self).await?;
        let mut changes = Vec::new();
        for projection in projections {
            let projection = self.as_registered(projection)?;
            let name = projection.definition.name.clone();
            let found = seen.take(&name);
            let decided = decide(&projection.definition, &found, self.kind());
            let mut change = found.change(&name, decided);
            if change.action == PlannedAction::Create
                || change.action == PlannedAction::RebuildBeside
            {
                let types = projection.definition.event_types.clone();
                let events = self.backend().count_events(types).await?;
                let kind = projection.definition.kind();
                if change.action == PlannedAction::Create
                    && change.lifecycle == Lifecycle::CatchUp
                    && kind != ProjectionKind::Handler
                    && events.number > self.options().backfill_events
                {
                    (change.message, change.command) = decide::filled_first(&name);
                }
                seen.rates.estimate(&mut change, events, kind, self.kind());
            }
            changes.push(change);
        }
        for name in seen.names() {
            let found = seen.take(&name);
            if let Some(decided) = decide::left_over(&found) {
                changes.push(found.change(&name, decided));
            }
        }
        Ok(Plan { changes })
    }
}

/// What the store has, asked for once.
struct Seen {
    generations: Vec<Generation>,
    facts: Vec<GenerationFacts>,
    rebuilds: Vec<RebuildProgress>,
    rates: Rates,
}

impl Seen {
    async fn look(store: &Store) -> Result<Seen, ProjectionError> {
        let (backend, namespace) = (store.backend(), &store.options().namespace);
        let mut generations = backend.generations().await?;
        generations.retain(|generation| generation.namespace == *namespace);
        let mut facts = backend.generation_facts().await?;
        facts.retain(|facts| facts.namespace == *namespace);
        let mut open = backend.rebuilds(true, REBUILDS_MAX).await?;
        open.retain(|row| row.namespace == *namespace);
        let rates = Rates::of(&backend.rebuilds(false, REBUILDS_MAX).await?);
        let rebuilds = open.into_iter().map(RebuildProgress::of).collect();
        Ok(Seen { generations, facts, rebuilds, rates })
    }

    /// What there is of a projection, which is then no longer among the rest.
    fn take(&mut self, name: &str) -> Found {
        let (generations, rest) =
            self.generations.drain(..).partition(|generation| generation.name == name);
        self.generations = rest;
        let (facts, rest) = self.facts.drain(..).partition(|facts| facts.name == name);
        self.facts = rest;
        let rebuild = self.rebuilds.iter().find(|rebuild| rebuild.name == name).cloned();
        Found { generations, facts, rebuild }
    }

    /// Whatever has not been taken.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.facts.iter().map(|facts| facts.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What the store has of one projection.
pub(super) struct Found {
    /// Those that are not retired, the newest last.
    generations: Vec<Generation>,
    facts: Vec<GenerationFacts>,
    rebuild: Option<RebuildProgress>,
}

impl Found {
    /// The generation that readers see.
    fn read(&self) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.is_active)
    }

    fn facts_of(&self, generation: i32) -> Option<&GenerationFacts> {
        self.facts.iter().find(|facts| facts.id == generation)
    }

    fn change(&self, name: &str, decided: Decided) -> PlannedChange {
        let read = self.read();
        let size = read.and_then(|read| self.facts_of(read.id));
        PlannedChange {
            name: name.to_owned(),
            action: decided.action,
            from: read.map(|read| read.version),
            to: decided.to,
            kind: decided.kind,
            lifecycle: decided.lifecycle,
            message: decided.message,
            command: decided.command,
            events: None,
            events_exact: false,
            seconds: None,
            events_per_second: None,
            rate_measured: false,
            rows: size.and_then(|facts| facts.rows),
            bytes: size.and_then(|facts| facts.bytes),
            retire: self.retirable(),
            no_way_back: self.no_way_back(decided.action),
            rebuild: self.rebuild.clone(),
        }
    }

    /// What readers do not see and nobody builds.
    fn retirable(&self) -> Vec<Retirable> {
        let target = self.rebuild.as_ref().and_then(|rebuild| rebuild.generation);
        let droppable = |facts: &&GenerationFacts| Some(facts.id) != target;
        let retirable = self.facts.iter().filter(droppable).filter_map(|facts| {
            let generation = self.generations.iter().find(|generation| generation.id == facts.id);
            let status = match generation {
                None => GenerationStatus::Retired,
                Some(generation) if generation.is_active => return None,
                Some(generation) => generation.status,
            };
            let GenerationFacts { id, version, rows, bytes, .. } = *facts;
            Some(Retirable { generation: id, version, status, rows, bytes })
        });
        retirable.collect()
    }

    /// Versions in Rust that no live process carries: nobody would feed them, so there is no way back.
    fn no_way_back(&self, action: PlannedAction) -> Vec<String> {
        let left = self.read().filter(|_| action == PlannedAction::RebuildBeside);
        let kept = self.generations.iter().filter(|g| g.status == GenerationStatus::Kept);
        let in_rust = kept.chain(left).filter(|g| g.kind != ProjectionKind::Sql);
        let alone = in_rust.filter(|g| self.facts_of(g.id).is_some_and(|facts| !facts.is_carried));
        let told = alone.map(|g| {
            format!(
                "version {} is written in Rust and no live process carries it, so nobody would feed \
                 it once readers see another one",
                g.version
            )
        });
        told.collect()
    }
}
