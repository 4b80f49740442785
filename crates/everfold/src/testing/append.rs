//! Appends of a test, also of events that were recorded at another time.

use serde_json::Value;

use super::failure::Cause;
use super::history::Given;
use crate::{
    AppendError, ExpectedVersion, ImportError, ImportOptions, NewEvent, Store, StreamId, Uuid,
};

/// Appends events; the inner error is what an inline projection said that refused them.
pub(super) async fn append(store: &Store, given: &Given) -> Result<Result<(), String>, Cause> {
    let Given { stream, events, recorded_at } = given;
    let failed = |error: String| Cause::NotRun(format!("append to \"{stream}\": {error}"));
    let Some(recorded_at) = recorded_at else {
        let appended = store.append(stream, ExpectedVersion::Any, events.clone()).await;
        return match appended {
            Ok(_) => Ok(Ok(())),
            Err(error @ AppendError::Projection { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        };
    };
    // Only an import can say when.
    let lines: Vec<String> = events.iter().map(|event| line(stream, event, recorded_at)).collect();
    let source = std::io::Cursor::new(lines.join("\n"));
    let name = Uuid::now_v7().to_string();
    match store.import(&name, source, ImportOptions::default(), |_| {}).await {
        Ok(_) => Ok(Ok(())),
        Err(error @ ImportError::Projection { .. }) => Ok(Err(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// An event as an import takes it. Its data is put in as the text it is.
fn line(stream: &StreamId, event: &NewEvent, recorded_at: &jiff::Timestamp) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    format!(
        r#"{{"stream_id":{},"type":{},"schema_version":{},"data":{},"metadata":{},"id":"{}","recorded_at":"{recorded_at}"}}"#,
        quoted(stream.as_str()),
        quoted(&event.event_type),
        event.schema_version,
        on_one_line(&event.data),
        serde_json::to_string(&event.metadata).unwrap_or_else(|_| "{}".to_owned()),
        event.id,
    )
}

/// Line breaks in JSON stand between its tokens only; inside strings they are escaped.
fn on_one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_becomes_one_line() {
        let event = NewEvent::from_json("Said \"a\"", "{\n\"n\": 1.10}").unwrap();
        let event = event.with_correlation_id("r\n7").with_schema_version(3);
        let line = line(&"a\"b".into(), &event, &jiff::Timestamp::UNIX_EPOCH);
        assert!(!line.contains('\n'), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["stream_id"], &value["type"]), (&"a\"b".into(), &"Said \"a\"".into()));
        assert_eq!((&value["schema_version"], &value["data"]["n"]), (&3.into(), &1.1.into()));
        assert_eq!(value["metadata"]["correlation_id"], "r\n7");
        assert_eq!(value["recorded_at"], "1970-01-01T00:00:00Z");
        assert!(line.contains("1.10"), "numbers keep every digit: {line}");
    }
}
