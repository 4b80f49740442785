//! The SQL of a projection, as read from its files.

mod effect;
pub(crate) mod rules;
mod statement;
#[cfg(test)]
mod tests;
mod token;

use std::path::PathBuf;

use crate::error::ProjectionError;
use crate::store::StoreKind;
pub(crate) use statement::Statement;

/// `projections/<name>/apply.sql`.
const PARTS_IN_PROJECT: usize = 3;

/// Text of a file, and where it came from, so that errors can point into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    /// For messages only.
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

impl Script {
    /// SQL that was given in Rust, under a name for messages.
    pub(crate) fn given(name: &str, text: impl Into<String>) -> Script {
        Script { file: name.into(), text: plain_text(&text.into()) }
    }

    /// The file as everybody who works on the project knows it, from the project's folder: what is
    /// kept in the database must not depend on where the folder was when it was registered.
    pub(crate) fn file_in_project(&self) -> String {
        let parts: Vec<_> = self.file.iter().map(|part| part.to_string_lossy()).collect();
        let from = parts.len().saturating_sub(PARTS_IN_PROJECT);
        parts[from..].join("/")
    }

    /// The statements, without empty ones.
    ///
    /// # Errors
    /// If a quote, a comment or a `BEGIN` does not end.
    pub(crate) fn statements(&self) -> Result<Vec<Statement>, ScriptError> {
        statement::statements(&self.text)
    }
}

/// The text as it counts: without the mark some editors put at its begin, and with one kind of line
/// end, so that the same file has the same hash wherever it was checked out.
pub(crate) fn plain_text(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// What is wrong with a script, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub(crate) struct ScriptError {
    /// From 1.
    pub(crate) line: u32,
    pub(crate) message: String,
}

impl ScriptError {
    /// The same as an error of a projection.
    pub(crate) fn of(self, projection: &str, script: &Script) -> ProjectionError {
        ProjectionError::Sql {
            projection: projection.to_owned(),
            file: script.file.display().to_string(),
            line: self.line,
            message: self.message,
        }
    }
}

/// SQL without comments, and on one line as far as its strings allow. What cannot be read stays.
pub(crate) fn on_one_line(sql: &str) -> String {
    let Ok(tokens) = token::tokens(sql) else { return sql.to_owned() };
    let (mut line, mut end) = (String::with_capacity(sql.len()), 0);
    for token in tokens {
        if end > 0 && token.start > end {
            line.push(' ');
        }
        line.push_str(token.text(sql));
        end = token.end;
    }
    line
}

/// An SQL expression over `data` that brings events of a type from one schema version to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqlUpcaster {
    pub(crate) event_type: String,
    pub(crate) schema_version: u32,
    pub(crate) expression: Script,
}

/// The SQL of a projection in one dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scripts {
    pub(crate) create: Script,
    pub(crate) apply: Script,
    /// Sorted by type and version.
    pub(crate) upcasters: Vec<SqlUpcaster>,
}

/// The SQL of a projection for each kind of store; the same where one file serves both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqlScripts {
    pub(crate) postgres: Scripts,
    pub(crate) sqlite: Scripts,
}

impl SqlScripts {
    /// What [`Scripts::content`] wrote for a kind of store; the SQL for the other kind is not known.
    pub(crate) fn restore(
        content: &serde_json::Value,
        store: StoreKind,
    ) -> Result<SqlScripts, String> {
        let script = |name: &str, text: &serde_json::Value| {
            let text = text.as_str().ok_or_else(|| format!("its {name} is not in the registry"))?;
            Ok::<_, String>(Script::given(name, text))
        };
        let mut upcasters = Vec::new();
        for stored in content["upcasters"].as_array().into_iter().flatten() {
            let event_type = stored[0].as_str().unwrap_or_default().to_owned();
            let schema_version = stored[1].as_u64().and_then(|version| u32::try_from(version).ok());
            let schema_version = schema_version.unwrap_or_default();
            let expression =
                script(&format!("upcaster {event_type}.{schema_version}"), &stored[2])?;
            upcasters.push(SqlUpcaster { event_type, schema_version, expression });
        }
        let create = script("create.sql", &content["create"])?;
        let known = Scripts { create, apply: script("apply.sql", &content["apply"])?, upcasters };
        let none = Scripts {
            create: Script::given("create.sql", ""),
            apply: Script::given("apply.sql", ""),
            upcasters: Vec::new(),
        };
        Ok(match store {
            StoreKind::Postgres => SqlScripts { postgres: known, sqlite: none },
            StoreKind::Sqlite => SqlScripts { postgres: none, sqlite: known },
        })
    }

    /// Those that a kind of store uses.
    pub(crate) fn of(&self, store: StoreKind) -> &Scripts {
        match store {
            StoreKind::Postgres => &self.postgres,
            StoreKind::Sqlite => &self.sqlite,
        }
    }
}

impl Scripts {
    /// What the definition's hash is made of.
    pub(crate) fn content(&self) -> serde_json::Value {
        let upcasters = self.upcasters.iter().map(|upcaster| {
            let SqlUpcaster { event_type, schema_version, expression } = upcaster;
            serde_json::json!([event_type, schema_version, expression.text])
        });
        serde_json::json!({
            "create": self.create.text,
            "apply": self.apply.text,
            "upcasters": upcasters.collect::<Vec<_>>(),
        })
    }
}
