//! `projection.toml`, read key by key so that every mistake has its line.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::nearest::nearest;
use crate::projection::builder::{ProjectionBuilder, SHARDS_MAX, check_settings, repeated};
use crate::projection::definition::{Lifecycle, OnError, ProjectionSettings};
use crate::projection::key::Key;
use crate::projection::sql::SqlBody;

const KEYS: [&str; 15] = [
    "version",
    "lifecycle",
    "events",
    "key",
    "on_error",
    "shards",
    "batch_events",
    "retries",
    "retry_delay",
    "retry_delay_max",
    "lag_warn",
    "lag_fail",
    "snapshot_every",
    "snapshots_kept",
    "verify_every",
];
const CATCH_UP_ONLY: [&str; 7] =
    ["shards", "batch_events", "retries", "retry_delay", "retry_delay_max", "lag_warn", "lag_fail"];
/// What the registry can store.
const NUMBER_MAX: u32 = i32::MAX.unsigned_abs();
/// More copies of a read model than anybody wants.
const SNAPSHOTS_MAX: u32 = 1_000;
const DURATION: &str = "a time such as \"200ms\", \"5s\", \"1m\" or \"2h\"";

/// What a `projection.toml` says.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) version: u32,
    lifecycle: Lifecycle,
    events: Option<Vec<String>>,
    key: Option<Vec<String>>,
    shards: u32,
    settings: ProjectionSettings,
}

/// What is wrong, and on which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettingsError {
    pub(super) line: u32,
    pub(super) message: String,
}

/// A value with its key and its line.
struct Entry<'a> {
    key: &'a str,
    value: &'a DeValue<'a>,
    line: u32,
}

impl Settings {
    pub(super) fn parse(text: &str) -> Result<Settings, SettingsError> {
        let line_of = |offset: usize| 1 + text[..offset].matches('\n').count() as u32;
        let table = DeTable::parse(text).map_err(|error| SettingsError {
            line: error.span().map_or(1, |span| line_of(span.start)),
            message: format!("{}; mend it", error.message().replace('\n', ", ")),
        })?;
        let entries = table.get_ref().iter().map(|(key, value)| Entry {
            key: key.get_ref(),
            value: value.get_ref(),
            line: line_of(key.span().start),
        });
        Settings::of(&entries.collect::<Vec<_>>())
    }

    fn of(entries: &[Entry<'_>]) -> Result<Settings, SettingsError> {
        let unknown = entries.iter().filter(|entry| !KEYS.contains(&entry.key));
        if let Some(entry) = unknown.min_by_key(|entry| entry.line) {
            return Err(unknown_key(entry));
        }
        let required = |key: &str, example: &str| {
            let message = format!("{key} is missing; add {example}");
            let found = entries.iter().find(|entry| entry.key == key);
            found.ok_or(SettingsError { line: 1, message })
        };
        let mut read = Settings {
            version: required("version", "version = 1")?.number(1, NUMBER_MAX)?,
            lifecycle: required("lifecycle", "lifecycle = \"inline\" or \"catch-up\"")?
                .lifecycle()?,
            events: None,
            key: None,
            shards: 1,
            settings: ProjectionSettings::default(),
        };
        for entry in entries {
            if read.lifecycle == Lifecycle::Inline && CATCH_UP_ONLY.contains(&entry.key) {
                return Err(entry.wrong("is for catch-up projections only; leave it out"));
            }
            read.take(entry)?;
        }
        match check_settings(&read.settings) {
            Ok(()) => Ok(read),
            Err((key, message)) => {
                let line = entries.iter().find(|entry| entry.key == key).map_or(1, |e| e.line);
                Err(SettingsError { line, message: format!("{key} {message}") })
            }
        }
    }

    fn take(&mut self, entry: &Entry<'_>) -> Result<(), SettingsError> {
        let settings = &mut self.settings;
        match entry.key {
            "events" => self.events = Some(entry.events()?),
            "key" => self.key = entry.key_fields()?,
            "on_error" => settings.on_error = entry.on_error()?,
            "shards" => self.shards = entry.number(1, SHARDS_MAX)?,
            "batch_events" => settings.batch_events = entry.number(1, NUMBER_MAX)?,
            "retries" => settings.retries = entry.number(0, NUMBER_MAX)?,
            "retry_delay" => settings.retry_delay = entry.duration()?,
            "retry_delay_max" => settings.retry_delay_max = entry.duration()?,
            "lag_warn" => settings.lag_warn = Some(entry.duration()?),
            "lag_fail" => settings.lag_fail = Some(entry.duration()?),
            "snapshot_every" => settings.snapshot_every = Some(entry.duration()?),
            "snapshots_kept" => settings.snapshots_kept = entry.number(1, SNAPSHOTS_MAX)?,
            "verify_every" => settings.verify_every = Some(entry.duration()?),
            _ => {}
        }
        Ok(())
    }

    /// Gives it all to a builder.
    pub(super) fn fill(self, builder: ProjectionBuilder<SqlBody>) -> ProjectionBuilder<SqlBody> {
        let Settings { lifecycle, events, key, shards, settings, .. } = self;
        let mut builder = builder.settings(settings).shards(shards);
        if lifecycle == Lifecycle::Inline {
            builder = builder.inline();
        }
        if let Some(events) = events {
            builder = builder.events(events);
        }
        match key {
            Some(fields) => builder.key_fields(fields),
            None => builder,
        }
    }
}

fn unknown_key(entry: &Entry<'_>) -> SettingsError {
    let message = match nearest(entry.key, KEYS) {
        Some(known) => format!("is not a setting; did you mean {known}?"),
        None => format!("is not a setting; there are {}", KEYS.join(", ")),
    };
    entry.wrong(&message)
}

impl Entry<'_> {
    fn wrong(&self, message: &str) -> SettingsError {
        SettingsError { line: self.line, message: format!("{} {message}", self.key) }
    }

    fn text(&self, wanted: &str) -> Result<&str, SettingsError> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong(&format!("must be {wanted}"))),
        }
    }

    /// A whole number, as the registry stores them.
    fn number(&self, least: u32, most: u32) -> Result<u32, SettingsError> {
        let number = match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            self.wrong(&format!("must be a whole number from {least} to {most}, without quotes"))
        })
    }

    fn lifecycle(&self) -> Result<Lifecycle, SettingsError> {
        let wanted = "\"inline\" or \"catch-up\"";
        let text = self.text(wanted)?;
        Lifecycle::from_stored(text).ok_or_else(|| self.wrong(&format!("must be {wanted}")))
    }

    fn on_error(&self) -> Result<OnError, SettingsError> {
        let wanted = "\"stop\", \"dead-letter\" or \"skip\"";
        let text = self.text(wanted)?;
        OnError::from_stored(text).ok_or_else(|| self.wrong(&format!("must be {wanted}")))
    }

    fn events(&self) -> Result<Vec<String>, SettingsError> {
        let wanted = "must be a list of event types, such as [\"ItemAdded\"]";
        let types = self.texts().ok_or_else(|| self.wrong(wanted))?;
        if types.is_empty() || types.iter().any(String::is_empty) {
            return Err(self.wrong("has no type, or an empty one; leave it out for all types"));
        }
        if let Some(twice) = repeated(&types) {
            return Err(self.wrong(&format!("names \"{twice}\" twice; leave one out")));
        }
        Ok(types)
    }

    /// `None` for the stream.
    fn key_fields(&self) -> Result<Option<Vec<String>>, SettingsError> {
        let wanted = "must be \"stream\", or a list of fields such as [\"data.account_id\"]";
        if let DeValue::String(text) = self.value {
            return if text == "stream" { Ok(None) } else { Err(self.wrong(wanted)) };
        }
        let fields = self.texts().ok_or_else(|| self.wrong(wanted))?;
        match Key::from_stored(Some(&fields)) {
            Ok(Key::Fields(_)) => match repeated(&fields) {
                Some(twice) => Err(self.wrong(&format!("names {twice} twice; leave one out"))),
                None => Ok(Some(fields)),
            },
            Ok(_) => Err(self.wrong(wanted)),
            Err(message) => Err(self.wrong(&format!("is wrong: {message}"))),
        }
    }

    /// The strings of a list, `None` if it is something else.
    fn texts(&self) -> Option<Vec<String>> {
        let DeValue::Array(values) = self.value else { return None };
        let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        };
        values.iter().map(text).collect()
    }

    fn duration(&self) -> Result<Duration, SettingsError> {
        let text = self.text(DURATION)?;
        duration(text).ok_or_else(|| self.wrong(&format!("must be {DURATION}")))
    }
}

/// A number and its unit.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().ok()?;
    let unit = match unit.trim_start() {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(60 * 60),
        _ => return None,
    };
    Some(unit * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read() {
        let read = Settings::parse(
            "# all of them\nversion = 0x2\nlifecycle = 'catch-up'\nevents = [\n 'B', # why\n 'A' ]\n\
             key = ['data.tenant', 'metadata.a.b']\non_error = \"dead-letter\"\nshards = 4\n\
             batch_events = 1_000\nretries = 0\nretry_delay = \"50ms\"\nretry_delay_max = \"5s\"\n\
             lag_warn = \"2m\"\nlag_fail = \"1 h\"\n\
             snapshot_every = \"24h\"\nsnapshots_kept = 3\nverify_every = \"2h\"\n",
        )
        .unwrap();
        assert_eq!((read.version, read.lifecycle, read.shards), (2, Lifecycle::CatchUp, 4));
        assert_eq!(read.events, Some(vec!["B".to_owned(), "A".to_owned()]));
        assert_eq!(read.key, Some(vec!["data.tenant".to_owned(), "metadata.a.b".to_owned()]));
        let expected = ProjectionSettings {
            on_error: OnError::DeadLetter,
            batch_events: 1_000,
            retries: 0,
            retry_delay: Duration::from_millis(50),
            retry_delay_max: Duration::from_secs(5),
            lag_warn: Some(Duration::from_secs(120)),
            lag_fail: Some(Duration::from_secs(3600)),
            snapshot_every: Some(Duration::from_secs(24 * 3600)),
            snapshots_kept: 3,
            verify_every: Some(Duration::from_secs(7200)),
        };
        assert_eq!(read.settings, expected);
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let read =
            Settings::parse("version = 1\nlifecycle = \"inline\"\nkey = \"stream\"").unwrap();
        assert_eq!((read.events, read.key, read.shards), (None, None, 1));
        assert_eq!(read.settings, ProjectionSettings::default());
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let good = "version = 1\nlifecycle = \"catch-up\"\n";
        for (added, line, expected) in [
            ("shard = 2", 3, "shard is not a setting; did you mean shards?"),
            ("\nretry-delay = '1s'", 4, "did you mean retry_delay?"),
            ("colour = 'red'", 3, "there are version, lifecycle, events"),
            ("[events]\nA = 1", 3, "events must be a list of event types"),
            ("[other]\nA = 1", 3, "other is not a setting"),
            ("events = 'A'", 3, "events must be a list of event types"),
            ("events = ['A', 1]", 3, "events must be a list of event types"),
            ("events = []", 3, "events has no type"),
            ("events = ['']", 3, "events has no type"),
            ("key = 'data.a'", 3, "key must be \"stream\", or a list"),
            ("key = 1", 3, "key must be \"stream\", or a list"),
            ("key = ['code']", 3, "key must be \"stream\", or a list"),
            ("key = []", 3, "a key needs at least one field"),
            ("key = ['tenant']", 3, "key field \"tenant\" is not one: use stream_id"),
            ("key = [\"data.a'b\"]", 3, "is not one"),
            ("on_error = 'retry'", 3, "on_error must be \"stop\", \"dead-letter\" or \"skip\""),
            ("on_error = true", 3, "on_error must be \"stop\""),
            ("shards = 0", 3, "shards must be a whole number from 1"),
            ("shards = '2'", 3, "without quotes"),
            ("shards = 2.5", 3, "shards must be a whole number"),
            ("batch_events = 0", 3, "batch_events must be a whole number from 1"),
            ("retries = -1", 3, "retries must be a whole number from 0"),
            ("retry_delay = 5", 3, "retry_delay must be a time such as"),
            ("retry_delay = '5'", 3, "retry_delay must be a time such as"),
            ("lag_warn = '5 days'", 3, "lag_warn must be a time such as"),
            ("lag_fail = '-5s'", 3, "lag_fail must be a time such as"),
            ("shards = 1025", 3, "shards must be a whole number from 1 to 1024"),
            ("batch_events = 1_000_001", 3, "a batch has 1 to 1000000 events"),
            ("retries = 1_000_001", 3, "retries is 1000001: at most 1000000"),
            ("events = ['A', 'B', 'A']", 3, "events names \"A\" twice"),
            ("key = ['data.a', 'type', 'data.a']", 3, "key names data.a twice"),
            ("retry_delay = '0s'", 3, "retry_delay is 0: a pause is at least 1 ms"),
            (
                "shards = 1\nretry_delay = '1m'",
                4,
                "retry_delay (60s) is longer than retry_delay_max",
            ),
            ("retry_delay_max = '100ms'", 1, "longer than retry_delay_max (100ms)"),
            ("retry_delay_max = '25h'", 3, "at most 24 hours"),
            ("lag_fail = '1m'\nlag_warn = '2m'", 4, "lag_warn (120s) is more than lag_fail (60s)"),
            ("lag_fail = '99999999999s'", 3, "lag_fail must be a time such as"),
            ("shards = 1\nshards = 2", 4, "mend it"),
            ("shards =", 3, "mend it"),
        ] {
            let error = Settings::parse(&format!("{good}{added}")).unwrap_err();
            assert!(error.message.contains(expected), "{added}: {error:?}");
            assert_eq!(error.line, line, "{added}: {error:?}");
        }
    }

    #[test]
    fn version_and_lifecycle_are_needed() {
        for (text, line, expected) in [
            ("", 1, "version is missing; add version = 1"),
            ("version = 1", 1, "lifecycle is missing"),
            ("\nversion = 0\nlifecycle = 'inline'", 2, "version must be a whole number from 1"),
            ("version = -3\nlifecycle = 'inline'", 1, "version must be a whole number from 1"),
            ("version = '1'\nlifecycle = 'inline'", 1, "without quotes"),
            ("version = 1.0\nlifecycle = 'inline'", 1, "version must be a whole number"),
            ("version = 3000000000\nlifecycle = 'inline'", 1, "version must be a whole number"),
            ("version = 99999999999999999999\nlifecycle = 'inline'", 1, "version"),
            ("version = 1\nlifecycle = 'sync'", 2, "lifecycle must be \"inline\" or \"catch-up\""),
            ("version = 1\nlifecycle = true", 2, "lifecycle must be \"inline\" or \"catch-up\""),
            (
                "version = 1\nlifecycle = 'inline'\nshards = 1",
                3,
                "shards is for catch-up projections only",
            ),
            ("version = 1\nlifecycle = 'inline'\nlag_warn = '1s'", 3, "lag_warn is for catch-up"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.message.contains(expected), "{text}: {error:?}");
            assert_eq!(error.line, line, "{text}: {error:?}");
        }
    }
}
