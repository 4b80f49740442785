//! What a rebuild or a switch would do: asked for before anything is done.
//!
//! The same look at the registry that precedes the real thing, and the same refusals; nothing here
//! changes the database.

use serde::Serialize;

use super::options::RebuildOptions;
use super::progress::RebuildProgress;
use super::replay::{ReplayOptions, Start};
use super::request::to_build;
use super::row::RebuildKind;
use super::snapshot::ReadModelSnapshot;
use crate::Position;
use crate::error::ProjectionError;
use crate::projection::Projection;
use crate::projection::generation::Generation;
use crate::store::{Counted, Store};

/// What a rebuild or a switch would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RebuildPreview {
    /// The projection.
    pub name: String,
    /// How it would be done.
    pub kind: RebuildKind,
    /// The version that readers see, if they see one.
    pub from: Option<u32>,
    /// The version that would be built, or that readers would be switched to.
    pub to: u32,
    /// Events to apply; `None` where that cannot be told cheaply.
    pub events: Option<u64>,
    /// Whether they were counted; otherwise that is about how many there are.
    pub events_exact: bool,
    /// The snapshot that it would begin with.
    pub snapshot: Option<i32>,
    /// The position of that snapshot.
    pub snapshot_position: Option<Position>,
    /// What it takes on disk beside what is there, about; `None` where that cannot be told.
    pub bytes: Option<u64>,
    /// The rebuild that is under way, which would be joined.
    pub under_way: Option<RebuildProgress>,
}

impl Store {
    /// What [`Store::rebuild`] would do. `at_hand` is the projection's code where this process has it
    /// and has not registered it, as the command has that of its project. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::rebuild`].
    pub async fn preview_rebuild(
        &self,
        name: &str,
        options: &RebuildOptions,
        at_hand: Option<&Projection>,
    ) -> Result<RebuildPreview, ProjectionError> {
        let kind = if options.in_place { RebuildKind::InPlace } else { RebuildKind::Beside };
        if let Some(new) = self.not_registered(name, at_hand).await? {
            let mut preview = self.preview_of(name, new.version(), kind).await?;
            let types = new.definition.event_types.clone();
            preview.counted(self.backend().count_events(types).await?);
            return Ok(preview);
        }
        let generations = self.generations_of(name).await?;
        let wanted = to_build(&generations);
        let mut preview = self.preview(wanted, kind, None, at_hand).await?;
        preview.counted(self.backend().count_events(wanted.event_types.clone()).await?);
        Ok(preview)
    }

    /// What [`Store::promote`] would do. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::promote`].
    pub async fn preview_promote(&self, name: &str) -> Result<RebuildPreview, ProjectionError> {
        let target = self.to_promote(name).await?;
        self.preview_switch(target).await
    }

    /// What [`Store::rollback`] would do. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::rollback`].
    pub async fn preview_rollback(&self, name: &str) -> Result<RebuildPreview, ProjectionError> {
        let target = self.to_roll_back_to(name).await?;
        self.preview_switch(target).await
    }

    /// What [`Store::replay`] would do; `at_hand` as for [`Store::preview_rebuild`]. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::replay`].
    pub async fn preview_replay(
        &self,
        name: &str,
        options: &ReplayOptions,
        at_hand: Option<&Projection>,
    ) -> Result<RebuildPreview, ProjectionError> {
        let Start { generation, kind, snapshot } = self.start_of_replay(name, options).await?;
        let mut preview = self.preview(&generation, kind, None, at_hand).await?;
        match snapshot {
            Some(ReadModelSnapshot { id, position, .. }) => {
                (preview.snapshot, preview.snapshot_position) = (Some(id), Some(position));
            }
            None if options.to.is_none() => {
                let types = generation.event_types.clone();
                preview.counted(self.backend().count_events(types).await?);
            }
            None => {}
        }
        Ok(preview)
    }

    async fn preview_switch(&self, target: Generation) -> Result<RebuildPreview, ProjectionError> {
        let mut preview = self.preview(&target, RebuildKind::Switch, Some(target.id), None).await?;
        let states = self.backend().states().await?;
        let state = states.iter().find(|state| state.generation.id == target.id);
        let lag = state.map(|state| state.behind_events);
        (preview.events, preview.events_exact, preview.bytes) = (lag, true, None);
        Ok(preview)
    }

    async fn preview(
        &self,
        wanted: &Generation,
        kind: RebuildKind,
        target: Option<i32>,
        at_hand: Option<&Projection>,
    ) -> Result<RebuildPreview, ProjectionError> {
        let at_hand =
            at_hand.map(|projection| self.as_registered(projection.clone())).transpose()?;
        self.check_somebody_can(wanted, target, at_hand.as_ref()).await?;
        self.preview_of(&wanted.name, wanted.version, kind).await
    }

    /// The projection at hand, if its version would have to be registered first.
    async fn not_registered(
        &self,
        name: &str,
        at_hand: Option<&Projection>,
    ) -> Result<Option<Projection>, ProjectionError> {
        let Some(projection) = at_hand else { return Ok(None) };
        let known = match self.generations_of(name).await {
            Err(ProjectionError::Unknown { .. }) => Vec::new(),
            found => found?,
        };
        let is_known = known.iter().any(|known| known.version == projection.version());
        (!is_known).then(|| self.as_registered(projection.clone())).transpose()
    }

    async fn preview_of(
        &self,
        name: &str,
        version: u32,
        kind: RebuildKind,
    ) -> Result<RebuildPreview, ProjectionError> {
        let namespace = &self.options().namespace;
        let generations = self.backend().generations().await?;
        let read = generations.iter().find(|generation| {
            generation.is_active && generation.name == name && generation.namespace == *namespace
        });
        let facts = self.backend().generation_facts().await?;
        let size = read.and_then(|read| facts.iter().find(|facts| facts.id == read.id));
        let open = self.open_rebuild(name).await?;
        Ok(RebuildPreview {
            name: name.to_owned(),
            kind,
            from: read.map(|read| read.version),
            to: version,
            events: None,
            events_exact: false,
            snapshot: None,
            snapshot_position: None,
            bytes: size.and_then(|facts| facts.bytes).filter(|_| kind != RebuildKind::InPlace),
            under_way: open.map(RebuildProgress::of),
        })
    }
}

impl RebuildPreview {
    fn counted(&mut self, events: Counted) {
        (self.events, self.events_exact) = (Some(events.number), events.exact);
    }
}
