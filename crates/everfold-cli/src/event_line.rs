//! One event on one line: as JSON, in the form that `import` takes, or as text.

use console::{measure_text_width, style, truncate_str};
use everfold::{RecordedEvent, Uuid};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::output::shown;

/// All columns. Data and metadata stay the text they are, so that numbers keep every digit.
#[derive(Serialize)]
struct Columns<'a> {
    position: u64,
    stream_id: &'a str,
    version: u64,
    #[serde(rename = "type")]
    event_type: &'a str,
    schema_version: u32,
    data: &'a RawValue,
    metadata: &'a RawValue,
    id: Uuid,
    recorded_at: jiff::Timestamp,
}

/// The event as one line of JSON.
pub(crate) fn json(event: &RecordedEvent) -> anyhow::Result<String> {
    let data = on_one_line(&event.data);
    let metadata = on_one_line(&event.metadata);
    Ok(serde_json::to_string(&Columns {
        position: event.position.0,
        stream_id: event.stream_id.as_str(),
        version: event.version.0,
        event_type: &event.event_type,
        schema_version: event.schema_version,
        data: serde_json::from_str(&data)?,
        metadata: serde_json::from_str(&metadata)?,
        id: event.id,
        recorded_at: event.recorded_at,
    })?)
}

/// Line breaks in JSON stand between its tokens only; inside strings they are escaped.
fn on_one_line(json: &str) -> std::borrow::Cow<'_, str> {
    if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ").into() } else { json.into() }
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
    let data = shown(&on_one_line(&event.data));
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
