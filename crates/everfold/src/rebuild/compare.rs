//! What comes of comparing two read models row by row.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::projection::generation::Generation;

/// Two read models, compared at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// Rows that were looked at, those that only one of them has included.
    pub compared: u64,
    /// Rows that differ, or that only one of them has.
    pub differences: u64,
    /// The first of them.
    pub examples: Vec<Difference>,
    /// Tables and columns that could not be compared because only one of them has them, or because
    /// their types differ, in words.
    pub not_compared: Vec<String>,
    /// Events that one of them owes or has put aside. What is owed is in neither of them when rows are
    /// compared; rows of keys with an event that only one has put aside may differ for that alone.
    pub owed: u64,
}

/// A row that is not the same in two read models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Difference {
    /// The table.
    pub table: String,
    /// The columns of its primary key; all that were compared where it has none.
    pub key: Value,
    /// The row as the log has it, or as readers see it where versions are compared; `None`: there
    /// should be none.
    pub expected: Option<Value>,
    /// The row as it was found, or as the new version has it; `None`: there is none.
    pub found: Option<Value>,
}

/// What the version that readers see lacks of what the new one has, so that they cannot be compared yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// Nobody has fed it so far.
    Events,
    /// Appends have left events out, and nobody has settled that.
    Owed,
}

impl Lacks {
    /// Why two versions were not compared, in words, after it was waited for so long.
    pub(crate) fn told(self, target: &Generation, source: &Generation, waited: Duration) -> String {
        let (name, new, old) = (&source.name, target.version, source.version);
        let why = match self {
            Lacks::Events => format!(
                "which is behind it and was not fed for {waited:?}; start a runner that carries it, or do \
                 not compare"
            ),
            Lacks::Owed => format!(
                "which owes events that nobody settled for {waited:?}; settle them with `everfold skips \
                 drain {name}`, or do not compare"
            ),
        };
        format!("version {new} of \"{name}\" could not be compared with version {old}, {why}")
    }
}

impl Comparison {
    /// Takes over what another comparison found, of other tables.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone needs it"))]
    pub(crate) fn add(&mut self, other: Comparison) {
        self.compared += other.compared;
        self.differences += other.differences;
        self.examples.extend(other.examples);
        self.not_compared.extend(other.not_compared);
        self.owed += other.owed;
    }
}
