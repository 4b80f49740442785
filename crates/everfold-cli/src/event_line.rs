//! One event on one line: as JSON, in the form that `import` takes, or as text.

use console::{measure_text_width, style, truncate_str};
use everfold::RecordedEvent;

use crate::output::shown;

/// The event as one line of JSON.
pub(crate) fn json(event: &RecordedEvent) -> serde_json::Result<String> {
    serde_json::to_string(event)
}

/// The event for people: position, time, stream@version, type, and of the data what fits.
pub(crate) fn text(event: &RecordedEvent, width: Option<usize>) -> String {
    // A terminal is narrow: it gets what tells events apart, a file or a pipe gets all of it.
    let (time, stream_width, type_width) = match width {
        Some(_) => ("%m-%d %H:%M:%S", 14, 12),
        None => ("%Y-%m-%dT%H:%M:%S%.6fZ", 20, 16),
    };
    let time = event.recorded_at.strftime(time).to_string();
    let place = format!("{}@{}", shown(event.stream_id.as_str()), event.version);
    let event_type = shown(&event.event_type);
    let data = shown(&event.data.replace(['\n', '\r'], " "));
    let line = format!(
        "{:>6}  {}  {}  {}  {data}",
        event.position.0,
        style(time).dim(),
        pad(&place, stream_width),
        style(pad(&event_type, type_width)).cyan(),
    );
    match width {
        Some(width) => truncate_str(&line, width, "…").into_owned(),
        None => line,
    }
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(measure_text_width(text))))
}
