//! What the library warns about, on standard error.
//!
//! A follower that waits out a lost connection says so here. The same warning is not repeated
//! while nothing else happens.

use std::fmt::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::progress::tell;

const SAME_AGAIN_AFTER: Duration = Duration::from_secs(30);

pub(crate) fn show_on_stderr() {
    // Fails only if one is set already, and nobody else sets one.
    let _ = tracing::subscriber::set_global_default(Warnings { last: Mutex::default() });
}

struct Warnings {
    last: Mutex<Option<(String, Instant)>>,
}

impl Warnings {
    /// Whether a warning is worth a line, remembering it if so.
    fn is_news(&self, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let repeated = last
            .as_ref()
            .is_some_and(|(known, at)| known == text && at.elapsed() < SAME_AGAIN_AFTER);
        if !repeated {
            *last = Some((text.to_owned(), Instant::now()));
        }
        !repeated
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // `run` tells in its own words that a projection has failed.
        metadata.is_event()
            && *metadata.level() <= Level::WARN
            && metadata.target() != "everfold::runner::context"
            && metadata.target().starts_with("everfold")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let text = format!("{}{}", text.message, text.fields);
        if self.is_news(&text) {
            tell(&format!("warning: {text}"));
        }
    }

    // Spans are not shown.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.fields, ": {value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
