//! What a rebuild or a switch would do, in words.

use everfold::{RebuildKind, RebuildOptions, RebuildPreview};
use indicatif::HumanBytes;

use super::line;
use crate::dry_run;
use crate::failure::Outcome;
use crate::output::count;

/// Tells what would be done.
pub(crate) fn tell(
    preview: &RebuildPreview,
    options: &RebuildOptions,
    json: bool,
) -> anyhow::Result<Outcome> {
    dry_run::tell(would(preview, options), json)
}

fn would(preview: &RebuildPreview, options: &RebuildOptions) -> Vec<String> {
    if let Some(rebuild) = &preview.under_way {
        return vec![format!("join the rebuild that is under way: {}", line(rebuild))];
    }
    let RebuildPreview { name, to, .. } = preview;
    let mut would = vec![first(preview)];
    if preview.kind == RebuildKind::AsOf {
        would.push(format!("show it beside what readers see, until `everfold retire {name}`"));
        return would;
    }
    if !options.promote {
        would.push(format!("leave readers where they are, until `everfold promote {name}`"));
        return would;
    }
    if preview.kind == RebuildKind::InPlace {
        return would;
    }
    let seen = match preview.from {
        Some(from) if from != *to => format!("switch readers over from version {from}"),
        Some(_) => "switch readers over from the build they see".to_owned(),
        None => "show it to readers".to_owned(),
    };
    would.push(match (preview.from, options.keep_old) {
        (None, _) => seen,
        (Some(_), true) => format!("{seen}, and keep that for `everfold rollback {name}`"),
        (Some(_), false) => format!("{seen}, and drop that: no way back"),
    });
    would
}

/// What is built or gone to, and what that takes.
fn first(preview: &RebuildPreview) -> String {
    let RebuildPreview { name, to, .. } = preview;
    let about = if preview.events_exact { "" } else { "about " };
    let events = preview.events.map(|events| format!("{about}{}", count(events, "event")));
    let of_events = match &events {
        Some(events) => format!(" from {events}"),
        None => String::new(),
    };
    let begin = match (preview.snapshot, preview.snapshot_position) {
        (Some(id), Some(position)) => format!(" from snapshot {id} at position {position} on"),
        _ => of_events,
    };
    let disk = match preview.bytes {
        Some(bytes) if bytes > 0 => format!(", with about {} more on disk", HumanBytes(bytes)),
        _ => String::new(),
    };
    match preview.kind {
        RebuildKind::InPlace => {
            format!("empty {name} and fill version {to} again{begin}; readers see it grow")
        }
        RebuildKind::Switch => match preview.events {
            Some(0) | None => format!("go to version {to} of {name}, which is built"),
            Some(_) => {
                let events = events.unwrap_or_default();
                format!("go to version {to} of {name}, which has {events} to catch up with first")
            }
        },
        _ => format!("build version {to} of {name} beside what readers see{begin}{disk}"),
    }
}
