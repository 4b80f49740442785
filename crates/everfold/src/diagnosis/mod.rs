//! What `everfold doctor` shows: checks of the database, each with what to do, and who holds the
//! high-water mark.

mod shared;

use serde::Serialize;

use crate::Position;
use crate::error::StoreError;

pub(crate) use shared::*;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but will hurt some day.
    Warning,
    /// Does not work, or is not safe.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, for example `sequence`.
    pub check: &'static str,
    /// How serious it is.
    pub severity: Severity,
    /// What was found: who or what, and since when.
    pub message: String,
    /// What to do about it: the next command or statement.
    pub hint: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Finding { check, severity: Severity::Ok, message: message.into(), hint: None }
    }

    pub(crate) fn warning(
        check: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (severity, message, hint) = (Severity::Warning, message.into(), Some(hint.into()));
        Finding { check, severity, message, hint }
    }

    pub(crate) fn problem(
        check: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Finding { severity: Severity::Problem, ..Self::warning(check, message, hint) }
    }

    /// A problem, or a warning.
    pub(crate) fn of(
        severity: Severity,
        check: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Finding { severity, ..Self::warning(check, message, hint) }
    }

    /// What this user may not look at: nothing is known about it, neither good nor bad.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "a file is seen whole"))]
    pub(crate) fn unseen(check: &'static str, error: &StoreError) -> Self {
        let message = format!("not looked at: {error}");
        Self::warning(check, message, "look again as a member of everfold_admin and pg_monitor")
    }
}

/// An append in flight that the high-water mark waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MarkHolder {
    /// The mark cannot pass this position before it ends.
    pub holds_at: Position,
    /// The server process, or `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The name of the prepared transaction, if it is one.
    pub prepared: Option<String>,
    /// The client's application name.
    pub application: Option<String>,
    /// The database user.
    pub user: Option<String>,
    /// The client's address.
    pub client: Option<String>,
    /// What the session is doing, for example `idle in transaction`.
    pub state: Option<String>,
    /// Since when its transaction has been open.
    pub since: Option<jiff::Timestamp>,
    /// For how long that is, in seconds by the database's clock.
    pub seconds: Option<f64>,
    /// Its last query.
    pub query: Option<String>,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Server or library version.
    pub version: String,
    /// The high-water mark, if it could be read.
    pub high_water_mark: Option<Position>,
    /// The highest position handed out.
    pub last_position: Position,
    /// The checks, in a fixed order.
    pub findings: Vec<Finding>,
    /// Who holds the mark, the lowest first; empty when nothing is in flight.
    pub holders: Vec<MarkHolder>,
}

impl Diagnosis {
    /// The most serious of all findings.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }

    /// How many findings are of this severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}
