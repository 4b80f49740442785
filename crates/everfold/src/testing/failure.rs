//! Why a test failed, for people and for programs.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::variant::Variation;

/// A row of a table that is not as expected.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RowDifference {
    /// The table, without `read_model`.
    pub table: String,
    /// The columns that were compared.
    pub columns: Vec<String>,
    /// Their values as expected; `None`: there should be no such row.
    pub expected: Option<Vec<Value>>,
    /// Their values as found; `None`: there is no such row.
    pub found: Option<Vec<Value>>,
}

/// What a [`ProjectionTest`](super::ProjectionTest) found. Shown, it has several lines for people to
/// read.
#[derive(Clone)]
pub struct TestFailure {
    projection: String,
    variant: Option<String>,
    variation: Option<Variation>,
    cause: Cause,
}

/// What went wrong in one run.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    /// The test could not be run, whatever the projection does with events.
    NotRun(String),
    /// It was asked to stop.
    Stopped,
    /// The projection did something else than expected.
    Differs { said: String, rows: Vec<RowDifference> },
}

impl Cause {
    pub(super) fn differs(said: impl Into<String>) -> Cause {
        Cause::Differs { said: said.into(), rows: Vec::new() }
    }
}

impl From<String> for Cause {
    fn from(said: String) -> Cause {
        Cause::NotRun(said)
    }
}

impl TestFailure {
    /// Before a variant was begun.
    pub(super) fn before(projection: &str, cause: Cause) -> TestFailure {
        let projection = projection.to_owned();
        TestFailure { projection, variant: None, variation: None, cause }
    }

    /// In this variant, which differs by `variation` from the events as given.
    pub(super) fn within(
        projection: &str,
        variant: &str,
        variation: Option<Variation>,
        cause: Cause,
    ) -> TestFailure {
        let (projection, variant) = (projection.to_owned(), Some(variant.to_owned()));
        TestFailure { projection, variant, variation, cause }
    }

    /// Whether the projection did something else than expected. Otherwise the test could not be run:
    /// the projection cannot be made on this store, a server does not answer.
    #[must_use]
    pub fn is_difference(&self) -> bool {
        matches!(self.cause, Cause::Differs { .. })
    }

    /// Whether it was [asked to stop](super::ProjectionTest::stop_when).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.cause, Cause::Stopped)
    }

    /// The variant in which it happened, `as given` for the first; `None` before that.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// What was varied; `None` with the events as given.
    #[must_use]
    pub fn variation(&self) -> Option<Variation> {
        self.variation
    }

    /// What happened, without the projection and the variant.
    #[must_use]
    pub fn message(&self) -> &str {
        match &self.cause {
            Cause::NotRun(said) | Cause::Differs { said, .. } => said,
            Cause::Stopped => "it was stopped",
        }
    }

    /// Every row that is not as [`then_table`](super::ProjectionTest::then_table) expects it.
    #[must_use]
    pub fn rows(&self) -> &[RowDifference] {
        match &self.cause {
            Cause::Differs { rows, .. } => rows,
            Cause::NotRun(_) | Cause::Stopped => &[],
        }
    }
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "projection \"{}\": ", self.projection)?;
        if let Some(variant) = &self.variant {
            write!(f, "{variant}: ")?;
        }
        f.write_str(self.message())?;
        match self.variation {
            Some(variation) if self.is_difference() => {
                let rule = variation.rule();
                write!(f, "\nIt is as expected with the events as given; {rule}")
            }
            _ => Ok(()),
        }
    }
}

/// The same, so that `unwrap` and a test that returns it show the lines as they are.
impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TestFailure {}
