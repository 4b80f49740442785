//! The SQL of a projection, as read from its files.

use std::path::PathBuf;

/// Text of a file, and where it came from, so that errors can point into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    /// For messages only.
    pub(crate) file: PathBuf,
    pub(crate) text: String,
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
    /// What the definition's hash is made of: the texts of both dialects.
    pub(crate) fn content(&self) -> serde_json::Value {
        let of = |scripts: &Scripts| {
            let upcasters = scripts.upcasters.iter().map(|upcaster| {
                let SqlUpcaster { event_type, schema_version, expression } = upcaster;
                serde_json::json!([event_type, schema_version, expression.text])
            });
            serde_json::json!({
                "create": scripts.create.text,
                "apply": scripts.apply.text,
                "upcasters": upcasters.collect::<Vec<_>>(),
            })
        };
        serde_json::json!({ "postgres": of(&self.postgres), "sqlite": of(&self.sqlite) })
    }
}
