//! What registering a definition would come to, by the rules of registration.

use super::{Found, PlannedAction};
use crate::error::ProjectionError;
use crate::projection::definition::{Body, Definition, Lifecycle, ProjectionKind};
use crate::projection::differences;
use crate::projection::generation::{Generation, GenerationStatus};
use crate::store::StoreKind;

/// What would happen to a projection, before there are figures to it.
pub(super) struct Decided {
    pub(super) action: PlannedAction,
    pub(super) to: Option<u32>,
    pub(super) kind: ProjectionKind,
    pub(super) lifecycle: Lifecycle,
    pub(super) message: String,
    pub(super) command: Option<String>,
}

/// What would happen to a projection of the project.
pub(super) fn decide(definition: &Definition, found: &Found, store: StoreKind) -> Decided {
    let same = found.generations.iter().filter(|g| g.version == definition.version);
    // Among several of one version it is the one that readers see, else the newest.
    let same = same.max_by_key(|generation| (generation.is_active, generation.id));
    let newest = found.generations.iter().map(|generation| generation.version).max();
    let (action, message, command) = match (same, newest) {
        (Some(same), _) => registered(definition, same, found, store),
        (None, None) => create(definition),
        (None, Some(newest)) if newest > definition.version => {
            let (projection, version) = (definition.name.clone(), definition.version);
            let error = ProjectionError::Older { projection, version, registered: newest };
            (PlannedAction::Older, error.to_string(), None)
        }
        (None, Some(_)) => beside(definition, found, store),
    };
    let (kind, lifecycle, to) = (definition.kind(), definition.lifecycle, definition.version);
    Decided { action, to: Some(to), kind, lifecycle, message, command }
}

/// What there is to say of a projection that is registered and not in the project; `None` if nothing
/// is left of it.
pub(super) fn left_over(found: &Found) -> Option<Decided> {
    let generation = found.read().or(found.generations.last())?;
    let message = match generation.kind {
        ProjectionKind::Sql => {
            "registered, and not in this project: `everfold run` here does not feed it".to_owned()
        }
        _ => "written in Rust: processes that have its code feed it".to_owned(),
    };
    Some(Decided {
        action: PlannedAction::NotInProject,
        to: None,
        kind: generation.kind,
        lifecycle: generation.lifecycle,
        message,
        command: None,
    })
}

type What = (PlannedAction, String, Option<String>);

fn rebuild_command(name: &str) -> Option<String> {
    Some(format!("everfold rebuild {name}"))
}

fn create(definition: &Definition) -> What {
    let (message, command) = match definition.lifecycle {
        Lifecycle::Inline => (
            "new: in an empty store active at once; otherwise filled while appends go on, by `everfold \
             run` too, and active from the switch on",
            rebuild_command(&definition.name),
        ),
        Lifecycle::CatchUp => {
            ("new: made by `everfold run`, which fills it from the first event", None)
        }
    };
    (PlannedAction::Create, message.to_owned(), command)
}

/// A new catch-up projection with many events before it.
pub(super) fn filled_first(name: &str) -> (String, Option<String>) {
    let message = "new: filled with the events there are before readers see it, by `everfold run` too, \
         and active from the switch on";
    (message.to_owned(), rebuild_command(name))
}

/// This version is registered: is it the same, and do readers see it?
fn registered(definition: &Definition, same: &Generation, found: &Found, store: StoreKind) -> What {
    let stored = found.facts_of(same.id).map(|facts| facts.definition.clone()).unwrap_or_default();
    let (projection, version) = (definition.name.clone(), definition.version);
    if same.definition_hash != definition.hash(store) {
        let what = differences::between(&stored, &definition.content(store));
        let error = ProjectionError::Changed { projection, version, what };
        return (PlannedAction::Changed, error.to_string(), None);
    }
    if !same.is_active {
        let reader = match found.read() {
            Some(read) => format!("readers see version {}", read.version),
            None => "nobody can read it yet".to_owned(),
        };
        let message = format!("version {version} is {}, {reader}", same.status);
        return match same.status {
            GenerationStatus::Kept => {
                let is_older = found.read().is_some_and(|read| version <= read.version);
                let verb = if is_older { "rollback" } else { "promote" };
                let command = Some(format!("everfold {verb} {projection}"));
                (PlannedAction::Nothing, message, command)
            }
            _ => (PlannedAction::RebuildBeside, message, rebuild_command(&projection)),
        };
    }
    let now = serde_json::json!(definition.settings);
    if stored["settings"] != now {
        let message = differences::between_settings(&stored["settings"], &now);
        return (PlannedAction::Settings, message, None);
    }
    let message = match same.status {
        GenerationStatus::Active => "readers see it".to_owned(),
        status => format!("readers see it; it is {status}"),
    };
    (PlannedAction::Nothing, message, None)
}

/// A new version of a projection that is there.
fn beside(definition: &Definition, found: &Found, store: StoreKind) -> What {
    let Definition { name, version, .. } = definition;
    let Some(read) = found.read() else {
        let message =
            format!("version {version} takes the place of one that nobody could read yet");
        return (PlannedAction::RebuildBeside, message, rebuild_command(name));
    };
    let stored = found.facts_of(read.id).map(|facts| &facts.definition);
    let now = definition.content(store);
    let what = match stored {
        Some(stored) => differences::between(stored, &now),
        None => "its definition".to_owned(),
    };
    let same_tables =
        stored.is_some_and(|stored| stored["body"]["create"] == now["body"]["create"]);
    let views = match &definition.body {
        Body::Sql(_) if !same_tables => format!(
            "views keep their names where columns stay as they are or new ones come last; others are \
             called <table>_v{version}"
        ),
        Body::Handler => format!(
            "views keep their names where columns stay as they are or new ones come last; others are \
             called <table>_v{version}"
        ),
        _ => "views keep their names".to_owned(),
    };
    let paused = match read.status {
        GenerationStatus::Paused => "; it is paused, which the switch ends",
        _ => "",
    };
    let message = format!(
        "version {version} is built beside version {} ({what}), then readers are switched over; \
         {views}{paused}",
        read.version
    );
    (PlannedAction::RebuildBeside, message, rebuild_command(name))
}
